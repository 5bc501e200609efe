"""Which rows and columns of a large Jacobian are looked at: indices that lie together around a wrong entry.

Most kinds of mistakes show in how elements act on their neighbours: on those of the same row, of the same
window, on the one with its indices exchanged. So a sample is a product of indices, a few along each axis of a
tensor, and axes that correspond have the same ones: the Jacobian between two such grids is that of the same
function on smaller tensors, as far as rules are concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
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


def inside(place: AnyPlace, coordinates: Tensor) -> Tensor:
    """Which coordinates of the chart belong to a tensor."""
    return (coordinates >= place.start) & (coordinates < place.stop)


def holds(place: AnyPlace, coordinates: Iterable[int]) -> bool:
    """Whether some of these belong to a tensor."""
    return any(place.start <= coordinate < place.stop for coordinate in coordinates)


def is_gridded(place: AnyPlace) -> bool:
    """Whether the elements of a tensor have an index for each axis: not those of a sparse one."""
    return place.has_strides and place.stop - place.start == prod(place.real_shape)


def index_of(place: AnyPlace, coordinates: Tensor) -> tuple[Tensor, ...]:
    """The index along each axis of coordinates of the chart."""
    flat = coordinates - place.start
    return torch.unravel_index(flat // 2 if place.dtype.is_complex else flat, _shape(place))


def grids(places: Sequence[AnyPlace], anchors: Sequence[int | None], most: Sequence[int]) -> list[Grid]:
    """A grid for each tensor, around its anchor if it has one, of at most so many coordinates.

    Axes of one size have the same indices, if there is room for those of every anchor and as many neighbours;
    else axes of one size that stand at the same place, from the right, do.
    """
    for by_place in (False, True):
        axes = _Axes(places, anchors, most, by_place)
        if axes.has_room:
            break
    return axes.grids()


class _Axes:
    """The axes of some tensors by what those have in common that take the same indices.

    That is their size, and on request where they stand, from the right.
    """

    def __init__(
        self, places: Sequence[AnyPlace], anchors: Sequence[int | None], most: Sequence[int], by_place: bool
    ) -> None:
        self._places = places
        self._most = [m // 2 if place.dtype.is_complex else m for m, place in zip(most, places, strict=True)]
        shapes = map(_shape, places)
        self._keys = [
            [(size, at if by_place else 0) for at, size in enumerate(shape, -len(shape))] for shape in shapes
        ]
        self._wanted: dict[tuple[int, int], list[int]] = {key: [] for mine in self._keys for key in mine}
        for place, mine, anchor in zip(places, self._keys, anchors, strict=True):
            if anchor is not None:
                for key, index in zip(mine, index_of(place, torch.tensor(anchor)), strict=True):
                    self._wanted[key].append(int(index))
        self._lengths = self._grown()

    @property
    def has_room(self) -> bool:
        """Whether there is room for the anchors, and for as many neighbours of them."""
        wanted = {key: min(2 * len(set(indices)), key[0]) for key, indices in self._wanted.items()}
        return self._fits(self._lengths) and all(self._lengths[key] >= n for key, n in wanted.items())

    def grids(self) -> list[Grid]:
        """A grid for each tensor."""
        chosen = {key: _indices(key[0], n, self._wanted[key]) for key, n in self._lengths.items()}
        tensors = zip(self._places, self._keys, strict=True)
        return [Grid(place, tuple(chosen[key] for key in mine)) for place, mine in tensors]

    def _fits(self, lengths: dict[tuple[int, int], int]) -> bool:
        counts = (prod(lengths[key] for key in mine) for mine in self._keys)
        return all(count <= most for count, most in zip(counts, self._most, strict=True))

    def _grown(self) -> dict[tuple[int, int], int]:
        """How many indices are taken along each axis: as even as there is room for."""
        last = {key for mine in self._keys for key in mine[-2:]}
        batches = {mine[0] for mine in self._keys if len(mine) > 2} - last
        limits = {key: min(key[0], _OF_A_BATCH) if key in batches else key[0] for key in self._wanted}
        lengths = {key: max(1, len(set(wanted))) for key, wanted in self._wanted.items()}
        growing = [key for key in lengths if lengths[key] < limits[key]]
        while growing:
            shortest = min(growing, key=lambda key: lengths[key])
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
    near = chain(wanted, range(first, size), range(first - 1, -1, -1))
    return torch.tensor(sorted(islice(dict.fromkeys(near), length)), dtype=torch.int64)


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
