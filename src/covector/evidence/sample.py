"""Which rows and columns of a large Jacobian are looked at: indices that lie together around a wrong entry.

Most kinds of mistakes show in how elements act on their neighbours: on those of the same row, of the same
window, on the one with its indices exchanged. So a sample is a product of indices, a few along each axis of a
tensor, and axes that correspond have the same ones: the Jacobian between two such grids is that of the same
function on smaller tensors, as far as rules are concerned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import torch
from torch import Tensor

from covector._chart import AnyPlace
from covector.verify import constants

# Columns that are differenced for a diagnosis however many runs the check has taken: more points than are
# evaluated one by one, so that they tell whether the function can be batched.
FEW = constants.DIRECTIONS + 1

# Of an axis before two others, as that of a batch, so many indices are enough.
_OF_A_BATCH = 3

# Coordinates are completed to a grid if it has at most so many times as many.
_OTHERS = 2

# A block of indices starts at a multiple of this, so that windows of two or four lie in it.
_ALIGNED = 4


@dataclass(frozen=True)
class Grid:
    """The indices along each axis of a tensor; real and imaginary parts are both taken."""

    place: AnyPlace
    indices: tuple[Tensor, ...]

    @property
    def coordinates(self) -> Tensor:
        """The coordinates of the chart that the grid is made of, in their order."""
        shape = _shape(self.place)
        flat = torch.zeros((), dtype=torch.int64)
        for size, along in zip(shape, self.indices, strict=True):
            flat = flat.unsqueeze(-1) * size + along
        if self.place.dtype.is_complex:
            flat = 2 * flat.unsqueeze(-1) + torch.arange(2)
        return self.place.start + flat.flatten()


def _shape(place: AnyPlace) -> tuple[int, ...]:
    """The shape of a tensor without the axis of real and imaginary parts."""
    return tuple(place.real_shape[:-1] if place.dtype.is_complex else place.real_shape)


def is_gridded(place: AnyPlace) -> bool:
    """Whether the elements of a tensor have an index for each axis: not those of a sparse one."""
    return place.has_strides and place.stop - place.start == prod(place.real_shape)


def index_of(place: AnyPlace, coordinates: Tensor) -> tuple[Tensor, ...]:
    """The index along each axis of coordinates of the chart."""
    flat = coordinates - place.start
    if place.dtype.is_complex:
        flat = flat // 2
    index = []
    for size in reversed(_shape(place)):
        index.append(flat % size)
        flat = flat // size
    return tuple(index[::-1])


def grids(places: Sequence[AnyPlace], anchors: Sequence[int | None], most: Sequence[int]) -> list[Grid]:
    """A grid for each tensor, around its anchor if it has one, of at most so many coordinates.

    Axes of one size have the same indices, if there is room for those of every anchor and as many neighbours;
    else axes of one size that stand at the same place, from the right, do.
    """
    by_size = _Axes(places, anchors, most, _by_size)
    return (by_size if by_size.has_room else _Axes(places, anchors, most, _by_place)).grids()


def _by_size(shape: tuple[int, ...], axis: int) -> Hashable:
    return shape[axis]


def _by_place(shape: tuple[int, ...], axis: int) -> Hashable:
    return shape[axis], axis - len(shape)


class _Axes:
    """The axes of some tensors by a key that those have in common which take the same indices."""

    def __init__(
        self,
        places: Sequence[AnyPlace],
        anchors: Sequence[int | None],
        most: Sequence[int],
        key: Callable[[tuple[int, ...], int], Hashable],
    ) -> None:
        self._places, self._most = places, most
        shapes = [_shape(place) for place in places]
        self._keys = [[key(shape, axis) for axis in range(len(shape))] for shape in shapes]
        self._sizes = {
            k: size
            for shape, mine in zip(shapes, self._keys, strict=True)
            for size, k in zip(shape, mine, strict=True)
        }
        self._wanted: dict[Hashable, list[int]] = {k: [] for k in self._sizes}
        for place, mine, anchor in zip(places, self._keys, anchors, strict=True):
            if anchor is not None:
                for k, index in zip(mine, index_of(place, torch.tensor(anchor)), strict=True):
                    self._wanted[k].append(int(index))
        self._lengths = self._grown()

    @property
    def has_room(self) -> bool:
        """Whether there is room for the anchors, and for as many neighbours of them."""
        wanted = {k: min(2 * len(set(indices)), self._sizes[k]) for k, indices in self._wanted.items()}
        return self._fits(self._lengths) and all(self._lengths[k] >= count for k, count in wanted.items())

    def grids(self) -> list[Grid]:
        """A grid for each tensor."""
        chosen = {k: _indices(size, self._lengths[k], self._wanted[k]) for k, size in self._sizes.items()}
        return [
            Grid(place, tuple(chosen[k] for k in mine))
            for place, mine in zip(self._places, self._keys, strict=True)
        ]

    def _fits(self, lengths: dict[Hashable, int]) -> bool:
        for place, mine, most in zip(self._places, self._keys, self._most, strict=True):
            if (2 if place.dtype.is_complex else 1) * prod(lengths[k] for k in mine) > most:
                return False
        return True

    def _grown(self) -> dict[Hashable, int]:
        """How many indices are taken along each axis: as even as there is room for."""
        last = {k for mine in self._keys for k in mine[-2:]}
        batches = {mine[0] for mine in self._keys if len(mine) > 2} - last
        limits = {k: min(size, _OF_A_BATCH) if k in batches else size for k, size in self._sizes.items()}
        lengths = {k: max(1, len(set(wanted))) for k, wanted in self._wanted.items()}
        growing = [k for k in lengths if lengths[k] < limits[k]]
        while growing:
            shortest = min(growing, key=lambda k: lengths[k])
            longer = lengths | {shortest: lengths[shortest] + 1}
            fits = self._fits(longer)
            lengths = longer if fits else lengths
            if not fits or lengths[shortest] >= limits[shortest]:
                growing.remove(shortest)
        return lengths


def _indices(size: int, length: int, wanted: Sequence[int]) -> Tensor:
    """A block of indices that has these; or, where they lie far apart, one near the first, and them."""
    low, high = min(wanted, default=0), max(wanted, default=0)
    first = (low if high - low < length else wanted[0]) // _ALIGNED * _ALIGNED
    if high - low < length:
        start = min(first if high < first + length else high - length + 1, size - length)
        return torch.arange(start, start + length)
    found = set(wanted)
    for index in chain(range(first, size), range(first - 1, -1, -1)):
        if len(found) >= length:
            break
        found.add(index)
    return torch.tensor(sorted(found), dtype=torch.int64)


def widened(place: AnyPlace, coordinates: Tensor, most: int) -> Tensor:
    """The smallest grid that has these coordinates; they themselves if it has many others or is too large."""
    if not is_gridded(place) or not coordinates.numel():
        return coordinates
    grid = Grid(place, tuple(index.unique() for index in index_of(place, coordinates)))
    count = prod(len(index) for index in grid.indices)
    return grid.coordinates if count <= min(most, _OTHERS * coordinates.numel()) else coordinates


def spread(size: int, count: int, wanted: Sequence[int]) -> Tensor:
    """The wanted indices, and others spread evenly."""
    if size <= count:
        return torch.arange(size)
    named = torch.tensor([index for index in wanted if 0 <= index < size], dtype=torch.int64).unique()
    others = max(FEW, count - named.numel())
    even = torch.linspace(0, size - 1, others, dtype=torch.float64).round().to(torch.int64)
    return torch.cat([even, named]).unique()
