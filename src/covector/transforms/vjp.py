"""`vjp`: the value of a function and its pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from covector._engine import levels, short
from covector._engine.compiled import eager_alone, held, outside_graphs
from covector._engine.scopes import LastingScope
from covector._engine.short import ShortRun
from covector._linear import Pullback
from covector._tree import Arguments, select_all
from covector.errors import Caller
from covector.transforms._door import (
    accept_differentiable,
    alike,
    check_function,
    check_match,
    check_primals,
    output_paths,
    resumed,
    run_short,
    runner,
)

Pull = Callable[..., tuple[Any, ...]]


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
    if short.applies(primals) and not has_aux:
        return _short_vjp(caller, primals)
    arguments = check_primals(caller, select_all(primals))
    run = runner(caller, arguments, accept_differentiable, has_aux=has_aux)
    pullback = Pullback(caller, run, arguments, LastingScope)
    pull = held(_puller(caller, pullback, arguments))
    evaluation = pullback.evaluation
    if has_aux:
        return evaluation.value(), pull, evaluation.aux_value()
    return evaluation.value(), pull


def _puller(caller: Caller, pullback: Pullback, arguments: Arguments) -> Pull:
    evaluation = pullback.evaluation

    def pulled(cotangents: Any, retain_graph: bool) -> tuple[Any, ...]:
        leaves = check_match(
            caller, "cotangent", cotangents, evaluation.outputs, evaluation.spec,
            lambda: output_paths(evaluation),
        )  # fmt: skip
        return arguments.tree_of(pullback.apply(leaves, keep=retain_graph))

    # It does not name itself: the graph would then wait for the garbage collector.
    def vjp_fn(
        cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None
    ) -> tuple[Any, ...]:
        if create_graph is None:
            return pulled(cotangents, retain_graph)
        with levels.GradMode(enabled=create_graph):
            return pulled(cotangents, retain_graph)

    return vjp_fn


def _short_vjp(caller: Caller, primals: tuple[Any, ...]) -> tuple[Any, Pull]:
    """The value and the pullback of a function of tensors, by the short way as far as that goes."""
    run = run_short(caller, primals, range(len(primals)))
    shown = run.shown()
    if shown is not None:
        return shown, _ShortPull(caller, primals, run, shown)
    output, pull = _long_vjp(caller, primals, run)
    return output, held(pull)


# A class, because it is marked once: closures would have to be marked one by one.
class _ShortPull:
    """The pullback v -> J^T v of a function, at the point that `vjp` was given."""

    __name__ = "vjp_fn"

    def __init__(self, caller: Caller, primals: tuple[Any, ...], run: ShortRun, shown: Tensor) -> None:
        self._caller = caller
        self._primals = primals
        self._run = run
        self._shown = shown

    @outside_graphs
    def __call__(
        self, cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None
    ) -> tuple[Any, ...]:
        if isinstance(cotangents, Tensor) and alike(cotangents, self._shown):
            pulled = self._run.pull(cotangents, keep=retain_graph)
            if pulled is not None:
                return pulled
        pull = _long_vjp(self._caller, self._primals, self._run)[1]
        return pull(cotangents, retain_graph, create_graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ShortPull:
        return self  # as a function is


def _long_vjp(caller: Caller, primals: tuple[Any, ...], run: ShortRun) -> tuple[Any, Pull]:
    """The value and the pullback of the same run, the general way."""
    pullback = resumed(caller, run, accept_differentiable, LastingScope)
    return pullback.evaluation.value(), _puller(caller, pullback, select_all(primals))
