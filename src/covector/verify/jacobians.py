"""Both Jacobians side by side, whole or a sample of them: what diagnoses and pages are made from.

A check looks at as little as it can. Once it has failed, or when somebody asks for a page, the numeric
Jacobian is worth more than the time it takes, within a budget: up to some size all of it, beyond that
the rows and columns of the mismatches with others spread evenly between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart, Sampled
from covector._lazy import lazy
from covector.verify.compare import unit
from covector.verify.derivatives import Derivatives
from covector.verify.finding import Entry, Mismatch
from covector.verify.maps import Matrix, chunk_of, row_sizes
from covector.verify.problem import Problem
from covector.verify.tolerance import Tolerance


@dataclass(frozen=True)
class Budget:
    """How much may be looked at: entries in all; else rows and columns of a sample, and their numbers.

    Where a function cannot be batched, every column takes four runs of it, and these take no more than
    `seconds`.
    """

    entries: int
    sample: int
    numbers: int
    seconds: float

    def columns(self, problem: Problem) -> int:
        """How many columns may be differenced."""
        height, width = problem.outputs.size, problem.inputs.size
        few = min(self.sample, max(16, self.numbers // (height + width)))
        many = width if height * width <= self.entries else few
        if problem.batchable:
            return many
        started = perf_counter()
        problem.values(problem.point[None], batch=False)
        affordable = int(self.seconds / (4 * (perf_counter() - started)))
        return min(many, max(_LEAST, affordable))


_LEAST = 8
DIAGNOSIS = Budget(entries=1 << 19, sample=48, numbers=1 << 25, seconds=1.0)
PAGE = Budget(entries=1 << 23, sample=1024, numbers=1 << 26, seconds=30.0)


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
    tol: Tolerance
    outputs: tuple[Part, ...]
    inputs: tuple[Part, ...]
    point: Tensor
    whole: bool
    row_numbers: Tensor
    column_numbers: Tensor

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
    def allowed(self) -> Tensor:
        """What the entry rule allows."""
        atols = self.tol.atols
        return (atols[:, None] if isinstance(atols, Tensor) else atols) + self.tol.rtol * self.numeric.abs()

    @lazy
    def bad(self) -> Tensor:
        """Which entries differ by more than the tolerance and the bound of the numeric side together."""
        return ~(self.error <= self.allowed + self.bound) & self.numeric.isfinite()


def gather(d: Derivatives, mode: str, mismatches: Sequence[Mismatch], budget: Budget) -> Jacobians:
    """Both Jacobians on the rows and columns that the budget allows, those of the mismatches included."""
    problem = d.problem
    height, width = problem.outputs.size, problem.inputs.size
    rows, columns = torch.arange(height), torch.arange(width)
    count = budget.columns(problem)
    whole = count == width
    if not whole:
        rows = _spread(height, count, [m.row for m in mismatches])
        columns = _spread(width, count, [m.column for m in mismatches])
    analytic = _analytic(d, mode, rows, columns)
    tol = problem.tolerance(d.options.tol, _Rows(analytic))
    numeric, bound = _numeric(problem, rows, columns, tol.eps)
    return Jacobians(
        mode,
        _positions(problem.outputs)[rows],
        _positions(problem.inputs)[columns],
        analytic,
        numeric,
        bound,
        tol,
        _parts(problem.outputs, problem.output_names),
        _parts(problem.inputs, problem.input_names),
        problem.point[columns],
        whole and not isinstance(problem.inputs, Sampled) and not isinstance(problem.outputs, Sampled),
        rows,
        columns,
    )


def _inside(coordinates: Tensor, part: Part) -> Tensor:
    return ((coordinates >= part.place.start) & (coordinates < part.place.stop)).nonzero().flatten()


def _label(parts: Sequence[Part], coordinate: int) -> str:
    """How a person would write a coordinate of these tensors."""
    part = next(p for p in parts if p.place.start <= coordinate < p.place.stop)
    return part.label(coordinate - part.place.start)


@dataclass(frozen=True)
class _Rows:
    """A matrix that knows how large its rows are."""

    matrix: Tensor

    def row_sizes(self) -> Tensor:
        """The largest finite entry of each row, without its sign."""
        return row_sizes(self.matrix)


def _parts(chart: Chart | Sampled, names: Sequence[str]) -> tuple[Part, ...]:
    return tuple(Part(name, place) for name, place in zip(names, chart.places, strict=True))


def _positions(chart: Chart | Sampled) -> Tensor:
    """The coordinate in its tensors of each number that is looked at."""
    return chart.kept if isinstance(chart, Sampled) else torch.arange(chart.size)


def _spread(size: int, count: int, wanted: Sequence[int]) -> Tensor:
    """The wanted indices, and others spread evenly."""
    if size <= count:
        return torch.arange(size)
    even = torch.linspace(0, size - 1, count, dtype=torch.float64).round().to(torch.int64)
    named = torch.tensor([index for index in wanted if 0 <= index < size], dtype=torch.int64)
    return torch.cat([even, named]).unique()


def _analytic(d: Derivatives, mode: str, rows: Tensor, columns: Tensor) -> Tensor:
    """The entries of the derivative of this mode."""
    problem = d.problem
    if not problem.differentiable:
        return torch.zeros(rows.numel(), columns.numel(), dtype=torch.float64)
    if mode == "forward mode":
        if not d.probing:
            return _cut(d.forward_matrix, rows, columns)
        pushed = [d.push(unit(problem.inputs.size, j))[rows] for j in columns.tolist()]
        return torch.stack(pushed, dim=1)
    if not d.probing:
        return _cut(d.matrix, rows, columns)
    return torch.cat([_pulled(d, block)[:, columns] for block in rows.split(chunk_of(problem))])


def _pulled(d: Derivatives, rows: Tensor) -> Tensor:
    """Some rows of the Jacobian by reverse mode."""
    problem = d.problem
    basis = torch.zeros(rows.numel(), problem.outputs.size, dtype=torch.float64)
    basis[torch.arange(rows.numel()), rows] = 1.0
    return problem.inputs.stack_to_coords(d.reverse.apply_batch(problem.outputs.from_coords(basis))).cpu()


def _cut(matrix: Matrix, rows: Tensor, columns: Tensor) -> Tensor:
    """Some rows and columns of a matrix, written out."""
    if matrix.dense is not None:
        return matrix.dense[rows][:, columns]
    place = torch.full((matrix.shape[0],), -1)
    place[rows] = torch.arange(rows.numel())
    across = torch.full((matrix.shape[1],), -1)
    across[columns] = torch.arange(columns.numel())
    at, over = place[matrix.entries.rows], across[matrix.entries.columns]
    inside = (at >= 0) & (over >= 0)
    result = torch.zeros(rows.numel(), columns.numel(), dtype=torch.float64)
    return result.index_put_((at[inside], over[inside]), matrix.entries.values[inside], accumulate=True)


def _numeric(problem: Problem, rows: Tensor, columns: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Central differences with steps h and 2h, extrapolated, and how far off they may be."""
    values, bounds = [], []
    step = problem.steps.tensor(eps)
    noise = 8 * problem.rounding * problem.known.abs().nan_to_num(0.0, 0.0, 0.0)[rows]
    size = max(1, problem.block_size() // 4)
    for start in range(0, columns.numel(), size):
        block = columns[start : start + size]
        moves = torch.zeros(block.numel(), problem.inputs.size, dtype=torch.float64)
        moves[torch.arange(block.numel()), block] = step[block]
        both = problem.differences(torch.cat([moves, 2 * moves]))[:, rows] / step[block].repeat(2)[:, None]
        near, far = both[: block.numel()], both[block.numel() :] / 2
        better = (4 * near - far) / 3
        values.append(better)
        bounds.append((better - near).abs() + noise / step[block][:, None])
    if not values:
        empty = torch.zeros(rows.numel(), 0, dtype=torch.float64)
        return empty, empty
    return torch.cat(values).T.contiguous(), torch.cat(bounds).T.contiguous()
