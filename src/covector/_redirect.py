"""Functions that are answered by others for a while, whoever holds them and however they came by them.

A name in a module can be replaced, but not the copies of it: `from module import f`, an alias, a partial,
a default argument, a class attribute. All of them hold one function object, so it is this object that is
redirected: its code is exchanged for a few lines that ask here for the answer, and is put back afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from threading import RLock
from types import FunctionType
from typing import Any

from covector._engine.compiled import forget_signature, tracing
from covector.errors import UnsupportedError, describe_origin

Answer = Callable[..., Any]

_lock = RLock()
_redirected: dict[str, _Redirected] = {}
_undisturbed: ContextVar[bool] = ContextVar("undisturbed", default=False)


@dataclass
class _Redirected:
    """A function whose code is exchanged, its twin with the code it had, and who answers for it."""

    function: FunctionType
    twin: FunctionType
    answers: dict[object, Answer] = field(default_factory=dict)
    last: Answer = field(init=False)
    """Who answers now: the last one to begin, of those that have not ended."""

    def __post_init__(self) -> None:
        self.last = self.twin

    def begin(self, token: object, answer: Answer) -> None:
        """One redirection more."""
        self.answers[token] = self.last = answer

    def end(self, token: object) -> bool:
        """One redirection less; whether it was the last."""
        if self.answers.pop(token, None) is None:
            return False
        self.last = next(reversed(self.answers.values()), self.twin)
        return not self.answers


@contextmanager
def redirect(functions: Mapping[str, tuple[Any, Answer]]) -> Iterator[None]:
    """Inside, each function is answered by the other one of its pair, under the label that is its key.

    Where redirections overlap, the last one to begin answers; they may end in any order.
    """
    token = object()
    try:
        with _lock:
            for label, (function, answer) in functions.items():
                if label not in _redirected or not _redirected[label].answers:
                    _redirected[label] = _exchange(label, function)
                _redirected[label].begin(token, answer)
        yield
    finally:
        with _lock:
            for label in functions:
                _release(label, token)


def answer(label: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the exchanged code of a function calls."""
    __tracebackhide__ = True
    entry = _redirected[label]
    # Dynamo knows no context variables, and compares with nothing.
    undisturbed = not tracing() and _undisturbed.get()
    return (entry.twin if undisturbed else entry.last)(*args, **kwargs)


def undisturbed(label: str, function: Answer) -> Answer:
    """The function as it was, also while it is redirected; what it calls is not redirected either."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        entry = _redirected.get(label)
        token = _undisturbed.set(True)
        try:
            return (entry.twin if entry and entry.answers else function)(*args, **kwargs)
        finally:
            _undisturbed.reset(token)

    return run


def _exchange(label: str, function: Any) -> _Redirected:
    """Give a function the code that asks, and keep a twin with its own."""
    if not isinstance(function, FunctionType) or function.__code__.co_freevars:
        raise UnsupportedError(
            f"{label} is {describe_origin(function)}, not torch's own function, so it cannot be "
            "swapped. Something replaced it; swap before that happens, or undo it first."
        )
    twin = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, None
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    # What can be asked of the function, its signature, stays as it was.
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    function.__defaults__ = function.__kwdefaults__ = None
    function.__code__ = _asking(label, function.__name__)
    forget_signature(function)
    return _Redirected(function, twin)


def _release(label: str, token: object) -> None:
    """One redirection less; the last one puts the code back."""
    entry = _redirected.get(label)
    if entry is None or not entry.end(token):
        return
    function, twin = entry.function, entry.twin
    function.__code__, function.__defaults__ = twin.__code__, twin.__defaults__
    function.__kwdefaults__ = twin.__kwdefaults__
    del function.__signature__  # type: ignore[attr-defined]
    forget_signature(function)


def _asking(label: str, name: str) -> Any:
    """The code of a function that asks for its answer; it runs among the globals of another module."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        from covector._redirect import answer

        return answer("label", args, kwargs)

    code = ask.__code__
    constants = tuple(label if constant == "label" else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=name, co_qualname=name)
