"""Forward mode through operations with a constant operand, without torch's tangents of zeros.

For `x * c`, where x alone moves, torch adds the product with a tangent of zeros for c, and asks its Python
description of the operation for the shape of that: about a hundred microseconds each time, and seconds the
first time, for the import of a symbolic algebra package. Where an operation is affine in the one operand that
moves (or a divisor), the tangent of the result is the operation without its constant term, applied to the
tangent. Others of the kind are given zeros that are in memory, which asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from covector._engine import levels
from covector._engine.compiled import is_transform, tracing
from covector._engine.reverse import Run
from covector._engine.twice import named
from covector._lazy import Remembered
from covector._tree import Evaluation

_make_dual = torch._VF._make_dual
_unpack_dual = torch._VF._unpack_dual

Operation = Callable[..., Tensor]
Arguments = tuple[Any, ...]


# Elements of an operand from which on the copy of the result costs more than what is saved, also in memory;
# in a batch the tangent has as many more as there are directions.
_LARGEST = 2**14
_LARGEST_IN_BATCHES = 2**8

# Classes of tensors with which every operation is torch's own.
_ORDINARY = frozenset([Tensor, torch.nn.Parameter])

# Functions in which no rule had anything to do when they were first run: to look again costs more.
_without_constants = Remembered()


def without_zeros(function: Any, run: Run) -> Run:
    """`run`, which calls this function, with the rules of this module if it has a use for them."""
    rules = ConstantOperands(function)
    if rules.idle:
        return run

    def running(leaves: list[Any]) -> Evaluation:
        with rules:
            return run(leaves)

    return running


class ConstantOperands:
    """Inside, where this function is run, the operations in the table below are pushed through by rules.

    The rules hold on the level on which this was entered; on any other, and wherever reverse mode records
    (it would save operands without their tangents), torch's are used.
    """

    __slots__ = ("_function", "_largest", "_level", "found", "idle")

    def __init__(self, function: Any) -> None:
        self._function = function if type(function) is FunctionType else None
        # A transform inside works on a level of its own, or records.
        self.idle = is_transform(function) or self._function in _without_constants

    def __enter__(self) -> Self:
        self._level = levels.current()
        self._largest = _LARGEST if self._level is None else _LARGEST_IN_BATCHES
        self.found = False
        torch._C._push_on_torch_function_stack(self)
        return self

    def __exit__(self, kind: Any, *exception: Any) -> None:
        torch._C._pop_torch_function_stack()
        if self._function is not None and kind is None and not self.found:
            _without_constants.add(self._function)

    def __torch_function__(
        self, operation: Operation, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        # Dynamo, which traces a compiled function through here, has functions of its own for the operators.
        way = None if self.idle or tracing() else _WAYS.get(operation)
        if way is not None and _ORDINARY.issuperset(types) and levels.current() == self._level:
            result = way(self, operation, args, kwargs)
            if result is not None:
                return result
        return operation(*args, **kwargs) if kwargs else operation(*args)

    def _by_rule(self, operation: Operation, args: Arguments, kwargs: Any) -> Tensor | None:
        """The result, moving along its tangent; None where that is left to torch."""
        moving = None if kwargs else _moving(args)
        if moving is None:
            return None
        self.found = True
        position, primal, tangent = moving
        if primal.numel() > self._largest:
            return None
        pushed = _RULES[operation](operation, args, position, tangent)
        if pushed is None:
            return None
        return _joined(operation(*args[:position], primal, *args[position + 1 :]), pushed)

    def _of_vectors(self, operation: Operation, args: Arguments, kwargs: Any) -> Tensor | None:
        """What the rule gives for two vectors; torch's is as fast for matrices."""
        vectors = all(isinstance(operand, Tensor) and operand.dim() == 1 for operand in args)
        return self._by_rule(operation, args, kwargs) if vectors else None

    def _in_place(self, operation: Operation, args: Arguments, kwargs: Any) -> Tensor | None:
        """The first operand, after what the rule gives was copied to it."""
        result, target = self._by_rule(_OUT_OF_PLACE[operation], args, kwargs), args[0]
        fits = result is not None and result.shape == target.shape and result.dtype is target.dtype
        return target.copy_(result) if fits else None

    def _with_zeros(self, operation: Operation, args: Arguments, kwargs: Any) -> Tensor | None:
        """The result, where the tangents of constant operands are zeros in memory."""
        operands = [*args, *(kwargs or {}).values()]
        tensors = [i for i, operand in enumerate(operands) if isinstance(operand, Tensor)]
        if len(tensors) < 2 or not all(_is_plain(operands[i], self._largest) for i in tensors):
            return None
        if torch._C._len_torch_dispatch_stack():
            return None  # somebody traces, whose tensors are not to be looked at, or follows what torch does
        constants = [i for i in tensors if _tangent(operands[i]) is None]
        if not 0 < len(constants) < len(tensors):
            return None
        self.found = True
        try:
            for i in constants:
                operands[i] = _make_dual(operands[i], torch.zeros_like(operands[i]), level=0)
        except RuntimeError:
            return (
                None  # elements share memory, or it was made in inference mode: no tangent is stored for it
            )
        names = dict(zip(kwargs or (), operands[len(args) :], strict=True))
        result = operation(*operands[: len(args)], **names)
        # Zero times infinity; to torch, the tangent of a constant is zero whatever it is multiplied by.
        return None if levels.innermost(_tangent(result)).isnan().any() else result


