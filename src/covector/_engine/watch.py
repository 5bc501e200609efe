"""What a function does that depends on whether gradients are recorded, and watching it for that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

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


class GradModeWatch(TorchFunctionMode):
    """Inside, `asked` tells whether the function looked at grad mode, or at the graph of a tensor.

    A profiler that is at work is left alone; the function is then taken to have asked.
    """

    asked = False

    def __enter__(self) -> Self:
        self._profiled = self.asked = sys.getprofile() is not None
        if not self._profiled:
            sys.setprofile(self._notice)  # what asks for grad mode reaches no other hook
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if not self._profiled:
            sys.setprofile(None)

    def _notice(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called is torch.is_grad_enabled and not _by_library(frame):
            self.asked = True

    def __torch_function__(
        self, operation: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if operation in _SEES_GRAPH and operation is not torch._C._set_grad_enabled:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_name == "__torch_function__":
                frame = frame.f_back
            self.asked = self.asked or frame is None or not _by_library(frame)
        return operation(*args, **(kwargs or {}))


def _by_library(frame: FrameType) -> bool:
    """Whether covector, or what switches torch's modes, runs this code; not a network of torch's."""
    module = frame.f_globals.get("__name__", "")
    return module.startswith(("covector.", "torch.autograd.", "torch._functorch."))
