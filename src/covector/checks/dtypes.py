"""A module and inputs in different dtypes: what is added to the error that torch raises then."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from covector._engine.messages import mixes_dtypes
from covector._tree import flatten
from covector.errors import CovectorError
from covector.verify.leaves import is_differentiable

_CALLS = {
    torch.float64: "double()",
    torch.float32: "float()",
    torch.float16: "half()",
    torch.bfloat16: "bfloat16()",
}


class dtypes_noted:  # noqa: N801 - it is used as a function
    """What a module raises inside has a note, if it is of one dtype and its inputs have another."""

    __slots__ = ("_function", "_inputs")

    def __init__(self, function: Any, *inputs: Any) -> None:
        self._function, self._inputs = function, inputs

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        module = self._function
        if not isinstance(error, Exception) or isinstance(error, CovectorError):
            return
        if not (isinstance(module, Module) and mixes_dtypes(error)):
            return
        own, given = (
            {leaf.dtype for leaf in leaves if is_differentiable(leaf)}
            for leaves in (module.parameters(), flatten(self._inputs)[0])
        )
        if len(own) != 1 or len(given) != 1 or own == given:
            return
        (mine,), (theirs,) = own, given
        names = [str(dtype).removeprefix("torch.") for dtype in (theirs, mine)]
        calls = [_CALLS.get(dtype, f"to({dtype})") for dtype in (theirs, mine)]
        error.add_note(
            f"The input is {names[0]}, the parameters of {type(module).__name__} are {names[1]}: pass "
            f"model.{calls[0]}, or x.{calls[1]} (docs/how-to/float32.md)."
        )
