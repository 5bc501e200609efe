"""What layouts a tensor can have, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from covector._engine.tensors import coo_indices, coo_values, negative_view

# Tensors whose memory begins at multiples of so many elements are aligned alike.
_ALIGNED = 64


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the coordinates of a tensor with this dtype."""
    return _REAL.get(dtype, dtype)


# A table, not `dtype.to_real()`, which torch.compile cannot trace.
_REAL = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def _compressed_rows(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.crow_indices(), tensor.col_indices()


def _compressed_columns(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.ccol_indices(), tensor.row_indices()


# The indices of a sparse tensor, by its layout. What is not in this table is not sparse.
INDICES: dict[torch.layout, Callable[[Tensor], tuple[Tensor, ...]]] = {
    torch.sparse_coo: lambda tensor: (coo_indices(tensor),),
    torch.sparse_csr: _compressed_rows,
    torch.sparse_csc: _compressed_columns,
    torch.sparse_bsr: _compressed_rows,
    torch.sparse_bsc: _compressed_columns,
}
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)

SUPPORTED = "strided, mkldnn, " + ", ".join(str(layout).removeprefix("torch.") for layout in INDICES)


class HasLayout(Protocol):
    """A tensor, or the place of one."""

    @property
    def layout(self) -> torch.layout:
        """How the elements lie in memory."""


class ShapeChange(Exception):
    """The kind of an output, or which elements it specifies, depends on the values of the inputs."""


def is_sparse(tensor: Tensor) -> bool:
    """Whether the layout of a tensor is one of the sparse ones."""
    return tensor.layout in INDICES


def kind_of(tensor: Tensor) -> str:
    """The dtype of a tensor, and its layout if that is sparse."""
    layout = str(tensor.layout).removeprefix("torch.")
    return f"{layout} {tensor.dtype}" if is_sparse(tensor) else str(tensor.dtype)


def is_strided(tensor: Tensor) -> bool:
    """Whether the elements of a tensor lie in memory by strides."""
    return tensor.layout is torch.strided


def is_opaque(tensor: HasLayout) -> bool:
    """Whether only mkldnn knows how the elements of a tensor lie in memory."""
    return str(tensor.layout).endswith("mkldnn")  # torch has no public name for this layout


def overlaps(tensor: Tensor) -> bool:
    """Whether numbers that a tensor holds share memory: it is expanded, or its strides are too short."""
    numbers = values_of(tensor)
    if not is_strided(numbers) or numbers.is_contiguous():
        return False
    reached, axes = 0, zip(numbers.stride(), numbers.shape, strict=True)
    long = sorted((stride, size) for stride, size in axes if size > 1)
    if numbers.numel() > 1 + sum(stride * (size - 1) for stride, size in long):
        return True  # more elements than places
    for stride, size in long:
        if stride <= reached:  # a step along this axis may come back to what the shorter ones have reached
            return _meets_itself(numbers)
        reached += (size - 1) * stride
    return False


def _meets_itself(numbers: Tensor) -> bool:
    """Whether two elements have one place in memory."""
    places = torch.zeros((), dtype=torch.int64, device="cpu")  # whatever the default device is
    for stride, size in zip(numbers.stride(), numbers.shape, strict=True):
        places = places[..., None] + stride * torch.arange(size, device="cpu")
    return places.unique().numel() < places.numel()


def dense(tensor: Tensor) -> Tensor:
    """The tensor in strided layout."""
    return tensor if is_strided(tensor) else tensor.to_dense()


def dense_twin(tensor: Tensor) -> Tensor | None:
    """The tensor in strided layout, if `to_sparse(layout=...)` makes the tensor of it again."""
    if is_strided(tensor):
        return tensor
    twin = dense(tensor.detach())
    try:
        again = twin.to_sparse(layout=tensor.layout)
    except RuntimeError:  # blocks, of which the size is not said; mkldnn
        return None
    return twin if values_of(again).shape == values_of(tensor).shape else None


def copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides, alignment and lazy conjugate or negative; it may overlap itself too."""
    if tensor.layout is not torch.strided:
        return tensor.clone()
    if tensor.is_conj():
        return copied(tensor.conj()).conj()
    if tensor.is_neg():
        return negative_view(copied(negative_view(tensor)))
    copy = tensor.clone()
    begin = tensor.storage_offset() % _ALIGNED
    if tensor.numel() == 0 or (begin == 0 and copy.stride() == tensor.stride()):
        return copy
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.new_empty(begin + reach)
    memory[begin:] = tensor.as_strided((reach,), (1,))
    return memory.as_strided(tensor.shape, tensor.stride(), begin).detach()


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def reordered(tensor: Tensor) -> Tensor:
    """The same numbers in another order of memory: channels last, transposed, or with others between them."""
    if not is_strided(tensor) or tensor.numel() < 2:
        return tensor
    last = _CHANNELS_LAST.get(tensor.dim())
    if last is not None and not tensor.is_contiguous(memory_format=last):
        return tensor.contiguous(memory_format=last)
    if tensor.dim() > 1 and min(tensor.shape[-2:]) > 1:
        return tensor.mT.contiguous().mT
    apart = tensor.new_empty(*tensor.shape, 2)
    apart[..., 0], apart[..., 1] = tensor, tensor.flip(-1)
    return apart[..., 0]


def part_of_larger(tensor: Tensor) -> Tensor:
    """The same numbers in the midst of a larger memory; complex ones as a view that is conjugate lazily."""
    if not is_strided(tensor) or tensor.numel() == 0:
        return tensor
    numbers = tensor.conj().resolve_conj().reshape(-1)
    part = torch.cat([-numbers[-1:], numbers])[1:].view(tensor.shape)
    return part.conj()


def values_of(tensor: Tensor) -> Tensor:
    """The numbers that a tensor holds, in strided layout and in its own memory."""
    if tensor.layout is torch.sparse_coo:
        return coo_values(tensor)
    return tensor.values() if tensor.layout in INDICES else tensor


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit by bit; a difference of layout is none."""
    if a.layout is b.layout and is_sparse(a):
        pairs = zip(INDICES[a.layout](a), INDICES[b.layout](b), strict=True)
        if all(torch.equal(mine, other) for mine, other in pairs):
            return torch.equal(values_of(a), values_of(b))
    return torch.equal(dense(a), dense(b))
