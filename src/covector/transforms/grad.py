"""`grad` and `grad_and_value`: the gradient of a scalar function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from covector._described import described_by
from covector._engine.compiled import eager_alone, named_after
from covector._engine.reverse import record
from covector._tree import Argnames, Argnums, Evaluation
from covector.errors import Caller
from covector.transforms._door import accept_scalar, bind, check_function, runner


@eager_alone
def grad(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    argnames: Argnames = None,
) -> Callable[..., Any]:
    """The gradient of a scalar function, as a function of the same arguments.

    Args:
        func: returns one real tensor of shape (), or `(scalar, aux)` with `has_aux`.
        argnums: which positional arguments to differentiate by: an int, a tuple of ints, or None for all.
        has_aux: `func` returns `(scalar, aux)`; the result is then `(gradient, aux)`.
        argnames: which arguments to differentiate by, by name: a string, or a tuple of strings. It
            replaces the default `argnums`; a tuple of argnums is kept, and its results come first.

    Returns:
        A function whose result is a tree like the selected argument, or a tuple of such trees.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> def energy(x, *, stiffness):
        ...     return 0.5 * (stiffness * x**2).sum()
        >>> x, k = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        >>> covector.grad(energy)(x, stiffness=k)
        tensor([3., 8.])
        >>> covector.grad(energy, argnames="stiffness")(x, stiffness=k)
        tensor([0.5000, 2.0000])
    """
    caller = check_function("grad", func, argnums)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        result, evaluation = _gradient(caller, args, kwargs, argnums, argnames, has_aux)
        return (result, evaluation.aux_value()) if has_aux else result

    return named_after(gradient, like=func)


@eager_alone
@described_by(grad)
def grad_and_value(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    argnames: Argnames = None,
) -> Callable[..., Any]:
    """The gradient of a scalar function together with its value.

    Args:
        has_aux: `func` returns `(scalar, aux)`; the result is then `(gradient, (value, aux))`.

    Returns:
        A function whose result is `(gradient, value)`; the gradient is that of `grad`.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> covector.grad_and_value(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
        (tensor([2., 4.]), tensor(5.))
    """
    caller = check_function("grad_and_value", func, argnums)

    def gradient_and_value(*args: Any, **kwargs: Any) -> Any:
        result, evaluation = _gradient(caller, args, kwargs, argnums, argnames, has_aux)
        value = evaluation.value()
        return result, ((value, evaluation.aux_value()) if has_aux else value)

    return named_after(gradient_and_value, like=func)


@eager_alone
def _gradient(
    caller: Caller,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Argnums,
    argnames: Argnames,
    has_aux: bool,
) -> tuple[Any, Evaluation]:
    """The gradient, arranged like the selected arguments, and what the function returned."""
    arguments = bind(caller, args, kwargs, argnums, argnames)
    run = runner(caller, arguments, accept_scalar, has_aux=has_aux)
    recording = record(run, arguments.leaves, arguments.chosen)
    evaluation = recording.evaluation
    return arguments.tree_of(recording.pull([torch.ones_like(evaluation.outputs[0])], keep=False)), evaluation
