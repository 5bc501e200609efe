"""Forward mode through operations that have one moving operand, without tangents of zeros.

For `x * c`, where x alone moves, torch adds the product with a tangent of zeros for c, and asks its Python
description of the operation for the shape of that: about a hundred microseconds each time, and seconds the
first time, for the import of a symbolic algebra package. The operations here are affine in the operand that
moves (but for a divisor), so the tangent of the result is the operation without its constant term, applied to
the tangent.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Self
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.functional import linear

from covector._engine import levels
from covector._engine.compiled import is_transform
from covector._engine.reverse import Run
from covector._tree import Evaluation

_make_dual = torch._VF._make_dual
_unpack_dual = torch._VF._unpack_dual

Operation = Callable[..., Tensor]
Arguments = tuple[Any, ...]


# Elements of an operand from which on the copy of the result costs more than what is saved, also in memory;
# in a batch the tangent has as many more as there are directions.
_LARGEST = 2**14
_LARGEST_IN_BATCHES = 2**8

# Functions in which no rule had anything to do when they were first run: to look again costs more.
_without_constants: WeakSet[FunctionType] = WeakSet()


def without_zeros(function: Any, run: Run) -> Run:
    """`run`, which calls this function, with the rules of this module if it has a use for them."""
    known = type(function) is FunctionType
    if (known and function in _without_constants) or is_transform(function):
        return run  # a transform inside works on a level of its own, or records

    def running(leaves: list[Any]) -> Evaluation:
        with ConstantOperands() as operands:
            evaluation = run(leaves)
        if known and not operands.found:
            _without_constants.add(function)
        return evaluation

    return running


class ConstantOperands:
    """Inside, the operations in the table below are pushed through by their own rules.

    The rules hold on the level on which this was entered; on any other, and wherever reverse mode records
    (it would save operands without their tangents), torch's are used.
    """

    __slots__ = ("_level", "found")

    def __enter__(self) -> Self:
        self._level = levels.current()
        self.found = False
        torch._C._push_on_torch_function_stack(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        torch._C._pop_torch_function_stack()

    def __torch_function__(
        self, operation: Operation, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        rule = _RULES.get(operation)
        if rule is None or kwargs or types or levels.current() != self._level:
            return operation(*args, **kwargs) if kwargs else operation(*args)
        moving = _moving(args)
        if moving is None:
            return operation(*args)
        self.found = True
        position, primal, tangent = moving
        if primal.numel() > (_LARGEST if self._level is None else _LARGEST_IN_BATCHES):
            return operation(*args)
        pushed = rule(operation, args, position, tangent)
        if pushed is None:
            return operation(*args)
        return _joined(operation(*args[:position], primal, *args[position + 1 :]), pushed)


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


def _layer(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    return linear(tangent, args[1]) if position == 0 else None


_RULES: dict[Any, Rule] = {
    **dict.fromkeys((torch.add, Tensor.add), _sum),  # the operators of Python arrive as these methods
    **dict.fromkeys((torch.sub, Tensor.sub, torch.subtract, Tensor.subtract), _difference),
    **dict.fromkeys((torch.mul, Tensor.mul, torch.multiply, Tensor.multiply), _product),
    **dict.fromkeys((torch.dot, Tensor.dot, torch.vdot, Tensor.vdot, torch.inner, Tensor.inner), _product),
    **dict.fromkeys((torch.div, Tensor.div, torch.divide, Tensor.divide), _quotient),
    **dict.fromkeys((torch.true_divide, Tensor.true_divide), _quotient),
    linear: _layer,
}
