"""Every case of the table of sparse functions: our verdict is the original's wherever that gets to one."""

from __future__ import annotations

import warnings

import pytest

import covector
from sparse_cases import KINDS, OPERATIONS, every_case
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


def test_the_table_in_the_docs_is_what_the_sweep_gives():
    """`python tests/sparse_table.py` writes it."""
    assert len(KINDS) > 10
    assert written() == table()
