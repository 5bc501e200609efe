"""What a function captures: the tensors that it has from outside; and whether its code writes to tensors.

This is on the path of every call, so what can be known of code and classes is kept from the first time.
"""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cache, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function
from torch.nn import Module, Parameter

from covector.errors import Caller

# Code of these is not the user's: it writes nothing that has a graph to a tensor that it keeps.
LIBRARIES = frozenset(["torch", "covector", "numpy", *sys.stdlib_module_names])


class Captured(NamedTuple):
    """A tensor that a function has by a name, as it was before the function ran."""

    tensor: Tensor
    name: str
    version: int


class Writes(IntEnum):
    """Whether code has operations that write to some tensor."""

    NONE = 0
    NOTICED = 1
    """The version of the tensor grows, and what it depends on is seen in its graph."""
    UNNOTICED = 2
    """It has ways to write past these: `tensor.data`, `tensor.detach()`, other memory for a tensor."""


class Found(NamedTuple):
    """The tensors that a function captures, and whether its code writes to tensors."""

    tensors: list[Captured]
    writes: Writes


_NONE = tuple(Found([], writes) for writes in Writes)

# Containers in containers in containers, long ones, and what comes after so many references are left out.
_DEEPEST = 2
_LONGEST = 1000
_MOST = 1000


def captured(function: Any) -> Found:
    """The tensors in a function's closure, defaults and globals, and in modules and containers there."""
    if type(function) is FunctionType and id(function.__code__) not in _with_more:
        tensors: list[Captured] = []
        writes = _writes_of_simple(function, tensors, 0)
        if writes is not None:
            return Found(tensors, writes) if tensors else _NONE[writes]
        _with_more.add(id(function.__code__))
    search = _Search()
    search.add(function, "", 0)
    seen = set()
    for look, value, name, depth in search.pending:  # it grows on the way
        if id(value) not in seen:
            seen.add(id(value))
            look(value, name, depth, search)
            if len(seen) > _MOST:
                return Found(search.tensors, Writes.UNNOTICED)
    return Found(search.tensors, search.writes)


# Code (by its id, while it is known) of functions that had more from outside when they were met: to ask again
# takes longer than the search.
_with_more: set[int] = set()


def _writes_of_simple(function: FunctionType, tensors: list[Captured], depth: int) -> Writes | None:
    """What a function writes that has only libraries, such functions, and tensors from outside; else None.

    The search finds the same, more slowly. Functions that are nested deeper than three are left to it.
    """
    if function.__closure__:
        return None
    code, outside = _code_of(function), function.__globals__
    if code is _NOTHING:
        return Writes.NONE
    if function.__defaults__ or function.__kwdefaults__:
        return None
    writes = code.writes
    for key in code.globals:
        value: Any = outside.get(key)
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            if not value.is_inference():
                tensors.append(Captured(value, key, value._version))
        elif kind is FunctionType and depth < _DEEPEST:
            inner = _writes_of_simple(value, tensors, depth + 1)
            if inner is None:
                return None
            writes = max(writes, inner)
        elif kind is ModuleType:
            if not _is_library(value.__name__):
                return None
        elif _looks.get(kind, _unknown) is not None and _look_for(value) is not None:
            return None
    return writes


class _Search:
    """The tensors that were met; what is still to be looked into, and how; and what code does."""

    __slots__ = ("pending", "tensors", "writes")

    def __init__(self) -> None:
        self.tensors: list[Captured] = []
        self.pending: list[tuple[Look, Any, str, int]] = []
        self.writes = Writes.NONE

    def add(self, value: Any, name: str, depth: int) -> None:
        """Add a value, by its name and the number of containers that it is in."""
        look = _looks.get(type(value), _unknown)
        if look is _unknown:
            look = _look_for(value)
        if look is _tensor:
            if not value.is_inference():
                self.tensors.append(Captured(value, name, value._version))
        elif look is not None:
            self.pending.append((look, value, name, depth))

    def wrote(self, writes: Writes) -> None:
        """Add what some of the code does."""
        if writes > self.writes:
            self.writes = writes


