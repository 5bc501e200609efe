"""Tensors that a function captures: whether it wrote to one, so that this carries our graph or tangent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from covector._engine import graph, levels
from covector._engine.tensors import version
from covector.errors import Caller


class Captured(NamedTuple):
    """A tensor that a function has by a name, as it was before the function ran."""

    tensor: Tensor
    name: str
    version: int


def written(before: Sequence[Captured], leaves: Sequence[Any]) -> str | None:
    """The name of a captured tensor to which a function, run on these leaves, wrote what depends on them.

    This looks afterwards. Our graph is taken off what was written to; a tangent goes with its level.
    """
    first = None
    for tensor, name, was in before:
        if version(tensor) != was and _Own.among(leaves).marked(tensor):
            if tensor.grad_fn is not None:
                (tensor if tensor._base is None else tensor._base).detach_()
            first = name if first is None else first
    return first


class _Own(NamedTuple):
    """By what the tensors of one run are known: the leaves behind them, or a tangent."""

    leaves: set[int]
    tangents: bool

    @classmethod
    def among(cls, leaves: Sequence[Any]) -> _Own:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        own = graph.our_leaves(tensors)
        return cls(own, not own and any(levels.tangent_of(leaf) is not None for leaf in tensors))

    def marked(self, tensor: Tensor) -> bool:
        """Whether the tensor depends on the run."""
        if self.tangents:
            return levels.tangent_of(tensor) is not None
        return tensor.requires_grad and not self.leaves.isdisjoint(graph.reached([tensor]).leaves)


# What is still to be looked at: a value, the name it has, and how many containers it is in.
Pending = list[tuple[Any, str, int]]

# Long containers, and those in containers in containers, are left out: this is on the path of every call.
_DEEPEST = 2
_LONGEST = 1000


def captured(function: Any) -> list[Captured]:
    """The tensors in a function's closure, defaults and globals, and in modules and containers there."""
    found: list[Captured] = []
    pending: Pending = [(function, "", 0)]
    seen = set()
    for value, name, depth in pending:  # it grows on the way
        if isinstance(value, Tensor):
            if not value.is_inference():
                found.append(Captured(value, name, version(value)))
        elif id(value) not in seen:
            seen.add(id(value))
            look_into = _look_of(value)
            if look_into is not None:
                look_into(value, name, depth, pending)
    return found


Look = Callable[[Any, str, int, Pending], None]


def _into_function(function: FunctionType, name: str, depth: int, pending: Pending) -> None:
    code, found = function.__code__, function.__globals__
    if (function.__module__ or "").startswith("torch"):
        return
    for key in code.co_names:
        value = found.get(key)
        if value is not None and _has_look(value):
            pending.append((value, key, depth))
    if function.__closure__:
        for key, cell in zip(code.co_freevars, function.__closure__, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing was bound to the name yet
                continue
            if _has_look(value):
                pending.append((value, key, depth))
    for value in function.__defaults__ or ():
        if _has_look(value):
            pending.append((value, "the default of a parameter", depth))
    for constant in code.co_consts:
        if type(constant) is CodeType:  # a function inside; its own names are those of the same module
            for key in constant.co_names:
                value = found.get(key)
                if value is not None and _has_look(value):
                    pending.append((value, key, depth))


def _into_items(items: Iterable[tuple[Any, Any]], name: str, depth: int, pending: Pending) -> None:
    for key, value in items:
        if _has_look(value):
            pending.append((value, f"{name}{key}", depth))


def _into_sequence(values: Sequence[Any], name: str, depth: int, pending: Pending) -> None:
    if depth < _DEEPEST and len(values) <= _LONGEST:
        _into_items(((f"[{i}]", value) for i, value in enumerate(values)), name, depth + 1, pending)


def _into_dict(values: dict[Any, Any], name: str, depth: int, pending: Pending) -> None:
    if depth < _DEEPEST and len(values) <= _LONGEST:
        _into_items(((f"[{key!r}]", value) for key, value in values.items()), name, depth + 1, pending)


def _into_module(module: Module, name: str, depth: int, pending: Pending) -> None:
    prefix, held = f"{name}." if name else "", vars(module)
    if held["_modules"]:
        _into_items(held["_modules"].items(), prefix, depth, pending)
    if type(module).__module__.startswith("torch."):
        return  # torch's own modules write nothing that has a graph
    for key, value in held.items():
        if key in ("_buffers", "_parameters"):
            _into_items(value.items(), prefix, depth, pending)
        elif isinstance(value, Tensor):
            pending.append((value, prefix + key, depth))


def _into_object(value: Any, name: str, depth: int, pending: Pending) -> None:
    if depth < _DEEPEST:
        prefix = f"{name}." if name else ""
        _into_items(vars(value).items(), prefix, depth + 1, pending)


def _into_method(method: MethodType, name: str, depth: int, pending: Pending) -> None:
    pending += ((method.__self__, "self", depth), (method.__func__, name, depth))


def _into_caller(caller: Caller, name: str, depth: int, pending: Pending) -> None:
    pending.append((caller.function, name, depth))  # a function in the closure of a transform


def _into_partial(made: Any, name: str, depth: int, pending: Pending) -> None:
    pending.append((made.func, name, depth))
    _into_items(
        (("an argument of a partial", v) for v in (*made.args, *made.keywords.values())), "", depth, pending
    )


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


def _has_look(value: Any) -> bool:
    return _look_of(value) is not None


def _tensor(value: Any, name: str, depth: int, pending: Pending) -> None:
    """Nothing is inside of a tensor; it is what is looked for."""


_LOOKS: tuple[tuple[Any, Look | None], ...] = (
    (Tensor, _tensor),
    (FunctionType, _into_function),
    (MethodType, _into_method),
    (Caller, _into_caller),
    (Module, _into_module),
    (partial, _into_partial),
    (list | tuple, _into_sequence),
    (dict, _into_dict),
    (ModuleType | type, None),
)
