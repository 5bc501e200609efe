"""What one tensor tells about itself by private names alone."""

from __future__ import annotations

import torch
from torch import Tensor


def version(tensor: Tensor) -> int:
    """A number that grows with every change of the tensor in place."""
    return tensor._version


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
