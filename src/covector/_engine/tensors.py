"""What one tensor tells about itself by private names alone."""

from __future__ import annotations

import torch
from torch import Tensor

from covector.errors import UnsupportedError, described

# Classes that answer as we expect. Asked before each of these calls, of which every check makes many.
PLAIN = (Tensor, torch.nn.Parameter)


def plain(tensor: Tensor) -> Tensor:
    """The tensor without a class of its own, whose `__torch_function__` may refuse what we do with it.

    One that holds its numbers elsewhere, behind `__torch_dispatch__` or in a sparse layout, is left as it is.
    """
    if type(tensor) in PLAIN or tensor.layout is not torch.strided or _holds_others(tensor):
        return tensor
    with torch._C.DisableTorchFunction():
        return tensor.as_subclass(Tensor)


def numbers(tensor: Tensor) -> Tensor:
    """The same, and a copy of the numbers that a subclass holds elsewhere."""
    if not _holds_others(tensor):
        return plain(tensor)
    try:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    except Exception as error:
        raise UnsupportedError(
            f"a {type(tensor).__name__} does not let torch copy its numbers into a plain tensor: "
            f"{described(error)}"
        ) from error


def _holds_others(tensor: Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def version(tensor: Tensor) -> int:
    """A number that grows with every change of the tensor in place; of inference tensors nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def set_version(tensor: Tensor, version: int) -> None:
    """Set that number back, for a tensor whose changes were undone: what was saved of it is still right."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def negative_view(tensor: Tensor) -> Tensor:
    """The negative of a tensor as a view that is not computed; of such a view, the tensor."""
    return torch._neg_view(tensor)


def coo_indices(tensor: Tensor) -> Tensor:
    """The indices of a COO tensor, coalesced or not; the public method refuses those that are not."""
    return tensor._indices()


def coo_values(tensor: Tensor) -> Tensor:
    """The values of a COO tensor, coalesced or not, in its own memory."""
    return tensor._values()


def refuses_writes(tensor: Tensor) -> bool:
    """Whether torch lets nobody write to this tensor now: a leaf that requires grad, or a view of one."""
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return False
    return tensor.is_leaf or (tensor._base is not None and tensor._base.is_leaf)
