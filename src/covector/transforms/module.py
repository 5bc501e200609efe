"""`as_function`: an `nn.Module` as a pure function of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from inspect import Parameter, Signature, signature
from typing import Any

from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.parameter import is_lazy

from covector._tree import parameter_names
from covector.errors import ArgumentTypeError, ArgumentValueError


def as_function(
    module: Module, names: str | Iterable[str] = "*"
) -> tuple[Callable[..., Any], dict[str, Tensor]]:
    """A module as a pure function of its parameters, and the parameters.

    `fn(params, *args, **kwargs)` computes `module(*args, **kwargs)` with these parameters. Neither the
    module's parameters nor its buffers are changed by it: a layer that updates running statistics
    updates a copy.

    Args:
        module: any `nn.Module`.
        names: which parameters to pull out: a name, a pattern such as "encoder.*", or several of
            them. The others keep their values in the module.

    Returns:
        `(fn, params)`; `params` maps names to detached tensors, so that `grad(fn)(params, x)` gives
        a dict with the same names.

    Raises:
        ArgumentTypeError: `module` is not a module.
        ArgumentValueError: a name matches no parameter.

    Example:
        >>> import torch, covector
        >>> layer = torch.nn.Linear(2, 1)
        >>> fn, params = covector.as_function(layer)
        >>> gradient = covector.grad(lambda params, x: fn(params, x).sum())(params, torch.ones(3, 2))
        >>> gradient["weight"]
        tensor([[3., 3.]])
    """
    if not isinstance(module, Module):
        raise ArgumentTypeError(
            f"as_function: expected an nn.Module, got {module!r} ({type(module).__name__})."
        )
    if not isinstance(names, Iterable):
        raise ArgumentTypeError(
            f"as_function: names must be a pattern or several, got {names!r} ({type(names).__name__})."
        )
    patterns = [names] if isinstance(names, str) else list(map(str, names))
    parameters = dict(module.named_parameters())
    if lazily := [name for name, value in parameters.items() if is_lazy(value)]:
        raise ArgumentValueError(
            f"as_function({type(module).__name__}): the parameter {lazily[0]} has no shape yet. Call the "
            "module once, which gives it one."
        )
    for pattern in patterns if parameters else ():
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ArgumentValueError(
                f"as_function({type(module).__name__}): no parameter is called {pattern!r}; there are: "
                f"{', '.join(parameters)}."
            )
    params = {
        name: parameter.detach()
        for name, parameter in parameters.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }

    expected = set(params)

    def fn(params: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        if not isinstance(params, Mapping) or set(params) != expected:
            raise ArgumentTypeError(
                f"as_function({type(module).__name__}): call fn(params, ...) with a dict of the parameters "
                f"{', '.join(sorted(expected))}; got {_keys(params)}."
            )
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        return functional_call(module, {**buffers, **params}, args, kwargs)

    fn.__name__ = type(module).__name__
    _name_inputs(fn, parameter_names(module))
    return fn, params


def _keys(params: Any) -> str:
    return ", ".join(sorted(map(str, params))) if isinstance(params, Mapping) else type(params).__name__


def _name_inputs(fn: Any, names: list[str]) -> None:
    """Let the inputs after the parameters go by the names that the module has for them."""
    params, *rest = signature(fn).parameters.values()
    inputs = [Parameter(name, Parameter.POSITIONAL_ONLY) for name in names]
    if {"params", "args", "kwargs"}.isdisjoint(names):
        fn.__signature__ = Signature([params.replace(kind=Parameter.POSITIONAL_ONLY), *inputs, *rest])
