"""Looks as values: each can be made, forced and tested by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import covector
from covector._tree import Arguments
from covector.errors import Caller
from covector.verify.analytic import ReverseMap
from covector.verify.examine import Examiner
from covector.verify.locate import columns_apart
from covector.verify.looks import Look, axes, elementwise, ladder, may_align, signs, singles
from covector.verify.numeric import Numeric
from covector.verify.problem import Problem
from covector.verify.tolerance import Tolerance

TOL = Tolerance(atol=1e-5, rtol=1e-3, eps=1e-6)


def examiner(function, *inputs) -> Examiner:
    arguments = Arguments(inputs, {})
    arguments.select(arguments.slots, single=False)
    problem = Problem(Caller("check", function), arguments)
    numeric = Numeric(problem, TOL.eps)
    numeric.limit = 10**6
    return Examiner(numeric, ReverseMap(problem), TOL)


def drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


class Doubled(torch.autograd.Function):
    """A custom Function without a rule for batches."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


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


def forced(name: str, comparison: Examiner) -> list[Look]:
    size = comparison.numeric.problem.inputs.size
    made = {
        "singles": lambda: [singles(size)],
        "signs": lambda: [signs(size, 2, 0)],
        "axes": lambda: axes(comparison.numeric, 0),
        "elementwise": lambda: [elementwise(comparison.numeric.problem, 0)],
    }
    return made[name]()


@pytest.mark.parametrize("name", ["singles", "signs", "axes", "elementwise"])
def test_a_right_derivative_leaves_no_suspects(name):
    comparison = examiner(torch.sin, drawn(12))
    assert [comparison.examine(look)[0] for look in forced(name, comparison)] == [None]


@pytest.mark.parametrize("name", ["singles", "signs", "axes", "elementwise"])
@pytest.mark.parametrize(("row", "column"), [(3, 3), (3, 7), (0, 11)])
@pytest.mark.parametrize("make", [wrong_at, elementwise_wrong_at])
def test_one_wrong_entry_shows_in_every_look(name, row, column, make):
    """At twice what is allowed; also off the diagonal, where an elementwise function has no entry."""
    comparison = examiner(make(row, column, 2e-3), drawn(12))
    found = [comparison.examine(look)[0] for look in forced(name, comparison)]
    suspects = np.concatenate([part.look.groups.ravel() for part in found if part is not None])
    assert column in suspects


def test_singles_suspect_the_wrong_column_alone():
    comparison = examiner(wrong_at(3, 7, 2e-3), drawn(12))
    assert comparison.examine(singles(12))[0].look.groups.ravel().tolist() == [7]


def test_the_worst_group_comes_first():
    first, second = wrong_at(3, 7, 2e-3), wrong_at(1, 5, 0.5)
    comparison = examiner(lambda x: first(x) + second(x), drawn(12))
    assert comparison.examine(singles(12))[0].look.groups.ravel().tolist() == [5, 7]


def test_an_elementwise_function_of_several_inputs_is_differenced_once():
    """All inputs and all elements at once; what was differenced is what was said."""
    inputs = (drawn(9, 10), drawn(9, 10), drawn(9, 10))
    report = covector.check(lambda a, b, c: (torch.atan2(a, b) * c, a * c), inputs)
    assert report
    assert "element by element" in report.method
    assert report.evaluations == 3  # one at the point


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_elements_that_are_coupled_are_no_elementwise_function(which, dtype):
    """The guess is wrong, which the look shows by itself; the derivative is right."""
    inputs = [drawn(9, 10).detach().to(dtype).requires_grad_() for _ in range(2)]
    functions = (lambda a, b: a * b.flip(0), lambda a, b: a.cumsum(1) + b)
    report = covector.check(functions[which], tuple(inputs))
    assert report
    assert "element by element" not in report.method


def test_columns_of_one_shape_but_of_other_outputs_are_not_guessed():
    """A scalar that is added to a vector; a vector that is broadcast; and outputs of another shape."""
    for inputs in ((drawn(6), drawn()), (drawn(6, 6), drawn(6)), (drawn(6, 1), drawn(6, 1))):
        problem = examiner(lambda a, b: (a + b) * torch.ones(6, dtype=torch.float64), *inputs).numeric.problem
        assert elementwise(problem, 0) is None


def test_aligned_axes_are_seen():
    """Of x @ w + b the columns of w and b belong to those of the output, the rows of x to its rows."""
    comparison = examiner(lambda x, w, b: (x @ w + b).tanh(), drawn(5, 4), drawn(4, 7), drawn(7))
    assert may_align(comparison.numeric.problem)
    assert [look.groups.shape for look in axes(comparison.numeric, 0)] == [(4, 5), (4, 7), (1, 7)]


def test_the_cells_of_an_alignment_are_owned_by_the_columns_of_its_group():
    comparison = examiner(lambda x, w: x @ w, drawn(5, 4), drawn(4, 7))
    for look in axes(comparison.numeric, 0):
        steps = look.steps(comparison.numeric, 1.0)
        differences = look.differences(comparison.numeric, 1.0)
        assert look.cells(comparison.analytic.cotangents, differences).shape[1:] == look.groups.shape
        assert np.abs(comparison.off(look, steps, differences)).max() < 1e-12


