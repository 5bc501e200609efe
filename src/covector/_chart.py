"""Charts: a list of tensors seen as one vector of real coordinates.

A complex element takes two coordinates, its real and its imaginary part. With torch's convention for
gradients, the real view of a complex cotangent is the real covector, so nothing outside this module
needs to know about complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the coordinates of a tensor with this dtype."""
    return dtype.to_real()


@dataclass(frozen=True)
class Place:
    """Where one tensor sits in a chart: its shape, and its range of coordinates."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int

    @property
    def real_shape(self) -> tuple[int, ...]:
        """The shape of the tensor's coordinates, with a last axis of two for complex dtypes."""
        return (*self.shape, 2) if self.dtype.is_complex else tuple(self.shape)

    def to_real(self, tensor: Tensor) -> Tensor:
        """The coordinates of this tensor, still in its own shape."""
        if self.dtype.is_complex:
            return torch.view_as_real(tensor.resolve_conj().resolve_neg())
        return tensor

    def from_real(self, coordinates: Tensor) -> Tensor:
        """The tensor with these coordinates, given with or without leading batch axes."""
        lead = coordinates.shape[:-1]
        real = coordinates.reshape((*lead, *self.real_shape))
        return torch.view_as_complex(real.contiguous()) if self.dtype.is_complex else real


@dataclass(frozen=True)
class Chart:
    """The real coordinates of a list of tensors, one after the other."""

    places: tuple[Place, ...]
    size: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Chart:
        """The chart around these tensors; only their shape, dtype and device are looked at."""
        sizes = [math.prod(t.shape) * (2 if t.dtype.is_complex else 1) for t in tensors]
        stops = list(accumulate(sizes))
        places = tuple(
            Place(t.shape, t.dtype, t.device, stop - size, stop)
            for t, size, stop in zip(tensors, sizes, stops, strict=True)
        )
        return cls(places, stops[-1] if stops else 0)

    def to_coords(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of these tensors, as one vector."""
        parts = [
            place.to_real(tensor).reshape(-1) for place, tensor in zip(self.places, tensors, strict=True)
        ]
        if not parts:
            return torch.zeros(0)
        dtype = parts[0].dtype
        for part in parts:
            dtype = torch.promote_types(dtype, part.dtype)
        return torch.cat([part.to(dtype) for part in parts])

    def from_coords(self, coordinates: Tensor) -> list[Tensor]:
        """The tensors with these coordinates; leading axes of the vector stay in front of each tensor."""
        return [
            place.from_real(coordinates[..., place.start : place.stop].to(real_dtype(place.dtype)))
            for place in self.places
        ]

    def basis(self, start: int, stop: int) -> list[Tensor]:
        """Directions start..stop of the standard basis, stacked along a new first axis per tensor."""
        return [self._basis_of(place, start, stop) for place in self.places]

    def _basis_of(self, place: Place, start: int, stop: int) -> Tensor:
        block = torch.zeros(
            (stop - start, place.stop - place.start), dtype=real_dtype(place.dtype), device=place.device
        )
        first, last = max(start, place.start), min(stop, place.stop)
        if first < last:
            rows = block[first - start : last - start]
            rows[:, first - place.start : last - place.start].diagonal().fill_(1)
        return place.from_real(block)
