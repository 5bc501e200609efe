"""torch's names, on covector's engine: the lower-level ones for gradient checking, and all of them swapped.

Some test suites call the lower-level names beside `gradcheck`. Shapes and order are torch's: a Jacobian
here has a row for each number of the input and a column for each number of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from covector import functional
from covector._chart import Chart
from covector._engine import graph
from covector._redirect import redirect, undisturbed
from covector._tree import Arguments, flatten
from covector.api import gradcheck, gradgradcheck
from covector.errors import ArgumentValueError
from covector.transforms.functionalize import functionalize
from covector.transforms.grad import grad, grad_and_value
from covector.transforms.hessian import hessian
from covector.transforms.jacfwd import jacfwd
from covector.transforms.jacrev import jacrev
from covector.transforms.jvp import jvp
from covector.transforms.linearize import linearize
from covector.transforms.vjp import vjp
from covector.verify.leaves import is_differentiable, shifted

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
    is as before, also after an exception; swaps may be nested and may overlap.

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


def get_numerical_jacobian(
    fn: Callable[..., Any], inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> tuple[Tensor, ...]:
    """The Jacobian of the first output by each input that requires grad, by central differences.

    As in torch, `fn` takes one argument, the tuple of inputs.

    Example:
        >>> import torch
        >>> from covector.compat import get_numerical_jacobian
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> get_numerical_jacobian(lambda inputs: inputs[0] ** 2, (x,))[0].round(decimals=4)
        tensor([[2., 0.],
                [0., 4.]], dtype=torch.float64)
    """
    if grad_out != 1.0:
        raise ArgumentValueError(f"get_numerical_jacobian: grad_out must be 1.0, got {grad_out}.")
    args = _as_tuple(inputs)
    targets = _variables(args if target is None else _as_tuple(target))
    outputs = _outputs(fn(args))
    if any(output.is_complex() for output in outputs):
        raise ArgumentValueError(
            "get_numerical_jacobian: a complex output has two Jacobians; return its .real or .imag."
        )
    return tuple(
        get_numerical_jacobian_wrt_specific_input(fn, 0, (args,), outputs, eps, input=variable)[0]
        for variable in targets
    )


def get_numerical_jacobian_wrt_specific_input(
    fn: Callable[..., Any],
    input_idx: int,
    inputs: Sequence[Any],
    outputs: Sequence[Tensor],
    eps: float,
    input: Tensor | None = None,
    is_forward_ad: bool = False,
) -> list[Tensor]:
    """The Jacobians of all outputs by one input, by central differences with step `eps`.

    The input is moved in place, so `fn` may close over it; it is put back whatever happens.

    Example:
        >>> import torch
        >>> from covector.compat import get_numerical_jacobian_wrt_specific_input
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> blocks = get_numerical_jacobian_wrt_specific_input(torch.square, 0, (x,), (x**2,), 1e-3)
        >>> blocks[0].round(decimals=4)
        tensor([[2., 0.],
                [0., 4.]], dtype=torch.float64)
    """
    variable = inputs[input_idx] if input is None else input
    chart, results = Chart.of([variable]), Chart.of(outputs)
    point = chart.to_coords([variable.detach()])

    def value(coordinates: Tensor) -> Tensor:
        with torch.no_grad(), shifted([variable], chart.from_coords(coordinates)):
            return results.to_coords([output.detach() for output in _outputs(fn(*inputs))])

    rows = []
    for index in range(chart.size):
        move = torch.zeros_like(point)
        move[index] = eps
        rows.append((value(point + move) - value(point - move)) / (2 * eps))
    whole = torch.stack(rows) if rows else torch.zeros(0, results.size, dtype=point.dtype)
    blocks = [whole[:, place.start : place.stop] for place in results.places]
    return [
        _complex_block(block, chart, place.dtype) for block, place in zip(blocks, results.places, strict=True)
    ]


def get_analytical_jacobian(
    inputs: Any, output: Tensor, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[Tensor, ...], bool, bool, bool]:
    """The Jacobian of an output by each input that requires grad, by reverse mode.

    Returns:
        `(jacobians, reentrant, sizes_ok, types_ok)`: whether a second run gave the same values (to
        `nondet_tol`), and whether gradients had the shape and the dtype of their inputs.

    Example:
        >>> import torch
        >>> from covector.compat import get_analytical_jacobian
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> get_analytical_jacobian((x,), x**2)
        ((tensor([[2., 0.],
                [0., 4.]], dtype=torch.float64),), True, True, True)
    """
    if grad_out != 1.0:
        raise ArgumentValueError(f"get_analytical_jacobian: grad_out must be 1.0, got {grad_out}.")
    if output.is_complex():
        raise ArgumentValueError(
            "get_analytical_jacobian: a complex output has two Jacobians; pass output.real or output.imag."
        )
    variables = _variables(_as_tuple(inputs))
    first, second = (_columns(output, variables) for _ in range(2))
    same = all(
        bool(((a - b).abs() <= nondet_tol).all()) for a, b in zip(first.blocks, second.blocks, strict=True)
    )
    return tuple(first.blocks), same, first.sizes_ok, first.types_ok


class _columns:  # noqa: N801 - a value with three parts, made by being called
    """The Jacobian of an output, a column for each of its numbers."""

    def __init__(self, output: Tensor, variables: Sequence[Tensor]) -> None:
        self.sizes_ok = self.types_ok = True
        columns: list[list[Tensor]] = [[] for _ in variables]
        for cotangent in Chart.of([output]).basis(0, output.numel())[0]:
            pulled = graph.backward([output], [cotangent], variables, keep=True, record=False)
            for column, variable, value in zip(columns, variables, pulled, strict=True):
                gradient = torch.zeros_like(variable) if value is None else value
                self.sizes_ok &= gradient.shape == variable.shape
                self.types_ok &= gradient.dtype == variable.dtype
                column.append(gradient.detach().reshape(-1))
        self.blocks = [
            torch.stack(column, dim=1) if column else variable.new_zeros(variable.numel(), 0)
            for column, variable in zip(columns, variables, strict=True)
        ]


def _complex_block(block: Tensor, chart: Chart, dtype: torch.dtype) -> Tensor:
    """Real coordinates on both sides, put together as torch's conjugate convention has it."""
    if dtype.is_complex:
        block = torch.view_as_complex(block.reshape(block.shape[0], -1, 2).contiguous())
    if chart.places[0].dtype.is_complex:
        block = block[0::2] + 1j * block[1::2]
    return block


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _variables(args: Sequence[Any]) -> list[Tensor]:
    arguments = Arguments(args, {})
    arguments.select(arguments.slots, single=False)
    return arguments.only(lambda leaf: is_differentiable(leaf) and leaf.requires_grad).primals()


def _outputs(returned: Any) -> list[Tensor]:
    outputs = [leaf for leaf in flatten(returned)[0] if is_differentiable(leaf)]
    if not outputs:
        raise ArgumentValueError("get_numerical_jacobian: the function returned nothing to difference.")
    return outputs
