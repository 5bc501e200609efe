"""What is given to a check, made ready: one bench for each dtype, on tensors of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from covector._chart import is_strided
from covector._tree import Arguments, parameter_names
from covector.checks.arguments import as_tuple
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller
from covector.kernels.bench import Bench, Settings
from covector.kernels.lenses.sizes import BASE, OTHER
from covector.kernels.subject import Subject
from covector.transforms.module import as_function
from covector.verify.leaves import is_differentiable


@dataclass(frozen=True)
class Request:
    """What the caller gave."""

    caller: Caller
    reference: Callable[..., Any]
    inputs: Any
    kwargs: dict[str, Any]
    dtypes: tuple[torch.dtype | None, ...]
    settings: Settings

    @property
    def makes_inputs(self) -> bool:
        """Whether the inputs are a function of a size."""
        return callable(self.inputs) and not isinstance(self.inputs, Tensor)

    def given(self, size: int) -> tuple[Any, ...]:
        """The positional arguments; of a size, where they are made from one."""
        return as_tuple(self.inputs(size) if self.makes_inputs else self.inputs)


def dtypes_of(caller: Caller, dtypes: Any) -> tuple[torch.dtype | None, ...]:
    """The dtypes to check in; None for the inputs' own."""
    wanted = tuple(dtypes) if isinstance(dtypes, Iterable) else (dtypes,)
    if not wanted:
        raise ArgumentValueError(f"{caller}: dtypes is empty; leave it out to check in the inputs' own.")
    for dtype in wanted:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ArgumentTypeError(f"{caller}: dtypes must be floating-point dtypes, got {dtype!r}.")
    return wanted


def benches(request: Request) -> Iterator[Bench]:
    """One for each dtype."""
    kernel, reference, params = _functions(request)
    for dtype in request.dtypes:

        def arguments_of(size: int) -> Arguments:
            arguments = Arguments((*params, *request.given(size)), request.kwargs)
            return arguments.select(arguments.slots, single=False)

        def leaves_of(size: int, dtype: torch.dtype | None = dtype) -> list[Any]:
            return [_own(request.caller, leaf, dtype) for leaf in arguments_of(size).leaves]

        arguments = arguments_of(BASE).only(lambda leaf: is_differentiable(leaf) and _is_asked(leaf, params))
        leaves = [_own(request.caller, leaf, dtype) for leaf in arguments.leaves]
        known = {str(leaf.dtype).removeprefix("torch.") for leaf in leaves if is_differentiable(leaf)}
        if not known:
            raise ArgumentTypeError(f"{request.caller}: the inputs hold no floating-point tensor.")
        bench = Bench(
            Subject(kernel, arguments),
            Subject(reference, arguments),
            leaves,
            request.settings,
            ", ".join(sorted(known)),
            arguments.paths(reference if parameter_names(reference) else kernel),
        )
        if request.makes_inputs:
            bench.sizes = leaves_of
            bench.other_size = leaves_of(OTHER)
        yield bench


def _is_asked(leaf: Tensor, params: tuple[Any, ...]) -> bool:
    """Whether gradients are compared by a tensor: by every parameter, and by what requires grad."""
    return leaf.requires_grad or any(leaf is value for tree in params for value in tree.values())


def _functions(request: Request) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]:
    """Kernel and reference, and the parameters that both take first if they are modules."""
    kernel, reference = request.caller.function, request.reference
    if not (isinstance(kernel, Module) and isinstance(reference, Module)):
        return kernel, reference, ()
    call, mine = as_function(kernel)
    refer, theirs = as_function(reference)
    if {n: p.shape for n, p in mine.items()} != {n: p.shape for n, p in theirs.items()}:
        raise ArgumentValueError(
            f"{request.caller}: kernel and reference must have parameters of the same names and shapes, got "
            f"{sorted(mine)} and {sorted(theirs)}."
        )
    # Inputs are named as the module names them.
    first = Parameter("params", Parameter.POSITIONAL_ONLY)
    given = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in parameter_names(kernel.forward)]
    call.__signature__ = refer.__signature__ = Signature([first, *given])  # type: ignore[attr-defined]
    return call, refer, (mine,)


def _own(caller: Caller, leaf: Any, dtype: torch.dtype | None) -> Any:
    """A leaf of our own, in the dtype; the caller's stays as it is."""
    if not isinstance(leaf, Tensor):
        return leaf
    if not is_strided(leaf):
        raise ArgumentTypeError(f"{caller}: only dense tensors can be compared, got {leaf.layout}.")
    leaf = leaf.detach().clone(memory_format=torch.contiguous_format)
    return leaf.to(dtype) if dtype is not None and leaf.is_floating_point() else leaf
