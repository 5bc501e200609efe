"""Gradients that lost their graph beside others that have one, and gradients that overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from holes.table import Hole, Table, leaves, ruled

HOLES: list[Hole] = []

# --- a gradient without a graph, beside one with a graph

lost = Table("a gradient without a graph", HOLES)


def layer(gradient: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """A product whose gradient by the weight is made in some way."""

    class Layer(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
            x, w = ctx.saved_tensors
            return g @ w.mT, gradient(x, g)

    return Layer.apply


def without_grad(x: Tensor, g: Tensor) -> Tensor:
    with torch.no_grad():
        return x.mT @ g


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "detach": lambda x, g: (x.mT @ g).detach(),
    "data": lambda x, g: x.mT @ g.data if not x.requires_grad else (x.mT @ g).data,
    "no_grad": without_grad,
    "numbers of their own": lambda x, g: torch.tensor((x.mT @ g).tolist(), dtype=g.dtype),
}
for _name, _way in WAYS.items():
    lost.wrong(_name, layer(_way), leaves((4, 3), (3, 2)), order=2)
lost.wrong("detach, complex", layer(WAYS["detach"]), leaves((2, 3), (3, 2), dtype=torch.complex128), order=2)
lost.right("a product", layer(lambda x, g: x.mT @ g), leaves((4, 3), (3, 2)), order=2)


class Rounded(Function):
    """Does not depend on its second input next to the point: zero is its gradient, and has no graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x + steps.floor()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return 2 * g * x, torch.zeros_like(g)


lost.right("zeros", Rounded.apply, leaves((4,), (4,)), order=2)

# --- gradients so large that those of a larger cotangent are infinite

large = Table("gradients that overflow", HOLES)


def scaled(size: float) -> Callable[[float], Callable[..., Any]]:
    """Makes multiplication by a large number, whose backward may be wrong."""

    def make(factor: float) -> Callable[..., Any]:
        class Scaled(Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * size

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Tensor:
                return g * (size * factor)

        return Scaled.apply

    return make


for _dtype, _size in ((torch.float16, 3000.0), (torch.float32, 1e36), (torch.float64, 1e306)):
    for _count in (1, 4):
        large.pair(f"{_dtype}, {_count} numbers", scaled(_size), leaves((_count,), dtype=_dtype))
for _count in (1, 4):
    large.wrong(
        f"infinite for cotangents above ten, {_count} numbers",
        ruled(lambda x: x.sin(), lambda g, x: torch.where(g.abs() > 10, torch.inf, g * x.cos())),
        leaves((_count,)),
    )
for _dtype, _at in ((torch.float16, 8.5), (torch.float32, 85.0), (torch.float64, 707.0)):
    large.right(
        f"exp in {_dtype}",
        torch.exp,
        lambda dtype=_dtype, at=_at: (torch.tensor([at, 1.0], dtype=dtype, requires_grad=True),),
    )
