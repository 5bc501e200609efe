"""From a direction that disagrees to its columns, and from a column to its worst row, by halving."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from covector.verify.analytic import Analytic
from covector.verify.numeric import Numeric
from covector.verify.reverse import ReverseMap
from covector.verify.vectors import PIECE, Pieces, products


def columns_apart(
    numeric: Numeric,
    analytic: Analytic,
    columns: np.ndarray,
    steps: np.ndarray,
    allowed: float,
    off: np.ndarray | None = None,
) -> Iterator[int]:
    """The columns that disagree by themselves, among columns that together are off by `off`.

    J u is linear in u, so the errors of both halves add up to that of the whole. If neither half disagrees,
    both together cross a kink that neither reaches alone. `off` has a number for each cotangent; if it is not
    given, it is measured first.
    """
    pending = [(columns, steps, off)]
    numeric.spare += 4 * (len(columns) - 1).bit_length()
    while pending:
        columns, steps, off = pending.pop()
        if off is None:
            off = _off(numeric, analytic, columns, steps)
            if (abs(off) <= allowed).all():
                continue
        if len(columns) == 1:
            yield int(columns[0])
            continue
        half = len(columns) // 2
        first = _off(numeric, analytic, columns[:half], steps[:half])
        near, far = (columns[:half], steps[:half], first), (columns[half:], steps[half:], None)
        apart = [(_size(first), near), (_size(off - first), far)]
        # What is outside of the domain comes first.
        pending += [part for size, part in sorted(apart, key=lambda one: one[0]) if not size <= allowed]


def _size(off: np.ndarray) -> float:
    """The largest disagreement; infinity where there is none to compute."""
    return float(np.nan_to_num(abs(off), nan=np.inf).max())


def _off(numeric: Numeric, analytic: Analytic, columns: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """What these columns are off by together, along each cotangent."""
    numeric.spend(2)
    size = numeric.problem.inputs.size
    with np.errstate(all="ignore"):
        found = numeric.difference(lambda: _pieces(size, columns, steps))
        off: np.ndarray = products(analytic.cotangents, found)
        return (off - analytic.mixed_in_pieces(_pieces(size, columns, steps)))[:, 0]


def _pieces(size: int, columns: np.ndarray, steps: np.ndarray) -> Pieces:
    """A move of these columns, which are in order, alone."""
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        first, last = np.searchsorted(columns, [start, stop])
        piece = np.zeros((1, stop - start))
        piece[0, columns[first:last] - start] = steps[first:last]
        yield slice(start, stop), piece


def locate_row(analytic: Analytic, column: int, numeric_column: np.ndarray, which: int) -> int:
    """The row of a column that contributes the most to what the column is off by."""
    if not isinstance(analytic, ReverseMap):
        with np.errstate(all="ignore"):
            off = abs(analytic.columns(np.array([column]))[:, 0] - numeric_column)
        return int(np.nan_to_num(off, nan=np.inf).argmax())
    cotangent = analytic.cotangents[which]
    rows = np.arange(len(cotangent))
    with np.errstate(all="ignore"):
        off = float(cotangent @ numeric_column - analytic.mixed[which, column])
    while len(rows) > 1:
        half = rows[: len(rows) // 2]
        part = np.zeros_like(cotangent)
        part[half] = cotangent[half]
        pulled = float(analytic.pull_coordinates(torch.from_numpy(part))[column])
        with np.errstate(all="ignore"):
            first = float(cotangent[half] @ numeric_column[half]) - pulled
        if not np.isfinite(first) or abs(first) >= abs(off - first):
            rows, off = half, first
        else:
            rows, off = rows[len(half) :], off - first
    return int(rows[0])
