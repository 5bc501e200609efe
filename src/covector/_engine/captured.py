"""What a function captures: the tensors that it has from outside; and whether its code writes to tensors.

This is on the path of every call, so what can be known of code and classes is kept from the first time.
"""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function
from torch.nn import Module

from covector._engine.tensors import version
from covector.errors import Caller

# Code of these is not the user's: it writes nothing that has a graph to a tensor that it keeps.
LIBRARIES = frozenset(["torch", "covector", "numpy", *sys.stdlib_module_names])


class Captured(NamedTuple):
    """A tensor that a function has by a name, as it was before the function ran."""

    tensor: Tensor
    name: str
    version: int


class Found(NamedTuple):
    """The tensors that a function captures; `writes`: its code has operations that write to some tensor."""

    tensors: list[Captured]
    writes: bool


# Containers in containers in containers, long ones, and what comes after so many references are left out.
_DEEPEST = 2
_LONGEST = 1000
_MOST = 1000


def captured(function: Any) -> Found:
    """The tensors in a function's closure, defaults and globals, and in modules and containers there."""
    search = _Search(function)
    found: list[Captured] = []
    seen = set()
    for value, name, depth in search.pending:  # it grows on the way
        if isinstance(value, Tensor):
            if not value.is_inference():
                found.append(Captured(value, name, version(value)))
        elif id(value) not in seen:
            seen.add(id(value))
            look = _look_of(value)
            if look is not None:
                look(value, name, depth, search)
            if len(seen) > _MOST:
                return Found(found, writes=True)
    return Found(found, search.writes)


class _Search:
    """What is still to be looked at (a value, its name, how many containers it is in); what code does."""

    __slots__ = ("pending", "writes")

    def __init__(self, start: Any) -> None:
        self.pending: list[tuple[Any, str, int]] = [(start, "", 0)]
        self.writes = False


def writes_in_place(name: str) -> bool:
    """Whether an operation of this name writes to its first argument, as far as names tell."""
    return (name[-1:] == "_" and name[-2:] != "__") or name in _IN_PLACE


_IN_PLACE = frozenset(
    ["__setitem__", "__set__", "setitem", *(f"__{name}__" for name in dir(operator) if name[0] == "i")]
    + [name for name in dir(operator) if name[0] == "i" and f"__{name}__" in dir(operator)]
)

# Attributes of a tensor that are its numbers, or a tensor that belongs to it.
_NUMBERS = frozenset(["data", "grad", "real", "imag"])


class _Code(NamedTuple):
    """What code says: names of globals, names of attributes, and whether it writes to something in place."""

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    writes: bool


_NOTHING = _Code((), (), writes=False)

# By identity: a code object hashes all that it holds, each time it is asked.
_known: dict[int, tuple[CodeType, _Code]] = {}
_MOST_KNOWN = 10_000


def _code_of(function: FunctionType) -> _Code:
    code = function.__code__
    known = _known.get(id(code))
    if known is None:
        if len(_known) > _MOST_KNOWN:
            _known.clear()
        found = _NOTHING if _is_library(function.__globals__.get("__name__")) else _read(code)
        known = _known[id(code)] = (code, found)
    return known[1]


def _read(code: CodeType) -> _Code:
    """What this code, and that of functions defined in it, says."""
    loaded, attributes = set(), set()
    # Names of operations may stand in constants too: keywords of calls, and what `getattr` is asked for.
    words = {c for c in code.co_consts if isinstance(c, str)}
    keywords = {word for c in code.co_consts if isinstance(c, tuple) for word in c if isinstance(word, str)}
    writes = not keywords.isdisjoint(("out", "inplace"))
    for step in dis.get_instructions(code):
        kind = step.opname
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(step.argval)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(step.argval)
        elif kind in ("STORE_SUBSCR", "STORE_SLICE"):
            writes = True
        elif kind == "STORE_ATTR":
            writes = writes or step.argval in _NUMBERS
        elif kind == "BINARY_OP":
            writes = writes or step.argrepr.endswith("=")
    writes = writes or any(map(writes_in_place, loaded | attributes | words))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _read(constant)
            loaded.update(inner.globals)
            attributes.update(inner.attributes)
            writes = writes or inner.writes
    return _Code(tuple(loaded), tuple(attributes), writes)


@cache
def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


# Classes, and whether the code of their methods writes to something in place.
_classes: dict[type, bool] = {}


def _class_writes(kind: type) -> bool:
    known = _classes.get(kind)
    if known is None:
        _classes[kind] = False  # while it is looked at, for methods that lead back to the class
        known = _classes[kind] = any(captured(method).writes for method in _methods(kind))
    return known


def _methods(kind: type) -> Iterator[FunctionType]:
    """The user's methods of a class that may run in a call. Those of custom Functions record nothing."""
    if issubclass(kind, Function):
        return
    for base in kind.__mro__:
        for name, value in () if _is_library(base.__module__) else tuple(vars(base).items()):
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(function, FunctionType) and name != "__init__":
                yield function


Look = Callable[[Any, str, int, _Search], None]


