"""Where forward mode and reverse mode differ in what a function does, and watching it for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import TensorBase
from torch.overrides import TorchFunctionMode

from covector._engine.compiled import tracing
from covector._engine.constants import ConstantOperands
from covector._engine.reverse import Run
from covector._engine.writes import targets
from covector._tree import Evaluation


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


class ForwardWatch(ConstantOperands):
    """Raises `NotForward` when the function that runs inside does something of these kinds.

    The function may catch that; `noticed` tells all the same.
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.noticed = False

    def __torch_function__(
        self, operation: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if operation in _SEES_GRAPH:
            self.noticed = True
            raise NotForward
        return super().__torch_function__(operation, types, args, kwargs)
