"""Watching a function run in forward mode: whether reverse mode would give something else, or sooner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch.overrides import TorchFunctionMode

_unpack_dual = torch._VF._unpack_dual


class NotForward(Exception):
    """The run is not to be used."""


# What a function may do whose effect, or answer, is another one when no graph is recorded.
_SEES_GRAPH: frozenset[Any] = frozenset(
    [
        torch._C._set_grad_enabled,
        torch.autograd.grad,
        torch.autograd.backward,
        Tensor.backward,
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        Tensor.requires_grad_,
        Tensor.retain_grad,
        Tensor.detach_,
        vars(TensorBase)["requires_grad"].__set__,
        *(vars(TensorBase)[name].__get__ for name in ("requires_grad", "grad_fn", "grad", "is_leaf")),
    ]
)

# Operations whose forward rule makes a tensor of zeros for an operand without a tangent, which takes
# longer than to record the operation and go through its graph twice (measured on small tensors).
_DEAR_WITH_CONSTANTS = frozenset(
    [
        *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "__rdiv__"),
        *("add_", "sub_", "mul_", "div_", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"),
        *("addmm", "addmv", "addr", "addbmm", "baddbmm", "addcmul", "addcdiv", "linear", "bilinear"),
        *("maximum", "minimum", "fmax", "fmin", "atan2", "arctan2", "hypot", "dist"),
        *("logaddexp", "logaddexp2", "xlogy", "layer_norm", "group_norm", "batch_norm", "instance_norm"),
    ]
)


class ForwardWatch(TorchFunctionMode):
    """Raises `NotForward` when the function that runs inside does something of these kinds.

    The function may catch that; `noticed` tells all the same.
    """

    noticed = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        if function in _SEES_GRAPH or (
            getattr(function, "__name__", "") in _DEAR_WITH_CONSTANTS and _has_constant(arguments)
        ):
            self.noticed = True
            raise NotForward
        return function(*arguments, **keywords) if keywords else function(*arguments)


def _has_constant(operands: Iterable[Any]) -> bool:
    """Whether an operand is a number, or a tensor without a tangent."""
    return any(
        isinstance(x, float | int | complex)
        or (isinstance(x, Tensor) and _unpack_dual(x, level=0)[1] is None)
        for x in operands
    )
