"""Compilers: what `torch.compile` should do when it meets one of our verbs."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

F = TypeVar("F", bound=Callable[..., Any])

# By identity: a code object hashes all that it holds, each time it is asked.
_marked: dict[int, CodeType] = {}

_MARKS = {
    "_torchdynamo_disable": True,
    "_torchdynamo_disable_msg": "covector's transforms run eagerly",
}

_EAGER = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def is_transform(function: Any) -> bool:
    """Whether a function was made by one of our verbs."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return id(code) in _marked


def outside_graphs(function: F, like: Any = None) -> F:
    """Mark a function as one that compiled code calls eagerly, and name it after `like`.

    Nothing is wrapped and nothing is imported; the public `torch.compiler.disable` does both.
    """
    if like is not None:
        # functools.update_wrapper by hand: transforms are made anew for most calls.
        function.__name__ = getattr(like, "__name__", None) or type(like).__name__
        function.__qualname__ = getattr(like, "__qualname__", function.__name__)
        function.__doc__ = getattr(like, "__doc__", None)
        function.__wrapped__ = like  # type: ignore[attr-defined]
    function.__dict__.update(_MARKS)
    code = function.__code__
    if id(code) not in _marked:
        _marked[id(code)] = code
        set_code_exec_strategy(code, _EAGER)
    return function
