"""Both Jacobians side by side, whole or a sample of them: what diagnoses and pages are made from.

A check looks at as little as it can. Once it has failed, or when somebody asks for a page, the numeric
Jacobian is worth some more runs: up to some size all of it, beyond that the rows and columns of the
mismatches with others: elements around them for a diagnosis, others spread evenly for a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart, Sampled
from covector._lazy import lazy
from covector.checks.run import CheckRun
from covector.evidence.around import AT_ONCE, IN_ALL, LEAST, Around, Differences, Room, Spot, with_others
from covector.evidence.sample import FEW, holds, inside, spread
from covector.verify import constants
from covector.verify.finding import Mismatch
from covector.verify.forward import ForwardMap
from covector.verify.problem import Problem
from covector.verify.reverse import ReverseMap


@dataclass(frozen=True)
class Budget:
    """How much may be looked at: so many entries in all; else this many rows and columns of a sample."""

    entries: int
    sample: int
    """Rows and columns that lie together, as a diagnosis needs them; 0 for none."""
    evenly: int
    """Rows and columns that are spread evenly."""
    runs: int
    """How many runs a check may take in all, beyond two for each column."""
    most: int
    """How many columns are differenced at most, unless all of them were already."""
    longest: int = 1 << 20
    """The longest side of a Jacobian that is looked at whole: a row takes a pullback, a column two runs."""

    def columns(self, run: CheckRun) -> int:
        """How many columns may be differenced."""
        numeric, width = run.numeric, run.problem.shape[1]
        if numeric.knows_columns:
            return width
        affordable = (2 * width + self.runs - run.runs) // 2
        return max(FEW, min(affordable, self.most))

    def holds(self, run: CheckRun, columns: int) -> bool:
        """Whether all of these columns may be differenced, and every entry in them looked at."""
        height = run.problem.shape[0]
        too_many = run.options.fast and 2 * columns > constants.FAST_RUNS
        affordable = columns <= self.columns(run) and not too_many
        return affordable and height * columns <= self.entries and max(height, columns) <= self.longest


# With the runs that try a batch, and two that look for a cut, a check stays within torch's number and 60.
DIAGNOSIS = Budget(
    entries=1 << 19, sample=192, evenly=48, runs=46, most=constants.WHOLE_COLUMNS + FEW, longest=4096
)
PAGE = Budget(entries=1 << 23, sample=0, evenly=1024, runs=1 << 20, most=4096)


@dataclass(frozen=True)
class Part:
    """One tensor among the inputs or outputs: its name, its shape in real coordinates, its range."""

    name: str
    place: AnyPlace

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which its elements are looked at; those of a sparse tensor are a list."""
        return self.place.real_shape[:-1] if self.is_complex else self.place.real_shape

    @property
    def is_complex(self) -> bool:
        """Whether each element takes two coordinates."""
        return self.place.dtype.is_complex

    def label(self, coordinate: int) -> str:
        """How a person would write a coordinate of this tensor."""
        return self.name + self.place.label(coordinate)


@dataclass(frozen=True)
class Jacobians:
    """The analytic and the numeric Jacobian on some rows and columns, in coordinates of the tensors."""

    problem: Problem
    rows: Tensor
    columns: Tensor
    analytic: Tensor
    numeric: Tensor
    bound: Tensor
    allowed: Tensor
    outputs: tuple[Part, ...]
    inputs: tuple[Part, ...]
    point: Tensor
    value: Tensor
    everything: Tensor
    """The point in all coordinates of the inputs."""
    whole: bool
    row_numbers: Tensor
    column_numbers: Tensor
    beyond: Tensor
    """Which columns an output depends on that is not among the rows."""

    def mismatch(self, row: int, column: int) -> Mismatch:
        """An entry of these matrices, as one difference shows it."""
        parts = (self.analytic, self.numeric, self.bound, self.allowed)
        analytic, numeric, bound, allowed = (float(part[row, column]) for part in parts)
        row, column = int(self.row_numbers[row]), int(self.column_numbers[column])
        entry = self.problem.entry(row, column)
        return Mismatch(entry, analytic, numeric, bound, allowed, row=row, column=column)

    def rows_of(self, output: Part) -> Tensor:
        """The rows of these matrices that belong to an output."""
        return inside(output.place, self.rows).nonzero().flatten()

    def columns_of(self, part: Part) -> Tensor:
        """The columns of these matrices that belong to an input."""
        return inside(part.place, self.columns).nonzero().flatten()

    @lazy
    def error(self) -> Tensor:
        """How far the two are apart."""
        return (self.analytic - self.numeric).abs()

    @lazy
    def bad(self) -> Tensor:
        """Which entries differ by more than the tolerance and the bound of the numeric side together."""
        return ~(self.error <= self.allowed + self.bound) & self.numeric.isfinite()

    @lazy
    def doubtful(self) -> Tensor:
        """Which differ by more than the tolerance, but by less than the numeric side may be off."""
        return ~(self.error <= self.allowed) & ~self.bad & self.numeric.isfinite()

    @lazy
    def coverage(self) -> str:
        """The words for what is not known of all entries: they are a sample, or some are known too little."""
        if not self.whole:
            return " in a sample"
        return " as far as is known" if bool(self.doubtful.any()) else ""


