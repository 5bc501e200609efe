"""`jacrev`: the Jacobian by reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone
from covector._tree import Argnames, Argnums
from covector.transforms._derive import planned
from covector.transforms._door import check_function
from covector.transforms._question import Request


@eager_alone
def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    randomness: str = "error",
    argnames: Argnames = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of a function by reverse mode: one pullback per element of the output.

    The function runs once. Pullbacks are done all at once or `chunk_size` at a time; where an
    operation cannot be batched they are done one by one, with a `BatchingWarning`.

    Args:
        func: takes trees, returns a tree of real tensors.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        has_aux: `func` returns `(output, aux)`; the result is then `(jacobian, aux)`.
        chunk_size: how many rows to compute at once; None for all, 1 for a loop without batching.
        randomness: what a random operation in the *backward* of a batch does: "error", "same" or
            "different". The function itself runs outside the batch and may draw freely.
        _preallocate_and_copy: changes nothing: chunks are always written into one tensor where they can be.

    Returns:
        A function whose result is a tree like the output, in which each tensor y is replaced by a
        tree like the selected arguments, in which each tensor x is replaced by dy/dx, of shape
        `y.shape + x.shape`.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` returned something other than real floating-point tensors.

    Example:
        >>> import torch, covector
        >>> covector.jacrev(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    caller = check_function("jacrev", func, argnums)
    request = Request(argnums, argnames, has_aux, chunk_size, randomness, "reverse", copies=False)
    return planned(caller, request.checked("jacrev"))
