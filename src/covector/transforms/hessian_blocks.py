"""`hessian_blocks` and `hessian_diagonal`: the parts of a Hessian that lie on its diagonal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from covector._engine.compiled import eager_alone, named_after
from covector._linear import LinearMap
from covector._tree import Argnames, Argnums, Evaluation
from covector.errors import Caller
from covector.transforms._derive import ASKED, assembled
from covector.transforms._door import check_function
from covector.transforms._question import Problem, Request
from covector.transforms._second import Gradient, auxiliary, reverse_first

# Rows of a diagonal are made only to be looked at; this many numbers of them at once are 32 MB.
_NUMBERS_AT_ONCE = 2**22

# The part of H that belongs to one variable: of what Jacobian, by what map and mode, and what is asked.
Part = Callable[[Problem, LinearMap, str, Request], Tensor]


@eager_alone
def hessian_blocks(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    randomness: str = "error",
) -> Callable[..., Any]:
    """The diagonal blocks of the Hessian of a scalar function: one for each tensor, by itself twice.

    For the parameters of a module that is a block per parameter, under its name. The function runs
    once; a block takes a pullback for each element of its tensor, and the blocks off the diagonal are
    neither computed nor kept.

    Args:
        func: takes trees, returns one real tensor of shape ().
        argnums, argnames: which arguments to differentiate by; see `grad`.
        chunk_size: how many rows of a block to compute at once; None for all, 1 for a loop.
        has_aux: `func` returns `(scalar, aux)`; the result is then `(blocks, aux)`.
        randomness: what a random operation does inside a batch: "error", "same" or "different".

    Returns:
        A function whose result is a tree like the selected arguments, in which each tensor x is
        replaced by one of shape `x.shape + x.shape`.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> def loss(params):
        ...     return (params["w"] ** 3).sum() * params["b"]
        >>> params = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.5)}
        >>> covector.hessian_blocks(loss)(params)
        {'w': tensor([[3., 0.],
                [0., 6.]]), 'b': tensor(0.)}
    """
    caller = check_function("hessian_blocks", func, argnums)
    request = Request(argnums, argnames, has_aux, chunk_size, randomness).checked("hessian_blocks")

    def blocks(*args: Any, **kwargs: Any) -> Any:
        return _part_by_part(caller, request, args, kwargs, _block)

    return named_after(blocks, like=func)


@eager_alone
def hessian_diagonal(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    randomness: str = "error",
) -> Callable[..., Any]:
    """The diagonal of the Hessian of a scalar function, exactly.

    An exact diagonal takes as many pullbacks as the whole Hessian has rows, one for each element of
    the selected arguments; what is saved is the memory, of which a chunk of rows is needed, and the
    blocks between different tensors, which are not computed.

    Args:
        func: takes trees, returns one real tensor of shape ().
        argnums, argnames: which arguments to differentiate by; see `grad`.
        chunk_size: how many rows to compute at once; None for as many as take some 32 MB.
        has_aux: `func` returns `(scalar, aux)`; the result is then `(diagonal, aux)`.
        randomness: what a random operation does inside a batch: "error", "same" or "different".

    Returns:
        A function whose result is a tree like the selected arguments.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> covector.hessian_diagonal(lambda x: x[0] ** 3 * x[1])(torch.tensor([1.0, 2.0]))
        tensor([12.,  0.])
    """
    caller = check_function("hessian_diagonal", func, argnums)
    request = Request(argnums, argnames, has_aux, chunk_size, randomness).checked("hessian_diagonal")

    def diagonal(*args: Any, **kwargs: Any) -> Any:
        return _part_by_part(caller, request, args, kwargs, _diagonal)

    return named_after(diagonal, like=func)


@eager_alone
def _part_by_part(
    caller: Caller, request: Request, args: tuple[Any, ...], kwargs: dict[str, Any], part: Part
) -> Any:
    """The part of the Hessian that belongs to each variable, arranged like the selected arguments."""
    gradient = Gradient.of(caller, request.bind(caller, args, kwargs), has_aux=request.has_aux)
    problems = [gradient.only(position) for position in range(len(gradient.arguments.chosen))]

    def by(mode: str, maps: Sequence[LinearMap]) -> tuple[list[Tensor], Evaluation]:
        pairs = zip(problems, maps, strict=True)
        return [part(problem, one, mode, request) for problem, one in pairs], maps[0].evaluation

    def by_reverse() -> tuple[list[Tensor], Evaluation]:
        pullback = gradient.pullback()
        return by("reverse", [pullback.part(i, i) for i in range(len(problems))])

    def by_forward() -> tuple[list[Tensor], Evaluation]:
        return by("forward", [problem.derivative("forward") for problem in problems])

    parts, evaluation = reverse_first(by_reverse, by_forward)
    result = gradient.arguments.tree_of(parts)
    return (result, auxiliary(evaluation)) if request.has_aux else result


def _block(problem: Problem, derivative: LinearMap, mode: str, request: Request) -> Tensor:
    (block,) = assembled(problem, derivative, mode, request, ASKED).flat()
    return block


def _diagonal(problem: Problem, derivative: LinearMap, mode: str, request: Request) -> Tensor:
    chart, (primal,) = problem.inputs, problem.arguments.primals()
    step = request.chunk_size or max(1, _NUMBERS_AT_ONCE // max(chart.size, 1))
    pieces = []
    for start in range(0, max(chart.size, 1), step):
        stop = min(start + step, chart.size)
        (rows,) = derivative.apply_batch(chart.basis(start, stop), randomness=request.randomness)
        pieces.append(rows.reshape(stop - start, chart.size)[:, start:stop].diagonal())
    return torch.cat(pieces).reshape(primal.shape)
