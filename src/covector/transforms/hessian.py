"""`hessian`: the second derivative of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from covector._engine.compiled import eager_alone
from covector._engine.reverse import Run
from covector._tree import Argnames, Argnums, Evaluation
from covector.errors import Caller
from covector.transforms._batch import Samples
from covector.transforms._derive import Derived, derive, planned
from covector.transforms._door import check_function
from covector.transforms._plan import FEW_OUTPUTS, Plan, by_sizes_of_gradient
from covector.transforms._question import Problem, Question, Request
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
    executor: Any = None,
    out: Any = None,
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
        executor, out: who computes blocks of the Hessian, and where they are written; see `jacobian`. The
            matrix has a row for each element of the gradient.

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
    caller = check_function("hessian", func, argnums)
    request = (
        Request(argnums, argnames, has_aux, chunk_size, randomness, mode, max_memory, batch_dim, complex)
        .checked("hessian")
        .working("hessian", executor, out)
    )

    return planned(caller, request, _hessian_of)


def _hessian_of(caller: Caller, request: Request, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Plan]:
    question = Question(caller, request, args, kwargs)
    if request.work is not None:
        from covector.transforms._blocks import in_blocks

        return in_blocks(question, args, kwargs, _second_problem, by_sizes_of_gradient, order=2)
    if request.mode == "auto":
        derived = _by_some_mode(question)
    else:
        derived = reverse_first(lambda: _second(question, request.mode))
    return question.answer(derived.flat(), derived.evaluation, order=2), derived.plan


def _by_some_mode(question: Question) -> Derived:
    """Reverse over reverse if that pays and can be done, else forward over reverse."""

    def by_forward(reason: str) -> Derived:
        derived = _second(question, "forward")
        return derived._replace(plan=replace(derived.plan, reason=reason))

    try:
        return reverse_first(
            lambda: _second(question, "auto"), lambda: by_forward("reverse over reverse has no rule")
        )
    except _ManyOutputs:
        return by_forward(f"the function has more than {FEW_OUTPUTS} outputs")


def _second(question: Question, mode: str) -> Derived:
    """The Jacobian of the Jacobian, which is taken by reverse mode; the outer one by this mode."""
    request = question.request._replace(mode=mode)
    few = mode == "auto" and request.max_memory is None
    return derive(_second_problem(question, few=few), request, by_sizes_of_gradient)


def _second_problem(question: Question, *, few: bool = False) -> Problem:
    """The gradient as the function, whose Jacobian is the Hessian."""
    problem = question.problem
    samples = None if problem.samples is None else Samples(problem.samples.inputs, outputs=0)
    return Problem(problem.caller, problem.arguments, _first_derivative(question, few=few), samples)


def _first_derivative(question: Question, *, few: bool) -> Run:
    """The Jacobian by reverse mode, as a function whose outputs are its blocks; `few` of them, or none."""
    inner = question.request._replace(mode="reverse", max_memory=None, chunk_size=None)

    def run(leaves: list[Any]) -> Evaluation:
        problem = question.problem.at(leaves)
        pullback = problem.pullback()
        if few and problem.outputs(pullback.evaluation.outputs).size > FEW_OUTPUTS:
            raise _ManyOutputs
        first = derive(problem, inner, pullback=pullback)
        blocks = first.flat()
        if question.real_form is not None and inner.complex == "holomorphic":
            question.real_form.check_holomorphic(blocks, order=1)
        return first.evaluation._replace(outputs=blocks)

    return run
