"""torch's lower-level names for gradient checking: a Jacobian by differences, and one by reverse mode.

Shapes and order are torch's: a row for each number of the input, a column for each number of the output. A
sparse input has a row for each of its elements too, which is zero where it specifies none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart, overlaps
from covector._engine import graph
from covector._tree import Arguments, flatten
from covector.checks.arguments import as_tuple, check_number
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    ComplexOutputError,
    DeprecatedNameWarning,
    EmptyError,
    UnsteadyOutputError,
    warn,
)
from covector.transforms._door import summary
from covector.verify.leaves import is_differentiable, shifted
from covector.verify.vectors import unit


def get_numerical_jacobian(
    fn: Callable[..., Any], inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> tuple[Tensor, ...]:
    """The Jacobian of the first output by each input that requires grad, by central differences.

    As in torch, `fn` takes one argument, the tuple of inputs, and the name is deprecated: a
    `DeprecatedNameWarning` says so.

    Args:
        fn: takes the tuple of inputs.
        inputs: the tuple, or one tensor.
        target: the tensors to move, if not those among the inputs; `fn` may close over them.
        eps: the step.
        grad_out: 1.0; torch has kept it for older calls.

    Raises:
        ComplexOutputError: the function returns a complex tensor.
        UnsteadyOutputError: it returns other shapes or dtypes next to the point.
        EmptyError: it returns no floating-point tensor.

    Example:
        >>> import torch
        >>> from covector.compat import get_numerical_jacobian
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> get_numerical_jacobian(lambda inputs: inputs[0] ** 2, (x,))[0].round(decimals=4)
        tensor([[2., 0.],
                [0., 4.]], dtype=torch.float64)
    """
    _deprecated("get_numerical_jacobian", "covector.check compares both Jacobians")
    _require_one("get_numerical_jacobian", grad_out)
    args = as_tuple(inputs)
    check_number("get_numerical_jacobian", "eps", eps, positive=True)
    targets = _variables(args if target is None else as_tuple(target))
    outputs = _outputs(fn, args)
    if any(output.is_complex() for output in outputs):
        raise ComplexOutputError(
            "get_numerical_jacobian: a complex output has two Jacobians; return its .real or .imag."
        )
    if not any(map(is_differentiable, outputs)):
        raise EmptyError("get_numerical_jacobian: the function returned nothing to difference.")
    for variable in targets:
        _movable("get_numerical_jacobian", variable)
    differences = (_Differences("get_numerical_jacobian", fn, (args,), outputs, v, eps) for v in targets)
    return tuple(each.blocks()[0] for each in differences)


def get_numerical_jacobian_wrt_specific_input(
    fn: Callable[..., Any],
    input_idx: int,
    inputs: Sequence[Any],
    outputs: Sequence[Tensor],
    eps: float,
    input: Tensor | None = None,
    is_forward_ad: bool = False,
) -> tuple[Tensor, ...]:
    """The Jacobians of all floating-point outputs by one input, by central differences with step `eps`.

    The input is moved in place, so `fn` may close over it; it is put back whatever happens.

    Args:
        fn: takes the inputs one by one.
        input_idx: which of them to move.
        inputs: all of them.
        outputs: what `fn` returns for them.
        eps: the step.
        input: the tensor to move, if it is not `inputs[input_idx]`.
        is_forward_ad: whether a complex output of a real input is welcome.

    Raises:
        EmptyError: the input does not require grad.
        ComplexOutputError: an output is complex, and the input is too, or `is_forward_ad` is False.
        UnsteadyOutputError: the function returns other shapes or dtypes next to the point.

    Example:
        >>> import torch
        >>> from covector.compat import get_numerical_jacobian_wrt_specific_input
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> blocks = get_numerical_jacobian_wrt_specific_input(torch.square, 0, (x,), (x**2,), 1e-3)
        >>> blocks[0].round(decimals=4)
        tensor([[2., 0.],
                [0., 4.]], dtype=torch.float64)
    """
    name = "get_numerical_jacobian_wrt_specific_input"
    check_number(name, "eps", eps, positive=True)
    variable = _movable(name, inputs[input_idx] if input is None else input)
    if not variable.requires_grad:
        raise EmptyError(f"{name}: the input does not require grad; call its .requires_grad_().")
    tensors = _tensors(outputs)
    if any(output.is_complex() for output in tensors) and (variable.is_complex() or not is_forward_ad):
        raise ComplexOutputError(
            f"{name}: a complex output has two Jacobians; return its .real or .imag"
            + (", or pass is_forward_ad=True." if not variable.is_complex() else ".")
        )
    return _Differences(name, fn, inputs, tensors, variable, eps).blocks()


def get_analytical_jacobian(
    inputs: Any, output: Tensor, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[Tensor, ...], bool, bool, bool]:
    """The Jacobian of an output by each input that requires grad, by reverse mode.

    As in torch, every row is computed twice, and the name is deprecated: a `DeprecatedNameWarning` says so.

    Args:
        inputs: a tensor or a tree of them.
        output: a tensor that was computed from them.
        nondet_tol: how much two runs of the backward may differ in an entry.
        grad_out: 1.0; torch has kept it for older calls.

    Returns:
        `(jacobians, reentrant, sizes_ok, types_ok)`: whether a second run gave the same values (to
        `nondet_tol`), and whether gradients had the shape and the dtype of their inputs.

    Raises:
        ComplexOutputError: the output is complex.
        EmptyError: the output has no graph.

    Example:
        >>> import torch
        >>> from covector.compat import get_analytical_jacobian
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> get_analytical_jacobian((x,), x**2)
        ((tensor([[2., 0.],
                [0., 4.]], dtype=torch.float64),), True, True, True)
    """
    _deprecated("get_analytical_jacobian", "covector.jacrev gives the Jacobian, covector.check compares it")
    _require_one("get_analytical_jacobian", grad_out)
    check_number("get_analytical_jacobian", "nondet_tol", nondet_tol, positive=False)
    if not isinstance(output, Tensor):
        raise ArgumentTypeError(
            f"get_analytical_jacobian: the output must be a tensor, got {summary(output)}."
        )
    if output.is_complex():
        raise ComplexOutputError(
            "get_analytical_jacobian: a complex output has two Jacobians; pass output.real or output.imag."
        )
    if not output.requires_grad:
        raise EmptyError("get_analytical_jacobian: the output has no graph; compute it with grad enabled.")
    variables = _variables(as_tuple(inputs))
    first, second = _pulled(output, variables), _pulled(output, variables)
    reentrant = all(_same(a, b, nondet_tol) for a, b in zip(first.blocks, second.blocks, strict=True))
    return first.blocks, reentrant, first.sizes_ok, first.types_ok


class _Differences(NamedTuple):
    """Central differences of some outputs of a call, by one variable."""

    verb: str
    fn: Callable[..., Any]
    inputs: Sequence[Any]
    outputs: list[Tensor]
    variable: Tensor
    eps: float

    def blocks(self) -> tuple[Tensor, ...]:
        """The Jacobian of each output that has one."""
        chart = Chart.around([self.variable], masked=True)
        results = Chart.of([output for output in self.outputs if is_differentiable(output)])
        point, rows = chart.point([self.variable]), []
        for index in range(chart.size):
            move = torch.zeros_like(point)
            move[index] = self.eps
            plus, minus = (self._value(chart, results, point + sign * move, index) for sign in (1, -1))
            rows.append((plus - minus) / (2 * self.eps))
        whole = torch.stack(rows) if rows else point.new_zeros(0, results.size)
        parts = [whole[:, place.start : place.stop] for place in results.places]
        pairs = zip(parts, results.places, strict=True)
        return tuple(self._block(chart.places[0], part, place.dtype) for part, place in pairs)

    def _value(self, chart: Chart, results: Chart, coordinates: Tensor, index: int) -> Tensor:
        """The outputs at a point where one coordinate has moved."""
        with shifted([self.variable], chart.from_coords(coordinates)):
            got = _outputs(self.fn, *self.inputs)
            kinds, expected = (
                [f"{t.dtype} of shape {tuple(t.shape)}" for t in some] for some in (got, self.outputs)
            )
            if kinds != expected:
                where = chart.places[0].label(index)
                raise UnsteadyOutputError(
                    f"{self.verb}: the function returns {', '.join(kinds)} instead of {', '.join(expected)} "
                    f"when element {where or '0'} of the input moves by {self.eps:g}; a derivative needs "
                    "outputs of one kind."
                )
            # A copy: an output may be a view of the input, which is moved back.
            return results.to_coords([t.detach() for t in got if is_differentiable(t)]).clone()

    def _block(self, place: AnyPlace, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Real coordinates on both sides, put together as torch's conjugate convention has it."""
        if dtype.is_complex:
            part = torch.view_as_complex(part.reshape(part.shape[0], -1, 2).contiguous())
        if self.variable.is_complex():
            part, dtype = part[0::2] + 1j * part[1::2], self.variable.dtype
        block = torch.zeros(self.variable.numel(), part.shape[1], dtype=dtype, device=part.device)
        block[place.positions] = part.to(dtype)
        return block


