"""Operations on tensors of several precisions, in the highest of them.

A function in low precision may hold tensors of its own: the weights of a network. Given inputs in double
precision, torch refuses to multiply them. Here such an operation takes all of its tensors in double
precision, in which theirs are exact, so that it is the same function. Nothing of the caller's changes.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from covector._tree import flatten, unflatten
from covector.verify.leaves import doubled, is_differentiable

_DOUBLE = {torch.float64, torch.complex128}


class Promoted(TorchFunctionMode):
    """Inside, an operation that gets a tensor in double precision gets all of them in double precision."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device

    def __enter__(self) -> Self:
        """New tensors are made on the caller's device, if there is one."""
        if self._device is not None:
            self._device.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        """As before."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        if self._device is not None:
            self._device.__exit__(*exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation."""
        leaves, spec = flatten((args, kwargs or {}))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor) and is_differentiable(leaf)}
        if len(dtypes) > 1 and not dtypes.isdisjoint(_DOUBLE):
            args, kwargs = unflatten([doubled(leaf) for leaf in leaves], spec)
        return func(*args, **(kwargs or {}))
