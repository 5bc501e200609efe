"""`as_sparse_gradcheck`: sparse inputs and outputs for a checker that knows strided tensors only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from covector._chart import Pattern, SparsePlace, is_sparse, refusal
from covector._engine.messages import missing_kernel
from covector._tree import flatten, unflatten
from covector.checks.arguments import as_tuple
from covector.errors import ArgumentTypeError, Caller, OutputError, UnsupportedError
from covector.transforms._door import summary

Checker = Callable[..., Any]


def as_sparse_gradcheck(gradcheck: Checker) -> Checker:
    """A gradient checker that takes sparse inputs and outputs, made from one that does not.

    The checker that is given sees a function g of strided tensors, g(values) = dense(f(sparse(values))):
    each sparse input that requires grad is replaced by its values, of all elements or (`masked=True`) of
    those that it specifies, and each sparse output by its `to_dense(masked_grad=masked)`. covector's own
    `gradcheck`, `gradgradcheck` and `check` need no decorator: they see the layout and the elements of the
    gradients too, and find more.

    Args:
        gradcheck: called as `gradcheck(func, inputs, ...)`: torch's, covector's, a `functools.partial`.

    Returns:
        The checker with one more keyword, `masked` (False by default).

    Raises:
        ArgumentTypeError: `gradcheck` is not callable; or, when the result is called, an input is of a layout
            that is not supported, or violates the invariants of its own.

    Example:
        >>> import torch, covector
        >>> gradcheck = covector.as_sparse_gradcheck(torch.autograd.gradcheck)
        >>> x = torch.eye(2, dtype=torch.float64).to_sparse_csr().requires_grad_()
        >>> gradcheck(lambda x: x.to_sparse_coo(), x, masked=True)
        True
    """
    if not callable(gradcheck):
        raise ArgumentTypeError(
            f"as_sparse_gradcheck: expected a function like gradcheck, got {summary(gradcheck)}."
        )

    # A partial has no name of its own.
    @functools.wraps(gradcheck.func if isinstance(gradcheck, functools.partial) else gradcheck)
    def sparse_gradcheck(func: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        masked = bool(kwargs.pop("masked", False))
        caller = Caller("as_sparse_gradcheck", func)
        leaves, spec = flatten(as_tuple(inputs))
        patterns: dict[int, Pattern] = {}
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                if (reason := refusal(leaf)) is not None:
                    raise ArgumentTypeError(f"{caller}: input {index} {reason}")
                if is_sparse(leaf):
                    place = SparsePlace.around(leaf, 0, masked=masked, is_output=False)
                    patterns[index] = place.pattern
                    leaves[index] = place.values(leaf.detach()).clone().requires_grad_()

        @functools.wraps(func, updated=())
        def strided(*call_args: Any, **call_kwargs: Any) -> Any:
            inner, _ = flatten(call_args)
            for index, pattern in patterns.items():
                inner[index] = _built(caller, pattern, inner[index])
            return _strided(caller, func(*unflatten(inner, spec), **call_kwargs), masked)

        return gradcheck(strided, unflatten(leaves, spec), *args, **kwargs)

    return sparse_gradcheck


def _built(caller: Caller, pattern: Pattern, values: Tensor) -> Tensor:
    """The sparse tensor with these values, if torch can differentiate its making."""
    try:
        return pattern.build(values)
    except RuntimeError as error:
        if (missing := missing_kernel(error)) is None:
            raise
        raise UnsupportedError(f"{caller}: torch does not have {missing}, which an input needs.") from error


def _strided(caller: Caller, returned: Any, masked: bool) -> Any:
    """What a function returned, with its sparse tensors made strided."""
    leaves, spec = flatten(returned)
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and is_sparse(leaf):
            if (reason := refusal(leaf, is_output=True)) is not None:
                raise OutputError(f"{caller}: an output {reason}")
            leaves[index] = leaf.to_dense(masked_grad=masked) if leaf.requires_grad else leaf.to_dense()
    return unflatten(leaves, spec)
