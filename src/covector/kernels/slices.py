"""Slices of a tensor along its axes, and sums of squares over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

# A slice has at least this many entries; where one index of an axis has fewer, neighbours go together.
LEAST = 8

# Of a slice, one entry in so many is left to the test of the largest error. A right kernel may lose digits
# in single entries (a softmax whose maximum is differentiated has errors of 300 ulp at the maximum of each
# row), and these would speak for the whole slice.
LARGEST = 32


@dataclass(frozen=True)
class Slicing:
    """An axis of a tensor, cut into slices of `step` neighbouring indices each."""

    shape: tuple[int, ...]
    axis: int
    step: int

    @property
    def count(self) -> int:
        """How many slices there are."""
        return ceil(self.shape[self.axis] / self.step)

    def sums(self, squares: Tensor) -> Tensor:
        """The sum over every slice of a tensor of this shape."""
        return self._cut(squares).sum(1)

    def sums_but_largest(self, squares: Tensor) -> Tensor:
        """The sum over every slice, without the largest numbers of each."""
        cut = self._cut(squares)
        return (cut.sum(1) - _largest(cut).sum(1)).clamp_min(0.0)

    def spread(self, numbers: Tensor) -> Tensor:
        """A number for each slice, given to all its entries."""
        along = numbers.repeat_interleave(self.step)[: self.shape[self.axis]]
        return along.reshape([-1 if axis == self.axis else 1 for axis in range(len(self.shape))])

    def _cut(self, squares: Tensor) -> Tensor:
        """A row for each slice, filled up with zeros."""
        lines = squares.movedim(self.axis, 0).reshape(self.shape[self.axis], -1)
        missing = self.count * self.step - lines.shape[0]
        if missing:
            lines = torch.cat([lines, lines.new_zeros(missing, lines.shape[1])])
        return lines.reshape(self.count, -1)

    def indices(self, number: int) -> tuple[int, int]:
        """The first index of a slice, and the one behind its last."""
        return number * self.step, min((number + 1) * self.step, self.shape[self.axis])


def _largest(rows: Tensor) -> Tensor:
    return rows.topk(ceil(rows.shape[1] / LARGEST), dim=1).values


def but_largest(squares: Tensor) -> Tensor:
    """The sum of all numbers, without the largest; of a few, all of them."""
    row = squares.reshape(1, -1)
    return (row.sum() - _largest(row).sum()).clamp_min(0.0) if row.numel() >= LEAST else row.sum()


def slicings(shape: Sequence[int]) -> list[Slicing]:
    """Every axis that has more than one slice."""
    size = prod(shape)
    cut = [
        Slicing(tuple(shape), axis, max(1, ceil(LEAST * length / size)))
        for axis, length in enumerate(shape)
        if length > 1 and size > 0
    ]
    return [slicing for slicing in cut if slicing.count > 1]
