"""Both Jacobians side by side, whole or a sample of them: what diagnoses and pages are made from.

A check looks at as little as it can. Once it has failed, or when somebody asks for a page, the numeric
Jacobian is worth some more runs: up to some size all of it, beyond that the rows and columns of the
mismatches with others: elements around them for a diagnosis, others spread evenly for a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart, Sampled
from covector._lazy import lazy
from covector.checks.run import CheckRun
from covector.evidence.around import AT_ONCE, IN_ALL, LEAST, Around, Differences, Room, Spot, with_others
from covector.evidence.sample import FEW, spread
from covector.verify import constants
from covector.verify.finding import Entry, Mismatch
from covector.verify.forward import ForwardMap
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

    mode: str
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

    def entry(self, row: int, column: int) -> Entry:
        """The name of an entry of these matrices."""
        return Entry(
            _label(self.outputs, int(self.rows[row])), _label(self.inputs, int(self.columns[column]))
        )

    def rows_of(self, output: Part) -> Tensor:
        """The rows of these matrices that belong to an output."""
        return _inside(self.rows, output)

    def columns_of(self, part: Part) -> Tensor:
        """The columns of these matrices that belong to an input."""
        return _inside(self.columns, part)

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
    wrong = [Spot(m.row, m.column) for m in mismatches]
    if not whole and mode == "reverse mode" and problem.differentiable:
        wrong = with_others(run, wrong, differences)
    wanted = [spot.column for spot in wrong]
    suspects = _of_suspects(problem.inputs, wanted)
    count = sum(len(numbers) for numbers in suspects)
    if whole:
        rows, columns = torch.arange(height), torch.arange(width)
    elif count and budget.holds(run, count + FEW):
        rows, columns = torch.arange(height), spread(width, count + FEW, [*chain(*suspects)])
    elif budget.sample and not run.sampled:
        room = Room(*(min(budget.sample, max(LEAST, IN_ALL // max(1, size))) for size in (width, height)))
        room = Room(room.rows, min(room.columns, max(FEW, budget.columns(run) // 2)))
        rows, columns = Around(run, mode, wrong, differences).within(room)
    else:
        rows = spread(height, budget.evenly, [spot.row for spot in wrong])
        columns = spread(width, min(budget.evenly, budget.columns(run)), wanted)
    analytic = _analytic(run, mode, rows, columns)
    precise = None if run.above is None else _precise(run, mode, rows, columns)
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
    elif run.above is not None and problem.differentiable:
        derivative = run.forward if mode == "forward mode" else run.reverse
        noise = run.rounding.of_columns(derivative, columns.numpy())
        allowed = allowed + torch.from_numpy(noise[rows.numpy()])
    return Jacobians(
        mode,
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


def _truncated(values: Tensor, rows: Tensor, columns: Tensor, judged: Sequence[Mismatch]) -> float:
    """The share of a slope by which single differences may be off: as much as those of judged entries are."""
    shares = [0.0]
    for m in judged:
        single = values[rows == m.row][:, columns == m.column]
        if m.numeric and single.isfinite().all():
            beyond = (abs(single - m.numeric) - m.bound).clamp(min=0) / abs(m.numeric)
            shares += beyond.flatten().tolist()
    return min(max(shares), 1.0)


def _analytic(run: CheckRun, mode: str, rows: Tensor, columns: Tensor) -> Tensor:
    """The entries of the derivative of this mode."""
    if not run.problem.differentiable:
        return torch.zeros(rows.numel(), columns.numel(), dtype=torch.float64)
    return _entries(run.forward if mode == "forward mode" else run.reverse, rows, columns)


def _precise(run: CheckRun, mode: str, rows: Tensor, columns: Tensor) -> Tensor | None:
    """The entries of the same derivative in double precision."""
    if run.above is None or not run.above.differentiable:
        return None
    kind = ForwardMap if mode == "forward mode" else ReverseMap
    return _entries(kind(run.above, run.options.seed), rows, columns)


def _entries(derivative: ForwardMap | ReverseMap, rows: Tensor, columns: Tensor) -> Tensor:
    if isinstance(derivative, ForwardMap) or rows.numel() == derivative.problem.outputs.size:
        return torch.from_numpy(derivative.columns(columns.numpy())[rows.numpy()])
    at_once = max(1, AT_ONCE // max(derivative.problem.shape))
    pulled = [derivative.rows(part.numpy())[:, columns.numpy()] for part in rows.split(at_once)]
    return torch.from_numpy(np.concatenate(pulled))


def _inside(coordinates: Tensor, part: Part) -> Tensor:
    return ((coordinates >= part.place.start) & (coordinates < part.place.stop)).nonzero().flatten()


def _label(parts: Sequence[Part], coordinate: int) -> str:
    """How a person would write a coordinate of these tensors."""
    part = next(p for p in parts if p.place.start <= coordinate < p.place.stop)
    return part.label(coordinate - part.place.start)


def _parts(chart: Chart | Sampled, names: Sequence[str]) -> tuple[Part, ...]:
    return tuple(Part(name, place) for name, place in zip(names, chart.places, strict=True))


def _positions(chart: Chart | Sampled, numbers: Tensor) -> Tensor:
    """The coordinates in its tensors of numbers that are looked at."""
    return chart.kept[numbers] if isinstance(chart, Sampled) else numbers


def _of_suspects(chart: Chart | Sampled, wanted: Sequence[int]) -> list[range]:
    """The columns of each input that these columns belong to; none if only a sample of them is known."""
    if isinstance(chart, Sampled):
        return []
    places = [range(place.start, place.stop) for place in chart.places]
    return [place for place in places if any(column in place for column in wanted)]
