"""Charts: lists of tensors as one vector, whole, repeated for samples, or in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from covector._chart.layouts import is_sparse, real_dtype
from covector._chart.place import Place
from covector._chart.sparse import SparsePlace
from covector._engine.tensors import PLAIN, plain

AnyPlace: TypeAlias = Place | SparsePlace


class Chart(NamedTuple):
    """The real coordinates of a list of tensors, one after the other."""

    places: tuple[AnyPlace, ...]
    size: int

    @classmethod
    def around(cls, tensors: Sequence[Tensor], *, masked: bool, is_output: bool = False) -> Chart:
        """The chart around these tensors, in which a sparse one keeps its layout."""
        if not any(map(is_sparse, tensors)):
            return cls.of(tensors)
        places: list[AnyPlace] = []
        for tensor in tensors:
            start = places[-1].stop if places else 0
            if is_sparse(tensor):
                places.append(SparsePlace.around(tensor, start, masked=masked, is_output=is_output))
            else:
                place = cls.of([tensor]).places[0]
                assert isinstance(place, Place)
                places.append(place._replace(start=start, stop=start + place.stop))
        return cls(tuple(places), places[-1].stop)

    @property
    def can_batch(self) -> bool:
        """Whether torch can stack the tensors of this chart."""
        for place in self.places:  # noqa: SIM110 - half the time of `any`, several times in every check
            if isinstance(place, SparsePlace):
                return False
        return True

    @property
    def sparse_layouts(self) -> list[str]:
        """The sparse layouts in this chart."""
        return sorted({str(place.layout) for place in self.places if isinstance(place, SparsePlace)})

    def point(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of the tensors that the chart was made around."""
        pairs = zip(self.places, tensors, strict=True)
        return self.to_coords(
            [place.values((t if type(t) in PLAIN else plain(t)).detach()) for place, t in pairs]
        )

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Chart:
        """The chart around these tensors; only their shape, dtype and device are looked at."""
        places, start = [], 0
        for tensor in tensors:
            dtype = tensor.dtype
            stop = start + tensor.shape.numel() * (2 if dtype.is_complex else 1)
            places.append(Place(tensor.shape, dtype, tensor.device, start, stop, tensor.layout))
            start = stop
        return cls(tuple(places), start)

    def elementwise(self) -> tuple[Place, ...]:
        """The places, of tensors whose coordinates are their elements in order."""
        return tuple(place for place in self.places if isinstance(place, Place))

    def to_coords(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of these tensors, as one vector."""
        if len(self.places) == 1:
            return self.places[0].to_real(tensors[0]).reshape(-1)
        pairs = zip(self.places, tensors, strict=True)
        parts = [place.to_real(tensor).reshape(-1) for place, tensor in pairs]
        return torch.cat(parts) if parts else torch.zeros(0)

    def coordinates(self, tensors: Sequence[Tensor | None], out: Tensor | None = None) -> Tensor:
        """The coordinates of tensors like these, in double precision on the CPU; none is zero.

        Those of several tensors are put together, in `out` if it is given; those of one may be a view of it.
        """
        if len(self.places) == 1:
            return self.places[0].coordinates(tensors[0])
        parts = [place.coordinates(tensor) for place, tensor in zip(self.places, tensors, strict=True)]
        return torch.cat(parts, out=out) if parts else torch.zeros(0, dtype=torch.float64)

    def stack_to_coords(self, stacks: Sequence[Tensor]) -> Tensor:
        """The coordinates of tensors that are stacked along a first axis, one row for each slice."""
        count = stacks[0].shape[0]
        parts = [
            place.to_real(stack).reshape(count, place.stop - place.start).to(torch.float64)
            for place, stack in zip(self.places, stacks, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def label(self, coordinate: int, names: Sequence[str]) -> str:
        """How a person would write this coordinate, given a name for each tensor."""
        for place, name in zip(self.places, names, strict=True):
            if place.start <= coordinate < place.stop:
                return name + place.label(coordinate - place.start)
        raise IndexError(coordinate)

    def from_coords(self, coordinates: Tensor) -> list[Tensor]:
        """The tensors with these coordinates; leading axes of the vector stay in front of each tensor."""
        if len(self.places) == 1:
            place = self.places[0]
            if place.dtype is not coordinates.dtype or place.device != coordinates.device:
                coordinates = coordinates.to(place.device, real_dtype(place.dtype))
            return [place.from_real(coordinates)]
        return [
            place.from_real(
                coordinates[..., place.start : place.stop].to(place.device, real_dtype(place.dtype))
            )
            for place in self.places
        ]

    def of_one_number(self, number: float) -> list[Tensor] | None:
        """Tensors that hold one number everywhere, once in memory; None if a layout cannot do that."""
        if any(place.layout is not torch.strided for place in self.places):
            return None
        numbers = [torch.full((), number, dtype=place.dtype, device=place.device) for place in self.places]
        return [number.expand(place.shape) for number, place in zip(numbers, self.places, strict=True)]

    def basis(self, start: int, stop: int, like: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Directions start..stop of the standard basis, stacked along a new first axis per tensor.

        With `like`, they are made from those tensors, so that inside a batch they belong to it.
        """
        if like is not None:
            return [self._basis_of(place, start, stop, t) for place, t in zip(self.places, like, strict=True)]
        if len(self.places) == 1 and start == 0 and stop >= self.size:
            place = self.places[0]
            whole = torch.eye(stop, self.size, dtype=real_dtype(place.dtype), device=place.device)
            return [place.from_real(whole)]
        return [self._basis_of(place, start, stop) for place in self.places]

    def _basis_of(self, place: AnyPlace, start: int, stop: int, like: Tensor | None = None) -> Tensor:
        shape, dtype = (stop - start, place.stop - place.start), real_dtype(place.dtype)
        if like is None:
            block = torch.zeros(shape, dtype=dtype, device=place.device)
        else:
            block = like.new_zeros(shape, dtype=dtype)
        first, last = max(start, place.start), min(stop, place.stop)
        if first < last:
            rows = block[first - start : last - start]
            rows[:, first - place.start : last - place.start].diagonal().fill_(1)
        return place.from_real(block)


@dataclass(frozen=True)
class Repeated:
    """A chart of one sample, for tensors in which `samples` samples lie along one axis.

    Each direction of its basis is a direction of one sample, taken in all samples at once.
    """

    sample: Chart
    axis: int
    samples: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor], axis: int) -> Repeated:
        """The chart of one sample of these tensors, which all have the same number of them."""
        places, start = [], 0
        for tensor in tensors:
            shape = torch.Size((*tensor.shape[:axis], *tensor.shape[axis + 1 :]))
            stop = start + shape.numel()
            places.append(Place(shape, tensor.dtype, tensor.device, start, stop, tensor.layout))
            start = stop
        return cls(Chart(tuple(places), start), axis, tensors[0].shape[axis])

    @property
    def size(self) -> int:
        """How many coordinates one sample has."""
        return self.sample.size

    @property
    def places(self) -> tuple[AnyPlace, ...]:
        """The places of one sample."""
        return self.sample.places

    def basis(self, start: int, stop: int, like: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Directions start..stop of a sample, in every sample, stacked along a new first axis."""
        rows = self.sample.basis(start, stop, like)
        shapes = [(*row.shape[: self.axis + 1], self.samples, *row.shape[self.axis + 1 :]) for row in rows]
        return [row.unsqueeze(self.axis + 1).expand(shape) for row, shape in zip(rows, shapes, strict=True)]


class Sampled(NamedTuple):
    """A chart of which only some coordinates are looked at; the others stay at `base`."""

    full: Chart
    kept: Tensor
    base: Tensor

    @property
    def size(self) -> int:
        """How many coordinates are looked at."""
        return self.kept.numel()

    @property
    def places(self) -> tuple[AnyPlace, ...]:
        """The places of the whole chart."""
        return self.full.places

    def to_coords(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of these tensors that are looked at."""
        return self.full.to_coords(tensors)[self.kept]

    def within(self, place: AnyPlace) -> tuple[slice, np.ndarray]:
        """Which of the coordinates that are looked at are in a place, and where in it they stand."""
        kept = self.kept.numpy()
        first, last = np.searchsorted(kept, [place.start, place.stop])
        return slice(first, last), kept[first:last] - place.start

    def coordinates(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The coordinates that are looked at, in double precision on the CPU; none is zero."""
        parts = []
        for place, tensor in zip(self.places, tensors, strict=True):
            _, positions = self.within(place)
            numbers = place.to_real(place.strided(tensor).detach()).reshape(-1)
            parts.append(numbers[torch.from_numpy(positions)].to("cpu", torch.float64))
        return torch.cat(parts)

    def stack_to_coords(self, stacks: Sequence[Tensor]) -> Tensor:
        """The same for tensors that are stacked along a first axis, one row for each slice."""
        return self.full.stack_to_coords(stacks)[:, self.kept]

    @property
    def can_batch(self) -> bool:
        """Whether torch can stack the tensors of this chart."""
        return self.full.can_batch

    @property
    def sparse_layouts(self) -> list[str]:
        """The sparse layouts in this chart."""
        return self.full.sparse_layouts

    def from_coords(self, coordinates: Tensor) -> list[Tensor]:
        """The tensors with these coordinates, and the base elsewhere."""
        whole = self.base.expand(*coordinates.shape[:-1], -1).clone()
        whole[..., self.kept] = coordinates.to(whole.dtype)
        return self.full.from_coords(whole)

    def basis(self, start: int, stop: int) -> list[Tensor]:
        """Directions start..stop of the basis of what is looked at."""
        rows = torch.zeros(stop - start, self.size, dtype=torch.float64)
        rows[:, start:stop].diagonal().fill_(1)
        return self.from_coords(rows)

    def label(self, coordinate: int, names: Sequence[str]) -> str:
        """How a person would write this coordinate, given a name for each tensor."""
        return self.full.label(int(self.kept[coordinate]), names)


def real_ones(chart: Chart | Sampled) -> Tensor:
    """Coordinates of ones; of complex numbers, the real parts."""
    whole = torch.ones(chart.places[-1].stop, dtype=torch.float64)
    for place in chart.places:
        if place.dtype.is_complex:
            whole[place.start : place.stop].view(-1, 2)[:, 1] = 0.0
    return whole[chart.kept] if isinstance(chart, Sampled) else whole


def one_number(chart: Chart | Sampled, index: int) -> Tensor:
    """Coordinates of one number, which is one; of a complex tensor the imaginary unit."""
    vector = torch.zeros(chart.size, dtype=torch.float64)
    if isinstance(chart, Chart):
        place = next(place for place in chart.places if place.start <= index < place.stop)
        if place.dtype.is_complex:
            index += 1 - (index - place.start) % 2
    vector[index] = 1.0
    return vector


def sampled(chart: Chart, count: int | None, base: Tensor | None, seed: int) -> Chart | Sampled:
    """The chart, or a random sample of `count` of its coordinates if it has more."""
    if count is None or chart.size <= count:
        return chart
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randperm(chart.size, generator=generator)[:count].sort()[0]
    dtype = real_dtype(chart.places[0].dtype) if len(chart.places) == 1 else torch.float64
    nothing = torch.zeros(1, dtype=dtype).expand(chart.size)
    return Sampled(chart, kept, nothing if base is None else base)


# Complex derivatives. The derivative of a complex function is a real matrix between real coordinates; a
# convention says how its blocks are put together. A block has the axes
#     (samples) + output (+ 2) + first input (+ 2) + second input (+ 2) ...
# with an axis of two, real and imaginary part, behind every tensor that is complex.
