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
        products = _compiled(plan, lambda arguments: plan._products(arguments).flat, backend)
        return cls(str(backend), products, _compiled(plan, plan._value_and_products, backend))


def _compiled(
    plan: SparsePlan, compute: Callable[[Arguments], Any], backend: Any
) -> Callable[[Arguments], Any]:
    """A function of the arguments of a call, compiled as one of the tensors among them."""
    example = plan._example
    template = list(example.leaves)

    def of_tensors(*tensors: Tensor) -> Any:
        given = iter(tensors)
        leaves = [next(given) if leaf is None else leaf for leaf in template]
        return compute(example.at(leaves))

    of_tensors.__name__ = plan.derivative.caller.name
    program = compile(of_tensors, backend=backend)

    def of_arguments(arguments: Arguments) -> Any:
        return program(*(leaf for leaf in arguments.leaves if isinstance(leaf, Tensor)))

    return of_arguments