def writes_in_place(name: str) -> bool:
    """Whether an operation of this name writes to its first argument, as far as names tell."""
    return (name[-1:] == "_" and name[-2:] != "__") or name in _IN_PLACE


_IN_PLACE = frozenset(
    ["__setitem__", "__set__", "setitem", *(f"__{name}__" for name in dir(operator) if name[0] == "i")]
    + [name for name in dir(operator) if name[0] == "i" and f"__{name}__" in dir(operator)]
)

# Attributes of a tensor that are its numbers, or a tensor that belongs to it.
_NUMBERS = frozenset(["data", "grad", "real", "imag"])

# Names by which code may do what it does not name.
_MAY_WRITE = frozenset(["getattr", "exec", "eval", "attrgetter", "methodcaller", "ops", "mark_dirty"])

# Names in code that writes past the graph of a tensor, or gives it other memory.
_PAST_THE_GRAPH = frozenset(["data", "detach", "out", "resize_", "resize_as_", "set_", "swap_tensors"])


class _Code(NamedTuple):
    """What code says: names of globals, names of attributes, and whether it writes to something in place."""

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    writes: Writes


_NOTHING = _Code((), (), Writes.NONE)

# By identity: a code object hashes all that it holds, each time it is asked.
_known: dict[int, tuple[CodeType, _Code]] = {}
_MOST_KNOWN = 10_000


def _code_of(function: FunctionType) -> _Code:
    code = function.__code__
    known = _known.get(id(code))
    if known is None:
        if len(_known) > _MOST_KNOWN:
            _known.clear()
            _with_more.clear()
        found = _NOTHING if _is_library(function.__globals__.get("__name__")) else _read(code)
        known = _known[id(code)] = (code, found)
    return known[1]


def _read(code: CodeType) -> _Code:
    """What this code, and that of functions defined in it, says."""
    loaded, attributes = set(), set()
    # Names of operations may stand in constants too: keywords of calls, and what `getattr` is asked for.
    words = {c for c in code.co_consts if isinstance(c, str)}
    keywords = {word for c in code.co_consts if isinstance(c, tuple) for word in c if isinstance(word, str)}
    words |= keywords & _PAST_THE_GRAPH
    in_place = not keywords.isdisjoint(("out", "inplace"))
    for step in dis.get_instructions(code):
        kind = step.opname
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(step.argval)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(step.argval)
        elif kind in ("STORE_SUBSCR", "STORE_SLICE"):
            in_place = True
        elif kind == "STORE_ATTR" and step.argval in _NUMBERS:
            in_place = True
            words.add(step.argval)
        elif kind == "BINARY_OP":
            in_place = in_place or step.argrepr.endswith("=")
    words |= loaded | attributes
    writes = Writes.NONE
    if in_place or not words.isdisjoint(_MAY_WRITE) or any(map(writes_in_place, words)):
        writes = Writes.NOTICED if words.isdisjoint(_PAST_THE_GRAPH) else Writes.UNNOTICED
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _read(constant)
            loaded.update(inner.globals)
            attributes.update(inner.attributes)
            writes = max(writes, inner.writes)
    return _Code(tuple(loaded), tuple(attributes), writes)


@cache
def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


# Classes, and what the code of their methods writes in place.
_classes: dict[type, Writes] = {}


def _class_writes(kind: type) -> Writes:
    known = _classes.get(kind)
    if known is None:
        _classes[kind] = Writes.NONE  # while it is looked at, for methods that lead back to the class
        known = max((captured(method).writes for method in _methods(kind)), default=Writes.NONE)
        _classes[kind] = known
    return known


def _methods(kind: type) -> Iterator[FunctionType]:
    """The user's methods of a class that may run in a call.

    Those of custom Functions record nothing, except for tensors that they mark as written to.
    """
    for base in kind.__mro__:
        for name, value in () if _is_library(base.__module__) else tuple(vars(base).items()):
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not isinstance(function, FunctionType) or name == "__init__":
                continue
            if not issubclass(kind, Function) or "mark_dirty" in function.__code__.co_names:
                yield function


Look = Callable[[Any, str, int, _Search], None]


