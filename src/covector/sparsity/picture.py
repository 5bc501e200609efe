"""A matrix in a terminal: a dot for each entry, or a braille character for each 4 x 2 cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A matrix of at most this many rows and columns is shown entry by entry: it fits into 80 columns.
SMALL = 32
# The cells of a picture of a larger one: characters across and lines down, of 2 x 4 cells each.
_ACROSS, _DOWN = 64, 32

# The bit of each of the 4 x 2 dots of a braille character (Unicode 2800 and on).
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BLANK = 0x2800


def picture(shape: tuple[int, int], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> str:
    """The matrix with entries in these rows and columns, drawn with characters."""
    if not shape[0] or not shape[1]:
        return ""
    if max(shape) <= SMALL:
        return _dots(shape, rows, columns)
    return _braille(shape, rows, columns)


def _dots(shape: tuple[int, int], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> str:
    cells = np.full(shape, "·")
    cells[rows, columns] = "●"
    return "\n".join(" ".join(line) for line in cells)


def _braille(shape: tuple[int, int], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> str:
    """Each dot is a rectangle of the matrix, and is set if there is an entry in it; proportions are kept."""
    scale = max(shape[0] / (4 * _DOWN), shape[1] / (2 * _ACROSS), 1.0)
    height, width = (max(1, int(np.ceil(size / scale))) for size in shape)
    lines, characters = -(-height // 4), -(-width // 2)
    codes = np.full((lines, characters), _BLANK)
    down, right = (rows / scale).astype(np.int64), (columns / scale).astype(np.int64)
    np.bitwise_or.at(codes, (down // 4, right // 2), _BITS[down % 4, right % 2])
    return "\n".join("".join(map(chr, line)) for line in codes)
