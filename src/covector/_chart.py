"""Charts: a list of tensors seen as one vector of real coordinates.

A complex element takes two coordinates, its real and its imaginary part. With torch's convention for
gradients, the real view of a complex cotangent is the real covector, so nothing outside this module
needs to know about complex numbers.

A sparse tensor has a place of its own kind. Masked, its coordinates are the elements that it specifies;
otherwise they are all its elements, and a tensor made from them specifies every one, in the same layout.
torch cannot stack such tensors, so a stack of them is made one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the coordinates of a tensor with this dtype."""
    return dtype.to_real()


def _compressed_rows(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.crow_indices(), tensor.col_indices()


def _compressed_columns(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.ccol_indices(), tensor.row_indices()


# The indices of a sparse tensor, by its layout. What is not in this table is not sparse.
_INDICES: dict[torch.layout, Callable[[Tensor], tuple[Tensor, ...]]] = {
    torch.sparse_coo: lambda tensor: (tensor._indices(),),
    torch.sparse_csr: _compressed_rows,
    torch.sparse_csc: _compressed_columns,
    torch.sparse_bsr: _compressed_rows,
    torch.sparse_bsc: _compressed_columns,
}
_BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)

# torch declares another signature than the one it documents.
_compressed: Callable[..., Tensor] = torch.sparse_compressed_tensor

SUPPORTED = "strided, mkldnn, " + ", ".join(str(layout).removeprefix("torch.") for layout in _INDICES)


class ShapeChange(Exception):
    """The shape of an output, or which elements it specifies, depends on the values of the inputs."""


def is_sparse(tensor: Tensor) -> bool:
    """Whether the layout of a tensor is one of the sparse ones."""
    return tensor.layout in _INDICES


def kind_of(tensor: Tensor) -> str:
    """The dtype of a tensor, and its layout if that is sparse."""
    layout = str(tensor.layout).removeprefix("torch.")
    return f"{layout} {tensor.dtype}" if is_sparse(tensor) else str(tensor.dtype)


def is_strided(tensor: Tensor) -> bool:
    """Whether the elements of a tensor lie in memory by strides."""
    return tensor.layout is torch.strided


def overlaps(tensor: Tensor) -> bool:
    """Whether elements of a tensor share memory, because a stride is zero."""
    return is_strided(tensor) and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def dense(tensor: Tensor) -> Tensor:
    """The tensor in strided layout."""
    return tensor if is_strided(tensor) else tensor.to_dense()


def values_of(tensor: Tensor) -> Tensor:
    """The numbers that a tensor holds, in strided layout and in its own memory."""
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    return tensor.values() if tensor.layout in _INDICES else tensor


def moved(tensor: Tensor) -> Tensor:
    """A tensor like this one with every number that it holds one larger."""
    tensor = tensor.detach()
    return Pattern.of(tensor).build(values_of(tensor) + 1) if is_sparse(tensor) else tensor + 1


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit by bit; a difference of layout is none."""
    if a.layout is b.layout and is_sparse(a):
        pairs = zip(_INDICES[a.layout](a), _INDICES[b.layout](b), strict=True)
        if all(torch.equal(mine, other) for mine, other in pairs):
            return torch.equal(values_of(a), values_of(b))
    return torch.equal(dense(a), dense(b))


def refusal(tensor: Tensor, *, is_output: bool = False) -> str | None:
    """Why a tensor has no chart, to follow its name; None if it has one."""
    if tensor.is_nested:
        return (
            "is a nested tensor, which is not supported; pass its .values() (or a list of its .unbind()), "
            "and build the nested tensor inside the function."
        )
    if tensor.layout in _INDICES:
        return _broken(tensor, is_output)
    if tensor.layout is torch.strided or str(tensor.layout).endswith("mkldnn"):
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
        if is_output and "sorted and distinct" in reason:
            return None  # torch's own product of two CSR matrices does not sort
        return (
            f"violates the invariants of {tensor.layout}: {reason}. Build it with check_invariants=True to "
            "find out where it goes wrong."
        )
    return None


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
        return _index(coordinate, self.shape) + part

    def strided(self, tensor: Tensor | None) -> Tensor:
        """A derivative by this tensor in strided layout; none is zero."""
        if tensor is None:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return dense(tensor)

    def values(self, tensor: Tensor) -> Tensor:
        """The numbers of the tensor that the place was made for."""
        return tensor

    def stand_in(self, tensor: Tensor) -> Tensor:
        """A copy, with the same strides: a backward may be wrong for just these."""
        copy = tensor.detach().clone()
        if self.layout is torch.strided and copy.stride() != tensor.stride():
            copy = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            ).copy_(tensor.detach())
        return copy

    def halved(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """One tensor made twice; they differ only where a tensor can leave elements out."""
        tensor = self.from_real(coordinates)
        return tensor, tensor

    def random(self, generator: torch.Generator) -> Tensor:
        """A tensor of this kind with normally distributed numbers."""
        return torch.randn(self.shape, dtype=self.dtype, generator=generator).to(self.device)

    def fits(self, tensor: Tensor) -> bool:
        """Whether the tensor belongs here."""
        return tensor.shape == self.shape

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


class Flaw(NamedTuple):
    """What is wrong with the kind of a gradient, and whether its numbers are right all the same."""

    text: str
    tolerable: bool = False


def _index(position: int, shape: Sequence[int]) -> str:
    index = []
    for size in reversed(shape):
        position, along = divmod(position, size)
        index.append(str(along))
    return f"[{', '.join(reversed(index))}]" if index else ""


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
        indices = tuple(index.clone() for index in _INDICES[tensor.layout](tensor))
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
        indices = _INDICES[whole.layout](whole)
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
        theirs = _INDICES[self.layout](tensor)
        if not all(map(torch.equal, self.indices, theirs)):
            return False
        return values_of(tensor).shape == self.values_shape

    @cached_property
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
    if tensor.layout not in _BLOCKED:
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

    def _read(self, tensor: Tensor) -> Tensor:
        """The values of a tensor of any layout and pattern."""
        tensor = tensor.detach()
        if self.pattern.fits(tensor):
            return self._held(tensor)
        whole = dense(tensor)
        if self.is_output and self.masked and (beyond := self.pattern.outside(whole)).numel():
            raise ShapeChange(
                "the function specifies other elements at a nearby point, for example "
                f"{_index(int(beyond[0]), self.shape)} of an output"
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
        """A copy; if not masked, one that specifies every element."""
        return self.pattern.build(self.values(tensor.detach()).clone())

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

    def fits(self, tensor: Tensor) -> bool:
        """Whether the tensor belongs here."""
        return tensor.shape == self.shape and tensor.layout is self.layout

    def label(self, coordinate: int) -> str:
        """How a person would write this coordinate of the tensor."""
        part = ""
        if self.dtype.is_complex:
            coordinate, imaginary = divmod(coordinate, 2)
            part = ".imag" if imaginary else ".real"
        return _index(int(self.pattern.positions.reshape(-1)[coordinate]), self.shape) + part

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
        beyond = self._beyond(gradient) if self.masked else None
        if beyond is not None:
            what = f"specifies {_index(beyond, self.shape)}, which is not specified in the input"
            return Flaw(f"goes beyond the mask: it {what}", tolerable=True)
        return None

    def _beyond(self, gradient: Tensor) -> int | None:
        """The position of an element that a gradient specifies and the pattern does not."""
        if self.pattern.fits(gradient):
            return None
        found = self.pattern.outside(_specified(gradient))
        return int(found[0]) if found.numel() else None

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
        return not any(isinstance(place, SparsePlace) for place in self.places)

    @property
    def sparse_layouts(self) -> list[str]:
        """The sparse layouts in this chart."""
        return sorted({str(place.layout) for place in self.places if isinstance(place, SparsePlace)})

    def point(self, tensors: Sequence[Tensor]) -> Tensor:
        """The coordinates of the tensors that the chart was made around."""
        pairs = zip(self.places, tensors, strict=True)
        return self.to_coords([place.values(tensor.detach()) for place, tensor in pairs])

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

    @property
    def elementwise(self) -> tuple[Place, ...]:
        """The places, of tensors whose coordinates are their elements in order."""
        return tuple(place for place in self.places if isinstance(place, Place))

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
