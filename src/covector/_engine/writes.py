"""Writes to captured tensors: refused before they are done, or noticed afterwards.

A value that depends on what is differentiated by, written to a tensor of the caller's, would leave our graph
or tangent there. Where a function's code writes to any tensor, its operations are watched, and such a write
is refused. Where its code did not show that, the versions of the captured tensors tell after the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from covector._engine import graph, levels
from covector._engine.captured import Captured, Found, writes_in_place
from covector._engine.observe import storage_of, tensors_in
from covector._engine.tensors import version


class WriteRefused(Exception):
    """A write to a captured tensor that was not done; `name` is what the function calls the tensor."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def targets(
    operation: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any] | None
) -> Iterator[Tensor]:
    """The tensors that an operation writes to, as far as its name and keywords tell."""
    if arguments and writes_in_place(getattr(operation, "__name__", "")):
        yield from tensors_in(arguments[:1])
    if keywords and "out" in keywords:
        yield from tensors_in([keywords["out"]])


def guarded(function: Callable[..., Any], found: Found, variables: Sequence[Tensor]) -> Callable[..., Any]:
    """The function, which is differentiated by these; in place of such a write, it raises `WriteRefused`."""
    if not (found.writes and found.tensors):
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        with _Guard(found.tensors, variables):
            return function(*args, **kwargs)

    return run


class _Guard:
    """Inside, operations that write what depends on the variables to one of these tensors are refused."""

    __slots__ = ("_captured", "_names", "_off", "_own")

    def __init__(self, captured: Sequence[Captured], variables: Sequence[Tensor]) -> None:
        self._captured, self._own = captured, _Own(variables)
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
                    raise WriteRefused(held)
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


def written(found: Found, variables: Sequence[Tensor]) -> str | None:
    """The name of a captured tensor to which a function wrote what depends on the variables, once it has run.

    Our graph is taken off what was written to; a tangent goes with its level.
    """
    first = None
    for tensor, name, was in found.tensors:
        if version(tensor) != was and _Own(variables).behind(tensor):
            if tensor.grad_fn is not None:
                (tensor if tensor._base is None else tensor._base).detach_()
            first = name if first is None else first
    return first


class _Own:
    """By what is known that a tensor depends on the variables of a run: the graph behind it, or a tangent."""

    __slots__ = ("_variables", "forward")

    def __init__(self, variables: Sequence[Tensor]) -> None:
        self._variables = variables
        self.forward = not any(variable.requires_grad for variable in variables)

    def behind(self, tensor: Tensor) -> bool:
        """Whether the tensor depends on the variables."""
        if self.forward:
            return levels.tangent_of(tensor) is not None
        if not tensor.requires_grad:
            return False
        leaves, inner = graph.reached([tensor])
        return any(id(variable) in leaves or variable.grad_fn in inner for variable in self._variables)
