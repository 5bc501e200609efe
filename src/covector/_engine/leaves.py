"""Leaves that look like other tensors: of the same class, with the same attributes and hooks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter


def like(tensor: Tensor, copy: Tensor, *, requires_grad: bool = True) -> Tensor:
    """The copy as a leaf that is like the tensor in everything that a function can see.

    An attribute that the copy has by itself is its own: it may be the memory of a subclass.
    """
    kind = type(tensor)
    if kind is Tensor:
        leaf = copy.requires_grad_(requires_grad)
    elif kind is Parameter:
        leaf = Parameter(copy, requires_grad=requires_grad)
    else:
        with torch._C.DisableTorchFunction():
            leaf = (copy if type(copy) is kind else copy.as_subclass(kind)).requires_grad_(requires_grad)
    if attributes := getattr(tensor, "__dict__", None):
        leaf.__dict__.update({**attributes, **leaf.__dict__})
    if (hooks := tensor._backward_hooks) is not None:
        leaf._backward_hooks = hooks
    return leaf
