"""A planted bug: a function with a wrong derivative, its inputs, and the kind of mistake it stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Forward = Callable[..., Tensor]


def function(forward: Forward, backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """A custom Function from its forward, and from `backward(grad, output, *inputs)`."""

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            output = forward(*inputs)
            ctx.save_for_backward(output, *inputs)
            return output

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            output, *inputs = ctx.saved_tensors
            return backward(grad, output, *inputs)

    return Planted.apply


@dataclass(frozen=True)
class Bug:
    """One planted bug. `cut` is the line of this function's source that loses the derivative."""

    name: str
    kind: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float64
    positive: bool = False
    keywords: dict[str, Any] = field(default_factory=dict)
    cut: int | None = None

    def draw(self, seed: int = 0) -> list[Tensor]:
        """Its inputs."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            torch.randn(
                shape, generator=generator, dtype=torch.complex128 if self.dtype.is_complex else torch.float64
            )
            for shape in self.shapes
        ]
        if self.positive:
            drawn = [x.abs() + 0.5 for x in drawn]
        return [x.to(self.dtype).requires_grad_() for x in drawn]


def bug(
    kind: str,
    name: str,
    forward: Forward,
    backward: Callable[..., Any],
    *shapes: tuple[int, ...],
    **keywords: Any,
) -> Bug:
    """A bug in the backward of a custom Function."""
    return Bug(name, kind, function(forward, backward), shapes, **keywords)


def cut(
    name: str, fn: Callable[..., Any], *shapes: tuple[int, ...], within: Callable[..., Any] | None = None
) -> Bug:
    """A derivative that is lost on the line, of `fn` or of what it calls, that says so in a comment."""
    lines, first = inspect.getsourcelines(inspect.unwrap(within or fn))
    marked = [first + i for i, line in enumerate(lines) if "# cut" in line]
    assert len(marked) == 1, f"{name}: exactly one line is marked '# cut'"
    return Bug(name, "cut", fn, shapes, cut=marked[0])
