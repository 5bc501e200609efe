"""`jacfwd`: the Jacobian by forward mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone
from covector._tree import Argnames, Argnums
from covector.transforms._derive import planned
from covector.transforms._door import accept_tensors, check_function
from covector.transforms._question import Request


@eager_alone
def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    randomness: str = "error",
    argnames: Argnames = None,
) -> Callable[..., Any]:
    """The Jacobian of a function by forward mode: one push per element of the input.

    All pushes share one run of the function, or one run per `chunk_size` of them. Where an operation
    has no forward-mode rule the pullback is differentiated instead, with a `ForwardModeWarning`;
    where one cannot be batched the pushes are done one by one, with a `BatchingWarning`.

    Args:
        func: takes trees, returns a tree of real tensors.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        has_aux: `func` returns `(output, aux)`; the result is then `(jacobian, aux)`.
        chunk_size: how many columns to compute at once; None for all, 1 for a loop without batching.
        randomness: what a random operation in the function does: "error" raises, "same" draws once
            for all columns (which gives the Jacobian of that draw), "different" draws for each.

    Returns:
        A function with the same result as that of `jacrev`.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` returned something other than real tensors.
        RandomnessError: `func` draws random numbers and `randomness` is "error".

    Example:
        >>> import torch, covector
        >>> covector.jacfwd(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    caller = check_function("jacfwd", func, argnums)
    request = Request(
        argnums, argnames, has_aux, chunk_size, randomness, "forward", accept=accept_tensors, copies=False
    )
    return planned(caller, request.checked("jacfwd"))
