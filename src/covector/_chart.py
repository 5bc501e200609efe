"""Charts: a list of tensors seen as one vector of real coordinates.

A complex element takes two coordinates, its real and its imaginary part. With torch's convention for
gradients, the real view of a complex cotangent is the real covector, so nothing outside this module
needs to know about complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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

    def from_parts(self, parts: Tensor) -> Tensor:
        """The tensor with these coordinates in its own shape: what `to_real` gave.

        Through views, because the derivative of `torch.complex` cannot be batched at a conjugate.
        """
        return torch.view_as_complex(parts.contiguous()) if self.dtype.is_complex else parts

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


class Repeated(NamedTuple):
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
    def places(self) -> tuple[Place, ...]:
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


# Complex derivatives. The derivative of a complex function is a real matrix between real coordinates; a
# convention says how its blocks are put together. A block has the axes
#     (samples) + output (+ 2) + first input (+ 2) + second input (+ 2) ...
# with an axis of two, real and imaginary part, behind every tensor that is complex.


class Wirtinger(NamedTuple):
    """The pair of derivatives by a complex z: df/dz and df/dz*."""

    dz: Any
    dz_conj: Any


class Sides(NamedTuple):
    """What a block of a derivative is between: an output, the inputs, and whether samples come first."""

    output: Place
    inputs: tuple[Place, ...]
    lead: int = 0

    @property
    def output_axis(self) -> int:
        """The axis of the output's real and imaginary part."""
        return len(self.output.shape)

    def first_axis(self) -> int:
        """The first axis that belongs to an input."""
        return len(self.output.real_shape)


def _real_blocks(block: Tensor, sides: Sides) -> Tensor:
    return block


def _wirtinger(block: Tensor, sides: Sides) -> Any:
    return _pairs(block, sides, sides.first_axis(), sides.inputs)


def _pairs(block: Tensor, sides: Sides, axis: int, inputs: tuple[Place, ...]) -> Any:
    """The derivatives by these inputs and their conjugates, nested in the order of the inputs."""
    if not inputs:
        return _with_complex_output(block, sides)
    place, rest = inputs[0], inputs[1:]
    axis += len(place.shape) - sides.lead
    if not place.dtype.is_complex:
        return _pairs(block, sides, axis, rest)
    return Wirtinger(*(_pairs(part, sides, axis, rest) for part in _by_z(block, axis)))


def _by_z(block: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """d/dz = (d/dx - i d/dy) / 2, and d/dz* = (d/dx + i d/dy) / 2."""
    by_real, by_imaginary = block.unbind(axis)
    return (by_real - 1j * by_imaginary) / 2, (by_real + 1j * by_imaginary) / 2


def _with_complex_output(block: Tensor, sides: Sides) -> Tensor:
    if not sides.output.dtype.is_complex:
        return block
    real, imaginary = block.unbind(sides.output_axis)
    return real + 1j * imaginary


def _holomorphic(block: Tensor, sides: Sides) -> Tensor:
    derivative = _wirtinger(block, sides)
    while isinstance(derivative, Wirtinger):
        derivative = derivative.dz
    return derivative


CONVENTIONS: dict[str, Callable[[Tensor, Sides], Any]] = {
    "holomorphic": _holomorphic,
    "wirtinger": _wirtinger,
    "real": _real_blocks,
}


class Defect(NamedTuple):
    """How far a block is from obeying the Cauchy-Riemann equations: the sizes of df/dz* and of df/dz."""

    conjugate: list[Tensor]
    plain: list[Tensor]


def cauchy_riemann(block: Tensor, sides: Sides) -> Defect:
    """The largest derivative by each conjugate in this block, and the largest one by z."""
    plain, conjugate = _leaves(_wirtinger(block, sides))
    return Defect(*([part.abs().amax() for part in parts if part.numel()] for parts in (conjugate, plain)))


def _leaves(derivative: Any, conjugate: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """The derivatives by no conjugate, and those by at least one."""
    if not isinstance(derivative, Wirtinger):
        return ([], [derivative]) if conjugate else ([derivative], [])
    first, second = _leaves(derivative.dz, conjugate), _leaves(derivative.dz_conj, True)
    return first[0] + second[0], first[1] + second[1]
