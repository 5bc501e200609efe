"""Heat maps of both Jacobians, by pair of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from covector.evidence.jacobians import Jacobians, Part
from covector.verify.finding import Mismatch

# Cells of all heat maps together; the sides of one map; entries around a suspect; patches around suspects.
_CELLS = 24_000
_LARGEST_SIDE, _SMALLEST_SIDE = 64, 6
_AROUND = 24
_PATCHES = 3


@dataclass(frozen=True)
class View:
    """A heat map: cells of `step` entries, from these coordinates on; a cell shows its worst entry."""

    title: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    step: tuple[int, int]
    analytic: tuple[float, ...]
    numeric: tuple[float, ...]
    error: tuple[float, ...]
    allowed: tuple[float, ...]
    worst_row: tuple[int, ...]
    worst_column: tuple[int, ...]
    undecided: tuple[int, ...] = ()
    """Cells whose error exceeds what is allowed, by no more than their difference may be off."""


@dataclass(frozen=True)
class Pair:
    """One output by one input: how large, how wrong, and its heat maps."""

    output: Part
    input: Part
    looked_at: tuple[int, int]
    differing: int
    error: float
    worst: Mismatch | None
    views: tuple[View, ...]


def pairs_of(jacobians: Jacobians) -> tuple[Pair, ...]:
    """Every output by every input of which entries were looked at, worst first."""
    count = max(1, len(jacobians.outputs) * len(jacobians.inputs))
    side = max(_SMALLEST_SIDE, min(_LARGEST_SIDE, math.isqrt(_CELLS // count)))
    pairs = [
        pair
        for output in jacobians.outputs
        for part in jacobians.inputs
        if (pair := _pair(jacobians, output, part, side)) is not None
    ]
    pairs.sort(key=_severity, reverse=True)
    return tuple(pairs)


def _severity(pair: Pair) -> tuple[int, float]:
    m = pair.worst
    return pair.differing, 0.0 if m is None or m.error != m.error else m.error / (m.allowed or 1.0)


def _pair(jacobians: Jacobians, output: Part, part: Part, side: int) -> Pair | None:
    """One output by one input; None if none of its entries were looked at."""
    at, over = jacobians.rows_of(output), jacobians.columns_of(part)
    if at.numel() == 0 or over.numel() == 0:
        return None
    matrices = (jacobians.analytic, jacobians.numeric, jacobians.error, jacobians.allowed, jacobians.bad)
    block = _Block(
        jacobians.rows[at] - output.place.start,
        jacobians.columns[over] - part.place.start,
        *(m[at][:, over] for m in matrices),
    )
    row, column = block.worst()
    worst = jacobians.mismatch(int(at[row]), int(over[column]))
    shape, largest = (at.numel(), over.numel()), float(torch.where(block.undecided, 0.0, block.error).max())
    views = tuple(_views(block, output, part, side))
    return Pair(output, part, shape, int(block.bad.sum()), largest, worst, views)


@dataclass(frozen=True)
class _Block:
    """The entries of a pair, with the coordinates of its rows and columns."""

    rows: Tensor
    columns: Tensor
    analytic: Tensor
    numeric: Tensor
    error: Tensor
    allowed: Tensor
    bad: Tensor

    @property
    def undecided(self) -> Tensor:
        """Where the error exceeds what is allowed, and the difference may be off by as much."""
        return ~self.bad & ~(self.error <= self.allowed)

    @property
    def severity(self) -> Tensor:
        """The error in units of what is allowed; one where it is undecided."""
        ratio = self.error / self.allowed.clamp(min=1e-300)
        return torch.where(self.undecided, 1.0, ratio.nan_to_num(torch.inf, torch.inf))

    def worst(self) -> tuple[int, int]:
        """The row and the column of the entry that is furthest beyond what is allowed."""
        row, column = divmod(int(self.severity.argmax()), self.columns.numel())
        return row, column

    def cut(self, rows: slice, columns: slice) -> _Block:
        """A patch."""
        parts = (m[rows, columns] for m in (self.analytic, self.numeric, self.error, self.allowed, self.bad))
        return _Block(self.rows[rows], self.columns[columns], *parts)


def _views(block: _Block, output: Part, part: Part, side: int) -> Iterator[View]:
    """The whole pair, and where that takes aggregation, the entries around its worst ones."""
    height, width = block.error.shape
    step = (-(-height // side), -(-width // side))
    yield _view("whole", block, step)
    if step == (1, 1):
        return
    remaining = torch.where(block.bad, block.severity, -1.0)
    for _ in range(_PATCHES):
        row, column = divmod(int(remaining.argmax()), width)
        if remaining[row, column] < 0:
            return
        rows, columns = _around(row, height), _around(column, width)
        place = f"d {output.label(int(block.rows[row]))} / d {part.label(int(block.columns[column]))}"
        yield _view(f"around {place}", block.cut(rows, columns), (1, 1))
        remaining[rows, columns] = -1.0


def _around(index: int, size: int) -> slice:
    start = max(0, min(index - _AROUND // 2, size - _AROUND))
    return slice(start, min(size, start + _AROUND))


def _view(title: str, block: _Block, step: tuple[int, int]) -> View:
    """Each cell shows the entry in it that is furthest beyond what is allowed; of equals the largest."""
    height, width = block.error.shape
    rows, columns = list(range(0, height, step[0])), list(range(0, width, step[1]))
    chosen = _chosen(block, step)
    row, column = chosen // width, chosen % width
    analytic, numeric, error, allowed = (
        tuple(m.flatten()[chosen].tolist())
        for m in (block.analytic, block.numeric, block.error, block.allowed)
    )
    return View(
        title,
        tuple(block.rows[rows].tolist()),
        tuple(block.columns[columns].tolist()),
        step,
        analytic,
        numeric,
        error,
        allowed,
        tuple(block.rows[row].tolist()),
        tuple(block.columns[column].tolist()),
        tuple(block.undecided.flatten()[chosen].nonzero().flatten().tolist()),
    )


def _chosen(block: _Block, step: tuple[int, int]) -> Tensor:
    """The flat index of the entry that stands for each cell."""
    height, width = block.error.shape
    if step == (1, 1):
        return torch.arange(height * width)
    # Within the tolerance the error is noise; there a cell shows its largest entry.
    size = torch.maximum(block.analytic.abs(), block.numeric.abs()).nan_to_num(torch.inf)
    key = torch.where(block.severity > 1, 2 + block.severity.atan(), size.atan())
    down, across = -(-height // step[0]), -(-width // step[1])
    padded = torch.full((down * step[0], across * step[1]), -1.0, dtype=torch.float64)
    padded[:height, :width] = key
    cells = padded.reshape(down, step[0], across, step[1]).transpose(1, 2).flatten(2)
    inner = cells.argmax(2)
    row = torch.arange(down)[:, None] * step[0] + inner // step[1]
    column = torch.arange(across)[None] * step[1] + inner % step[1]
    return (row * width + column).flatten()
