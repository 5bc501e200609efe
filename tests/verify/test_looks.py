"""Looks as values: each can be made, forced and tested by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import covector
from covector._tree import Arguments
from covector.errors import Caller
from covector.verify import constants
from covector.verify.examine import Compared, Examiner
from covector.verify.locate import columns_apart
from covector.verify.looks import Look, ladder, signs, singles
from covector.verify.numeric import Numeric
from covector.verify.options import Options, Tolerance
from covector.verify.problem import Problem
from covector.verify.reverse import ReverseMap
from watched import Counted

TOL = Tolerance(atol=1e-5, rtol=1e-3, eps=1e-6)


def examiner(function, *inputs) -> Examiner:
    arguments = Arguments(inputs, {})
    arguments.select(arguments.slots, single=False)
    problem = Problem(Caller("check", function), arguments)
    numeric = Numeric(problem, TOL.eps)
    numeric.spare = 10**6
    return Examiner(numeric, ReverseMap(problem), TOL)


def drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def wrong_at(row: int, column: int, error: float):
    """A linear map, then a sine, whose derivative has one entry too much."""
    matrix = torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def function(x):
        y = (matrix @ x).sin()
        off = torch.zeros(12, dtype=torch.float64)
        off[row] = error
        return y + off * (x[column] - x[column].detach())

    return function


def elementwise_wrong_at(row: int, column: int, error: float):
    def function(x):
        off = torch.zeros(12, dtype=torch.float64)
        off[row] = error
        return x.sin() + off * (x[column] - x[column].detach())

    return function


LOOKS = {"singles": lambda size: singles(size), "signs": lambda size: signs(size, 2, 0)}


def suspects_of(comparison: Examiner, look: Look) -> Compared | None:
    """What disagrees, at the length of steps that the look itself would choose."""
    examined = comparison.examine(look)
    assert examined is not None
    return examined.suspects


@pytest.mark.parametrize("name", LOOKS)
def test_a_right_derivative_leaves_no_suspects(name):
    comparison = examiner(torch.sin, drawn(12))
    assert suspects_of(comparison, LOOKS[name](12)) is None


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize(("row", "column"), [(3, 3), (3, 7), (0, 11)])
@pytest.mark.parametrize("make", [wrong_at, elementwise_wrong_at])
def test_one_wrong_entry_shows_in_every_look(name, row, column, make):
    """At twice what is allowed; also off the diagonal, where an elementwise function has no entry."""
    comparison = examiner(make(row, column, 2e-3), drawn(12))
    found = suspects_of(comparison, LOOKS[name](12)).look.columns
    assert found is None or column in found


def test_singles_suspect_the_wrong_column_alone():
    comparison = examiner(wrong_at(3, 7, 2e-3), drawn(12))
    assert suspects_of(comparison, singles(12)).look.columns.tolist() == [7]


def test_the_worst_group_comes_first():
    first, second = wrong_at(3, 7, 2e-3), wrong_at(1, 5, 0.5)
    comparison = examiner(lambda x: first(x) + second(x), drawn(12))
    assert suspects_of(comparison, singles(12)).look.columns.tolist() == [5, 7]


def test_every_direction_shows_a_wrong_entry_at_its_full_size():
    """The step of its column is the smallest, and the weight of its row one, in the worst case."""
    comparison = examiner(wrong_at(3, 7, 2e-3), drawn(12))
    found = suspects_of(comparison, signs(12, 4, 0))
    assert len(found) == 4
    assert (abs(found.off[:, 0]) > 0.99 * 2e-3 * found.least).all()


def test_what_two_directions_have_in_common_is_chance():
    weights = signs(500, 4, 0).weights
    assert abs(weights).min() >= 1
    assert abs(weights).max() <= 2
    assert abs(np.corrcoef(weights) - np.eye(4)).max() < 0.2


def test_longer_steps_clear_what_is_truncation():
    """The third derivative of these is large; the derivative is right."""
    comparison = examiner(lambda x: (200 * x).sin(), drawn(12))
    suspects = suspects_of(comparison, signs(12, 4, 0))
    assert len(suspects) > 1
    assert comparison.extrapolated(suspects) is None


def rounded(function, digits: int):
    """A function that moves in steps, with the derivative of the smooth one."""
    return lambda x: function(x) + (function(x).detach().round(decimals=digits) - function(x).detach())


def matrix(size: int) -> torch.Tensor:
    return torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


NOISES = {
    "steps": (rounded(torch.sin, 10), drawn(40)),
    "steps of sums": (rounded(lambda x: matrix(40) @ x.sin(), 10), drawn(40)),
    "single precision": (lambda x: x.sin() + (x.detach().sin().float() - x.detach().sin()), drawn(40)),
}
NO_NOISES = {
    "a mistake": (elementwise_wrong_at(3, 7, 0.5), drawn(12)),
    "kinks": (lambda x: x.abs(), (1e-6 * drawn(40)).detach().requires_grad_()),
    "kinks of sums": (lambda x: (matrix(40) @ x).relu(), (1e-5 * drawn(40)).detach().requires_grad_()),
    "a jump": (lambda x: x.sin() + (x.detach() > x.detach()[3] - 1e-9).all(), drawn(40)),
    "waves": (lambda x: (1e5 * x).sin(), drawn(40)),
}


@pytest.mark.parametrize("name", [*NOISES, *NO_NOISES])
def test_noise_is_told_from_mistakes_kinks_and_jumps(name):
    """Shorter steps show as much of it, and not the same."""
    function, x = (NOISES | NO_NOISES)[name]
    comparison = examiner(function, x)
    suspects = suspects_of(comparison, signs(x.numel(), 4, 0))
    if suspects is not None:
        comparison.extrapolated(suspects)
    assert (comparison.measured is not None) == (name in NOISES)


@pytest.mark.parametrize("name", ["steps", "steps of sums"])
def test_longer_steps_clear_what_is_noise(name):
    comparison = examiner(*NOISES[name])
    suspects = suspects_of(comparison, signs(40, 4, 0))
    assert suspects is not None
    assert comparison.extrapolated(suspects) is None


@pytest.mark.parametrize(
    ("size", "probes", "fast", "names"),
    [
        (8, 0, False, ["singles"]),
        (8, 4, False, ["signs", "singles"]),
        (4, 4, False, ["singles"]),
        (8, 1, True, ["signs", "singles"]),
        (1, 1, True, ["singles"]),
        (20_000, 4, False, ["signs", "singles"]),
        (20_000, 1, True, ["signs"]),
    ],
)
def test_the_ladder_goes_from_directions_to_every_column(size, probes, fast, names):
    comparison = examiner(torch.sin, drawn(size))
    steps = ladder(comparison.numeric, Options(TOL, probes=probes, fast=fast))
    assert [next(looks).name for looks in steps] == names


@pytest.mark.parametrize("size", [12, 3_000_000])
def test_directions_are_as_many_as_were_asked_for_however_large_they_are(size):
    """Few of many numbers at once, since they are kept while the function runs; and all of them different."""
    x = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    comparison = examiner(torch.sin, x)
    looks = list(next(ladder(comparison.numeric, Options(TOL, probes=4))))
    first = np.concatenate([next(iter(look.pieces(comparison.numeric, 1.0)))[1][:, :12] for look in looks])
    assert len(np.unique(first, axis=0)) == len(first) == 4


def test_a_large_direction_moves_every_input_however_it_lies_in_memory():
    """It is made in pieces, which end anywhere in the inputs; and each run makes the same steps."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(300_000,), (400, 1000), (), (400_000,)]
    first, matrix, number, last = (
        torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    inputs = [x.requires_grad_() for x in (first, matrix.T, number, last)]
    function = lambda a, b, c, d: (a * a).sum() * c + b.sin().sum() - (d[1:] * d[:-1]).sum() * c
    (whole,) = next(ladder(examiner(function, *inputs).numeric, Options(TOL, probes=1)))
    assert whole.large
    comparison = examiner(function, *inputs)
    expected, least = whole.compare(comparison.numeric, comparison.analytic, 1.0)
    steps = whole.steps(comparison.numeric, 1.0)
    assert np.allclose(comparison.analytic.mixed_along(steps).T, expected, rtol=1e-9)
    assert least == abs(steps).min()
    difference = comparison.numeric.difference(lambda: whole.pieces(comparison.numeric, 1.0))
    assert np.array_equal(difference, comparison.numeric.differences(steps))
    point = comparison.numeric.problem.point
    parts = np.split(point + steps[0], np.cumsum([x.numel() for x in inputs])[:-1])
    moved = [torch.from_numpy(part).reshape(x.shape) for part, x in zip(parts, inputs, strict=True)]
    assert np.isclose(comparison.numeric.single(point + steps[0])[0], function(*moved).item(), rtol=1e-12)
    assert covector.check(function, tuple(inputs))


@pytest.mark.parametrize("fast", [False, True])
def test_of_large_outputs_directions_have_longer_steps_and_are_extrapolated(fast):
    """Nothing but noise asks for a longer step, and its truncation error is removed by longer ones."""
    x = torch.linspace(-9, 9, 400, dtype=torch.float64, requires_grad=True)
    report = covector.check(torch.sinh, x, fast_mode=fast)
    assert report
    assert report.evaluations == (7 if fast else 25)


def test_many_wrong_entries_do_not_cost_every_column():
    """One wrong entry decides; it is found by halving, and some columns are moved for the report."""

    def scaled(x):
        return x.sin() + 0.1 * (x.cos().detach() * (x - x.detach()))

    report = covector.check(scaled, drawn(1000))
    assert not report
    assert report.evaluations < 2 * constants.WHOLE_COLUMNS


def test_columns_that_disagree_by_themselves_are_found_by_halving() -> None:
    function = lambda x: (x * x).sum() + 5 * (x[[3, 40]] - x[[3, 40]].detach()).sum()
    comparison = examiner(function, drawn(64))
    numeric, analytic = comparison.numeric, comparison.analytic
    columns, steps = np.arange(64), np.full(64, 1e-6)
    off = np.full(1, -2 * 5e-6)
    found = list(columns_apart(numeric, analytic, columns, steps, 1e-8, off))
    assert sorted(found) == [3, 40]
    assert numeric.runs < 50


def test_columns_that_were_found_right_are_left_out_of_the_next_direction() -> None:
    """A pole next to the point disturbs every direction: it is found and judged along the first of them."""
    counted = Counted(torch.tan)
    x = torch.linspace(-1, 1, 2 * constants.WHOLE_COLUMNS, dtype=torch.float64)
    x[0] = torch.pi / 2 - 1e-5
    assert covector.gradcheck(counted, x.requires_grad_())
    assert counted.runs < 70


def test_a_kink_that_no_half_reaches_leads_to_no_column() -> None:
    """Each of 64 numbers moves by 1e-6, and all of them together by more than the distance of the kink."""
    x = torch.zeros(64, dtype=torch.float64, requires_grad=True)
    comparison = examiner(lambda x: torch.relu(x.sum() - 4e-5), x)
    numeric, analytic = comparison.numeric, comparison.analytic
    columns, steps, off = np.arange(64), np.full(64, 1e-6), np.full(1, 1.2e-5)
    assert list(columns_apart(numeric, analytic, columns, steps, 1e-8, off)) == []
    assert numeric.runs == 4


def test_large_directions_of_any_seed():
    """A seed may be negative."""
    assert covector.check(torch.sum, torch.rand(1_100_000, dtype=torch.float64, requires_grad=True), seed=-5)
