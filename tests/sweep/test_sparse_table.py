"""Every case of the table of sparse functions: our verdict is the original's wherever that gets to one.

Both doors are compared, each with torch's of the same name: `gradcheck`, and `as_sparse_gradcheck` of it,
which looks at the values inside the tensors.
"""

from __future__ import annotations

import warnings
from itertools import product

import pytest

import covector
from sparse_cases import DTYPES, KINDS, MASKED, OPERATIONS, every_case, numbers
from sparse_faults import FACTOR, FAULTS, multiplied
from sparse_table import decorated, original, table, verdict, written

pytestmark = pytest.mark.sweep

DOORS = {
    "gradcheck": (original, covector.gradcheck),
    "as_sparse_gradcheck": (decorated, covector.as_sparse_gradcheck(covector.gradcheck)),
}
each_door = pytest.mark.parametrize("door", DOORS)


@each_door
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_agrees_with_the_original(operation, door):
    """Exhaustive and fast; what the original cannot run it has no opinion on."""
    opinions = 0
    theirs, ours = DOORS[door]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in every_case():
            if case.operation is not operation:
                continue
            expected = verdict(theirs, case.function, case.inputs(), case.masked)
            got = verdict(ours, case.function, case.inputs(), case.masked)
            if expected is not None:
                opinions += 1
                assert (got is True) == expected, str(case)
            if got:
                assert ours(case.function, case.inputs(), masked=case.masked, fast_mode=True)
    assert opinions or operation.name in {"x.select(0, 1)", "torch.cat([x, x])"}


@each_door
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["in", "out", "both"])
def test_agrees_with_the_original_on_what_is_wrong(kind, side, door):
    """Every fault, real and complex, masked or not."""
    theirs, ours = DOORS[door]
    for dtype, masked, (name, fault) in product(DTYPES, MASKED, FAULTS.items()):
        template = KINDS[kind](dtype, 0)
        function = multiplied(side, template, fault, FACTOR[dtype], masked)
        x = numbers(*template.shape, dtype=dtype) if side == "out" else template.clone()
        expected = verdict(theirs, function, x.requires_grad_(), masked)
        assert expected in (verdict(ours, function, x, masked), None), (name, dtype, masked)


def test_the_table_in_the_docs_is_what_the_sweep_gives():
    """`python tests/sparse_table.py` writes it."""
    assert len(KINDS) > 10
    assert written() == table()
