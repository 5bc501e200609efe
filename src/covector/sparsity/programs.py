"""Compiled plans: the products of a plan as programs that `covector.compile` makes and keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from covector._tree import Arguments
from covector.transforms.compile import compile

if TYPE_CHECKING:
    from covector.sparsity.plan import SparsePlan


class Programs(NamedTuple):
    """What a plan computes, as functions of tensors, compiled when they are first called."""

    backend: str
    products: Callable[[Arguments], Tensor]
    value_and_products: Callable[[Arguments], tuple[Any, Tensor]]

    @classmethod
    def of(cls, plan: SparsePlan, backend: Any) -> Programs:
        """The programs of a plan; the groups are made now, so that making them is no part of it."""
        _ = plan._column_groups, plan._row_groups
        products = _compiled(plan, lambda arguments: plan._products(arguments).numbers, backend)
        return cls(str(backend), products, _compiled(plan, plan._value_and_products, backend))


class _OfTensors:
    """What a plan computes, as a function of the tensors among its arguments.

    Whoever traces it reads what the function of the plan, `__wrapped__`, takes from outside at each call; the
    plan itself does not change.
    """

    def __init__(self, plan: SparsePlan, compute: Callable[[Arguments], Any]) -> None:
        self.__wrapped__ = plan.derivative.caller.function
        self.__name__ = plan.derivative.caller.name
        self._example = plan._example
        self._compute = compute

    def __call__(self, *tensors: Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if leaf is None else leaf for leaf in self._example.leaves]
        return self._compute(self._example.at(leaves))


def _compiled(
    plan: SparsePlan, compute: Callable[[Arguments], Any], backend: Any
) -> Callable[[Arguments], Any]:
    """A function of the arguments of a call, compiled as one of the tensors among them."""
    program = compile(_OfTensors(plan, compute), backend=backend)
    tensors = [index for index, leaf in enumerate(plan._example.leaves) if leaf is None]

    def of_arguments(arguments: Arguments) -> Any:
        return program(*[arguments.leaves[index] for index in tensors])

    return of_arguments
