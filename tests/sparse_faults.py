"""A multiplication of sparse tensors whose backward has one known fault, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from covector._chart import Pattern

FACTOR = {torch.float64: 1.5, torch.complex128: 1.5 - 0.5j}


def _right(values: Tensor, factor: complex) -> Tensor:
    return values * torch.tensor(factor, dtype=values.dtype).conj()


FAULTS: dict[str, Callable[[Tensor, complex], Tensor]] = {
    "right": _right,
    "scaled": lambda values, factor: 1.1 * _right(values, factor),
    "wrong mask": lambda values, factor: _right(values, factor).reshape(-1).roll(1).reshape(values.shape),
    "dropped element": lambda values, factor: (
        _right(values, factor).reshape(-1).index_fill(0, torch.tensor([0]), 0).reshape(values.shape)
    ),
    "missing conjugate": lambda values, factor: values * factor,
}


def pattern_of(x: Tensor) -> Pattern:
    """Where a gradient may have values: once for each element."""
    return Pattern.of(x.detach().coalesce() if x.layout is torch.sparse_coo else x.detach())


def dense(x: Tensor) -> Tensor:
    return x.detach() if x.layout is torch.strided else x.detach().to_dense()


def multiplied(
    side: str, template: Tensor, fault: Callable[[Tensor, complex], Tensor], factor: complex, masked: bool
) -> Callable[[Tensor], Tensor]:
    """X -> factor x, sparse on some sides, with a backward that has a fault.

    Without a mask, the gradient for a sparse input specifies every element.
    """
    everywhere = Pattern.full(template)
    known = [pattern_of(template)]  # finding out where the values stand takes longer than the rest

    def pattern_here(x: Tensor) -> Pattern:
        if side != "out" and not known[0].fits(x.detach()):
            known[0] = pattern_of(x)
        return known[0]

    class Multiplied(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.set_materialize_grads(False)  # torch has no zeros in block layouts
            ctx.pattern = pattern_here(x)
            ctx.shape = x.shape
            values = factor * dense(x).reshape(-1)[ctx.pattern.positions]
            y = ctx.pattern.build(values)
            return y.to_dense() if side == "in" else y

        @staticmethod
        def backward(ctx: Any, g: Tensor | None) -> Tensor | None:
            if g is None:
                return None
            pattern = ctx.pattern if masked or side == "out" else everywhere
            gradient = pattern.build(fault(dense(g).reshape(-1)[pattern.positions], factor))
            return gradient.to_dense() if side == "out" else gradient

    return Multiplied.apply
