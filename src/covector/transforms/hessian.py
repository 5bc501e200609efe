"""`hessian`: the second derivative of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from covector._engine.compiled import eager_alone, named_after, tracing
from covector._engine.reverse import Run
from covector._linear import Pullback
from covector._tree import Argnames, Argnums, Arguments, Evaluation, flatten, unflatten
from covector.errors import Caller
from covector.transforms._derive import Derived, Options, Problem, Samples, derive
from covector.transforms._door import accept_differentiable, check_function, runner
from covector.transforms._jacobian import Request, by_columns, by_rows, rows_of
from covector.transforms._plan import FEW_OUTPUTS, Plan, by_sizes_of_gradient
from covector.transforms._question import Question
from covector.transforms._second import reverse_first


class _ManyOutputs(Exception):
    """The output has too many elements for reverse over reverse to pay."""


@eager_alone
def hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    mode: str = "auto",
    chunk_size: int | None = None,
    max_memory: int | str | None = None,
    has_aux: bool = False,
    batch_dim: int | None = None,
    complex: str | None = None,
    randomness: str = "error",
) -> Callable[..., Any]:
    """The Hessian of a function: the Jacobian of its Jacobian.

    For an output of a few elements the function runs once, and the gradient's own graph is pulled
    back (reverse over reverse), which obeys `torch.no_grad()` inside the function. Where that has
    many outputs to visit, or an operation cannot be differentiated twice by reverse mode, the
    gradient is pushed forward instead. After a call the `plan` of the returned function says which.

    Args:
        func: takes trees, returns a tree of real tensors.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        mode: "reverse" or "forward", over reverse; "auto" chooses.
        chunk_size: how many rows of the Hessian to compute at once; None for all, 1 for a loop.
        max_memory: how much memory may be used beside the result; see `jacobian`.
        has_aux: `func` returns `(output, aux)`; the result is then `(hessian, aux)`.
        batch_dim: the axis along which samples lie; see `jacobian`. The result has the Hessian of
            each sample, of shape `(samples,) + sample of y + sample of x1 + sample of x2`.
        complex: "holomorphic", "wirtinger" (a pair of pairs) or "real"; see `jacobian`.
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
    options = Options(
        argnums, argnames, has_aux, chunk_size, randomness, mode, max_memory, batch_dim, complex
    ).checked("hessian")

    def second_derivative(*args: Any, **kwargs: Any) -> Any:
        answer = _plain if options.has_no_extras() else _planned
        result, plan = answer(caller, options, args, kwargs)
        if not tracing():
            second_derivative.plan = plan  # type: ignore[attr-defined]
        return result

    def by_mode(mode: str) -> Callable[..., Any]:
        return hessian(
            func, argnums, argnames=argnames, mode=mode, chunk_size=chunk_size, max_memory=max_memory,
            has_aux=has_aux, batch_dim=batch_dim, complex=complex, randomness=randomness,
        )  # fmt: skip

    if not tracing():
        second_derivative.plan = None  # type: ignore[attr-defined]
        second_derivative.by_mode = by_mode if mode == "auto" else None  # type: ignore[attr-defined]
    return named_after(second_derivative, like=func)


# With the defaults: as little as possible around the work


@eager_alone
def _plain(caller: Caller, request: Request, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Plan]:
    arguments = request.bind(caller, args, kwargs)
    try:
        return reverse_first(
            lambda: _reverse_over_reverse(caller, arguments, request),
            lambda: _forward_over_reverse(caller, arguments, request, "reverse over reverse has no rule"),
        )
    except _ManyOutputs:
        reason = f"the function has more than {FEW_OUTPUTS} outputs"
        return _forward_over_reverse(caller, arguments, request, reason)


def _reverse_over_reverse(caller: Caller, arguments: Arguments, request: Request) -> tuple[Any, Plan]:
    count = 0

    def first_derivative(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        inner = request.bind(caller, args, kwargs)
        run = runner(caller, inner, accept_differentiable, has_aux=request.has_aux)
        pullback = Pullback(caller, run, inner)
        count = sum(output.numel() for output in pullback.evaluation.outputs)
        if count > FEW_OUTPUTS:
            raise _ManyOutputs
        return rows_of(pullback, caller, inner, request)

    result = by_rows(caller._replace(function=first_derivative), arguments, request)
    inputs = sum(primal.numel() for primal in arguments.primals())
    reason = f"the function has no more than {FEW_OUTPUTS} outputs"
    plan = Plan("reverse", count * inputs, inputs, request.chunk_size or count * inputs, reason)
    return _typed(result, arguments, request), plan


def _typed(result: Any, arguments: Arguments, request: Request) -> Any:
    """Each block in the dtype of the input by which it was differentiated first."""
    if len({tensor.dtype for tensor in arguments.primals()}) == 1:
        return result
    hessian, *aux = result if request.has_aux else (result,)
    blocks, spec = flatten(hessian)
    cast = unflatten(_cast(blocks, arguments), spec)
    return (cast, *aux) if request.has_aux else cast


def _cast(blocks: list[Any], arguments: Arguments) -> list[Any]:
    dtypes = [tensor.dtype for tensor in arguments.primals()]
    count = len(dtypes)
    return [block.to(dtypes[i // count % count]) for i, block in enumerate(blocks)]


def _forward_over_reverse(
    caller: Caller, arguments: Arguments, request: Request, reason: str
) -> tuple[Any, Plan]:
    whole = Request(request.argnums, request.argnames, request.has_aux, None, request.randomness)
    count = 0

    def first_derivative(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        inner = request.bind(caller, args, kwargs)
        run = runner(caller, inner, accept_differentiable, has_aux=request.has_aux)
        pullback = Pullback(caller, run, inner)
        count = sum(output.numel() for output in pullback.evaluation.outputs)
        return rows_of(pullback, caller, inner, whole)

    result = by_columns(caller._replace(function=first_derivative), arguments, request)
    inputs = sum(primal.numel() for primal in arguments.primals())
    return result, Plan("forward", count * inputs, inputs, request.chunk_size or inputs, reason)


# With any of the options: the Jacobian of the Jacobian, each by its plan


@eager_alone
def _planned(caller: Caller, options: Options, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Plan]:
    question = Question(caller, options, args, kwargs)
    problem = question.problem
    samples = None if problem.samples is None else Samples(problem.samples.inputs, outputs=0)
    second = Problem(caller, problem.arguments, _first_derivative(question), samples)

    def by_mode(mode: str) -> Derived:
        return derive(second, replace(options, mode=mode), by_sizes_of_gradient)

    if options.mode == "auto":
        derived = reverse_first(lambda: by_mode("auto"), lambda: by_mode("forward"))
    else:
        derived = by_mode(options.mode)
    blocks = _cast([block for row in derived.blocks for block in row], problem.arguments)
    return question.answer(blocks, derived.evaluation, order=2), derived.plan


def _first_derivative(question: Question) -> Run:
    """The Jacobian by reverse mode, as a function whose outputs are its blocks."""
    inner = replace(question.options, mode="reverse", max_memory=None, chunk_size=None)

    def run(leaves: list[Any]) -> Evaluation:
        first = derive(question.problem.at(leaves), inner)
        blocks = [block for row in first.blocks for block in row]
        if question.real_form is not None and inner.complex == "holomorphic":
            question.real_form.check_holomorphic(blocks, order=1)
        return first.evaluation._replace(outputs=blocks)

    return run
