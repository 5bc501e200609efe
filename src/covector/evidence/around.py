"""The rows and columns of a large Jacobian that a diagnosis looks at: those around the wrong entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart
from covector.checks.run import CheckRun
from covector.evidence.sample import FEW, grids, holds, inside, is_gridded, spread, widened
from covector.verify.numeric import Numeric
from covector.verify.vectors import weights

# How many numbers a sample has in all its columns, or rows, and how many of them are computed at once.
IN_ALL, AT_ONCE = 1 << 23, 1 << 21

# The least rows and columns of a sample, and of a tensor in it.
LEAST = 48

# A sample may become so many times as large by the rows and columns that belong to it.
_GROWS = 2

# If too many rows depend on the columns of a sample, one with this share of the columns is tried.
_FEWER = 4


class Room(NamedTuple):
    """How many rows and columns a sample begins with."""

    rows: int
    columns: int


class Differences:
    """Columns of the numeric Jacobian, each differenced once; what is zero but for noise is not kept."""

    def __init__(self, numeric: Numeric) -> None:
        self._numeric = numeric
        self._known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """For each column the rows that depend on it, and the slopes there."""

    def on(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The slopes on some rows and columns, and how far off they may be."""
        at, whole = rows.numpy(), np.zeros(self._numeric.problem.shape[0])
        slopes = np.zeros((len(at), columns.numel()))
        for i, (touched, values) in enumerate(self._columns(columns)):
            whole[touched] = values
            slopes[:, i] = whole[at]
            whole[touched] = 0.0
        bounds = self._numeric.bounds(at, columns.numpy())
        return torch.from_numpy(slopes), torch.from_numpy(bounds)

    def touched(self, columns: Tensor) -> Tensor:
        """The rows that depend on some of these columns."""
        found = np.zeros(self._numeric.problem.shape[0], dtype=bool)
        for touched, _ in self._columns(columns):
            found[touched] = True
        return torch.from_numpy(found).nonzero().flatten()

    def beyond(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Which of these columns other rows than these depend on."""
        at = rows.numpy()
        return torch.tensor([not np.isin(touched, at).all() for touched, _ in self._columns(columns)])

    def _columns(self, columns: Tensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What is known of these columns: new ones are differenced, as many at once as memory allows."""
        new = torch.tensor([c for c in columns.tolist() if c not in self._known], dtype=torch.int64)
        at_once = max(1, AT_ONCE // max(1, self._numeric.problem.shape[0]))
        for part in new.split(at_once) if new.numel() else ():
            slopes = self._numeric.columns(part.numpy())
            noise = self._numeric.slope_noise(np.arange(len(slopes)), part.numpy())
            for i, column in enumerate(part.tolist()):
                # What is not finite is kept too.
                rows = (~(abs(slopes[:, i]) <= noise[:, i])).nonzero()[0]
                self._known[column] = rows, slopes[rows, i]
        return map(self._known.__getitem__, columns.tolist())


class Spot(NamedTuple):
    """An entry that is wrong."""

    row: int
    column: int


def with_others(run: CheckRun, spots: Sequence[Spot], differences: Differences) -> list[Spot]:
    """Wrong entries, and those of other inputs in the row of the first, by reverse mode: the largest of each.

    A check that has found one input wrong need not have looked at others.
    """
    inputs, tol = run.problem.inputs, run.options.tol
    if not spots or spots[0].row < 0 or not isinstance(inputs, Chart):
        return [*spots]
    row = torch.tensor([spots[0].row])
    pulled = run.reverse.rows(row.numpy())[0]
    others = [p for p in inputs.places if not holds(p, (spot.column for spot in spots))]
    largest = [p.start + int(abs(pulled[p.start : p.stop]).argmax()) for p in others if p.stop > p.start]
    columns = torch.tensor([column for column in largest if pulled[column]][:FEW], dtype=torch.int64)
    slopes, bounds = differences.on(row, columns)
    off = (torch.from_numpy(pulled)[columns] - slopes[0]).abs()
    wrong = columns[off > tol.atol + tol.rtol * slopes[0].abs() + bounds[0]]
    return [*spots, *(Spot(spots[0].row, column) for column in wrong.tolist())]


@dataclass(frozen=True)
class Around:
    """A sample around entries that are wrong."""

    run: CheckRun
    mode: str
    wrong: Sequence[Spot]
    differences: Differences

    def within(self, room: Room) -> tuple[Tensor, Tensor]:
        """Rows and columns around the mismatches, with those that depend on them, if these are few."""
        outputs, inputs = self.run.problem.outputs, self.run.problem.inputs
        assert isinstance(outputs, Chart)
        assert isinstance(inputs, Chart)
        most = _GROWS * room.rows
        rows, columns = self._grids(room)
        touched = self.differences.touched(columns)
        if touched.numel() > most:
            fewer = self._grids(Room(room.rows // _FEWER, room.columns // _FEWER))
            few_touched = self.differences.touched(fewer[1])
            if few_touched.numel() <= most:
                (rows, columns), touched = fewer, few_touched
        if touched.numel() <= most:
            judged = [spot.row for spot in self.wrong if spot.column in columns]
            rows = _joined(outputs, torch.tensor(judged, dtype=torch.int64), touched, most)
        if self.mode == "reverse mode" and self.run.problem.differentiable:
            if (source := self._source(rows)) is not None:
                rows = _joined(outputs, rows, torch.tensor([source]), most)
            acted_on = self._pulled(rows).nonzero().flatten()
            columns = _joined(inputs, columns, acted_on, _GROWS * room.columns)
            most = _GROWS * min(room.rows, room.columns)
            wrong = [p for p in inputs.places if holds(p, (spot.column for spot in self.wrong))]
            matched, columns = _matched(outputs.places, wrong, rows, columns, most)
            # Not without the row that is known to be wrong.
            rows = matched if all(spot.row in matched for spot in self.wrong[:1]) else rows
        return rows, columns

    def _grids(self, room: Room) -> tuple[Tensor, Tensor]:
        """Indices around the worst mismatch of each tensor: as rows, and as columns."""
        problem = self.run.problem
        left = _side(problem.outputs.places, [spot.row for spot in self.wrong], room.rows)
        top = _side(problem.inputs.places, [spot.column for spot in self.wrong], room.columns)
        made = grids(left.places + top.places, left.anchors + top.anchors, left.most + top.most)
        found, count = [grid.coordinates for grid in made], len(left.places)
        rows, columns = [*found[:count], *left.others], [*found[count:], *top.others]
        return torch.cat(rows).unique(), torch.cat(columns).unique()

    def _pulled(self, rows: Tensor) -> Tensor:
        """A gradient that is not zero where reverse mode has entries on these rows, by one pullback."""
        cotangent = torch.zeros(self.run.problem.shape[0], dtype=torch.float64)
        cotangent[rows] = weights(rows.numel(), self.run.options.seed + 4)
        return self.run.reverse.pull_coordinates(cotangent)

    def _source(self, rows: Tensor) -> int | None:
        """A row that acts on the column of the worst mismatch, found by halving, if none of these does."""
        column = next((spot.column for spot in self.wrong), -1)
        if column < 0 or bool(self._pulled(rows)[column]):
            return None
        others = torch.ones(self.run.problem.shape[0], dtype=torch.bool)
        others[rows] = False
        left = others.nonzero().flatten()
        if not left.numel() or not bool(self._pulled(left)[column]):
            return None
        while left.numel() > 1:
            first, second = left.split((left.numel() + 1) // 2)
            left = first if bool(self._pulled(first)[column]) else second
        return int(left)


class _Side(NamedTuple):
    """The tensors of one side that get a grid, their worst mismatches, and a few elements of the others."""

    places: list[AnyPlace]
    anchors: list[int | None]
    most: list[int]
    others: list[Tensor]


def _side(places: Sequence[AnyPlace], numbers: Sequence[int], room: int) -> _Side:
    """Grids in so much room: those with a mismatch first."""
    worst = [next((n for n in numbers if holds(place, [n])), None) for place in places]
    order = sorted(range(len(places)), key=lambda i: worst[i] is None)
    chosen = [i for i in order if is_gridded(places[i])][: max(1, room // LEAST)]
    left = [place for i, place in enumerate(places) if i not in chosen]
    named = [n for n in numbers if any(holds(place, [n]) for place in left)]
    others = [place.start + spread(place.stop - place.start, FEW, []) for place in left]
    others.append(torch.tensor(named, dtype=torch.int64))
    most = [room // max(1, len(chosen))] * len(chosen)
    return _Side([places[i] for i in chosen], [worst[i] for i in chosen], most, others)


def _joined(chart: Chart, mine: Tensor, others: Tensor, most: int) -> Tensor:
    """Coordinates of each tensor with others of it, if not too many; a grid where they are nearly one."""
    found = []
    for place in chart.places:
        have, more = (part[inside(place, part)] for part in (mine, others))
        both = torch.cat([have, more]).unique()
        found.append(widened(place, both, most) if both.numel() <= most else have)
    return torch.cat(found).unique()


def _matched(
    outputs: Sequence[AnyPlace], inputs: Sequence[AnyPlace], rows: Tensor, columns: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """Rows and columns with the same indices in an input and an output of one shape.

    All indices of either; if these are too many, the rows are only those with the indices of the columns.
    """
    for output in outputs:
        for place in inputs:
            if output.real_shape != place.real_shape or not (is_gridded(output) and is_gridded(place)):
                continue
            apart = place.start - output.start
            mine, others = columns[inside(place, columns)] - apart, rows[inside(output, rows)]
            both = widened(output, torch.cat([mine, others]).unique(), most)
            if both.numel() <= most and mine.numel() and others.numel():
                rows, columns = torch.cat([rows, both]).unique(), torch.cat([columns, both + apart]).unique()
            elif mine.numel() and bool(torch.isin(mine, others).all()):
                rows = torch.cat([rows[~inside(output, rows)], mine]).unique()
    return rows, columns
