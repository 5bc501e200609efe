"""Tensors that a function captures: whether it wrote to one, so that this carries our graph or tangent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from covector._engine import graph, levels
from covector._engine.tensors import version
from covector.errors import Caller


def written(function: Any, leaves: Sequence[Any]) -> str | None:
    """The name of a captured tensor to which the function, run on these leaves, wrote what depends on them.

    This looks afterwards, at the tensors that the function names. Our graph is taken off what was written to;
    a tangent goes with its level.
    """
    own, first = None, None
    for tensor, name in _captured(function):
        if _was_written(tensor) and (tensor.grad_fn is not None or levels.dual_level_open()):
            own = _Own.among(leaves) if own is None else own
            if own.marked(tensor):
                _clean(tensor)
                first = name if first is None else first
    return first


def _was_written(tensor: Tensor) -> bool:
    return not tensor.is_inference() and version(tensor) > 0


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


def _clean(tensor: Tensor) -> None:
    if tensor.grad_fn is not None:
        base = tensor if tensor._base is None else tensor._base
        base.detach_()


def _captured(function: Any) -> Iterator[tuple[Tensor, str]]:
    """The tensors that a function names: in its closure, defaults and globals, and those of modules there.

    What is inside of other containers is not looked at: functions collect their own results there.
    """
    pending: list[tuple[Any, str]] = [(function, "")]
    seen = set()
    for value, name in pending:  # it grows on the way
        if isinstance(value, Tensor):
            yield value, name
        elif id(value) not in seen:
            seen.add(id(value))
            if type(value) is FunctionType:
                _add_names(value, pending)
            elif isinstance(value, Module):
                _add_parts(value, name, pending)
            elif type(value) is MethodType:
                pending += ((value.__self__, "self"), (value.__func__, name))
            elif isinstance(value, Caller):  # in the closure of a transform
                pending.append((value.function, name))
            elif isinstance(value, partial):
                pending.append((value.func, name))
                pending += ((inner, name) for inner in (*value.args, *value.keywords.values()))


# Whether there is something to look at in values of a type, as types are met; most names stand for others.
_types: dict[type, bool] = {}


def _is_looked_at(value: Any) -> bool:
    known = _types.get(type(value))
    if known is None:
        known = isinstance(value, Tensor | Module | FunctionType | MethodType | Caller | partial)
        _types[type(value)] = known
    return known


def _add_names(function: FunctionType, pending: list[tuple[Any, str]]) -> None:
    code, found = function.__code__, function.__globals__
    for name in code.co_names:
        value = found.get(name)
        if value is not None and _is_looked_at(value) and not _is_torch(value):
            pending.append((value, name))
    if function.__closure__:
        for name, cell in zip(code.co_freevars, function.__closure__, strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # nothing was bound to the name yet
                continue
            if _is_looked_at(value):
                pending.append((value, name))
    for value in function.__defaults__ or ():
        if _is_looked_at(value):
            pending.append((value, "the default of a parameter"))
    for constant in code.co_consts:
        if type(constant) is CodeType:  # a function inside; its own names are those of the same module
            for name in constant.co_names:
                value = found.get(name)
                if isinstance(value, Tensor):
                    pending.append((value, name))


def _add_parts(module: Module, name: str, pending: list[tuple[Any, str]]) -> None:
    held = vars(module)
    for kind in ("_buffers", "_parameters", "_modules"):
        for key, part in held[kind].items():
            if part is not None:
                pending.append((part, f"{name}.{key}" if name else key))


def _is_torch(value: Any) -> bool:
    return type(value) is FunctionType and (value.__module__ or "").startswith("torch")
