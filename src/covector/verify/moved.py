"""The leaves that differences move: they are given other numbers in place, and then their own again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart, Sampled, values_of
from covector.verify.vectors import PIECE, Pieces


class Shift(NamedTuple):
    """A move away from a point, to one of two sides."""

    side: np.ufunc
    """`np.add` or `np.subtract`."""
    move: Callable[[], Pieces]
    """Of all coordinates; nobody keeps it while the function runs."""

    def shifted(self, point: np.ndarray) -> np.ndarray:
        """The point that is moved to."""
        there = np.empty_like(point)
        for span, piece in self.move():
            self.side(point[span], piece[0], out=there[span])
        return there


class Moved:
    """Leaves at a point, which can be moved away from it and back."""

    def __init__(
        self, leaves: Sequence[Tensor], inputs: Chart | Sampled, points: Chart | Sampled, point: np.ndarray
    ) -> None:
        self.leaves = leaves
        self._inputs, self._points, self._point = inputs, points, point
        self._held = [values_of(leaf.data) for leaf in leaves]
        self._arrays = self._as_arrays()
        self._home = [numbers.clone() for numbers in self._held] if self._arrays is None else []

    def _as_arrays(self) -> list[np.ndarray] | None:
        """The coordinates of the leaves as arrays on the same memory, if all of them can be seen as that."""
        if self._inputs.sparse_layouts:
            return None
        arrays = []
        for place, held in zip(self._inputs.places, self._held, strict=True):
            try:
                real = place.to_real(held)
                if real.data_ptr() != held.data_ptr():  # a conjugate that was written out
                    return None
                arrays.append(real.numpy())
            except (TypeError, RuntimeError):  # another device, layout or dtype
                return None
        return arrays

    def to(self, point: np.ndarray, shift: Shift | None = None) -> None:
        """Put other numbers into the leaves: those of a point, or of what a shift leads to from there."""
        arrays = self._arrays
        whole = arrays is not None and not isinstance(self._inputs, Sampled)
        if shift is not None:
            if arrays and whole and point.size > PIECE and all(one.flags.c_contiguous for one in arrays):
                self._in_pieces(arrays, point, shift)
                return
            point = shift.shifted(point)
        if arrays is None:
            tensors = self._points.from_coords(torch.from_numpy(point))
            for numbers, tensor in zip(self._held, tensors, strict=True):
                numbers.copy_(values_of(tensor))
            return
        for array, place in zip(arrays, self._inputs.places, strict=True):
            if isinstance(self._inputs, Sampled):
                looked_at, positions = self._inputs.within(place)
                array.flat[positions] = point[looked_at]
            else:
                array[...] = point[place.start : place.stop].reshape(array.shape)

    def _in_pieces(self, arrays: list[np.ndarray], point: np.ndarray, shift: Shift) -> None:
        """The same in pieces: of many numbers, another vector would count."""
        flat = [array.reshape(-1) for array in arrays]
        for span, piece in shift.move():
            for array, place in zip(flat, self._inputs.places, strict=True):
                start, stop = max(span.start, place.start), min(span.stop, place.stop)
                if start < stop:
                    moved, there = piece[0, start - span.start : stop - span.start], slice(start, stop)
                    out = array[start - place.start : stop - place.start]
                    shift.side(point[there], moved, out=out, casting="same_kind")

    def back(self) -> None:
        """Put their own numbers into the leaves again."""
        if self._arrays is not None:
            self.to(self._point)
            return
        for numbers, home in zip(self._held, self._home, strict=True):
            numbers.copy_(home)
