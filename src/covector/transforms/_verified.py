"""Whether a compiled function gives what the function itself gives, as far as rounding allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covector._engine.messages import raised_while_traced
from covector._tree import flatten, leaf_paths
from covector.errors import Caller, CompiledMismatchError, UntraceableError, first_sentence

# How far an input is moved for the second comparison, as a part of it and beside it: far beyond rounding, and
# near enough to stay where most functions are defined.
_STEP = 2.0**-10


def moved(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors near these: a program into which a value was built differs there."""
    return [
        (t.detach() * (1 + _STEP) + _STEP).to(t.dtype).requires_grad_(t.requires_grad)
        if t.is_floating_point() or t.is_complex()
        else t
        for t in tensors
    ]


def check_same(caller: Caller, got: Any, expected: Any) -> None:
    """Two results are the same tree, of tensors that differ by rounding only."""
    (ours, spec), (theirs, expected_spec) = flatten(got), flatten(expected)
    if spec != expected_spec:
        raise CompiledMismatchError(
            f"{caller}: the compiled function returns another structure than the function. {_WHAT_TO_DO}"
        )
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(b, Tensor):
            name = partial(_name, expected, position)
            _check_tensor(caller, a.detach(), b.detach(), name)


def _name(result: Any, position: int) -> str:
    return leaf_paths(result, "result")[position]


def _check_tensor(caller: Caller, got: Tensor, expected: Tensor, name: Callable[[], str]) -> None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise CompiledMismatchError(
            f"{caller}: {name()} has shape {tuple(got.shape)} and {got.dtype} compiled, "
            f"{tuple(expected.shape)} and {expected.dtype} eagerly. {_WHAT_TO_DO}"
        )
    if not expected.numel() or torch.equal(got, expected):
        return
    if not (expected.is_floating_point() or expected.is_complex()):
        difference = (got != expected).to(torch.float64)
        allowed = torch.zeros_like(difference)
    else:
        size = expected.abs().nan_to_num(0.0, 0.0, 0.0)
        # Sums are taken in another order: errors are those of the largest numbers that take part.
        allowed = torch.finfo(expected.dtype).eps ** (2 / 3) * (size + size.amax() + 1e-30)
        difference = torch.where(got == expected, 0, (got - expected).abs())
        difference = torch.where(got.isnan() & expected.isnan(), 0, difference)
    wrong = ~(difference <= allowed)
    if bool(wrong.any()):
        worst = int(difference.nan_to_num(torch.inf).argmax())
        raise CompiledMismatchError(
            f"{caller}: {name()} is {got.flatten()[worst].item():.6g} compiled and "
            f"{expected.flatten()[worst].item():.6g} eagerly, in element {worst} and {int(wrong.sum())} of "
            f"{wrong.numel()} in all. {_WHAT_TO_DO}"
        )


_WHAT_TO_DO = (
    "Either it is not a pure function of its arguments and of what it captures (a counter, a cache, a value "
    "that was taken out of a tensor), or the backend is wrong; backend='replay' tells which."
)


def check_gradients(
    caller: Caller, compiled: Callable[..., Any], args: Any, kwargs: Any, captured: Sequence[Tensor]
) -> None:
    """A compiled function gives the result, and the gradient by all that requires grad, of the function."""
    expected = caller.function(*args, **kwargs)
    try:
        got = compiled(*args, **kwargs)
    except Exception as error:  # of the compiler: the function itself did not raise
        reason = raised_while_traced(error) or first_sentence(error)
        raise UntraceableError(
            f"{caller}: torch.compile does not take it: {reason}. "
            "Without differentiable=True it is traced in another way."
        ) from error
    check_same(caller, got, expected)
    leaves = [*flatten((args, kwargs))[0], *captured]
    variables = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if variables and torch.is_grad_enabled():
        check_same(
            caller._replace(verb="the gradient of compile"),
            _gradients(got, variables),
            _gradients(expected, variables),
        )


def _gradients(result: Any, variables: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of an uneven sum of the result by these tensors."""
    total = torch.zeros(())
    for leaf in flatten(result)[0]:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            weights = torch.linspace(1, 2, leaf.numel(), dtype=leaf.real.dtype, device=leaf.device)
            total = total + (leaf.abs() if leaf.is_complex() else leaf).flatten().dot(weights).cpu()
    if not total.requires_grad:
        return [torch.zeros_like(variable) for variable in variables]
    found = torch.autograd.grad(total, variables, retain_graph=True, materialize_grads=True)
    return [gradient.detach() for gradient in found]
