"""`vjp`: the value of a function and its pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import outside_graphs
from covector._linear import Pullback
from covector._tree import select_all
from covector.transforms._door import (
    accept_differentiable,
    check_function,
    check_match,
    check_primals,
    output_paths,
    runner,
)


@outside_graphs
def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of `func` at the primals, and the map v -> J^T v there.

    The function runs once; the returned `vjp_fn` can be called any number of times, also under
    `torch.vmap`, and what it returns can be differentiated again.

    Args:
        func: takes the primals, returns a tree of floating-point or complex tensors.
        primals: trees of tensors; the pullback covers all of them.
        has_aux: `func` returns `(output, aux)`, of which only `output` is differentiated.

    Returns:
        `(output, vjp_fn)`, or `(output, vjp_fn, aux)`. `vjp_fn(cotangents)` takes a tree like
        `output` and returns a tuple with one tree like each primal.

    Raises:
        ArgumentTypeError: a primal holds something that cannot be differentiated by.
        ArgumentValueError: (from `vjp_fn`) the cotangents do not fit the output.
        OutputError: `func` returned something other than floating-point or complex tensors.

    Example:
        >>> import torch, covector
        >>> x = torch.tensor([1.0, 2.0])
        >>> output, vjp_fn = covector.vjp(lambda x: x**2, x)
        >>> vjp_fn(torch.tensor([1.0, 10.0]))
        (tensor([ 2., 40.]),)
    """
    caller = check_function("vjp", func)
    arguments = check_primals(caller, select_all(primals))
    pullback = Pullback(caller, runner(caller, arguments, accept_differentiable, has_aux=has_aux), arguments)
    evaluation = pullback.evaluation

    def vjp_fn(cotangents: Any) -> tuple[Any, ...]:
        leaves = check_match(
            caller, "cotangent", cotangents, evaluation.outputs, evaluation.spec,
            lambda: output_paths(evaluation),
        )  # fmt: skip
        return arguments.tree_of(pullback.apply(leaves))

    pull = outside_graphs(vjp_fn)
    if has_aux:
        return evaluation.value(), pull, evaluation.aux_value()
    return evaluation.value(), pull
