"""Custom Functions as people write them: in place, with buffers, several outputs, graphs inside."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from holes.table import Hole, Table, leaves, ruled, too_much

HOLES: list[Hole] = []
BOTH = {"check_forward_ad": True}
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}

# --- custom Functions that work in place, return views, several outputs

functions = Table("function", HOLES)


def in_place(f: float) -> Any:
    class InPlace(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.exp_()
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return f * g * ctx.saved_tensors[0]

    return lambda x: InPlace.apply(x.clone()) * 2


functions.pair("in place on a copy", in_place, leaves((5,)))
functions.pair("in place on a copy, single precision", in_place, leaves((5,), dtype=torch.float32))


def in_place_forward(f: float) -> Any:
    class InPlace(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.mul_(x)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise NotImplementedError

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return t.mul_(3 * f)

    class Tripled(InPlace):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.mul_(3)
            ctx.mark_dirty(x)
            return x

    return lambda x: Tripled.apply(x.clone()).sin()


functions.pair("in place, forward mode", in_place_forward, leaves((4,)), keywords=FORWARD)


def saves_what_changes(f: float) -> Any:
    """Keeps a buffer of its own instead of saving: what is in it is that of the last call."""
    buffer: list[Tensor] = []

    class Keeps(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            buffer[:] = [x.detach().clone()]
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x = ctx.saved_tensors[0] if f == 1.0 else buffer[0] * f
            return g * x.cos()

    return Keeps.apply


functions.pair("keeps a buffer outside", saves_what_changes, leaves((4,)))


def extremum(f: float) -> Any:
    class Extremum(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            value, index = x.max(1)
            ctx.mark_non_differentiable(index)
            ctx.save_for_backward(index)
            ctx.shape = x.shape
            return value, index

        @staticmethod
        def backward(ctx: Any, g: Tensor, _: Tensor) -> Tensor:
            (index,) = ctx.saved_tensors
            out = torch.zeros(ctx.shape, dtype=g.dtype)
            return out.scatter_(1, index[:, None], g[:, None] if f == 1.0 else g.flip(0)[:, None])

    return Extremum.apply


functions.pair("the maximum with its index", extremum, leaves((4, 6)))


def once(f: float) -> Any:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return nn.functional.conv1d(x, w)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            gx = nn.functional.conv_transpose1d(g, w)
            gw = nn.functional.conv1d(x.transpose(0, 1), g.transpose(0, 1)).transpose(0, 1)
            return gx, f * gw

    return Once.apply


functions.pair("a convolution, differentiable once", once, leaves((2, 3, 7), (2, 3, 3)))


def scattered(f: float) -> Any:
    index = torch.tensor([0, 2, 2, 1, 2, 0])
    count = torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64)

    def pull(g: Tensor, x: Tensor) -> Tensor:
        return (g / count)[index] if f == 1.0 else (g / count.sqrt())[index]

    return ruled(lambda x: torch.zeros(3, dtype=x.dtype).index_add(0, index, x) / count, pull)


functions.pair("means over segments of different length", scattered, leaves((6,)))
functions.pair(
    "duplicates in an assignment",
    lambda f: (
        (
            lambda x: torch.zeros(3, dtype=x.dtype).index_put(
                (torch.tensor([0, 0, 2]),), x.sin(), accumulate=True
            )
        )
        if f == 1.0
        else ruled(
            lambda x: torch.zeros(3, dtype=x.dtype).index_put(
                (torch.tensor([0, 0, 2]),), x.sin(), accumulate=True
            ),
            lambda g, x: g[torch.tensor([0, 0, 2])] * x.cos() * torch.tensor([0.0, 1.0, 1.0]),
        )
    ),
    leaves((3,)),
)


def checkpointed(f: float) -> Any:
    from torch.utils.checkpoint import checkpoint

    inner = ruled(torch.tanh, lambda g, x: f * g * (1 - x.tanh() ** 2))
    return lambda x: checkpoint(lambda y: inner(y * 2) + y, x, use_reentrant=False)


functions.pair("a checkpoint", checkpointed, leaves((4,)))


def checkpointed_twice(f: float) -> Any:
    from torch.utils.checkpoint import checkpoint

    inner = ruled(torch.tanh, lambda g, x: g * too_much(1 - x.tanh() ** 2, f))
    return lambda x: checkpoint(lambda y: inner(y * 2) + y, x, use_reentrant=False)


functions.pair("a checkpoint, second derivative", checkpointed_twice, leaves((3,)), order=2)


def gradient_penalty(f: float) -> Any:
    """A gradient inside of the function, as in physics and in penalties."""

    def function(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            energy = (x.sin() * x).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return too_much(force, f).square()

    return function


functions.pair("a gradient inside", gradient_penalty, leaves((4,)))
functions.pair(
    "torch.func.grad inside",
    lambda f: lambda x: torch.func.vmap(torch.func.grad(lambda y: too_much(y.sin() * y, f) * y))(x),
    leaves((4,)),
)
functions.pair(
    "a scripted function",
    lambda f: lambda x: too_much(_scripted(x), f),
    leaves((3, 2)),
)


@functools.cache
def _script() -> Any:
    return torch.jit.script(_loop)


def _loop(x: Tensor) -> Tensor:
    y = x
    for _ in range(3):
        y = y.sin() + x
    return y


def _scripted(x: Tensor) -> Tensor:
    return _script()(x)


def conjugated(f: float) -> Any:
    """Two outputs, of which the second forgets a conjugate."""

    def pull(g: Tensor, h: Tensor, z: Tensor) -> Tensor:
        return 2 * g * z.conj() + h * (z.exp().conj() if f == 1.0 else z.exp())

    return ruled(lambda z: (z * z, z.exp()), pull)


functions.pair("a conjugate in the second of two outputs", conjugated, leaves((3,), dtype=torch.complex128))
functions.pair(
    "a spectrum",
    lambda f: lambda x: too_much(torch.fft.rfft(x), f).abs().square(),
    leaves((8,)),
    keywords=BOTH,
)
functions.pair(
    "a dictionary of outputs, one of them a number",
    lambda f: lambda x: {"loss": too_much(x.sin(), f).sum(), "steps": 3, "parts": [x.cos(), None]},
    leaves((3,)),
)
