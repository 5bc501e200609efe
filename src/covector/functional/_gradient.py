"""The gradient of a function as a function to be differentiated itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from covector._engine import graph, reverse
from covector._engine.attention import differentiable_attention
from covector._tree import LEAF, Evaluation, flatten
from covector.errors import CovectorError, StrictError
from covector.functional._door import Call, accept_one_number, runner

Result = TypeVar("Result")

Use = Callable[[reverse.Recording], Result]


def second_order(call: Call, use: Use[Result]) -> Result:
    """What `use` makes of a recording of the gradient; the value is its auxiliary output.

    Fused attention has no second derivative; where that is met, everything is done again without it.
    """
    run = gradient_of(call, runner(call, accept_one_number))
    try:
        return use(call.record(run))
    except CovectorError:
        raise
    except RuntimeError as error:
        if "scaled_dot_product" not in str(error):
            raise
    with differentiable_attention():
        return use(call.record(run))


def gradient_of(call: Call, run: reverse.Run) -> reverse.Run:
    """The function's gradient by one backward, recorded."""

    def gradient(leaves: list[Any]) -> Evaluation:
        (value,) = run(leaves).outputs
        pulled: list[Tensor | None] = [None] * len(leaves)
        if value.requires_grad:
            along = torch.ones_like(value, requires_grad=False)
            pulled = list(graph.backward([value], [along], leaves, keep=True, record=True))
        if call.strict:
            _check_dependent(call, pulled)
        filled = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, pulled, strict=True)]
        return Evaluation(filled, flatten(tuple(filled))[1], [value], LEAF)

    return gradient


def _check_dependent(call: Call, pulled: list[Tensor | None]) -> None:
    """With `strict`, every gradient is there and can be differentiated again."""
    for position, gradient in enumerate(pulled):
        if gradient is None:
            raise StrictError(
                f"{call.caller}: the output does not depend on inputs[{position}]; strict=True refuses that. "
                "Without strict its derivative is zero."
            )
        if not gradient.requires_grad:
            raise StrictError(
                f"{call.caller}: the gradient with respect to inputs[{position}] does not depend on the "
                "inputs (the function is linear there); strict=True refuses that. Without strict its "
                "derivative is zero."
            )
