"""Leaves that look like other tensors: of the same class, with the same attributes and hooks."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Parameter


def like(tensor: Tensor, copy: Tensor) -> Tensor:
    """The copy as a leaf that requires grad and is like the tensor in everything that a function can see."""
    kind = type(tensor)
    if kind is Tensor:
        leaf = copy.requires_grad_()
    elif kind is Parameter:
        leaf = Parameter(copy)
    else:
        leaf = (copy if type(copy) is kind else copy.as_subclass(kind)).requires_grad_()
    if attributes := getattr(tensor, "__dict__", None):
        leaf.__dict__.update(attributes)
    if (hooks := tensor._backward_hooks) is not None:
        leaf._backward_hooks = hooks
    return leaf
