"""The table of kernels: every planted bug is caught by its lens, and no right twin is accused."""

import pytest
import torch

import covector
from covector.kernels.lenses.table import LENSES
from covector.verify.finding import Outcome
from covering import covered
from kernel_fresh import FRESH_BUGS, FRESH_TWINS
from kernel_table import BUGS, TWINS, passes_assert_close
from kernel_wild_table import WILD_BUGS, WILD_TWINS


def failed(report):
    return {finding.check for finding in report.findings if finding.outcome is Outcome.FAILED}


EVERY_BUG = BUGS + FRESH_BUGS + WILD_BUGS

# The first of each family, and the first of each lens; the sweep has all of them.
FIRST = [
    *{entry.family: entry for entry in reversed(EVERY_BUG)}.values(),
    *{entry.lens: entry for entry in reversed(EVERY_BUG)}.values(),
]


@pytest.mark.parametrize("entry", covered(((e,) for e in EVERY_BUG), lambda e: e in FIRST), ids=str)
def test_bug_is_caught(entry):
    """By the comparison of outputs and gradients, or by the lens that is named for it."""
    lenses = None if entry.lens == "as given" else [entry.lens]
    report = covector.check_kernel(entry.kernel, entry.reference, entry.inputs, lenses=lenses)
    assert entry.lens in failed(report), report


# Some, in each dtype; the sweep has all of them, with every lens.
FEW = (TWINS + FRESH_TWINS + WILD_TWINS)[::13]


@pytest.mark.parametrize("entry", FEW, ids=str)
def test_twin_is_not_accused(entry):
    """Modes, which compile, are left to the sweep and to the tests of modes."""
    report = covector.check_kernel(entry.kernel, entry.reference, entry.inputs, lenses=["-modes"])
    assert report.outcome is Outcome.PASSED, report


def test_the_table_is_large_enough():
    """Bugs of every lens; twins in three dtypes, fused and unfused."""
    assert len(BUGS) >= 40
    assert len(TWINS) >= 40
    assert {entry.lens for entry in BUGS} == {"as given", *(lens.name for lens in LENSES)}
    assert {entry.dtype for entry in TWINS} == {torch.float32, torch.bfloat16, torch.float16}
    assert 0.25 < sum(entry.held for entry in BUGS) / len(BUGS) < 0.5


def test_half_of_the_bugs_pass_assert_close():
    """At its default tolerances, on the same inputs."""
    passing = [entry for entry in BUGS if passes_assert_close(entry)]
    assert 2 * len(passing) >= len(BUGS), len(passing)


PARTS = {
    "tuned on": ([e for e in BUGS if not e.held], [e for e in TWINS if not e.held]),
    "kept aside": ([e for e in BUGS if e.held], [e for e in TWINS if e.held]),
    "fresh": (FRESH_BUGS, FRESH_TWINS),
    "wild": (WILD_BUGS, WILD_TWINS),
}


@pytest.mark.sweep
@pytest.mark.parametrize("part", PARTS)
def test_the_whole_table_at_default_settings(part, capsys):
    """Every lens, every dtype; what was kept aside by itself."""
    bugs, twins = PARTS[part]
    missed = [str(e) for e in bugs if not failed(covector.check_kernel(e.kernel, e.reference, e.inputs))]
    accused = [str(e) for e in twins if not covector.check_kernel(e.kernel, e.reference, e.inputs)]
    with capsys.disabled():
        print(f"\n{len(bugs)} bugs, missed {missed}; {len(twins)} twins, accused {accused}")
    assert not missed
    assert not accused
