"""Where one sparse tensor sits in a chart, and what it specifies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import torch
from torch import Tensor

from covector._chart.layouts import (
    BLOCKED,
    INDICES,
    SUPPORTED,
    ShapeChange,
    dense,
    is_opaque,
    is_sparse,
    is_strided,
    values_of,
)
from covector._chart.place import Beyond, Flaw, index
from covector._engine.messages import is_unsorted
from covector._lazy import lazy

# torch declares another signature than the one it documents.
_compressed: Callable[..., Tensor] = torch.sparse_compressed_tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which elements a sparse tensor specifies, and in which order its values are."""

    layout: torch.layout
    shape: torch.Size
    indices: tuple[Tensor, ...]
    values_shape: torch.Size
    coalesced: bool = True

    @classmethod
    def of(cls, tensor: Tensor) -> Pattern:
        """The pattern of this tensor, in memory of its own."""
        indices = tuple(index.clone() for index in INDICES[tensor.layout](tensor))
        coalesced = tensor.layout is not torch.sparse_coo or tensor.is_coalesced()
        return cls(tensor.layout, tensor.shape, indices, values_of(tensor).shape, coalesced)

    @classmethod
    def full(cls, tensor: Tensor) -> Pattern:
        """All elements, in the layout of this tensor, with its block size and dense dimensions."""
        everywhere = torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
        if tensor.layout is torch.sparse_coo:
            whole = everywhere.to_sparse(tensor.sparse_dim())
        else:
            whole = everywhere.to_sparse(
                layout=tensor.layout, blocksize=block_size(tensor), dense_dim=tensor.dense_dim()
            )
        indices = INDICES[whole.layout](whole)
        return cls(tensor.layout, tensor.shape, indices, values_of(whole).shape)

    def build(self, values: Tensor, *, check: bool = False) -> Tensor:
        """The tensor with these values; its derivative is recorded if theirs is."""
        if self.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(
                self.indices[0], values, self.shape, is_coalesced=self.coalesced, check_invariants=check
            )
        return _compressed(*self.indices, values, self.shape, layout=self.layout, check_invariants=check)

    def fits(self, tensor: Tensor) -> bool:
        """Whether the values of this tensor are those of the elements here, one by one."""
        if tensor.layout is not self.layout or not self.coalesced:
            return False
        theirs = INDICES[self.layout](tensor)
        if not all(map(torch.equal, self.indices, theirs)):
            return False
        return values_of(tensor).shape == self.values_shape

    @lazy
    def positions(self) -> Tensor:
        """Where each of the values stands in the strided tensor, in the shape of the values."""
        if self.layout is torch.sparse_coo:
            sizes = self.shape[: self.indices[0].shape[0]]
            inner = prod(self.shape[len(sizes) :])
            first = torch.zeros_like(self.indices[0][:1]).sum(0)
            for index, size in zip(self.indices[0], sizes, strict=True):
                first = first * size + index
            return (first[:, None] * inner + torch.arange(inner)).reshape(self.values_shape)
        # A tensor that holds the number of each value says where that value goes.
        numbers = torch.arange(1, prod(self.values_shape) + 1, dtype=torch.float64)
        whole = self.build(numbers.reshape(self.values_shape)).to_dense().reshape(-1)
        found = whole.nonzero().flatten()
        positions = torch.empty(numbers.numel(), dtype=torch.int64)
        positions[whole[found].to(torch.int64) - 1] = found
        return positions.reshape(self.values_shape)

    def outside(self, whole: Tensor) -> Tensor:
        """The positions at which a strided tensor is not zero and that the pattern lacks."""
        return whole.reshape(-1).index_fill(0, self.positions.reshape(-1), 0).nonzero().flatten()


def block_size(tensor: Tensor) -> tuple[int, int] | None:
    """The size of a block, of the layouts that have them."""
    if tensor.layout not in BLOCKED:
        return None
    first = tensor.dim() - tensor.sparse_dim() - tensor.dense_dim() + 1
    return cast(tuple[int, int], tuple(tensor.values().shape[first : first + 2]))


