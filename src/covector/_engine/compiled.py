"""`torch.compile`: how our verbs look to it.

Its tracer, dynamo, follows Python code line by line and knows the functions that enter torch's nesting
levels. So it can trace our verbs as they are, once they take their way through levels (`levels.active`) and
ask nothing of the autograd graph, which is not there yet while it traces.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.compiler import is_dynamo_compiling as tracing
from torch.compiler import is_exporting

from covector._engine.exported import below_autograd
from covector._engine.versions import NEEDED_BY_DYNAMO, is_there

__all__ = [
    "eager_alone",
    "held",
    "is_exporting",
    "is_transform",
    "named_after",
    "outside_graphs",
    "tracing",
    "uncompiled",
    "without_values",
]

_dispatch_mode = torch._C._get_dispatch_mode
_PROXY = torch._C._TorchDispatchModeKey.PROXY

F = TypeVar("F", bound=Callable[..., Any])

# By identity: a code object hashes all that it holds, each time it is asked.
_transforms: dict[int, CodeType] = {}
_left_alone: dict[int, CodeType] = {}

_DISABLED = {
    "_torchdynamo_disable": True,
    "_torchdynamo_disable_msg": "covector runs this eagerly: it was made outside of what is compiled",
}

_EAGER = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def forget_signature(function: FunctionType) -> None:
    """Have `torch.compile` look at a function's parameters again: its code was exchanged."""
    loaded = sys.modules.get("torch._dynamo.variables.functions")
    getattr(loaded, "_spec_cache", {}).pop(function, None)


def uncompiled() -> AbstractContextManager[Any]:
    """Functions that were compiled run eagerly inside.

    What dynamo made of one that raised in a batch is not to be used again: its derivatives are wrong there.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def without_values() -> bool:
    """Whether a function is being traced, by dynamo or by `make_fx`: its tensors are not to be looked at."""
    return tracing() or _dispatch_mode(_PROXY) is not None


def is_transform(function: Any) -> bool:
    """Whether a function was made by one of our verbs."""
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return id(code) in _transforms


def eager_alone(function: F) -> F:
    """Mark a function as one that dynamo traces as part of its caller, and leaves alone by itself.

    Where dynamo has to break a graph, it goes on with the frames of the functions inside, which would be in
    the middle of our levels. So each verb, and each function that a verb makes, enters one marked function
    with the first thing it calls; after a break the whole of it is run eagerly.

    What raises while it is traced is a break, too, so that the eager run raises it: dynamo would otherwise
    never again look at the code that raised, which all functions of a verb share.

    `torch.export` has no frames, but a stack of modes, and finds another one in here (`exported`).
    """

    @wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        if is_exporting() and not tracing():
            return _exported(function, args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception:
            if tracing() and _may_break():
                torch._dynamo.graph_break()
            raise

    for marked in (cast(FunctionType, entered), function):
        set_code_exec_strategy(marked.__code__, _EAGER)
    return cast(F, entered)


def _may_break() -> bool:
    """Whether the graph that dynamo traces may end here: at top level, and without `fullgraph`."""
    if not all(map(is_there, NEEDED_BY_DYNAMO)):
        return False
    translator = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
    at_top = not torch._C._functorch.get_interpreter_stack()
    return at_top and not translator.output.root_tx.one_graph


# dynamo calls it while it traces, and takes the answer as a constant.
_may_break._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _exported(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with below_autograd():
        return function(*args, **kwargs)


def named_after(function: F, like: Any) -> F:
    """Name a function that a verb made after the one that it was made from."""
    if tracing():
        return function  # it ends with the trace
    # functools.update_wrapper by hand: transforms are made anew for most calls.
    function.__name__ = getattr(like, "__name__", None) or type(like).__name__
    function.__qualname__ = getattr(like, "__qualname__", function.__name__)
    function.__doc__ = getattr(like, "__doc__", None)
    function.__wrapped__ = like  # type: ignore[attr-defined]
    code = function.__code__
    if id(code) not in _transforms:
        _transforms[id(code)] = code
    return function


def outside_graphs(function: F, like: Any = None) -> F:
    """Mark a function as one that compiled code calls eagerly, and name it after `like`.

    For what cannot be traced: a map that holds a graph which was recorded before, a plan that is made from
    values. Nothing is wrapped and nothing is imported; the public `torch.compiler.disable` does both.
    """
    if tracing():
        return function  # made by what is traced, so part of it
    if like is not None:
        named_after(function, like)
    function.__dict__.update(_DISABLED)
    code = function.__code__
    if id(code) not in _left_alone:
        _left_alone[id(code)] = _transforms[id(code)] = code
        set_code_exec_strategy(code, _EAGER)
    return function


class _Held:
    """A function that is handed out, to be called later, and by compiled code eagerly.

    A class, because dynamo knows the code of a function by how it met it first: a mark on a function is not
    seen where others of the same code were traced before.
    """

    def __init__(self, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.__wrapped__, self._given = function, given
        self.__name__ = function.__name__

    @outside_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_exporting():
            return _exported(self.__wrapped__, (*self._given, *args), kwargs)
        return self.__wrapped__(*self._given, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Held:
        return self  # as a function is


def held(function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """A function of what is `given`, a graph that was recorded now, and of more that is to come.

    It is part of the trace if there is one, or eager.
    """
    if tracing():
        return lambda *args, **kwargs: function(*given, *args, **kwargs)
    return _Held(function, given)
