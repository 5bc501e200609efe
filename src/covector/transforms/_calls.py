"""Calls that Python takes wrongly or refuses: what was meant is said in a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from math import isfinite
from typing import Any, ParamSpec, TypeVar

from torch import Tensor
from torch.nn import Module

from covector.errors import ArgumentTypeError, Caller

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def rightly_called(door: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """The same door; inputs that are spread over its arguments, and keywords that it lacks, are refused."""
    verb, names = door.__name__, list(inspect.signature(door).parameters)
    behind = names.index("inputs") + 1
    # Cotangents are tensors; whatever else stands behind the inputs is not.
    allowed = behind + (names[behind] == "grad_outputs")
    call = f"{verb}({', '.join(names[: behind - 1])}"
    advice = f"several inputs go into one tuple: write {call}, (a, b)), not {call}, a, b)."

    @wraps(door)
    def opened(*args: _Given.args, **keywords: _Given.kwargs) -> _Result:
        __tracebackhide__ = True
        if any(isinstance(value, Tensor) for value in args[allowed:]):
            raise ArgumentTypeError(f"{verb}: {advice}")
        if not keywords.keys() <= set(names):
            given = dict(zip(names, args, strict=False)) | keywords
            if names[0] not in given:
                raise ArgumentTypeError(f"{verb}: {names[0]} is missing; write {call}, x).")
            raise ArgumentTypeError(_unknown(verb, names, given))
        return door(*args, **keywords)

    return opened


def _unknown(verb: str, names: list[str], given: Mapping[str, Any]) -> str:
    """What to say about the first keyword that a verb lacks: whose it is, or which one is like it."""
    function, name = given[names[0]], next(keyword for keyword in given if keyword not in names)
    value, its_own = _written(given[name]), Caller(verb, function).name
    callee = "func" if its_own.startswith("<") else its_own
    partial = f"functools.partial({callee}, {name}={value})"
    how = f"pass it as kwargs={{{name!r}: {value}}}" if "kwargs" in names else f"pass {partial}"
    fact = f"{verb}: there is no keyword {name!r}"
    if name in _keywords_of(function, given.get("inputs", ())):
        return f"{fact}; {its_own} takes one of that name: {how}."
    if near := get_close_matches(name, names, 1):
        return f"{fact}. Did you mean {near[0]!r}?"
    return f"{fact}. If {its_own} takes one, {how}."


def _keywords_of(function: Any, inputs: Any) -> set[str]:
    """The keywords that a function takes beside these inputs; none where Python cannot tell."""
    function = function.forward if isinstance(function, Module) else function
    filled = len(inputs) if isinstance(inputs, tuple | list) else 1
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return set()
    free = [p for p in parameters[:filled] if p.kind is p.KEYWORD_ONLY] + parameters[filled:]
    return {p.name for p in free if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _written(value: Any) -> str:
    """A value as in a call, if it is short."""
    plain = isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
    return repr(value) if plain and len(repr(value)) < 40 else "..."