@dataclass(frozen=True, eq=False)
class SparsePlace:
    """Where one sparse tensor sits in a chart.

    Inside, its numbers are passed around as a strided tensor of values in the order of the pattern:
    what is strided here is never the tensor itself.
    """

    pattern: Pattern
    dtype: torch.dtype
    device: torch.device
    start: int
    stop: int
    masked: bool
    is_output: bool
    sparse_dim: int
    dense_dim: int
    block_size: tuple[int, int] | None

    @classmethod
    def around(cls, tensor: Tensor, start: int, *, masked: bool, is_output: bool) -> SparsePlace:
        """The place of this tensor. The duplicates of an output are added up."""
        tensor = tensor.detach()
        if is_output and tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
        pattern = Pattern.of(tensor) if masked else Pattern.full(tensor)
        size = prod(pattern.values_shape) * (2 if tensor.dtype.is_complex else 1)
        kind = (tensor.sparse_dim(), tensor.dense_dim(), block_size(tensor))
        return cls(pattern, tensor.dtype, tensor.device, start, start + size, masked, is_output, *kind)

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return self.pattern.shape

    @property
    def layout(self) -> torch.layout:
        """The layout of the tensor."""
        return self.pattern.layout

    @property
    def real_shape(self) -> tuple[int, ...]:
        """The shape of the coordinates: a list in the order of the pattern, of pairs for complex dtypes."""
        count = prod(self.pattern.values_shape)
        return (count, 2) if self.dtype.is_complex else (count,)

    @property
    def has_strides(self) -> bool:
        """Whether the tensor could be laid out otherwise in memory."""
        return False

    @property
    def positions(self) -> Tensor:
        """Where each element that has coordinates stands among all elements."""
        return self.pattern.positions.reshape(-1)

    def to_real(self, tensor: Tensor) -> Tensor:
        """The coordinates of this tensor, or of these values."""
        values = tensor if tensor.layout is torch.strided else self._read(tensor)
        if self.dtype.is_complex:
            return torch.view_as_real(values.resolve_conj().resolve_neg())
        return values

    def strided(self, tensor: Tensor | None) -> Tensor:
        """The values of a derivative by this tensor, which may have any layout; none is zero."""
        if tensor is None:
            return torch.zeros(self.pattern.values_shape, dtype=self.dtype, device=self.device)
        return self._read(tensor)

    def coordinates(self, tensor: Tensor | None) -> Tensor:
        """The coordinates of a tensor like this one, in double precision on the CPU; none is zero."""
        return self.to_real(self.strided(tensor).detach()).reshape(-1).to("cpu", torch.float64)

    def _read(self, tensor: Tensor) -> Tensor:
        """The values of a tensor of any layout and pattern."""
        tensor = tensor.detach()
        if self.pattern.fits(tensor):
            return self._held(tensor)
        whole = dense(tensor)
        if self.is_output and self.masked and (beyond := self.pattern.outside(whole)).numel():
            raise ShapeChange(
                "the function specifies other elements at a nearby point, for example "
                f"{index(int(beyond[0]), self.shape)} of an output"
            )
        return whole.reshape(-1)[self.pattern.positions]

    def from_real(self, coordinates: Tensor) -> Tensor:
        """The tensor with these coordinates; with a leading axis, a stack of tensors."""
        if coordinates.dim() > 1:
            return cast(Tensor, SparseStack(self, coordinates))
        if self.dtype.is_complex:
            pairs = coordinates.reshape(*self.pattern.values_shape, 2)
            return self.pattern.build(torch.view_as_complex(pairs))
        return self.pattern.build(coordinates.reshape(self.pattern.values_shape))

    def values(self, tensor: Tensor) -> Tensor:
        """The numbers of the tensor that the place was made for; masked, each duplicate has its own."""
        return self._held(tensor) if self.masked else self._read(tensor)

    def _held(self, tensor: Tensor) -> Tensor:
        # Of a view into a CSR tensor torch cannot make another one, of real numbers.
        return values_of(tensor).clone() if self.dtype.is_complex else values_of(tensor)

    def stand_in(self, tensor: Tensor) -> Tensor:
        """A copy, which specifies the same elements."""
        tensor = tensor.detach()
        return Pattern.of(tensor).build(values_of(tensor).clone())

    def filled(self, tensor: Tensor) -> Tensor | None:
        """A copy that specifies every element that has coordinates; None if the tensor does."""
        tensor = tensor.detach()
        if self.masked or self.pattern.fits(tensor):
            return None
        return self.pattern.build(self._read(tensor).clone())

    def halved(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """One tensor made twice: every other element is zero, and there is specified or is not."""
        values = values_of(self.from_real(coordinates)).clone()
        values.movedim(len(self.shape) - self.sparse_dim - self.dense_dim, 0)[1::2] = 0
        whole = self.pattern.build(values)
        if self.layout is torch.sparse_coo:
            return whole, whole.to_dense().to_sparse(self.sparse_dim)
        few = whole.to_dense().to_sparse(
            layout=self.layout, blocksize=self.block_size, dense_dim=self.dense_dim
        )
        return whole, few

    def random(self, generator: torch.Generator) -> Tensor:
        """A tensor of this kind with normally distributed numbers."""
        values = torch.randn(self.pattern.values_shape, dtype=self.dtype, generator=generator)
        return self.pattern.build(values.to(self.device))

    def same_field(self, dtype: torch.dtype) -> bool:
        """Whether numbers of this dtype are real, or complex, as those here are."""
        return dtype.is_complex == self.dtype.is_complex

    def label(self, coordinate: int) -> str:
        """How a person would write this coordinate of the tensor."""
        part = ""
        if self.dtype.is_complex:
            coordinate, imaginary = divmod(coordinate, 2)
            part = ".imag" if imaginary else ".real"
        return index(int(self.pattern.positions.reshape(-1)[coordinate]), self.shape) + part

    def flaw(self, gradient: Tensor, words: Sequence[str]) -> Flaw | None:
        """In what the gradient by this tensor is of another kind than the tensor."""
        if gradient.layout is torch.strided:
            words = [word for word in words if word != "layout"]
        elif gradient.layout is self.layout:
            words = [*words, "sparse_dim", "dense_dim", "block_size"]
        for word in words:
            got, expected = _KINDS.get(word, getattr)(gradient, word), getattr(self, word)
            if got != expected:
                return Flaw(f"has {word} {got}, expected {expected}")
        if gradient.layout is torch.strided:
            return Flaw(f"has layout torch.strided, expected {self.layout}", tolerable=True)
        return None

    def beyond(self, gradient: Tensor) -> Beyond | None:
        """The largest number of a gradient at an element that the tensor leaves out; None without a mask."""
        if not self.masked or self.pattern.fits(gradient):
            return None
        sizes = dense(gradient.detach()).reshape(-1).abs()
        if sizes.numel() == 0:
            return None
        outside = sizes.index_fill(0, self.positions, 0)
        position = int(outside.argmax())
        return Beyond(index(position, self.shape), float(outside[position]), float(sizes.max()))

    def unspecified(self, gradient: Tensor) -> list[int]:
        """The coordinates of which a gradient says nothing, though they are elements of the tensor."""
        if self.masked or gradient.layout is torch.strided or self.pattern.fits(gradient):
            return []
        missing = _specified(gradient).reshape(-1)[self.pattern.positions].reshape(-1) == 0
        coordinates = missing.nonzero().flatten()
        if self.dtype.is_complex:
            coordinates = torch.stack([2 * coordinates, 2 * coordinates + 1], dim=1).flatten()
        return (coordinates + self.start).tolist()


_KINDS: dict[str, Callable[[Tensor, str], object]] = {
    "sparse_dim": lambda tensor, _: tensor.sparse_dim(),
    "dense_dim": lambda tensor, _: tensor.dense_dim(),
    "block_size": lambda tensor, _: block_size(tensor),
}


def _specified(tensor: Tensor) -> Tensor:
    """A strided tensor that is not zero where a sparse one specifies an element."""
    tensor = tensor.detach()
    return Pattern.of(tensor).build(torch.ones_like(values_of(tensor))).to_dense()


class SparseStack:
    """What stands for a stack of sparse tensors, which torch does not have: each is made when asked for."""

    def __init__(self, place: SparsePlace, coordinates: Tensor) -> None:
        self._place = place
        self._coordinates = coordinates
        self.shape = torch.Size((coordinates.shape[0], *place.shape))

    def __getitem__(self, span: slice) -> SparseStack:
        return SparseStack(self._place, self._coordinates[span])

    def unbind(self) -> Iterator[Tensor]:
        """The tensors, one after the other."""
        return map(self._place.from_real, self._coordinates)


def moved(tensor: Tensor) -> Tensor:
    """A tensor like this one with every number that it holds one larger."""
    tensor = tensor.detach()
    return Pattern.of(tensor).build(values_of(tensor) + 1) if is_sparse(tensor) else tensor + 1


def refusal(tensor: Tensor, *, is_output: bool = False) -> str | None:
    """Why a tensor has no chart, to follow its name; None if it has one."""
    if tensor.is_nested:
        return (
            "is a nested tensor, which is not supported; pass its .values() (or a list of its .unbind()), "
            "and build the nested tensor inside the function."
        )
    if tensor.is_meta:
        return "is a meta tensor, which holds no numbers; make it on a device."
    if tensor.layout in INDICES:
        return _broken(tensor, is_output)
    if is_opaque(tensor):
        return (
            "is an mkldnn tensor, for which torch has no arithmetic; return its .to_dense()."
            if is_output
            else None
        )
    if is_strided(tensor):
        return None
    return (
        f"has layout {tensor.layout}, which is not supported (supported are {SUPPORTED}); pass a strided "
        "tensor and convert it inside the function."
    )


def _broken(tensor: Tensor, is_output: bool) -> str | None:
    """What is wrong with the indices of a sparse tensor."""
    tensor = tensor.detach()
    try:
        Pattern.of(tensor).build(values_of(tensor), check=True)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        if is_output and is_unsorted(error):
            return None  # torch's own product of two CSR matrices does not sort
        return (
            f"violates the invariants of {tensor.layout}: {reason}. Build it with check_invariants=True to "
            "find out where it goes wrong."
        )
    return None
