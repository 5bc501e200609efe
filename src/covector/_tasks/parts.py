"""What a value is made of: the parts that it captures, holds or refers to, each with the path to it.

Two questions are answered by walking along them: what in a function cannot be sent, and whether this is the
function (and the inputs) that a result was begun with.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._engine.captured import LIBRARIES
from covector._engine.graph import written_out
from covector.errors import first_sentence


class Part(NamedTuple):
    """A part of a value; `path` is what a person writes behind the name of the whole."""

    path: str
    value: Any


def parts(value: Any) -> Iterator[Part]:
    """The parts that a value consists of; of what libraries define, none."""
    if isinstance(value, Tensor | np.ndarray):
        return
    if isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, MethodType):
        yield Part("", value.__func__)
        yield Part(".__self__", value.__self__)
    elif isinstance(value, partial):
        yield Part(".func", value.func)
        yield Part(".args", value.args)
        yield Part(".keywords", value.keywords)
    elif isinstance(value, dict):
        yield from (Part(f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, tuple | list):
        yield from (Part(f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (Part(f"[{item!r}]", item) for item in sorted(value, key=repr))
    elif isinstance(value, type):
        if not _is_library(value.__module__):
            yield from (Part(f".{name}", item) for name, item in vars(value).items() if _is_code(item))
    elif not isinstance(value, ModuleType):
        yield Part("", type(value))
        yield from (Part(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def _of_function(function: FunctionType) -> Iterator[Part]:
    """What a function has from outside: captured variables, globals that its code names, defaults."""
    if _is_library(function.__module__):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Part(f": {name}", cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield Part(f": {name}", function.__globals__[name])
    yield from (Part(f" default {index}", item) for index, item in enumerate(function.__defaults__ or ()))
    yield from (Part(f" default {name}", item) for name, item in (function.__kwdefaults__ or {}).items())


def _names(code: CodeType) -> set[str]:
    """The names that code mentions, with those of functions inside it."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | classmethod | staticmethod | property)


def _is_library(module: str | None) -> bool:
    root = (module or "").partition(".")[0]
    if root in LIBRARIES:
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file


class Obstacle(NamedTuple):
    """The innermost part that cannot be sent, where it is, and why."""

    path: str
    value: Any
    why: str


def obstacle(root: str, value: Any, send: Callable[[Any], Any]) -> Obstacle | None:
    """What in a value `send` refuses; None if it takes the value."""
    return _obstacle(Part(root, value), send, set())


def _obstacle(part: Part, send: Callable[[Any], Any], seen: set[int]) -> Obstacle | None:
    try:
        send(part.value)
    except Exception as error:
        seen.add(id(part.value))
        for inner in parts(part.value):
            if id(inner.value) not in seen:
                found = _obstacle(Part(part.path + inner.path, inner.value), send, seen)
                if found is not None:
                    return found
        return Obstacle(part.path, part.value, first_sentence(error))
    return None


def fingerprint(value: Any) -> str:
    """A digest of code and data, the same in every process; what cannot be read counts by its class.

    A function is its code and what it captures; functions and classes of libraries are their names; a tensor
    is its numbers.
    """
    return _digest(value, {}).hex()


def _digest(value: Any, seen: dict[int, bytes]) -> bytes:
    known = seen.get(id(value))
    if known is not None:
        return known
    seen[id(value)] = b"being computed"  # what contains itself
    digest = hashlib.sha256(_own(value))
    for part in parts(value):
        digest.update(part.path.encode())
        digest.update(_digest(part.value, seen))
    seen[id(value)] = digest.digest()
    return seen[id(value)]


_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, slice)


def _own(value: Any) -> bytes:
    """What a value says without its parts."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}".encode()
    if isinstance(value, Tensor):
        dense = written_out(value.detach()).cpu()
        dense = (dense if dense.layout is torch.strided else dense.to_dense()).resolve_conj().resolve_neg()
        head = f"tensor {value.dtype} {tuple(value.shape)} {value.layout}"
        return head.encode() + dense.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.shape}".encode() + value.tobytes()
    if isinstance(value, FunctionType):
        return f"function {value.__module__}.{value.__qualname__}".encode() + _code(value.__code__)
    if isinstance(value, classmethod | staticmethod):
        return b"method" + _own(value.__func__)
    if isinstance(value, property):
        return b"property" + b"".join(_own(part) for part in (value.fget, value.fset))
    if isinstance(value, ModuleType):
        return f"module {value.__name__} {getattr(value, '__version__', '')}".encode()
    if isinstance(value, type | BuiltinFunctionType):
        return f"named {value.__module__}.{value.__qualname__}".encode()
    return f"a {type(value).__module__}.{type(value).__qualname__}".encode()


def _code(code: CodeType) -> bytes:
    """Instructions, constants and names; where the code stands in its file does not count."""
    constants = [_code(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts]
    names = repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    return b"|".join([code.co_code, names, *constants])


def _constant(value: Any) -> bytes:
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()
