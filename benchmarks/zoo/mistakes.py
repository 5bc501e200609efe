"""Mistakes to plant: the value of the function stays what it is, its derivative does not.

There are three kinds, those that people make: a stop-gradient, a factor, an index. Most are made around
the function, either with ordinary operators or with a `Function` written as they usually are. `inside`
turns the mistake on that an entry was written with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.zoo.entry import Function, Mistake


def keep(x: Tensor) -> Tensor:
    """The default of `hold` in the functions that know a mistake of their own."""
    return x


def inside(function: Function) -> Function:
    """The term that the function passes to `hold` is detached."""
    return partial(function, hold=Tensor.detach)


def _of_argument(number: int, change: Callable[[Tensor], Tensor]) -> Mistake:
    def mistake(function: Function) -> Function:
        def wrong(*inputs: Tensor) -> Any:
            return function(*inputs[:number], change(inputs[number]), *inputs[number + 1 :])

        return wrong

    return mistake


def _of_output(change: Callable[[Tensor], Tensor]) -> Mistake:
    """The change is made to the only output, or to the first."""

    def mistake(function: Function) -> Function:
        def wrong(*inputs: Tensor) -> Any:
            outputs = function(*inputs)
            return (change(outputs[0]), *outputs[1:]) if isinstance(outputs, tuple) else change(outputs)

        return wrong

    return mistake


# Stop-gradients.


def part_stopped(number: int = 0, share: float = 1 / 3) -> Mistake:
    """The first rows of an argument are detached."""

    def change(x: Tensor) -> Tensor:
        rows = max(1, int(len(x) * share))
        return torch.cat([x[:rows].detach(), x[rows:]])

    return _of_argument(number, change)


def stopped(number: int = 0) -> Mistake:
    """An argument is detached altogether."""
    return _of_argument(number, Tensor.detach)


def number_stopped(number: int = 0, index: int = 0) -> Mistake:
    """A single number of an argument is detached."""

    def change(x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        alone = torch.arange(flat.numel()) == index % flat.numel()
        return torch.where(alone, flat.detach(), flat).reshape(x.shape)

    return _of_argument(number, change)


def output_stopped(index: int = -1) -> Mistake:
    """A single number of the output is detached."""

    def change(y: Tensor) -> Tensor:
        flat = y.reshape(-1)
        alone = torch.arange(flat.numel()) == index % flat.numel()
        return torch.where(alone, flat.detach(), flat).reshape(y.shape)

    return _of_output(change)


# Factors.


def output_scaled(factor: float) -> Mistake:
    """The derivative of the output is off by a factor; y - y is zero, so the value is the same bits."""
    return _of_output(lambda y: y + (factor - 1) * (y - y.detach()))


def gradient_scaled(factor: float, number: int = 0) -> Mistake:
    """The gradient of an argument is off by a factor."""
    return _of_argument(number, lambda x: _Gradient.apply(x, lambda g: factor * g))


def gradient_conjugated(number: int = 0) -> Mistake:
    """The gradient of a complex argument comes back conjugated."""
    return _of_argument(number, lambda x: _Gradient.apply(x, lambda g: g.conj().resolve_conj()))


# Indices.


def gradient_rolled(number: int = 0) -> Mistake:
    """The gradient of an argument comes back shifted by one along its last axis."""
    return _of_argument(number, lambda x: _Gradient.apply(x, lambda g: g.roll(1, -1)))


def gradient_transposed(number: int = 0) -> Mistake:
    """The gradient of a square matrix comes back transposed."""
    return _of_argument(number, lambda x: _Gradient.apply(x, lambda g: g.mT.contiguous()))


def output_rolled() -> Mistake:
    """What is passed back to the output is shifted by one along its first axis."""
    return _of_output(lambda y: _Gradient.apply(y, lambda g: g.roll(1, 0)))


class _Gradient(torch.autograd.Function):
    """The identity, with something done to the gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None
