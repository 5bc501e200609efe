"""Every mutant is rejected by the check that is named for it, and no correct twin is accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import covector
from covector.errors import GradcheckError
from covector.report.report import Report
from covector.verify.finding import Finding, Outcome
from covering import THOROUGH, covered
from mutants import MUTANTS, Mutant

# Of the drawn inputs and of random directions; exhaustive mode has none of the latter.
SEEDS = range(3 if THOROUGH else 1)

# What a report says about each of them has its own test in tests/diagnose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:UserWarning:torch"),
    pytest.mark.usefixtures("unexplained"),
]

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
both_modes = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
second_order = pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.order == 2], ids=lambda m: m.name)


def verdict(mutant: Mutant, function: Callable[..., Any], seed: int, **keywords: Any) -> bool:
    """What the door for the mutant's order says."""
    door = covector.gradcheck if mutant.order == 1 else covector.gradgradcheck
    return door(function, mutant.draw(seed), **mutant.keywords, seed=seed, **keywords)


def rejection(mutant: Mutant, fast: bool, seed: int = 0) -> Report:
    """The report with which the mutant is rejected."""
    with pytest.raises(GradcheckError) as caught:
        verdict(mutant, mutant.wrong, seed, fast_mode=fast)
    return caught.value.report


def accusation(mutant: Mutant, report: Report) -> Finding:
    """The finding of the check that the mutant is named for, which has to have failed."""
    failed = {f.check: f for f in report.findings if f.outcome is Outcome.FAILED}
    assert mutant.caught_by in failed, str(report)
    return failed[mutant.caught_by]


def modes(mutant: Mutant) -> list[bool]:
    """The modes that are to catch it."""
    return [False, True] if mutant.fast else [False]


@each_mutant
def test_a_wrong_derivative_is_rejected_by_its_check_which_names_the_entry(mutant):
    for fast in modes(mutant):
        for seed in SEEDS if fast else SEEDS[:1]:
            report = rejection(mutant, fast, seed)
            assert report.outcome is Outcome.FAILED
            found = accusation(mutant, report)
            if mutant.entry:
                worst = found.mismatches[0].entry
                assert mutant.entry in worst.input, str(worst)


def another_door(mutants: list[Mutant]) -> pytest.MarkDecorator:
    """For each check and each mode the first mutant, by the sweep all of them: doors differ little."""
    rows = [(mutant, fast) for mutant in mutants for fast in modes(mutant)]
    first = {(mutant.caught_by, fast): mutant for mutant, fast in reversed(rows)}
    return pytest.mark.parametrize(
        ("mutant", "fast"),
        covered(rows, lambda mutant, fast: first[mutant.caught_by, fast] is mutant),
        ids=lambda value: getattr(value, "name", "fast" if value else "exhaustive"),
    )


@another_door(MUTANTS)
def test_a_wrong_derivative_is_false_without_an_exception(mutant, fast):
    assert verdict(mutant, mutant.wrong, 0, fast_mode=fast, raise_exception=False) is False


@another_door([mutant for mutant in MUTANTS if mutant.order == 1])
def test_the_report_of_check_is_that_of_the_exception(mutant, fast):
    report = covector.check(mutant.wrong, mutant.draw(), **mutant.keywords, fast_mode=fast)
    assert not report
    assert report.outcome is Outcome.FAILED
    accusation(mutant, report)


@both_modes
@each_mutant
def test_a_correct_twin_is_accepted(mutant, fast):
    for seed in SEEDS if fast else SEEDS[:1]:
        assert verdict(mutant, mutant.correct, seed, fast_mode=fast)


@second_order
def test_only_the_second_derivative_is_wrong(mutant):
    assert covector.gradcheck(mutant.wrong, mutant.draw())


def test_names_are_unique():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 45


def test_a_wrong_batch_rule_alone_is_no_wrong_derivative():
    for mutant in MUTANTS:
        if mutant.caught_by == "batched gradients":
            for fast in (False, True):
                assert covector.gradcheck(mutant.wrong, mutant.draw(), fast_mode=fast)
