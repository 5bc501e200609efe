"""What a check could overlook, and whom it could accuse: both modes, every kind."""

from __future__ import annotations

import warnings

import pytest

import covector
from covector.errors import PrecisionWarning
from covector.verify.finding import Outcome
from holes import RIGHT, WRONG
from holes.table import Hole

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.usefixtures("unexplained"),
]

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


def outcome(hole: Hole, fast: bool) -> tuple[Outcome, Exception | None]:
    """What the door for the order of the derivative says."""
    door = covector.gradcheck if hole.order == 1 else covector.gradgradcheck
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        try:
            assert door(hole.function(), hole.inputs(), fast_mode=fast, **hole.keywords)
        except covector.GradcheckError as error:
            return error.report.outcome, error
    return Outcome.PASSED, None


@both_modes
@pytest.mark.parametrize("hole", WRONG, ids=lambda hole: hole.label)
def test_a_wrong_function_fails(hole: Hole, fast: bool) -> None:
    got, error = outcome(hole, fast)
    if hole.kind == "large beside small":
        assert got in (Outcome.FAILED, Outcome.INCONCLUSIVE), error
    else:
        assert got is Outcome.FAILED, error


@both_modes
@pytest.mark.parametrize("hole", RIGHT, ids=lambda hole: hole.label)
def test_a_right_function_passes(hole: Hole, fast: bool) -> None:
    got, error = outcome(hole, fast)
    allowed = (Outcome.PASSED, Outcome.INCONCLUSIVE) if hole.undecided else (Outcome.PASSED,)
    assert got in allowed, error


def test_the_tables_are_large_and_few_right_functions_are_undecided() -> None:
    labels = [(hole.label, hole.right) for hole in (*WRONG, *RIGHT)]
    assert len(set(labels)) == len(labels)
    assert len(WRONG) >= 60
    assert len(RIGHT) >= 60
    assert sum(bool(hole.undecided) for hole in RIGHT) <= len(RIGHT) / 20
