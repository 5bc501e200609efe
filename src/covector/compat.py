"""torch's names, on covector's engine: the lower-level ones for gradient checking, and `swap` for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from covector import functional
from covector._jacobians import (
    get_analytical_jacobian,
    get_numerical_jacobian,
    get_numerical_jacobian_wrt_specific_input,
)
from covector._redirect import redirect, undisturbed
from covector.api import gradcheck, gradgradcheck
from covector.transforms.functionalize import functionalize
from covector.transforms.grad import grad, grad_and_value
from covector.transforms.hessian import hessian
from covector.transforms.jacfwd import jacfwd
from covector.transforms.jacrev import jacrev
from covector.transforms.jvp import jvp
from covector.transforms.linearize import linearize
from covector.transforms.vjp import vjp

__all__ = [
    "get_analytical_jacobian",
    "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input",
    "swap",
]

# What covector answers for torch, by the module of torch where it is found.
CHECKS = {"torch.autograd.gradcheck": (gradcheck, gradgradcheck)}
DOORS: dict[str, tuple[Callable[..., Any], ...]] = {
    **CHECKS,
    "torch.func": (functionalize, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp),
    "torch.autograd.functional": tuple(getattr(functional, name) for name in functional.__all__),
}


@contextmanager
def swap() -> Iterator[None]:
    """Inside, covector answers for torch's gradient checks and derivatives.

    These are `torch.autograd.gradcheck` and `gradgradcheck`, `torch.autograd.functional`, and the
    transforms of `torch.func`. Torch's functions themselves are redirected, so it does not matter how
    or when they were imported. It holds for the whole process, all threads included. Afterwards everything
    is as before, also after an exception; swaps may be nested and may overlap. It also holds for what
    `torch.compile` traces inside.

    Raises:
        UnsupportedError: something else has replaced one of torch's functions already.

    Example:
        >>> import torch, covector
        >>> from torch.func import grad
        >>> with covector.swap():  # torch's own grad knows no argnames
        ...     grad(lambda x, y: x * y, argnames="y")(torch.tensor(2.0), y=torch.tensor(3.0))
        tensor(2.)
    """
    with redirected(DOORS):
        yield


@contextmanager
def redirected(doors: dict[str, tuple[Callable[..., Any], ...]]) -> Iterator[None]:
    """Inside, the functions answer for those of torch that have their names."""
    functions = {
        f"{module}.{ours.__name__}": (getattr(import_module(module), ours.__name__), ours)
        for module, answers in doors.items()
        for ours in answers
    }
    with redirect(functions):
        yield


def peer(module: str, name: str) -> Callable[..., Any]:
    """A function of torch's that covector implements, to compare with; the one place that fetches them."""
    return undisturbed(f"{module}.{name}", getattr(import_module(module), name))
