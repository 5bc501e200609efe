"""What a function takes from outside its arguments: tensors that it captures, and other Python values.

A traced program has to know where its captured tensors stand, to read them anew at each call, and whether a
number or a flag that it used is still the same. Both are found by following the references of the function:
closures, defaults, globals that its code names, the object of a method, containers, modules, attributes.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._engine.captured import LIBRARIES, slots_of

Get = Callable[[], Any]

# Values that are compared when a program is called again.
_PLAIN = (bool, int, float, complex, str, bytes, frozenset, type(None), torch.dtype, torch.device)

# Classes of libraries whose objects hold what their users put there.
_HOLDERS = (SimpleNamespace, Namespace)

# What can be replaced of a function while it stays the same object.
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")

# References that are followed at most, and from one container: beyond, to compare them at each call would
# take longer than most programs.
_MOST = 50_000
_MOST_ITEMS = 1_000

# What every module has, besides the parameters, buffers and modules that are followed.
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}


# What is raised where a place does not exist any more.
GONE = (KeyError, IndexError, ValueError, AttributeError)

# Where a module keeps what its call depends on.
_KINDS = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class Place(NamedTuple):
    """Where a value stands, and what stood there when it was found."""

    name: str
    get: Get
    value: Any
    form: Any = None
    """Of a container that stands here alone: what another has to have in common with it to do as well."""

    def requires_grad(self) -> bool:
        """Whether a tensor stands there that does."""
        now = self.get()
        return isinstance(now, Tensor) and now.requires_grad

    def holds(self) -> bool:
        """Whether the same value stands there, or one that does as well."""
        now = self.get()
        if now is self.value:
            return True
        if type(now) is not type(self.value):
            return False
        if self.form is not None:
            return bool(self.form == _form(now))
        return is_plain(now) and by_value(now) == by_value(self.value)


def always(name: str, value: Any) -> Place:
    """A place at which nothing else can stand."""
    return Place(name, functools.partial(_identity, value), value)


def _identity(value: Any) -> Any:
    return value


# Containers that may be replaced by others of the same form: what is in them is read through their place.
_CONTAINERS = (list, tuple, dict)


def _form(container: Any) -> Any:
    """The length of a container, or its keys; None if these cannot be compared."""
    if type(container) is not dict:
        return len(container)
    return tuple(container) if all(map(is_plain, container)) else None


def _item(get: Get, key: Any) -> Any:
    return get()[key]


@dataclass
class Outside:
    """What was found."""

    tensors: dict[int, list[Place]] = field(default_factory=dict)
    """The places of each tensor, by the identity of the tensor."""
    values: list[Place] = field(default_factory=list)
    """Plain values, and the objects on the way to everything else."""
    skipped: list[str] = field(default_factory=list)
    """Names of containers that were too large to look into."""

    def requiring_grad(self) -> list[Place]:
        """For each of the tensors, where it stands whether it requires grad."""
        firsts = [places[0] for places in self.tensors.values()]
        return [Place(f"{p.name}.requires_grad", p.requires_grad, p.requires_grad()) for p in firsts]


def is_plain(value: Any) -> bool:
    """Whether a value can be compared with another by `==`."""
    return isinstance(value, _PLAIN)


def by_value(value: Any) -> Any:
    """What two plain values have in common if they are the same: zeros have a sign, and NaN equals itself."""
    unlike = isinstance(value, complex) or (isinstance(value, float) and (value == 0 or value != value))
    return repr(value) if unlike else value


def outside_of(function: Any) -> Outside:
    """What this callable takes from outside."""
    found = Outside()
    seen: set[int] = set()
    shared: set[int] = set()
    pending: list[Place] = list(_inside(function, "", frozenset()))
    while pending and len(seen) < _MOST:
        place = pending.pop()
        value = place.value
        if isinstance(value, Tensor):
            found.tensors.setdefault(id(value), []).append(place)
            continue
        if is_plain(value):
            if not _is_fixed(place):
                found.values.append(place)
            continue
        if isinstance(value, list | tuple | dict) and len(value) > _MOST_ITEMS:
            found.skipped.append(f"{place.name or 'a container'} with {len(value)} items")
            found.values.append(place)
            continue
        if id(value) in seen:
            shared.add(id(value))
        if not _may_change(place):
            pending.extend(_inside(value, place.name, seen))
        elif type(value) in _CONTAINERS:
            found.values.append(place._replace(form=_form(value)))
            pending.extend(_at(place, seen))
        else:
            found.values.append(place)
            pending.extend(_inside(value, place.name, seen))
    # What was found in a container is read through one place of it, so all its places have to keep it.
    found.values = [p._replace(form=None) if id(p.value) in shared else p for p in found.values]
    return found


def _at(place: Place, seen: set[int]) -> Iterator[Place]:
    """What is in the container at this place, whichever that will be."""
    container = place.value
    if id(container) in seen:
        return
    seen.add(id(container))
    if not isinstance(container, tuple):
        yield _length(container, place.name)
    keys = container if isinstance(container, dict) else range(len(container))
    for key in keys:
        yield Place(f"{place.name}[{key!r}]", functools.partial(_item, place.get, key), container[key])


def _may_change(place: Place) -> bool:
    """Whether something else may stand there later. What is made anew at each look cannot be compared."""
    return not _is_fixed(place) and place.get() is place.value


def _is_fixed(place: Place) -> bool:
    """Whether nothing else can stand there."""
    return getattr(place.get, "func", None) is _identity


def _inside(value: Any, name: str, seen: set[int] | frozenset[int]) -> Iterator[Place]:
    """The places that this value refers to, if it was not looked into before."""
    if id(value) in seen:
        return
    if isinstance(seen, set):
        seen.add(id(value))
    if isinstance(value, FunctionType):
        yield from _of_function(value, name)
    elif isinstance(value, MethodType):
        yield from _fixed([value.__self__, value.__func__], name)
    elif isinstance(value, functools.partial):
        yield from _fixed([value.func, value.args, value.keywords], name)
    elif isinstance(value, torch.nn.Module):
        yield from _of_module(value, name)
    elif isinstance(value, dict):
        yield _length(value, name)
        yield from _of_dict(value, name, list(value))
    elif isinstance(value, list | deque):
        yield _length(value, name)
        yield from (
            Place(f"{name}[{i}]", functools.partial(value.__getitem__, i), x) for i, x in enumerate(value)
        )
    elif isinstance(value, set):
        yield Place(name, functools.partial(frozenset, value), frozenset(value))
    elif isinstance(value, tuple):
        yield from _fixed(value, name)
    elif isinstance(value, type):
        yield from () if _is_library(value) else _of_class(value)
    elif isinstance(value, property):
        yield from _fixed([value.fget], name)
    elif hasattr(value, "__wrapped__"):
        yield from _fixed([value.__wrapped__], name)
    elif isinstance(value, _HOLDERS) or not (isinstance(value, ModuleType) or _is_library(type(value))):
        yield from _of_object(value, name)


def _of_object(value: Any, name: str) -> Iterator[Place]:
    attributes = getattr(value, "__dict__", {})
    yield _length(attributes, name)  # one that is new may hide one of the class
    yield from _of_dict(attributes, name)
    yield from _slots_and_class(value, name)


def _slots_and_class(value: Any, name: str) -> Iterator[Place]:
    """What an object has beside a dictionary of attributes."""
    for key in slots_of(type(value)):
        if hasattr(value, key):
            yield Place(f"{name}.{key}", functools.partial(getattr, value, key), getattr(value, key))
    yield Place(f"the class of {name}", functools.partial(type, value), type(value))


def _length(values: Mapping[Any, Any] | Sequence[Any], name: str) -> Place:
    """How many there are."""
    return Place(f"the length of {name}", values.__len__, len(values))


def _parts(module: dict[str, Any]) -> int:
    """How many attributes, parts and hooks a module has."""
    return len(module) + sum(len(module[kind]) for kind in _KINDS)


def _fixed(values: Sequence[Any], name: str) -> Iterator[Place]:
    """What an object refers to that cannot be made to refer to anything else."""
    return (always(name, value) for value in values)


def _of_dict(values: dict[Any, Any], name: str, keys: Sequence[Any] | None = None) -> Iterator[Place]:
    dotted = keys is None
    for key in list(values) if keys is None else keys:
        where = f"{name}.{key}" if dotted and name else str(key) if dotted else f"{name}[{key!r}]"
        yield Place(where, functools.partial(values.__getitem__, key), values[key])


def _of_function(function: FunctionType, name: str) -> Iterator[Place]:
    cells: Sequence[CellType] = function.__closure__ or ()
    for variable, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        # Our own closures are not the user's to name: `caller` holds the function, and so on.
        where = name if _is_library(function) else variable
        yield Place(where, functools.partial(getattr, cell, "cell_contents"), content)
    if _is_library(function):
        yield from _fixed([function.__defaults__, function.__kwdefaults__], name)
        return
    for part in _OF_FUNCTIONS:
        where = f"{function.__name__}.{part}"
        yield Place(where, functools.partial(getattr, function, part), getattr(function, part))
    yield from _of_globals(function.__globals__, _names(function.__code__))


def _of_globals(values: dict[str, Any], names: set[str]) -> Iterator[Place]:
    for place in _of_dict(values, "", [name for name in names if name in values]):
        variable = place._replace(name=place.name[2:-2])
        if isinstance(place.value, ModuleType):
            if not _is_library(place.value):
                inner = vars(place.value)
                yield from _of_dict(inner, variable.name, [name for name in names if name in inner])
        else:
            yield variable


def _of_module(module: torch.nn.Module, name: str) -> Iterator[Place]:
    inner = vars(module)
    yield Place(f"the parts or hooks of {name}", functools.partial(_parts, inner), _parts(inner))
    for kind in _KINDS:
        yield from _of_dict(inner[kind], name)
    own = [key for key in inner if key not in _OF_MODULES]
    for place in _of_dict({key: inner[key] for key in own}, name):
        yield place._replace(get=functools.partial(inner.__getitem__, place.name.rpartition(".")[2]))
    yield from _slots_and_class(module, name)


def _of_class(kind: type) -> Iterator[Place]:
    """The attributes and methods of a user's class, and of those that it inherits from."""
    held = vars(kind)
    yield _length(held, kind.__name__)
    for key, value in list(held.items()):
        if not key.startswith("__") or isinstance(value, FunctionType):
            yield Place(f"{kind.__name__}.{key}", functools.partial(held.__getitem__, key), value)
    yield from _fixed(kind.__bases__, kind.__name__)


def _names(code: CodeType) -> set[str]:
    """The names that this code, and the functions defined in it, look up outside of functions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _is_library(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    return module.partition(".")[0] in LIBRARIES
