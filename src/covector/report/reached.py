"""How pasted code reaches a function: by torch, by an import, by a name of the session, or not by itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import torch

# What every other line needs.
IMPORT = "import torch, covector"


@dataclass(frozen=True)
class Reached:
    """An expression, the lines that it needs before it, and what the reader has to define for it."""

    text: str
    imports: tuple[str, ...] = (IMPORT,)
    missing: str = ""

    def attribute(self, name: str) -> Reached:
        """An attribute of this."""
        return Reached(f"{self.text}.{name}", self.imports, self.missing)


def reached(function: Any, nameless: str = "function") -> Reached:
    """How a function, a class or a module is reached; what has no name is called `nameless`."""
    name = getattr(function, "__name__", "")
    for module, prefix in ((torch, "torch"), (torch.nn.functional, "torch.nn.functional")):
        if name and getattr(module, name, None) is function:
            return Reached(f"{prefix}.{name}")
    if isinstance(function, MethodType):
        return reached(function.__self__, f"owner_of_{name}").attribute(name)
    return global_name(function) or _undefined(function, name, nameless)


def global_name(function: Any) -> Reached | None:
    """How it is reached by a global name, if it has one."""
    return next(_global_names(function), None)


def _global_names(function: Any) -> Iterator[Reached]:
    """The ways over a global name: of a module that can be imported, or of the session or script."""
    script = sys.modules.get("__main__")
    place = getattr(function, "__module__", None) or ""
    own = getattr(function, "__qualname__", "")
    for module in filter(None, (sys.modules.get(place), script)):
        for name in (own, *vars(module)):
            if not _is_named(module, name, function):
                continue
            if module is script:
                yield Reached(name, missing=f"{name}, {_what(function)} of {_script(module)}")
            elif _is_dotted(place):
                yield Reached(name, (IMPORT, f"from {place} import {name.partition('.')[0]}"))


def _is_dotted(name: str) -> bool:
    """Whether this is a name, or several with dots between them."""
    return all(part.isidentifier() for part in name.split("."))


def _is_named(module: ModuleType, name: str, function: Any) -> bool:
    """Whether a dotted name in a module stands for a function; the names of results, `_` and `_1`, do not."""
    if _is_dotted(name) and name.strip("_0123456789"):
        with suppress(AttributeError):
            return attrgetter(name)(module) is function
    return False


def _what(function: Any) -> str:
    """The kind of thing that a name stands for."""
    if isinstance(function, type):
        return "the class"
    return "the function" if hasattr(function, "__code__") else f"the {type(function).__name__}"


def _script(module: ModuleType | None) -> str:
    """What runs as `__main__`: a file, or a session."""
    file = getattr(module, "__file__", None)
    return Path(file).name if file else "the session"


def _undefined(function: Any, name: str, nameless: str) -> Reached:
    """What no line can make: it stands inside of another function, or was made there."""
    code, text = getattr(function, "__code__", None), name if name.isidentifier() else nameless
    if isinstance(function, type):
        return Reached(text, missing=f"{text}, the class of that name")
    if code is None:
        return Reached(text, missing=f"{text}, the {type(function).__name__} that was given")
    what = "the function" if name.isidentifier() else "the lambda"
    place = f"line {code.co_firstlineno} in {Path(code.co_filename).name}"
    return Reached(text, missing=f"{text}, {what} of {place}")
