"""Writes to captured tensors: undone, or refused before they are done.

A value that depends on what is differentiated by, written to a tensor of the caller's, would leave our graph
or tangent there. The versions of the captured tensors tell after the run. Where the function's code writes to
any tensor, the numbers are kept until then, and put back. Where that would be too much to keep, or versions
do not tell, operations are watched, and such a write is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from covector._engine import graph, levels
from covector._engine.captured import Captured, Found, Writes, captured, writes_in_place
from covector._engine.observe import storage_of, tensors_in
from covector._engine.tensors import set_version


class WriteRefused(Exception):
    """A write to a captured tensor, undone or not done; `name` is what the function calls the tensor."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def run_watched(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], variables: Sequence[Tensor]
) -> Any:
    """What the function, which is differentiated by the variables, returns.

    Raises:
        WriteRefused: it wrote what depends on the variables to a captured tensor. An error that it raised
            itself after that is the cause.
    """
    with torch._C.DisableTorchFunction():  # which the function is not called with
        found = captured(function)
        own = _Own(variables) if found.tensors else None
    if own is None:
        return function(*args, **kwargs)
    kept = _kept(found) if found.writes else None
    try:
        if found.writes is Writes.UNNOTICED or (found.writes and kept is None):
            with _Guard(found.tensors, own) as guard:
                returned = function(*args, **kwargs)
            if guard.refused is not None:  # and the function went on
                raise guard.refused
        else:
            returned = function(*args, **kwargs)
    except Exception as error:
        name = _taken_back(found, kept, own)
        if name is not None and not isinstance(error, WriteRefused):
            raise WriteRefused(name) from error
        raise
    name = _taken_back(found, kept, own)
    if name is not None:
        raise WriteRefused(name)
    return returned


# What is kept of captured tensors, in bytes. More would take longer to copy than the operations of a small
# function to watch; to copy a tensor of few numbers takes as long as this many bytes.
_MOST_BYTES = 1 << 16
_BYTES_OF_A_CALL = 1 << 12


def _kept(found: Found) -> list[Tensor] | None:
    """Copies of the captured tensors; None where they are large, or would not suffice to undo a write."""
    if levels.active() or torch._C._len_torch_dispatch_stack():
        return None
    left = _MOST_BYTES
    for tensor, _, _ in found.tensors:
        if not _is_plain(tensor):
            return None
        left -= tensor.nbytes + _BYTES_OF_A_CALL
        if left < 0:
            return None
    with torch._C.DisableTorchFunction():
        return [(t.detach() if t.requires_grad else t).clone() for t, _, _ in found.tensors]


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is its numbers alone: no class of its own, no graph that a write would change."""
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return False
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    return tensor.grad_fn is None and tensor._base is None


def _taken_back(found: Found, kept: list[Tensor] | None, own: _Own) -> str | None:
    """The name of a captured tensor to which the function wrote what depends on the variables.

    Our graph is taken off it, a tangent goes with its level; its numbers are put back if they were kept.
    """
    with torch._C.DisableTorchFunction():
        changed = [index for index, (tensor, _, was) in enumerate(found.tensors) if tensor._version != was]
    first = None
    for index in changed:
        tensor, name, was = found.tensors[index]
        if own.behind(tensor):
            first = name if first is None else first
            if tensor.grad_fn is not None:
                (tensor if tensor._base is None else tensor._base).detach_()
            if kept is not None:
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    tensor.copy_(kept[index])
                set_version(tensor, was)
    return first


def targets(
    operation: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any] | None
) -> Iterator[Tensor]:
    """The tensors that an operation writes to, as far as its name and keywords tell."""
    if arguments and writes_in_place(getattr(operation, "__name__", "")):
        yield from tensors_in(arguments[:1])
    if keywords and "out" in keywords:
        yield from tensors_in([keywords["out"]])


class _Guard:
    """Inside, operations that write what depends on the variables to one of these tensors are refused."""

    __slots__ = ("_captured", "_names", "_off", "_own", "refused")

    def __init__(self, captured: Sequence[Captured], own: _Own) -> None:
        self._captured, self._own = captured, own
        self.refused: WriteRefused | None = None
        self._names: dict[int, str] | None = None  # of places in memory, once there is a write
        self._off = False  # whether the function switched grad mode off; another mode may keep it on

    def __enter__(self) -> Self:
        torch._C._push_on_torch_function_stack(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        torch._C._pop_torch_function_stack()

    def __torch_function__(
        self, operation: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(operation, "__name__", "")
        if kwargs or (name[-1:] == "_" and writes_in_place(name)):
            for target in targets(operation, args, kwargs):
                held = self._name_of(target)
                if held is not None and any(self._depends(value) for value in tensors_in(args)):
                    self.refused = WriteRefused(held)
                    raise self.refused
        elif operation is torch._C._set_grad_enabled:
            self._off = not args[0]
        return operation(*args, **kwargs) if kwargs else operation(*args)

    def _depends(self, value: Tensor) -> bool:
        """Whether what is computed with this now depends on the variables."""
        if not self._own.forward and (self._off or not torch.is_grad_enabled()):
            return False  # not recorded
        return self._own.behind(value)

    def _name_of(self, target: Tensor) -> str | None:
        """What the function calls the captured tensor whose numbers these are, if they are."""
        if self._names is None:
            self._names = {_place_of(tensor): name for tensor, name, _ in reversed(self._captured)}
        return self._names.get(_place_of(levels.innermost(target)))


def _place_of(tensor: Tensor) -> int:
    """Where the numbers of a tensor are, as a number; that of the tensor itself if they have no place."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        stored = storage_of(tensor)
        return id(tensor) if stored is None else stored._cdata


class _Own:
    """By what is known that a tensor depends on the variables of a run: the graph behind it, or a tangent.

    It is made before the run: a write to the memory of a variable gives the variable another graph.
    """

    __slots__ = ("_leaves", "_nodes", "forward")

    def __init__(self, variables: Sequence[Tensor]) -> None:
        self._leaves, self._nodes, self.forward = [], [], True
        for variable in variables:
            if variable.requires_grad:
                self.forward = False
                self._leaves.append(id(variable))
                self._nodes.append(variable.grad_fn)

    def behind(self, tensor: Tensor) -> bool:
        """Whether the tensor depends on the variables."""
        if self.forward:
            return levels.tangent_of(tensor) is not None
        if not tensor.requires_grad:
            return False
        leaves, inner = graph.reached([tensor])
        return not leaves.isdisjoint(self._leaves) or not inner.isdisjoint(self._nodes)
