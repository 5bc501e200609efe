"""What lies within a stencil, what changes from run to run, and what one kind of cotangent reaches alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from holes.table import Hole, Table, at, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []

# --- kinks on both sides of the point

within = Table("kinks on both sides", HOLES)


def between_kinks(f: float, distance: float) -> Any:
    return lambda x: too_much(torch.relu(x - 0.5 - distance) - 0.7 * torch.relu(x - 0.5 + distance) + x, f)


for _distance in (3e-8, 1e-8, 1e-9):
    within.pair(f"{_distance:g} away", lambda f, d=_distance: between_kinks(f, d), at(0.5))
CENTRES = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)
UNITS = torch.tensor([4e-8, -6e-8, 9e-8, -2e-8, 0.5, -0.5, 7e-8, -9e-8], dtype=torch.float64)
within.pair(
    "a layer with six units next to zero",
    lambda f: lambda x: too_much(torch.relu((x - CENTRES)[:, None] - UNITS).sum(1) + x, f),
    lambda: (CENTRES.clone().requires_grad_(),),
)

# --- what changes from run to run

again = Table("run to run", HOLES)


def warm_newton(f: float, tolerance: float) -> Any:
    """The root of y^3 + y = x, from the last result on."""
    last: list[Tensor] = []

    class Root(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = last[-1] if last else torch.zeros_like(x)
            move = torch.ones_like(x)
            while float(move.abs().max()) >= tolerance:
                move = (y**3 + y - x) / (3 * y * y + 1)
                y = y - move
            last[:] = [y]
            ctx.save_for_backward(y)
            return y.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (y,) = ctx.saved_tensors
            return f * g / (3 * y * y + 1)

    return Root.apply


again.pair("a root from the last one on, to 1e-5", lambda f: warm_newton(f, 1e-5), leaves((8,)))


def every(period: int) -> Callable[[], Callable[[Tensor], Tensor]]:
    def make() -> Callable[[Tensor], Tensor]:
        runs = [0]

        def function(x: Tensor) -> Tensor:
            runs[0] += 1
            return x.sin() + 1e-3 * (runs[0] % period == 0)

        return function

    return make


for _period in (2, 3):
    HOLES.append(
        Hole("run to run", f"more at one run of {_period}", every(_period), leaves((6,)), right=False)
    )

# --- cotangents

cotangents = Table("cotangents", HOLES)
FIRST = torch.tensor([1.0] + [0.0] * 7, dtype=torch.float64)


def recorded(f: float, row: int) -> Any:
    """Wrong in one row, and only under create_graph."""
    wrong = 1 + (f - 1) * FIRST.roll(row)
    return ruled(lambda x: x**3, lambda g, x: 3 * g * x * x * (wrong if torch.is_grad_enabled() else 1.0))


for _row in (0, 3, 7):
    cotangents.pair(f"create_graph, row {_row}", lambda f, row=_row: recorded(f, row), leaves((8,)))


def channels_last(f: float) -> Any:
    def pull(g: Tensor, x: Tensor) -> Tensor:
        return 3 * g * x * x * (f if g.is_contiguous(memory_format=torch.channels_last) else 1.0)

    return ruled(lambda x: x**3, pull)


cotangents.pair("channels last", channels_last, leaves((2, 3, 4, 5)))

# --- steps and sizes

steps = Table("steps", HOLES)
steps.pair(
    "a step for noise beside a coordinate of 1e-7",
    lambda f: lambda x: torch.exp(30 * torch.tanh(x)).sum() * 1e-8 + too_much(x.sin(), f),
    at(0.04, 1.91, 1e-7, 0.35),
)
steps.pair("pressures of a million", lambda f: lambda x: too_much(1e6 * x.sin(), f), leaves((200,)))

# --- low precision of many numbers

precision = Table("dtype", HOLES)


def in_bfloat16_alone(f: float | Tensor) -> Any:
    weight = drawn(200, 150, low=-1.0)

    class Linear(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return weight.to(x.dtype) @ x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return (weight * (f if g.dtype is torch.bfloat16 else 1.0)).to(g.dtype).T @ g

    return Linear.apply


precision.pair(
    "150 numbers in bfloat16", in_bfloat16_alone, leaves((150,), dtype=torch.bfloat16), factor=1.05
)