def _into_function(function: FunctionType, name: str, depth: int, search: _Search) -> None:
    code = _code_of(function)
    search.writes = search.writes or code.writes
    outside = function.__globals__
    for key in code.globals:
        value = outside.get(key)
        if type(value) is ModuleType:
            if not _is_library(value.__name__):
                _into_items(_members(value, code.attributes, set()), f"{key}.", depth, search)
        elif value is not None and _look_of(value) is not None:
            search.pending.append((value, key, depth))
    if function.__closure__:
        for key, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing was bound to the name yet
                continue
            if _look_of(value) is not None:
                search.pending.append((value, key, depth))
    if function.__defaults__:
        _into_items((("the default of a parameter", v) for v in function.__defaults__), "", depth, search)
    if function.__kwdefaults__:
        _into_items(function.__kwdefaults__.items(), "", depth, search)


def _members(
    module: ModuleType, attributes: tuple[str, ...], seen: set[ModuleType]
) -> Iterator[tuple[str, Any]]:
    """What code that names these attributes may mean of a module of Python, and of modules in it."""
    seen.add(module)
    values = vars(module)
    for key in attributes:
        value = values.get(key)
        if type(value) is not ModuleType:
            yield key, value
        elif value not in seen and not _is_library(value.__name__):
            yield from ((f"{key}.{name}", member) for name, member in _members(value, attributes, seen))


def _into_items(items: Iterable[tuple[Any, Any]], name: str, depth: int, search: _Search) -> None:
    for key, value in items:
        if _look_of(value) is not None:
            search.pending.append((value, f"{name}{key}", depth))


def _into_sequence(values: Sequence[Any], name: str, depth: int, search: _Search) -> None:
    if depth < _DEEPEST and len(values) <= _LONGEST:
        _into_items(((f"[{i}]", value) for i, value in enumerate(values)), name, depth + 1, search)


def _into_dict(values: dict[Any, Any], name: str, depth: int, search: _Search) -> None:
    if depth < _DEEPEST and len(values) <= _LONGEST:
        _into_items(((f"[{key!r}]", value) for key, value in values.items()), name, depth + 1, search)


def _into_module(module: Module, name: str, depth: int, search: _Search) -> None:
    prefix, held = f"{name}." if name else "", vars(module)
    if held["_modules"]:
        _into_items(held["_modules"].items(), prefix, depth, search)
    for hooks in (held["_forward_pre_hooks"], held["_forward_hooks"]):
        if hooks:
            _into_items((("a hook", hook) for hook in hooks.values()), prefix, depth, search)
    if type(module).__module__.startswith("torch."):
        return  # torch's own modules write nothing that has a graph
    search.writes = search.writes or _class_writes(type(module))
    for key, value in held.items():
        if key in ("_buffers", "_parameters"):
            _into_items(value.items(), prefix, depth, search)
        elif isinstance(value, Tensor):
            search.pending.append((value, prefix + key, depth))


def _into_object(value: Any, name: str, depth: int, search: _Search) -> None:
    search.writes = search.writes or _class_writes(type(value))
    if depth < _DEEPEST:
        _into_items(vars(value).items(), f"{name}." if name else "", depth + 1, search)


def _into_class(kind: type, name: str, depth: int, search: _Search) -> None:
    if not _is_library(kind.__module__):
        search.writes = search.writes or _class_writes(kind)
        attributes = ((k, v) for k, v in vars(kind).items() if not isinstance(v, FunctionType))
        _into_items(attributes, f"{name}.", depth, search)


def _into_method(method: MethodType, name: str, depth: int, search: _Search) -> None:
    search.pending += ((method.__self__, "self", depth), (method.__func__, name, depth))


def _into_operation(operation: Any, name: str, depth: int, search: _Search) -> None:
    search.writes = search.writes or writes_in_place(operation.__name__)
    owner = getattr(operation, "__self__", None)
    if isinstance(owner, Tensor):
        search.pending.append((owner, f"the tensor of {name}", depth))


def _into_caller(caller: Caller, name: str, depth: int, search: _Search) -> None:
    search.pending.append((caller.function, name, depth))  # a function in the closure of a transform


def _into_partial(made: Any, name: str, depth: int, search: _Search) -> None:
    search.pending.append((made.func, name, depth))
    _into_items(
        (("an argument of a partial", v) for v in (*made.args, *made.keywords.values())), "", depth, search
    )


def _tensor(value: Any, name: str, depth: int, search: _Search) -> None:
    """Nothing is inside of a tensor; it is what is looked for."""


# How to look into values of a type, as types are met; None: there is nothing to look at.
_looks: dict[type, Look | None] = {}


def _look_of(value: Any) -> Look | None:
    kind = type(value)
    if kind not in _looks:
        _looks[kind] = _look_for(value)
    return _looks[kind]


def _look_for(value: Any) -> Look | None:
    for kind, look in _LOOKS:
        if isinstance(value, kind):
            return look
    has_attributes = isinstance(getattr(value, "__dict__", None), dict)
    return _into_object if has_attributes else None


_LOOKS: tuple[tuple[Any, Look | None], ...] = (
    (Tensor, _tensor),
    (FunctionType, _into_function),
    (MethodType, _into_method),
    (BuiltinFunctionType | MethodDescriptorType | WrapperDescriptorType, _into_operation),
    (Caller, _into_caller),
    (Module, _into_module),
    (partial, _into_partial),
    (list | tuple, _into_sequence),
    (dict, _into_dict),
    (type, _into_class),
    (ModuleType, None),
)
