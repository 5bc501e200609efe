"""Tensors that stand in for the caller's, so that nothing of the caller's changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from covector._chart import copied, dense, is_strided, values_of
from covector._engine.leaves import like
from covector._engine.tensors import PLAIN, plain

# A tensor of so few numbers is kept as soon as it is replaced.
_FEW = 1 << 12


def is_differentiable(leaf: Any) -> bool:
    """Whether a leaf is a tensor that a derivative can be taken of."""
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


@contextmanager
def shifted(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """The caller's tensors hold other values inside, and exactly their own again afterwards."""
    held = [values_of(tensor.data) for tensor in tensors]
    kept = [numbers.clone() for numbers in held]
    try:
        for numbers, value in zip(held, values, strict=True):
            numbers.copy_(values_of(value))
        yield
    finally:
        for numbers, value in zip(held, kept, strict=True):
            numbers.copy_(value)


def guarded(leaf: Any) -> Any:
    """A leaf that is not differentiated: the function gets a copy like it, in case it writes to it."""
    return like(leaf, copied(leaf.detach()), requires_grad=False) if isinstance(leaf, Tensor) else leaf


def doubled(leaf: Any) -> Any:
    """A leaf in double precision, if it has a precision."""
    if not is_differentiable(leaf):
        return leaf
    return leaf.to(torch.complex128 if leaf.is_complex() else torch.float64)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN included, whatever their class says about that."""
    if type(a) not in PLAIN or type(b) not in PLAIN:
        a, b = plain(a), plain(b)
    if not a.layout is b.layout is torch.strided:
        a, b = dense(a.detach()), dense(b.detach())
    if a.dtype is torch.complex32:  # for which torch has no comparison
        a, b = a.to(torch.complex64), b.to(torch.complex64)
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def kind_of(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, dtype, device and layout; of large plain ones, without their memory."""
    if tensor.numel() <= _FEW or type(tensor) is not Tensor or not is_strided(tensor):
        return tensor
    return tensor.new_empty(()).expand(tensor.shape)


def has_value(cell: Any) -> bool:
    """Whether a cell of a closure has been given its value."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