def test_doubled_steps_clear_what_is_truncation():
    """The third derivative of these is large; the derivative is right."""
    comparison = examiner(lambda x: (300 * x).sin(), drawn(12))
    suspects = comparison.examine(singles(12))[0]
    assert len(suspects) > 1
    assert comparison.doubled(suspects) is None


@pytest.mark.parametrize(
    ("shape", "probes", "names"),
    [
        ((8,), 0, ["singles"]),
        ((8,), 2, ["signs", "singles"]),
        ((2,), 2, ["singles"]),
        ((200,), 0, ["elementwise", "axes", "singles"]),
        ((200,), 1, ["signs", "elementwise", "axes", "singles"]),
        ((20_000,), 0, ["elementwise", "axes", "singles"]),
        ((20_000,), 1, ["signs", "elementwise", "axes"]),
    ],
)
def test_the_ladder_goes_from_the_cheapest_look_to_every_column(shape, probes, names):
    comparison = examiner(torch.sin, drawn(*shape))
    assert [looks[0].name for looks in ladder(comparison.numeric, probes, 0)] == names


def test_of_few_numbers_only_a_custom_function_is_guessed_to_be_elementwise():
    """One batch of all columns takes as long as a guess; but few custom Functions can be batched."""
    of_torch, custom = covector.check(torch.sin, drawn(8)), covector.check(Doubled.apply, drawn(8))
    assert "element by element" not in of_torch.method
    assert "element by element" in custom.method
    assert custom.evaluations == 3


def steep(x):
    """Of which a few elements are steep: there one wrong digit of a difference exceeds what a look allows."""
    return (x * torch.where(torch.arange(len(x)) % 67 == 5, 9.0, 1.0)).exp()


@pytest.mark.parametrize(
    ("function", "look"),
    [(steep, "element by element"), (lambda x: torch.stack([steep(x), x]), "along aligned axes")],
)
def test_cells_that_disagree_lead_to_the_columns_that_own_them(function, look):
    x = torch.linspace(1, 2, 300, dtype=torch.float64, requires_grad=True)
    report = covector.check(function, x)
    assert report
    assert f"{look}, step" in report.method
    assert report.evaluations < 100


def test_each_cell_is_compared_at_the_shortest_step_that_shows_an_error_there():
    """Large outputs ask for longer steps, with which the truncation error of the others would show."""
    comparison = examiner(torch.sinh, torch.linspace(-9, 9, 400, dtype=torch.float64, requires_grad=True))
    suspects = comparison.examine(elementwise(comparison.numeric.problem, 0))[0]
    assert 0 < suspects.cells.sum() < 100
    assert len(np.unique(abs(suspects.steps).max(1))) == len(suspects) > 1
    report = covector.check(torch.sinh, comparison.numeric.problem.originals)
    assert report
    assert report.evaluations < 300


@pytest.mark.parametrize("missing", [False, True])
def test_a_column_that_moves_the_cell_of_another_is_not_explained_by_the_owner(missing):
    """The slice that shows the alignment is another one, so that this coupling does not show there."""

    def coupled(x):
        out = x.sin()
        return out.index_add(0, torch.tensor([7]), 1e-2 * (x[3:4].detach() if missing else x[3:4]))

    report = covector.check(coupled, drawn(300))
    assert bool(report) is not missing
    if missing:
        worst = report.findings[0].mismatches[0]
        assert (worst.row, worst.column) == (7, 3)
    else:
        assert "column by column" in report.method


def test_many_wrong_cells_do_not_cost_every_column():
    """One wrong entry decides; it is found by halving, not by moving every column."""

    def scaled(x):
        return x.sin() + 0.1 * (x.cos().detach() * (x - x.detach()))

    report = covector.check(scaled, drawn(1000))
    assert not report
    assert report.evaluations < 300


def test_columns_that_disagree_by_themselves_are_found_by_halving() -> None:
    function = lambda x: (x * x).sum() + 5 * (x[[3, 40]] - x[[3, 40]].detach()).sum()
    comparison = examiner(function, drawn(64))
    numeric, analytic = comparison.numeric, comparison.analytic
    columns, steps = np.arange(64), np.full(64, 1e-6)
    off = np.full(1, -2 * 5e-6)
    found = list(columns_apart(numeric, analytic, columns, steps, off, np.full(1, 1e-8)))
    assert sorted(found) == [3, 40]
    assert numeric.runs < 50


def test_a_kink_that_no_half_reaches_leads_to_no_column() -> None:
    """Each of 64 numbers moves by 1e-6, and all of them together by more than the distance of the kink."""
    x = torch.zeros(64, dtype=torch.float64, requires_grad=True)
    comparison = examiner(lambda x: torch.relu(x.sum() - 4e-5), x)
    numeric, analytic = comparison.numeric, comparison.analytic
    columns, steps, off = np.arange(64), np.full(64, 1e-6), np.full(1, 1.2e-5)
    assert list(columns_apart(numeric, analytic, columns, steps, off, np.full(1, 1e-8))) == []
    assert numeric.runs == 4
