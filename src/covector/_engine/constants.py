"""Forward mode through operations that have one moving operand, without tangents of zeros.

For `x * c`, where x alone moves, torch adds the product with a tangent of zeros for c, and asks its Python
description of the operation for the shape of that: about a hundred microseconds each time, and seconds the
first time, for the import of a symbolic algebra package. The operations here are affine in the operand that
moves, so the tangent of the result is the operation without its constant term, applied to the tangent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from covector._engine import levels
from covector._engine.reverse import Run
from covector._tree import Evaluation

_make_dual = torch._VF._make_dual
_unpack_dual = torch._VF._unpack_dual

Operation = Callable[..., Tensor]
Arguments = tuple[Any, ...]


def without_zeros(run: Run) -> Run:
    """The same function, run with the rules of this module."""

    def running(leaves: list[Any]) -> Evaluation:
        with ConstantOperands():
            return run(leaves)

    return running


class ConstantOperands:
    """Inside, the operations in the table below are pushed through by their own rules.

    The rules hold on the level on which this was entered; on any other, and wherever reverse mode records
    (it would save operands without their tangents), torch's are used.
    """

    __slots__ = ("_level",)

    def __enter__(self) -> Self:
        self._level = levels.current()
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
        return _push(rule, operation, args)


def _push(rule: Rule, operation: Operation, args: Arguments) -> Tensor:
    """The result of an operation, by the rule if exactly one operand moves."""
    moving = None
    for position, operand in enumerate(args):
        if not isinstance(operand, Tensor):
            continue
        if operand.layout is not torch.strided or (operand.requires_grad and torch.is_grad_enabled()):
            return operation(*args)
        primal, tangent = _unpack_dual(operand, level=0)
        if tangent is not None:
            if moving is not None:
                return operation(*args)
            moving = position, primal, tangent
    if moving is None:
        return operation(*args)
    position, primal, tangent = moving
    pushed = rule(operation, args, position, tangent)
    if pushed is None:
        return operation(*args)
    result = operation(*args[:position], primal, *args[position + 1 :])
    if pushed.shape != result.shape:
        pushed = pushed.expand_as(result)
    # The pair of the two is a view, which not every operation in place may be done to; a copy is not.
    return _make_dual(result, pushed.to(result.dtype), level=0).clone()


# The tangent of a result: the operation, its operands, which of them moves, and how. None: not by this rule.
Rule = Callable[[Operation, Arguments, int, Tensor], Tensor | None]


def _sum(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor:
    return tangent


def _difference(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor:
    return -tangent if position == 1 else tangent


def _product(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor:
    return operation(*args[:position], tangent, *args[position + 1 :])


def _quotient(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    return operation(tangent, args[1]) if position == 0 else None


def _layer(operation: Operation, args: Arguments, position: int, tangent: Tensor) -> Tensor | None:
    return linear(tangent, args[1]) if position == 0 else None


_RULES: dict[Any, Rule] = {
    **dict.fromkeys((torch.add, Tensor.add), _sum),  # the operators of Python arrive as these methods
    **dict.fromkeys((torch.sub, Tensor.sub), _difference),
    **dict.fromkeys((torch.mul, Tensor.mul), _product),
    **dict.fromkeys((torch.div, Tensor.div), _quotient),
    linear: _layer,
}
