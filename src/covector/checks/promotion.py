"""A function in low precision as the same function in double precision.

It may hold tensors of its own: the weights of a network. Given inputs in double precision, torch refuses to
multiply them. Here such an operation takes all of its tensors in double precision, in which theirs are exact,
so that it is the same function. Nothing of the caller's changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from covector._engine.leaves import like
from covector._engine.levels import innermost
from covector._engine.tensors import version
from covector.verify.leaves import doubled
from covector.verify.problem import Problem

_DOUBLE = {torch.float64, torch.complex128}
_LOW = {torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32}

# Parameters of up to so many numbers are converted once; to convert a larger one takes little beside its use.
_KEPT = 1 << 16


class _Converted(NamedTuple):
    """A parameter in double precision."""

    of: Parameter
    version: int
    value: Tensor


class Promoted(TorchFunctionMode):
    """Inside, an operation that gets a tensor in double precision gets all of them in double precision."""

    def __init__(self, inside: AbstractContextManager[Any] | None) -> None:
        self._inside = inside
        """Where the function runs otherwise, if not plainly."""
        self._converted: dict[tuple[int, bool], _Converted] = {}

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
            args = [self._promoted(value) for value in args]
            kwargs = {name: self._promoted(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _promoted(self, value: Any) -> Any:
        """A tensor in double precision; of a list or a tuple, every tensor in it."""
        if isinstance(value, Tensor):
            if value.dtype not in _LOW:
                return value
            return self._parameter(value) if type(value) is Parameter else doubled(value)
        if type(value) in (list, tuple):
            return type(value)(map(self._promoted, value))
        return value

    def _parameter(self, parameter: Parameter) -> Tensor:
        """A parameter in double precision; converted anew if it was written to."""
        place = id(parameter), torch.is_grad_enabled()
        known = self._converted.get(place)
        if known is not None and known.of is parameter and known.version == version(parameter):
            return known.value
        value = innermost(doubled(parameter))  # a transform inside the function, which wraps it, ends
        if parameter.numel() <= _KEPT:
            self._converted[place] = _Converted(parameter, version(parameter), value)
        return value


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