def _tangent(operand: Tensor) -> Any:
    return _unpack_dual(operand, level=0)[1]


def _is_plain(operand: Tensor, largest: int) -> bool:
    """Whether this is a small strided tensor of real or complex numbers, with which nothing is recorded."""
    recorded = operand.requires_grad and torch.is_grad_enabled()
    numbers = operand.is_floating_point() or operand.is_complex()
    has_values = operand.layout is torch.strided and not operand.is_meta
    return numbers and has_values and not recorded and operand.numel() <= largest


def _moving(operands: Arguments) -> tuple[int, Tensor, Tensor] | None:
    """The position, the primal and the tangent of the one operand that moves; None if it is not one."""
    moving = None
    for position, operand in enumerate(operands):
        if isinstance(operand, Tensor):
            if operand.layout is not torch.strided or (operand.requires_grad and torch.is_grad_enabled()):
                return None
            primal, tangent = _unpack_dual(operand, level=0)
            if tangent is not None:
                if moving is not None:
                    return None
                moving = position, primal, tangent
    return moving


def _joined(result: Tensor, tangent: Tensor) -> Tensor:
    """The result, moving along the tangent, once that has its shape and dtype."""
    if tangent.shape != result.shape:
        tangent = tangent.expand_as(result)
    if tangent.dtype is not result.dtype:
        tangent = tangent.to(result.dtype)
    # The pair of the two is a view, which not every operation in place may be done to; a copy is not.
    return _make_dual(result, tangent, level=0).clone()


# The tangent of a result: the operation, its operands, which of them moves, and how. None: not by this rule.
Rule = Callable[[Operation, Arguments, int, Tensor], Tensor | None]


def _sum(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    return tangent if len(args) == 2 else None  # a third argument would be a factor


def _difference(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    if len(args) != 2:
        return None
    return -tangent if position == 1 else tangent


def _product(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor:
    return operation(*args[:position], tangent, *args[position + 1 :])


def _quotient(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    if position == 0:
        return operation(tangent, args[1])
    divisor = _unpack_dual(args[1], level=0)[0]
    return -(tangent * operation(args[0], divisor)) / divisor


def _reciprocal(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    if position == 1:
        return operation(args[0], tangent)
    inverse = _unpack_dual(args[0], level=0)[0].reciprocal()
    return -tangent * (inverse * inverse) * args[1]


def _layer(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    return linear(tangent, args[1]) if position == 0 else None


_RULES: dict[Any, Rule] = {
    **dict.fromkeys(named("add"), _sum),  # the operators of Python arrive as these methods
    **dict.fromkeys(named("sub", "subtract"), _difference),
    **dict.fromkeys(named("mul", "multiply", "dot", "vdot", "inner", "matmul"), _product),
    **dict.fromkeys(named("div", "divide", "true_divide"), _quotient),
    Tensor.__rdiv__: _reciprocal,
    linear: _layer,
}
_OUT_OF_PLACE: dict[Any, Any] = {
    Tensor.add_: Tensor.add,
    Tensor.sub_: Tensor.sub,
    Tensor.mul_: Tensor.mul,
    Tensor.div_: Tensor.div,
}
# Measured on ten numbers, with zeros in memory these take a tenth to a half of the time.
_WITH_ZEROS = (
    named("maximum", "minimum", "fmax", "fmin", "atan2", "arctan2", "hypot", "logaddexp", "logaddexp2")
    + named("xlogy", "pow", "__pow__", "__rpow__", "prelu", "addcmul", "addcdiv", "addmm", "addmv", "addr")
    + named("addbmm", "baddbmm", "cross", "solve", "dist", "cosine_similarity", "layer_norm", "group_norm")
    + named("rms_norm")
)
_WAYS: dict[Any, Callable[[ConstantOperands, Operation, Arguments, Any], Tensor | None]] = {
    **dict.fromkeys(_RULES, ConstantOperands._by_rule),
    **dict.fromkeys(named("matmul"), ConstantOperands._of_vectors),
    **dict.fromkeys(_OUT_OF_PLACE, ConstantOperands._in_place),
    **dict.fromkeys(_WITH_ZEROS, ConstantOperands._with_zeros),
}