class _Pulled(NamedTuple):
    """The Jacobian of an output by each variable, and whether gradients were of the right kind."""

    blocks: tuple[Tensor, ...]
    sizes_ok: bool
    types_ok: bool


def _pulled(output: Tensor, variables: Sequence[Tensor]) -> _Pulled:
    """A column for each number of the output: the pullback of a vector of the basis."""
    chart, size = Chart.of([output]), output.numel()
    blocks = [
        torch.zeros(variable.numel(), size, dtype=variable.dtype, device=variable.device)
        for variable in variables
    ]
    sizes_ok = types_ok = True
    for index in range(size):
        cotangent = chart.from_coords(unit(size, index))
        gradients = graph.backward([output], cotangent, variables, keep=True, record=False)
        for block, place, value in zip(blocks, Chart.of(variables).places, gradients, strict=True):
            if value is not None:
                sizes_ok &= value.shape == place.shape
                types_ok &= value.dtype == place.dtype
                block[:, index] = place.strided(value.detach()).reshape(-1)
    return _Pulled(tuple(blocks), sizes_ok, types_ok)


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether no entry differs by more than this; NaN is the same as NaN."""
    return bool((((a - b).abs() <= tolerance) | (a == b) | (a.isnan() & b.isnan())).all())


def _deprecated(name: str, instead: str) -> None:
    warn(
        f"{name} is deprecated, here as in torch, where it was private and became visible by accident; "
        f"{instead}.",
        DeprecatedNameWarning,
    )


def _require_one(name: str, grad_out: float) -> None:
    if grad_out != 1.0:
        raise ArgumentValueError(f"{name}: grad_out must be 1.0, got {grad_out}.")


def _variables(args: Sequence[Any]) -> list[Tensor]:
    arguments = Arguments(args, {})
    arguments.select(arguments.slots, single=False)
    return arguments.only(lambda leaf: is_differentiable(leaf) and leaf.requires_grad).primals()


def _movable(name: str, variable: Any) -> Tensor:
    """The input, if it is a tensor of which one element can be moved without the others."""
    if not is_differentiable(variable):
        raise ArgumentTypeError(
            f"{name}: the input must be a floating-point or complex tensor, got {summary(variable)}."
        )
    if overlaps(variable):
        raise ArgumentValueError(f"{name}: elements of the input share memory. Pass its .contiguous().")
    return variable


def _outputs(fn: Callable[..., Any], *args: Any) -> list[Tensor]:
    """The tensors that a run returns; grad mode is as before, whatever the function did to it."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        return _tensors(fn(*args))


def _tensors(returned: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(returned)[0] if isinstance(leaf, Tensor)]
