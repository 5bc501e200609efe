"""`vjp`: the value of a function and its pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone, held, is_exporting
from covector._engine.scopes import LastingScope
from covector.transforms._door import accept_differentiable, check_function
from covector.transforms._pullback import ShortPullback, pullback_by_all, vjp_fn


@eager_alone
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
        `output` and returns a tuple with one tree like each primal. It takes two keywords more:
        with `retain_graph=False` the graph may be freed by this call, which is then the last one;
        `create_graph` says whether the result can be differentiated, as grad mode does if it is None.

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
    pullback = pullback_by_all(caller, primals, accept_differentiable, LastingScope, has_aux=has_aux)
    as_it_is = isinstance(pullback, ShortPullback) and not is_exporting()
    pull = pullback if as_it_is else held(vjp_fn, caller, pullback)
    evaluation = pullback.evaluation
    if has_aux:
        return evaluation.value(), pull, evaluation.aux_value()
    return evaluation.value(), pull
