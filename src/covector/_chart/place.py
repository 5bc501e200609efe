"""Where one strided tensor sits in a chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from covector._chart.layouts import copied, dense, is_opaque
from covector._engine.tensors import PLAIN, numbers, plain


class Flaw(NamedTuple):
    """What is wrong with the kind of a gradient, and whether its numbers are right all the same."""

    text: str
    tolerable: bool = False


class Beyond(NamedTuple):
    """What a gradient says about an element that its input leaves out."""

    where: str
    size: float
    largest: float
    """Of all numbers of the gradient."""


def index(position: int, shape: Sequence[int]) -> str:
    index = []
    for size in reversed(shape):
        position, along = divmod(position, size)
        index.append(str(along))
    return f"[{', '.join(reversed(index))}]" if index else ""


class Place(NamedTuple):
    """Where one tensor sits in a chart: its shape, and its range of coordinates."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int
    layout: torch.layout = torch.strided

    @property
    def has_strides(self) -> bool:
        """Whether the tensor could be laid out otherwise in memory."""
        return True

    @property
    def real_shape(self) -> tuple[int, ...]:
        """The shape of the tensor's coordinates, with a last axis of two for complex dtypes."""
        return (*self.shape, 2) if self.dtype.is_complex else self.shape

    @property
    def positions(self) -> Tensor:
        """Where each element that has coordinates stands among all elements."""
        return torch.arange(self.shape.numel())

    def to_real(self, tensor: Tensor) -> Tensor:
        """The coordinates of this tensor, still in its own shape."""
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if self.dtype.is_complex:
            return torch.view_as_real(tensor.resolve_conj().resolve_neg())
        return tensor.resolve_neg()

    def from_parts(self, parts: Tensor) -> Tensor:
        """The tensor with these coordinates in its own shape: what `to_real` gave.

        Through views, because the derivative of `torch.complex` cannot be batched at a conjugate.
        """
        return torch.view_as_complex(parts.contiguous()) if self.dtype.is_complex else parts

    def from_real(self, coordinates: Tensor) -> Tensor:
        """The tensor with these coordinates, given with or without leading batch axes."""
        if self.layout is torch.strided and self.dtype.is_floating_point:
            if len(self.shape) == 1:
                return coordinates
            return coordinates.reshape((*coordinates.shape[:-1], *self.shape))
        lead = coordinates.shape[:-1]
        real = coordinates.reshape((*lead, *self.real_shape))
        if is_opaque(self):
            return real.to_mkldnn()
        return torch.complex(real[..., 0], real[..., 1]) if self.dtype.is_complex else real

    def label(self, coordinate: int) -> str:
        """How a person would write this coordinate of the tensor: `[3, 0]`, `[3].imag`, nothing."""
        part = ""
        if self.dtype.is_complex:
            coordinate, imaginary = divmod(coordinate, 2)
            part = ".imag" if imaginary else ".real"
        return index(coordinate, self.shape) + part

    def strided(self, tensor: Tensor | None) -> Tensor:
        """A derivative by this tensor in strided layout; none is zero."""
        if tensor is None:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return dense(tensor)

    def coordinates(self, tensor: Tensor | None) -> Tensor:
        """The coordinates of a tensor like this one, in double precision on the CPU; none is zero."""
        if tensor is None:
            return torch.zeros(self.stop - self.start, dtype=torch.float64)
        if type(tensor) not in PLAIN:
            tensor = numbers(tensor)
        real = self.to_real(tensor.detach()).reshape(-1)
        return real if real.dtype is torch.float64 and real.is_cpu else real.to("cpu", torch.float64)

    def values(self, tensor: Tensor) -> Tensor:
        """The numbers of the tensor that the place was made for."""
        return tensor if type(tensor) in PLAIN else numbers(tensor)

    def stand_in(self, tensor: Tensor) -> Tensor:
        """A copy with the same strides, alignment and lazy conjugate or negative: a backward may mind."""
        return copied((tensor if type(tensor) in PLAIN else plain(tensor)).detach())

    def filled(self, tensor: Tensor) -> Tensor | None:
        """A strided tensor specifies every element."""
        return None

    def halved(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """One tensor made twice; they differ only where a tensor can leave elements out."""
        tensor = self.from_real(coordinates)
        return tensor, tensor

    def random(self, generator: torch.Generator) -> Tensor:
        """A tensor of this kind with normally distributed numbers."""
        return torch.randn(self.shape, dtype=self.dtype, generator=generator).to(self.device)

    def same_field(self, dtype: torch.dtype) -> bool:
        """Whether numbers of this dtype are real, or complex, as those here are."""
        return dtype.is_complex == self.dtype.is_complex

    def flaw(self, gradient: Tensor, words: Sequence[str]) -> Flaw | None:
        """In what the gradient by this tensor is of another kind than the tensor."""
        for word in words:
            got, expected = getattr(gradient, word), getattr(self, word)
            if got != expected:
                return Flaw(f"has {word} {got}, expected {expected}")
        return None

    def unspecified(self, gradient: Tensor) -> list[int]:
        """The coordinates of which a gradient says nothing."""
        return []

    def beyond(self, gradient: Tensor) -> Beyond | None:
        """A strided tensor leaves out no element that a gradient could speak of."""
        return None
