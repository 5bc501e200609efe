"""Every case of the table of sparse functions: our verdict is the original's wherever that gets to one."""

from __future__ import annotations

import warnings
from itertools import product

import pytest

import covector
from sparse_cases import DTYPES, KINDS, MASKED, OPERATIONS, every_case, numbers
from sparse_faults import FACTOR, FAULTS, multiplied
from sparse_table import original, table, verdict, written

pytestmark = pytest.mark.sweep

# Where the two differ, and who is right: nowhere.
EXPLAINED: dict[str, str] = {}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_agrees_with_the_original(operation):
    """Exhaustive and fast; what the original cannot run it has no opinion on."""
    opinions = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in every_case():
            if case.operation is not operation:
                continue
            theirs = verdict(original, case.function, case.inputs(), case.masked)
            ours = verdict(covector.gradcheck, case.function, case.inputs(), case.masked)
            if theirs is not None:
                opinions += 1
                assert (ours is True) == theirs or str(case) in EXPLAINED, str(case)
            if ours:
                assert covector.gradcheck(case.function, case.inputs(), masked=case.masked, fast_mode=True)
    assert opinions or operation.name in {"x.select(0, 1)", "torch.cat([x, x])"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["in", "out", "both"])
def test_agrees_with_the_original_on_what_is_wrong(kind, side):
    """Every fault, real and complex, masked or not."""
    for dtype, masked, (name, fault) in product(DTYPES, MASKED, FAULTS.items()):
        template = KINDS[kind](dtype, 0)
        function = multiplied(side, template, fault, FACTOR[dtype])
        x = numbers(*template.shape, dtype=dtype) if side == "out" else template.clone()
        theirs = verdict(original, function, x.requires_grad_(), masked)
        assert theirs in (verdict(covector.gradcheck, function, x, masked), None), (name, dtype, masked)


def test_the_table_in_the_docs_is_what_the_sweep_gives():
    """`python tests/sparse_table.py` writes it."""
    assert len(KINDS) > 10
    assert written() == table()
