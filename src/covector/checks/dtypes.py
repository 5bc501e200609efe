"""A module and inputs in different dtypes: what is added to the error that torch raises then."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from torch.nn import Module

from covector._engine.messages import mixes_dtypes
from covector._tree import flatten
from covector.errors import CovectorError
from covector.verify.leaves import is_differentiable

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_CALLS = {
    torch.float64: "double()",
    torch.float32: "float()",
    torch.float16: "half()",
    torch.bfloat16: "bfloat16()",
}


def dtypes_noted(door: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """The same door; an error of torch's on mixed dtypes has a note where module and inputs differ."""

    @wraps(door)
    def opened(*args: _Given.args, **keywords: _Given.kwargs) -> _Result:
        __tracebackhide__ = True
        try:
            return door(*args, **keywords)
        except Exception as error:
            if mixes_dtypes(error) and not isinstance(error, CovectorError):
                given = signature(door).bind(*args, **keywords).arguments
                _note(error, given["func"], (given["inputs"], given.get("kwargs")))
            raise

    return opened


def _note(error: Exception, module: Any, inputs: Any) -> None:
    """Say that a module has one dtype, and its inputs have another, if that is so."""
    if not isinstance(module, Module):
        return
    own, given = (
        {leaf.dtype for leaf in leaves if is_differentiable(leaf)}
        for leaves in (module.parameters(), flatten(inputs)[0])
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