def gather(run: CheckRun, mode: str, mismatches: Sequence[Mismatch], budget: Budget) -> Jacobians:
    """Both Jacobians on the rows and columns that the budget allows, those of the mismatches included."""
    problem, numeric, tol = run.problem, run.numeric, run.options.tol
    height, width = problem.shape
    if not numeric.knows_columns and FEW * height <= AT_ONCE:
        # A few first: they tell whether the function can be batched.
        numeric.columns(np.arange(min(FEW, width)))
    differences, whole = Differences(numeric), budget.holds(run, width)
    if whole:
        rows, columns = torch.arange(height), torch.arange(width)
    else:
        rows, columns = _sample(run, mode, [Spot(m.row, m.column) for m in mismatches], budget, differences)
    # The derivative first: if it raises, no runs are spent.
    derivative = run.forward if mode == "forward mode" else run.reverse
    analytic, above, precise = _entries(derivative, rows, columns), run.above, None
    if above is not None and above.differentiable:
        precise = _entries(type(derivative)(above, run.options.seed), rows, columns)
    values, bound = differences.on(rows, columns)
    bound = bound + _truncated(values, rows, columns, mismatches) * values.abs()
    for m in mismatches:  # a judge knows more of an entry than a single difference
        at = (rows == m.row).nonzero(), (columns == m.column).nonzero()
        if np.isfinite(m.numeric):
            values[at], bound[at] = m.numeric, m.bound
    point = torch.from_numpy(problem.point)[columns]
    values = torch.where(point.isfinite(), values, torch.nan)  # nothing can be moved away from infinity
    allowed = tol.atol + tol.rtol * values.abs()
    if precise is not None and bool(((precise - values).abs() > allowed + bound).any()):
        analytic = precise  # wrong in double precision too, where a mistake is not hidden by rounding
    elif above is not None and problem.differentiable:
        noise = run.rounding.of_columns(derivative, columns.numpy())
        allowed = allowed + torch.from_numpy(noise[rows.numpy()])
    return Jacobians(
        problem,
        _positions(problem.outputs, rows),
        _positions(problem.inputs, columns),
        analytic,
        values,
        bound,
        allowed,
        _parts(problem.outputs, problem.output_names),
        _parts(problem.inputs, problem.input_names),
        point,
        torch.from_numpy(run.differenced.value)[rows],
        torch.from_numpy(problem.point),
        whole and not run.sampled,
        rows,
        columns,
        differences.beyond(rows, columns),
    )


def _sample(
    run: CheckRun, mode: str, wrong: list[Spot], budget: Budget, differences: Differences
) -> tuple[Tensor, Tensor]:
    """Some rows and columns: those of the inputs that are wrong, around the mismatches, or spread evenly."""
    problem, (height, width) = run.problem, run.problem.shape
    if mode == "reverse mode" and problem.differentiable:
        wrong = with_others(run, wrong, differences)
    wanted = [spot.column for spot in wrong]
    if isinstance(problem.inputs, Chart):
        places = [place for place in problem.inputs.places if holds(place, wanted)]
        suspects = [column for place in places for column in range(place.start, place.stop)]
        if suspects and budget.holds(run, len(suspects) + FEW):
            return torch.arange(height), spread(width, len(suspects) + FEW, suspects)
    if budget.sample and not run.sampled:
        most = [min(budget.sample, max(LEAST, IN_ALL // max(1, size))) for size in (width, height)]
        room = Room(most[0], min(most[1], max(FEW, budget.columns(run) // 2)))
        return Around(run, mode, wrong, differences).within(room)
    rows = spread(height, budget.evenly, [spot.row for spot in wrong])
    return rows, spread(width, min(budget.evenly, budget.columns(run)), wanted)


def _truncated(values: Tensor, rows: Tensor, columns: Tensor, judged: Sequence[Mismatch]) -> float:
    """The share of a slope by which single differences may be off: as much as those of judged entries are."""
    shares = [0.0]
    for m in judged:
        single = values[rows == m.row][:, columns == m.column]
        if m.numeric and single.isfinite().all():
            beyond = (abs(single - m.numeric) - m.bound).clamp(min=0) / abs(m.numeric)
            shares += beyond.flatten().tolist()
    return min(max(shares), 1.0)


def _entries(derivative: ForwardMap | ReverseMap, rows: Tensor, columns: Tensor) -> Tensor:
    """The entries of a derivative on these rows and columns; zeros where no output has a graph."""
    if not derivative.problem.differentiable:
        return torch.zeros(rows.numel(), columns.numel(), dtype=torch.float64)
    if isinstance(derivative, ForwardMap) or rows.numel() == derivative.problem.outputs.size:
        return torch.from_numpy(derivative.columns(columns.numpy())[rows.numpy()])
    at_once = max(1, AT_ONCE // max(derivative.problem.shape))
    pulled = [derivative.rows(part.numpy())[:, columns.numpy()] for part in rows.split(at_once)]
    return torch.from_numpy(np.concatenate(pulled))


def _parts(chart: Chart | Sampled, names: Sequence[str]) -> tuple[Part, ...]:
    return tuple(Part(name, place) for name, place in zip(names, chart.places, strict=True))


def _positions(chart: Chart | Sampled, numbers: Tensor) -> Tensor:
    """The coordinates in its tensors of numbers that are looked at."""
    return chart.kept[numbers] if isinstance(chart, Sampled) else numbers
