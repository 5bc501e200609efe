"""Rounding errors made at random: how far a computation in low precision is off, by trying."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covector._engine.modes import DispatchMode

LOW = {torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32}
EVERY = LOW | {torch.float64, torch.complex128}

# Operations that move numbers and round nothing.
_EXACT = {
    "abs", "alias", "arange", "cat", "clone", "conj", "copy", "detach", "empty", "expand", "eye", "fill",
    "flip", "full", "full_like", "gather", "index", "index_put", "index_select", "max", "maximum", "min",
    "minimum", "neg", "new_zeros", "ones", "ones_like", "relu", "repeat", "roll", "scatter", "sign", "stack",
    "where", "zero", "zeros", "zeros_like",
}  # fmt: skip


class RandomRounding(DispatchMode):
    """Inside, the result of every operation in these dtypes is moved by a unit in the last place, or not.

    This is Monte Carlo arithmetic (D. S. Parker, 1997): the scatter of a few such runs is the size of the
    rounding error of every number that comes out, cancellation included.
    """

    def __init__(self, seed: int, dtypes: set[torch.dtype] = LOW) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtypes = dtypes
        self._met: set[torch.dtype] = set()
        self._generator = torch.Generator().manual_seed(seed)

    def keep_to(self, eps: float) -> None:
        """From here on, round in dtypes of this precision and better, and in those that were met so far.

        A backward that computes in lower precision than its function loses digits by itself.
        """
        self._dtypes = self._met | {dtype for dtype in self._dtypes if torch.finfo(dtype).eps <= eps}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation on numbers that are rounded at random, and round what is new in its result."""
        schema = func._schema
        returned = [said.alias_info for said in schema.returns]
        if schema.name.removeprefix("aten::").rstrip("_") in _EXACT or any(map(_is_view, returned)):
            return func(*args, **(kwargs or {}))
        if not schema.is_mutable:
            # A kernel that adds many numbers up rounds in between, as if these were a little different.
            args = tuple(self._rounded(arg.clone()) if self._rounds(arg) else arg for arg in args)
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if self._rounds(value):
                self._rounded(value)
        return result

    def _rounds(self, value: Any) -> bool:
        """Whether it is a tensor of these dtypes whose numbers can be changed one by one.

        Forward mode puts zeros without memory where there is no tangent; here, torch would write to them.
        """
        if not isinstance(value, Tensor) or value.dtype not in self._dtypes or value._is_zerotensor():
            return False
        return value.layout is torch.strided and 0 not in value.stride()

    def _rounded(self, value: Tensor) -> Tensor:
        """The tensor, multiplied by 1, by 1 + eps or by 1 - eps."""
        self._met.add(value.dtype)
        drawn = torch.randint(-1, 2, value.shape, generator=self._generator, dtype=value.dtype.to_real())
        return value.mul_(drawn.to(value.device).mul_(torch.finfo(value.dtype).eps).add_(1))


def _is_view(alias: Any) -> bool:
    return alias is not None and not alias.is_write
