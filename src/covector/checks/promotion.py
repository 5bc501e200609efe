"""A function in low precision as the same function in double precision.

It may hold tensors of its own: the weights of a network. Given inputs in double precision, torch refuses to
multiply them. Here such an operation takes all of its tensors in double precision, in which theirs are exact,
so that it is the same function. Nothing of the caller's changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from covector._engine.leaves import like
from covector.verify.leaves import doubled
from covector.verify.problem import Problem

_DOUBLE = {torch.float64, torch.complex128}
_LOW = {torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32}


class Promoted(TorchFunctionMode):
    """Inside, an operation that gets a tensor in double precision gets all of them in double precision."""

    def __init__(self, inside: AbstractContextManager[Any] | None) -> None:
        self._inside = inside
        """Where the function runs otherwise, if not plainly."""

    def __enter__(self) -> Self:
        """As the function runs otherwise, and promoted."""
        if self._inside is not None:
            self._inside.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        """As before."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if self._inside is not None:
            self._inside.__exit__(*exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation."""
        kwargs = kwargs or {}
        dtypes = _dtypes((*args, *kwargs.values()))
        if not (dtypes.isdisjoint(_DOUBLE) or dtypes.isdisjoint(_LOW)):
            args = [_promoted(value) for value in args]
            kwargs = {name: _promoted(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def lifted(problem: Problem) -> Problem | None:
    """The same function in double precision, if it takes that and answers in it.

    If it holds tensors of its own in low precision, these are taken in double precision too.
    """
    if problem.closes_over:
        return None
    chosen = set(problem.arguments.chosen)
    try:
        leaves = [
            like(leaf, doubled(leaf.detach())) if index in chosen else doubled(leaf)
            for index, leaf in enumerate(problem.arguments.leaves)
        ]
        above = problem.beside(leaves, Promoted(problem.inside))
    except Exception:  # the function refuses: it is differenced as it is
        problem.runs += 1
        return None
    above.is_lifted = True
    same = above.kept == problem.kept and above.outputs.size == problem.outputs.size
    if same and not above.low_precision and not above.closes_over:
        return above
    problem.runs += above.runs
    return None


def _dtypes(values: Iterable[Any]) -> set[torch.dtype]:
    """Those of the tensors among these values and in lists of them."""
    found: set[torch.dtype] = set()
    for value in values:
        if isinstance(value, Tensor):
            found.add(value.dtype)
        elif isinstance(value, list | tuple):
            found |= _dtypes(value)
    return found


def _promoted(value: Any) -> Any:
    """A tensor in double precision; of a list or a tuple, every tensor in it."""
    if isinstance(value, Tensor):
        return doubled(value) if value.dtype in _LOW else value
    if type(value) in (list, tuple):
        return type(value)(map(_promoted, value))
    return value
