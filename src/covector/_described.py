"""Parameters that mean the same in two functions are written down once, and explained at both."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

_HEAD = "Args:\n"
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ((?:.|\n {8})*)$", re.MULTILINE)


def described_by(other: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Adds to the "Args:" of a function the parameters that it shares with `other`, in its own order."""

    def described(function: _Function) -> _Function:
        text, known = inspect.getdoc(function), inspect.getdoc(other)
        if text is None or known is None:  # python -OO
            return function
        entries = {**_entries(known), **_entries(text)}
        names = list(inspect.signature(function).parameters)
        mine = [[name for name in names if entries.get(name) is entries[first]] for first in names]
        said = dict.fromkeys(f"    {', '.join(some)}: {entries[some[0]][0]}" for some in mine)
        before, own = text.split(_HEAD)
        lines = "\n".join(said)
        after = own.partition("\n\n")[2]
        function.__doc__ = f"{before}{_HEAD}{lines}\n\n{after}"
        return function

    return described


def _entries(text: str) -> dict[str, tuple[str]]:
    """What a docstring says about each parameter; those that are explained together have the same entry."""
    section = text.partition(_HEAD)[2].partition("\n\n")[0]
    found: dict[str, tuple[str]] = {}
    for names, said in _ENTRY.findall(section):
        found |= dict.fromkeys(names.split(", "), (said,))
    return found
