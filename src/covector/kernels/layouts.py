"""Ways to lay a tensor out in memory: one table.

What lies between the numbers of a tensor is filled with NaN, so that a kernel that reads it shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """A row of the table: what it is called, and how a tensor is laid out so (None: it cannot be)."""

    name: str
    make: Callable[[Tensor], Tensor | None]


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _transposed(tensor: Tensor) -> Tensor | None:
    if tensor.dim() < 2:
        return None
    order = list(range(tensor.dim()))[::-1]
    return _contiguous(tensor.permute(order)).permute(order)


def _offset(tensor: Tensor) -> Tensor | None:
    if tensor.dim() == 0:
        return None
    size = tensor.shape[-1]
    buffer = tensor.new_full((*tensor.shape[:-1], size + 3), torch.nan)
    view = buffer[..., 1 : 1 + size]
    return view.copy_(tensor.detach())


def _stepped(tensor: Tensor) -> Tensor | None:
    if tensor.dim() == 0:
        return None
    buffer = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan)
    return buffer[..., ::2].copy_(tensor.detach())


def _channels_last(tensor: Tensor) -> Tensor | None:
    if tensor.dim() not in (4, 5):
        return None
    wanted = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.detach().clone().contiguous(memory_format=wanted)


def _expanded(tensor: Tensor) -> Tensor | None:
    """The first slice of the first axis, repeated without memory of its own: other numbers."""
    if tensor.dim() == 0 or tensor.shape[0] < 2:
        return None
    return _contiguous(tensor[:1]).expand(tensor.shape)


def _overlapping(tensor: Tensor) -> Tensor | None:
    """Rows that begin one number after each other: other numbers."""
    if tensor.dim() < 2 or tensor.numel() == 0 or tensor.shape[-2] < 2:
        return None
    flat = _contiguous(tensor).flatten()
    strides = list(tensor.detach().contiguous().stride())
    strides[-2] = 1
    return flat.as_strided(tensor.shape, strides)


CONTIGUOUS = Layout("contiguous", _contiguous)

# The same numbers in another order of memory.
STRIDED = (
    Layout("transposed", _transposed),
    Layout("sliced with an offset", _offset),
    Layout("step 2", _stepped),
    Layout("channels last", _channels_last),
)

# Several entries share memory, so that the numbers are other ones.
EXPANDED = Layout("expanded", _expanded)
SHARED = (EXPANDED, Layout("overlapping", _overlapping))


def laid_out(tensor: Tensor, layout: Layout) -> Tensor:
    """The tensor in a layout, or contiguous where it has none."""
    made = layout.make(tensor)
    return _contiguous(tensor) if made is None else made


def memory(tensor: Tensor) -> Tensor:
    """All numbers in the storage of a tensor, with those between its own."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0)
