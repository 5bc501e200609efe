"""`vjp`: the value of a function and its pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone, held
from covector._engine.levels import GradMode
from covector._engine.reverse import Recording, record
from covector._engine.scopes import LastingScope
from covector._tree import Arguments, select_all
from covector.errors import Caller
from covector.transforms._door import (
    accept_differentiable,
    check_function,
    check_match,
    check_primals,
    output_paths,
    runner,
)


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
    arguments = check_primals(caller, select_all(primals))
    run = runner(caller, arguments, accept_differentiable, has_aux=has_aux)
    recording = record(run, arguments.leaves, arguments.chosen, LastingScope)
    evaluation, pull = recording.evaluation, held(vjp_fn, caller, recording, arguments)
    if has_aux:
        return evaluation.value(), pull, evaluation.aux_value()
    return evaluation.value(), pull


def vjp_fn(
    caller: Caller,
    recording: Recording,
    arguments: Arguments,
    cotangents: Any,
    retain_graph: bool = True,
    create_graph: bool | None = None,
) -> tuple[Any, ...]:
    """J^T v for one v."""
    if create_graph is not None:
        with GradMode(enabled=create_graph):
            return vjp_fn(caller, recording, arguments, cotangents, retain_graph)
    outputs, spec, _, _ = evaluation = recording.evaluation
    leaves = check_match(caller, "cotangent", cotangents, outputs, spec, lambda: output_paths(evaluation))
    product: tuple[Any, ...] = arguments.tree_of(recording.pull(leaves, keep=retain_graph))
    return product
