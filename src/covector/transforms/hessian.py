"""`hessian`: the second derivative of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from covector._engine.attention import differentiable_attention
from covector._engine.compiled import outside_graphs
from covector._linear import Pullback
from covector._tree import Argnames, Argnums, Arguments, flatten, unflatten
from covector.errors import Caller, CovectorError, UnsupportedError
from covector.transforms._door import accept_differentiable, check_function, runner
from covector.transforms._jacobian import Request, by_columns, by_rows, rows_of

# Reverse over reverse takes a pass per output and input, forward over reverse one per input, but
# several times dearer (measured in benchmarks/transforms.py).
_FEW_OUTPUTS = 4


class _ManyOutputs(Exception):
    """The output has too many elements for reverse over reverse to pay."""


@outside_graphs
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    randomness: str = "error",
    argnames: Argnames = None,
) -> Callable[..., Any]:
    """The Hessian of a function: the Jacobian of its Jacobian.

    For an output of a few elements the function runs once, and the gradient's own graph is pulled
    back (reverse over reverse), which obeys `torch.no_grad()` inside the function. Where that has
    many outputs to visit, or an operation cannot be differentiated twice by reverse mode, the
    gradient is pushed forward instead.

    Args:
        func: takes trees, returns a tree of real tensors.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        has_aux: `func` returns `(output, aux)`; the result is then `(hessian, aux)`.
        chunk_size: how many rows of the Hessian to compute at once; None for all, 1 for a loop.
        randomness: what a random operation does inside a batch: "error", "same" or "different".

    Returns:
        A function whose result is a tree like the output, in which each tensor y is replaced by a
        tree like the selected arguments, of trees like them again, of tensors with shape
        `y.shape + x1.shape + x2.shape`.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` returned something other than real floating-point tensors.

    Example:
        >>> import torch, covector
        >>> covector.hessian(lambda x: x[0] ** 2 * x[1])(torch.tensor([1.0, 2.0]))
        tensor([[4., 2.],
                [2., 0.]])
    """
    caller = check_function("hessian", func)
    request = Request(argnums, argnames, has_aux, chunk_size, randomness).checked("hessian")

    def second_derivative(*args: Any, **kwargs: Any) -> Any:
        arguments = request.bind(caller, args, kwargs)
        try:
            return _reverse_over_reverse(caller, arguments, request)
        except _ManyOutputs:
            return _forward_over_reverse(caller, arguments, request)
        except UnsupportedError as error:
            return _after(error, caller, arguments, request)
        except CovectorError:
            raise
        except RuntimeError as error:
            return _after(error, caller, arguments, request)

    return outside_graphs(second_derivative, like=func)


def _reverse_over_reverse(caller: Caller, arguments: Arguments, request: Request) -> Any:
    def first_derivative(*args: Any, **kwargs: Any) -> Any:
        inner = request.bind(caller, args, kwargs)
        run = runner(caller, inner, accept_differentiable, has_aux=request.has_aux)
        pullback = Pullback(caller, run, inner)
        if sum(output.numel() for output in pullback.evaluation.outputs) > _FEW_OUTPUTS:
            raise _ManyOutputs
        return rows_of(pullback, caller, inner, request)

    result = by_rows(caller._replace(function=first_derivative), arguments, request)
    return _typed(result, arguments, request)


def _typed(result: Any, arguments: Arguments, request: Request) -> Any:
    """Each block in the dtype of the input by which it was differentiated first."""
    dtypes = [tensor.dtype for tensor in arguments.primals()]
    if len(set(dtypes)) == 1:
        return result
    hessian, *aux = result if request.has_aux else (result,)
    blocks, spec = flatten(hessian)
    count = len(dtypes)
    cast = [block.to(dtypes[i // count % count]) for i, block in enumerate(blocks)]
    return (unflatten(cast, spec), *aux) if request.has_aux else unflatten(cast, spec)


def _forward_over_reverse(caller: Caller, arguments: Arguments, request: Request) -> Any:
    whole = replace(request, chunk_size=None)

    def first_derivative(*args: Any, **kwargs: Any) -> Any:
        return by_rows(caller, request.bind(caller, args, kwargs), whole)

    return by_columns(caller._replace(function=first_derivative), arguments, request)


def _after(error: RuntimeError, caller: Caller, arguments: Arguments, request: Request) -> Any:
    """The Hessian another way, where an operation cannot be differentiated twice by reverse mode."""
    if "scaled_dot_product" in str(error):
        with differentiable_attention():
            return _reverse_over_reverse(caller, arguments, request)
    try:
        return _forward_over_reverse(caller, arguments, request)
    except RuntimeError:
        raise error from None