def _into_function(function: FunctionType, name: str, depth: int, search: _Search) -> None:
    code = _code_of(function)
    search.wrote(code.writes)
    outside = function.__globals__
    for key in code.globals:
        value = outside.get(key)
        if type(value) is not ModuleType:
            search.add(value, key, depth)
        elif not _is_library(value.__name__):
            _into_items(_members(value, code.attributes, set()), f"{key}.", depth, search)
    if function.__closure__:
        for key, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing was bound to the name yet
                continue
            search.add(value, key, depth)
    if code is _NOTHING:
        return  # what a library gives its own parameters is not the user's
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
        if _looks.get(type(value), _unknown) is not None:
            search.add(value, f"{name}{key}", depth)


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
    if _is_torch(type(module)):
        return  # torch's own modules write nothing that has a graph
    search.wrote(_class_writes(type(module)))
    for key, value in held.items():
        if key in ("_buffers", "_parameters"):
            _into_items(value.items(), prefix, depth, search)
        elif isinstance(value, Tensor):
            search.add(value, prefix + key, depth)


def _is_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _into_object(value: Any, name: str, depth: int, search: _Search) -> None:
    prefix = f"{name}." if name else ""
    if _is_torch(type(value)):  # a distribution has tensors; what else torch's own objects hold is torch's
        tensors = ((k, v) for k, v in getattr(value, "__dict__", {}).items() if isinstance(v, Tensor))
        _into_items(tensors, prefix, depth, search)
        return
    search.wrote(_class_writes(type(value)))
    if depth < _DEEPEST:
        _into_items(getattr(value, "__dict__", {}).items(), prefix, depth + 1, search)
        slots = ((key, getattr(value, key, None)) for key in slots_of(type(value)))
        _into_items(slots, prefix, depth + 1, search)


_slots: dict[type, tuple[str, ...]] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of the attributes that objects of a class of the user's have outside of a dictionary."""
    known = _slots.get(kind)
    if known is None:
        held = (vars(base) for base in kind.__mro__ if not _is_library(base.__module__))
        known = tuple(k for of in held for k, v in of.items() if isinstance(v, MemberDescriptorType))
        _slots[kind] = known
    return known


def _into_class(kind: type, name: str, depth: int, search: _Search) -> None:
    if not _is_library(kind.__module__):
        search.wrote(_class_writes(kind))
        attributes = ((k, v) for k, v in vars(kind).items() if not isinstance(v, FunctionType))
        _into_items(attributes, f"{name}.", depth, search)


def _into_method(method: MethodType, name: str, depth: int, search: _Search) -> None:
    search.add(method.__self__, "self", depth)
    search.add(method.__func__, name, depth)


def _into_operation(operation: Any, name: str, depth: int, search: _Search) -> None:
    if writes_in_place(operation.__name__):
        search.wrote(Writes.UNNOTICED if operation.__name__ in _PAST_THE_GRAPH else Writes.NOTICED)
    owner = getattr(operation, "__self__", None)
    if isinstance(owner, Tensor):
        search.add(owner, f"the tensor of {name}", depth)


def _into_caller(caller: Caller, name: str, depth: int, search: _Search) -> None:
    search.add(caller.function, name, depth)  # a function in the closure of a transform


def _into_partial(made: Any, name: str, depth: int, search: _Search) -> None:
    search.add(made.func, name, depth)
    _into_items(
        (("an argument of a partial", v) for v in (*made.args, *made.keywords.values())), "", depth, search
    )


def _tensor(value: Any, name: str, depth: int, search: _Search) -> None:
    """Nothing is inside of a tensor; it is what is looked for."""


# How to look into values of a type, as types are met; None: there is nothing to look at.
_looks: dict[type, Look | None] = {}


def _unknown(value: Any, name: str, depth: int, search: _Search) -> None:
    """How to look into values of this type is not known yet."""


def _look_for(value: Any) -> Look | None:
    has_attributes = isinstance(getattr(value, "__dict__", None), dict) or slots_of(type(value))
    found = [look for kind, look in _LOOKS if isinstance(value, kind)]
    look = _looks[type(value)] = found[0] if found else _into_object if has_attributes else None
    return look


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
