"""Charts: a list of tensors seen as one vector of real coordinates.

A complex element takes two coordinates, its real and its imaginary part. With torch's convention for
gradients, the real view of a complex cotangent is the real covector, so nothing outside this module
needs to know about complex numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the coordinates of a tensor with this dtype."""
    return dtype.to_real()


def dense(tensor: Tensor) -> Tensor:
    """The tensor in strided layout."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def has_chart(tensor: Tensor) -> bool:
    """Whether the layout of a tensor is one that charts cover."""
    return tensor.layout is torch.strided or str(tensor.layout).endswith("mkldnn")


class Place(NamedTuple):
    """Where one tensor sits in a chart: its shape, and its range of coordinates."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int
    layout: torch.layout = torch.strided

    @property
    def real_shape(self) -> tuple[int, ...]:
        """The shape of the tensor's coordinates, with a last axis of two for complex dtypes."""
        return (*self.shape, 2) if self.dtype.is_complex else tuple(self.shape)

    def to_real(self, tensor: Tensor) -> Tensor:
        """The coordinates of this tensor, still in its own shape."""
        tensor = dense(tensor)
        if self.dtype.is_complex:
            return torch.view_as_real(tensor.resolve_conj().resolve_neg())
        return tensor

    def from_real(self, coordinates: Tensor) -> Tensor:
        """The tensor with these coordinates, given with or without leading batch axes."""
        if len(self.shape) == 1 and self.dtype.is_floating_point and self.layout is torch.strided:
            return coordinates
        lead = coordinates.shape[:-1]
        real = coordinates.reshape((*lead, *self.real_shape))
        if str(self.layout).endswith("mkldnn"):  # torch has no public name for it
            return real.to_mkldnn()
        return torch.complex(real[..., 0], real[..., 1]) if self.dtype.is_complex else real

    def label(self, coordinate: int) -> str:
        """How a person would write this coordinate of the tensor: `[3, 0]`, `[3].imag`, nothing."""
        part = ""
        if self.dtype.is_complex:
            coordinate, imaginary = divmod(coordinate, 2)
            part = ".imag" if imaginary else ".real"
        index = []
        for size in reversed(self.shape):
            coordinate, position = divmod(coordinate, size)
            index.append(str(position))
        return (f"[{', '.join(reversed(index))}]" if index else "") + part


class Chart(NamedTuple):
    """The real coordinates of a list of tensors, one after the other."""

    places: tuple[Place, ...]
    size: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Chart:
        """The chart around these tensors; only their shape, dtype and device are looked at."""
        places, start = [], 0
        for tensor in tensors:
            dtype = tensor.dtype
            stop = start + tensor.numel() * (2 if dtype.is_complex else 1)
            places.append(Place(tensor.shape, dtype, tensor.device, start, stop, tensor.layout))
            start = stop
        return cls(tuple(places), start)

    def to_coords(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of these tensors, as one vector."""
        if len(self.places) == 1:
            return self.places[0].to_real(tensors[0]).reshape(-1)
        parts = [
            place.to_real(tensor).reshape(-1) for place, tensor in zip(self.places, tensors, strict=True)
        ]
        if not parts:
            return torch.zeros(0)
        dtype = parts[0].dtype
        for part in parts:
            dtype = torch.promote_types(dtype, part.dtype)
        return torch.cat([part.to(dtype) for part in parts])

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
            return [place.from_real(coordinates.to(real_dtype(place.dtype)))]
        return [
            place.from_real(coordinates[..., place.start : place.stop].to(real_dtype(place.dtype)))
            for place in self.places
        ]

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

    def _basis_of(self, place: Place, start: int, stop: int, like: Tensor | None = None) -> Tensor:
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
    def places(self) -> tuple[Place, ...]:
        """The places of the whole chart."""
        return self.full.places

    def to_coords(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of these tensors that are looked at."""
        return self.full.to_coords(tensors)[self.kept]

    def stack_to_coords(self, stacks: Sequence[Tensor]) -> Tensor:
        """The same for tensors that are stacked along a first axis, one row for each slice."""
        return self.full.stack_to_coords(stacks)[:, self.kept]

    def from_coords(self, coordinates: Tensor) -> list[Tensor]:
        """The tensors with these coordinates, and the base elsewhere."""
        whole = self.base.expand(*coordinates.shape[:-1], -1).clone()
        whole[..., self.kept] = coordinates
        return self.full.from_coords(whole)

    def basis(self, start: int, stop: int) -> list[Tensor]:
        """Directions start..stop of the basis of what is looked at."""
        rows = torch.zeros(stop - start, self.size, dtype=torch.float64)
        rows[:, start:stop].diagonal().fill_(1)
        return self.from_coords(rows)

    def label(self, coordinate: int, names: Sequence[str]) -> str:
        """How a person would write this coordinate, given a name for each tensor."""
        return self.full.label(int(self.kept[coordinate]), names)


def sampled(chart: Chart, count: int | None, base: Tensor | None, seed: int) -> Chart | Sampled:
    """The chart, or a random sample of `count` of its coordinates if it has more."""
    if count is None or chart.size <= count:
        return chart
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randperm(chart.size, generator=generator)[:count].sort()[0]
    return Sampled(chart, kept, torch.zeros(chart.size, dtype=torch.float64) if base is None else base)
