"""Where forward mode and reverse mode differ in what a function does, and watching it for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch.overrides import TorchFunctionMode

from covector._engine.compiled import tracing
from covector._engine.reverse import Run
from covector._engine.writes import targets
from covector._tree import Evaluation

_unpack_dual = torch._VF._unpack_dual


class _AlwaysRecording(TorchFunctionMode):
    """Inside, nothing switches grad mode off: forward mode would not have seen it either.

    What the function writes to a leaf meanwhile (a buffer, a weight) is not recorded.
    """

    _off = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        if function is torch._C._set_grad_enabled:
            self._off = not arguments[0]
            return None
        if self._off and any(leaf.is_leaf for leaf in targets(function, arguments, keywords)):
            with torch.no_grad():
                return function(*arguments, **(keywords or {}))
        return function(*arguments, **keywords) if keywords else function(*arguments)


def always_recording(run: Run) -> Run:
    """The same run, for a graph that stands in for forward mode: a `torch.no_grad()` inside is not obeyed.

    While dynamo traces, it is.
    """
    if tracing():
        return run

    def recording(leaves: list[Any]) -> Evaluation:
        with _AlwaysRecording():
            return run(leaves)

    return recording


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

# Operations without a rule in `constants`, whose forward rule makes a tensor of zeros for an operand without
# a tangent, which takes longer than to record the operation and go through its graph twice (measured on
# small tensors): for any constant operand, for a constant tensor, for vectors of which one is constant.
_DEAR_WITH_CONSTANTS = frozenset(
    [
        *("__rdiv__", "add_", "sub_", "mul_", "div_"),
        *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"),
        *("addmm", "addmv", "addr", "addbmm", "baddbmm", "addcmul", "addcdiv", "bilinear"),
        *("maximum", "minimum", "fmax", "fmin", "atan2", "arctan2", "hypot", "dist", "dropout"),
        *("logaddexp", "logaddexp2", "xlogy", "layer_norm", "group_norm", "batch_norm", "instance_norm"),
        *("rms_norm", "prelu", "cosine_similarity", "binary_cross_entropy_with_logits"),
    ]
)
_DEAR_WITH_CONSTANT_TENSORS = frozenset(["pow", "__rpow__", "linalg_cross", "cross", "linalg_solve"])
_DEAR_FOR_VECTORS = frozenset(["matmul", "__matmul__", "__rmatmul__"])


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
        if function in _SEES_GRAPH or _is_dear(getattr(function, "__name__", ""), arguments):
            self.noticed = True
            raise NotForward
        return function(*arguments, **keywords) if keywords else function(*arguments)


def _is_dear(name: str, operands: Sequence[Any]) -> bool:
    """Whether reverse mode, twice, is the faster way through this operation."""
    if name in _DEAR_WITH_CONSTANTS:
        return any(isinstance(x, float | int | complex) for x in operands) or _has_constant(operands)
    if name in _DEAR_FOR_VECTORS:
        return all(x.dim() == 1 for x in operands) and _has_constant(operands)
    return name in _DEAR_WITH_CONSTANT_TENSORS and _has_constant(operands)


def _has_constant(operands: Sequence[Any]) -> bool:
    """Whether an operand is a tensor without a tangent."""
    return any(isinstance(x, Tensor) and _unpack_dual(x, level=0)[1] is None for x in operands)
