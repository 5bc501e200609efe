"""From a cell that disagrees to the entry behind it, by halving.

J u is linear in u, so what one half of the columns is off by tells what the other half is.
"""

from __future__ import annotations

import numpy as np
import torch

from covector.verify.analytic import Analytic, ReverseMap
from covector.verify.numeric import Numeric


def locate_column(
    numeric: Numeric, analytic: Analytic, columns: np.ndarray, steps: np.ndarray, which: int, off: float
) -> int:
    """The column that contributes the most to what these columns together are off by.

    `which` is the cotangent that they disagree along, `off` by how much.
    """
    cotangent = analytic.cotangents[which]
    numeric.limit += 2 * (len(columns) - 1).bit_length()
    while len(columns) > 1:
        half = len(columns) // 2
        moves = np.zeros((1, numeric.problem.inputs.size))
        moves[0, columns[:half]] = steps[:half]
        with np.errstate(all="ignore"):
            differences = cotangent @ numeric.differences(moves)[0]
            first = float(differences - analytic.mixed_along(moves)[which, 0])
        # Outside of the domain is where to look first.
        if not np.isfinite(first) or abs(first) >= abs(off - first):
            columns, steps, off = columns[:half], steps[:half], first
        else:
            columns, steps, off = columns[half:], steps[half:], off - first
    return int(columns[0])


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
