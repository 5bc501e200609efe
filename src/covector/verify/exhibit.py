"""What a page shows besides the findings: both Jacobians by pair of tensors, and suspects step by step.

It is gathered when a page is asked for and not before, from the problem that a report keeps; a report
that was pickled has lost it, and then the page has the findings alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covector.verify.derivatives import Derivatives
from covector.verify.evidence import PAGE, Evidence, Part, gather
from covector.verify.quiet import quiet
from covector.verify.report import Finding, Mismatch, Outcome
from covector.verify.scan import Scan, scan
from covector.verify.tolerance import Tolerance

# Cells of all heat maps together; the sides of one map; entries around a suspect; suspects scanned.
_CELLS = 24_000
_LARGEST_SIDE, _SMALLEST_SIDE = 64, 6
_AROUND = 24
_PATCHES = 3
_SCANS = 6


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
    worst_row: tuple[int, ...]
    worst_column: tuple[int, ...]


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


@dataclass(frozen=True)
class Exhibit:
    """The Jacobians of one mode by pair, worst pair first, and scans of the suspects."""

    mode: str
    whole: bool
    tol: Tolerance
    pairs: tuple[Pair, ...]
    scans: tuple[Scan, ...]


@dataclass(frozen=True)
class Source:
    """Where an exhibit comes from: the derivatives, and how the caller's things are kept as they are."""

    derivatives: Derivatives
    unchanged: Callable[[], AbstractContextManager[Any]]

    def exhibit(self, findings: tuple[Finding, ...]) -> Exhibit:
        """Both Jacobians, within the budget of a page, and the suspects step by step."""
        d = self.derivatives
        mode = _mode(d, findings)
        named = [m for f in findings for m in f.mismatches if f.check == mode or mode == "no derivative"]
        with self.unchanged(), quiet():
            evidence = gather(d, mode, named, PAGE)
            pairs = _pairs(evidence)
            suspects = named or [p.worst for p in pairs if p.worst is not None][:2]
            scans = [scan(d.problem, m.analytic, m.row, m.column, str(m.entry)) for m in _distinct(suspects)]
        return Exhibit(mode, evidence.whole, evidence.tol, pairs, tuple(scans))


def _mode(d: Derivatives, findings: tuple[Finding, ...]) -> str:
    """The mode that failed, or the first that was checked."""
    if not d.problem.differentiable:
        return "no derivative"
    for finding in findings:
        if finding.outcome is not Outcome.PASSED and finding.mismatches:
            return finding.check
    return "reverse mode" if d.options.reverse else "forward mode"


def _distinct(suspects: list[Mismatch]) -> list[Mismatch]:
    return list({(m.row, m.column): m for m in suspects if m.row >= 0}.values())[:_SCANS]


def _pairs(evidence: Evidence) -> tuple[Pair, ...]:
    count = max(1, len(evidence.outputs) * len(evidence.inputs))
    side = max(_SMALLEST_SIDE, min(_LARGEST_SIDE, math.isqrt(_CELLS // count)))
    pairs = [
        pair
        for output in evidence.outputs
        for part in evidence.inputs
        if (pair := _pair(evidence, output, part, side)) is not None
    ]
    pairs.sort(key=_severity, reverse=True)
    return tuple(pairs)


def _severity(pair: Pair) -> tuple[int, float]:
    m = pair.worst
    return pair.differing, 0.0 if m is None or m.error != m.error else m.error / (m.allowed or 1.0)


def _inside(coordinates: Tensor, part: Part) -> Tensor:
    return ((coordinates >= part.place.start) & (coordinates < part.place.stop)).nonzero().flatten()


def _pair(evidence: Evidence, output: Part, part: Part, side: int) -> Pair | None:
    """One output by one input; None if none of its entries were looked at."""
    at, over = _inside(evidence.rows, output), _inside(evidence.columns, part)
    if at.numel() == 0 or over.numel() == 0:
        return None
    block = _Block(
        evidence.rows[at] - output.place.start,
        evidence.columns[over] - part.place.start,
        *(m[at][:, over] for m in (evidence.analytic, evidence.numeric, evidence.error, evidence.allowed)),
    )
    bad = evidence.bad[at][:, over]
    row, column = block.worst()
    worst = Mismatch(
        evidence.entry(int(at[row]), int(over[column])),
        float(block.analytic[row, column]),
        float(block.numeric[row, column]),
        float(evidence.bound[at[row], over[column]]),
        float(block.allowed[row, column]),
        row=int(evidence.row_numbers[at[row]]),
        column=int(evidence.column_numbers[over[column]]),
    )
    shape, largest = (at.numel(), over.numel()), float(block.error.max())
    views = tuple(_views(block, bad, output, part, side))
    return Pair(output, part, shape, int(bad.sum()), largest, worst, views)


@dataclass(frozen=True)
class _Block:
    """The entries of a pair, with the coordinates of its rows and columns."""

    rows: Tensor
    columns: Tensor
    analytic: Tensor
    numeric: Tensor
    error: Tensor
    allowed: Tensor

    @property
    def severity(self) -> Tensor:
        """The error in units of what is allowed."""
        ratio = self.error / self.allowed.clamp(min=1e-300)
        return ratio.nan_to_num(torch.inf, torch.inf)

    def worst(self) -> tuple[int, int]:
        """The row and the column of the entry that is furthest beyond what is allowed."""
        row, column = divmod(int(self.severity.argmax()), self.columns.numel())
        return row, column

    def cut(self, rows: slice, columns: slice) -> _Block:
        """A patch."""
        parts = (m[rows, columns] for m in (self.analytic, self.numeric, self.error, self.allowed))
        return _Block(self.rows[rows], self.columns[columns], *parts)


def _views(block: _Block, bad: Tensor, output: Part, part: Part, side: int) -> Iterator[View]:
    """The whole pair, and where that takes aggregation, the entries around its worst ones."""
    height, width = block.error.shape
    step = (-(-height // side), -(-width // side))
    yield _view("whole", block, step)
    if step == (1, 1):
        return
    remaining = torch.where(bad, block.severity, -1.0)
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
    analytic, numeric, error = (
        tuple(m.flatten()[chosen].tolist()) for m in (block.analytic, block.numeric, block.error)
    )
    return View(
        title,
        tuple(block.rows[rows].tolist()),
        tuple(block.columns[columns].tolist()),
        step,
        analytic,
        numeric,
        error,
        tuple(block.rows[row].tolist()),
        tuple(block.columns[column].tolist()),
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
