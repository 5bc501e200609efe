"""A module of a check, made again: a copy, or what constructs it, and its state from a file."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Sequential

from covector.report.inputs import Input, can_be_saved
from covector.report.reached import Reached, global_name, reached

_WIDTH = 96

# Arguments of constructors that the state makes up for.
_OF_STATE = ("device", "dtype")

# Arguments that are written as they print.
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Remade:
    """A module that goes by a name, and how it is made; a module that nobody can construct is missing."""

    name: str
    module: Module
    made: Reached | None

    @property
    def imports(self) -> tuple[str, ...]:
        """What the lines need before them."""
        return () if self.made is None else self.made.imports

    @property
    def missing(self) -> tuple[str, ...]:
        """What the reader has to define first."""
        if self.made is None:
            return (f"{self.name}, the {type(self.module).__name__} that was given",)
        return tuple(filter(None, (self.made.missing,)))

    @property
    def state(self) -> tuple[Input, ...]:
        """Its parameters and buffers, with the names under which they are saved."""
        return tuple(Input(f"{self.name}.{key}", value) for key, value in self.module.state_dict().items())

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that make it, and give it the state that was saved."""
        made = "" if self.made is None else f"{self.name} = {self.made.text}"
        lines = wrap(made, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        if self.state:
            saved = f"torch.from_numpy(saved['{self.name}.' + key])"
            lines += [
                f"state = {{key: {saved} for key in {self.name}.state_dict()}}",
                f"{self.name}.load_state_dict(state)",
            ]
        return (*lines, *(() if self.module.training else (f"{self.name}.eval()",)))

    def __str__(self) -> str:
        return f"the state of {self.name}"


def remade(module: Module, name: str) -> Remade | None:
    """How a module is made again; None if arrays cannot hold its state."""
    if not all(isinstance(value, Tensor) and can_be_saved(value) for value in module.state_dict().values()):
        return None
    if (found := global_name(module)) is not None:
        copied = Reached(f"copy.deepcopy({found.text})", (*found.imports, "import copy"), found.missing)
        return Remade(name, module, copied)
    made = _constructed(module)
    if made is None:
        return Remade(name, module, None)
    dtypes = {value.dtype for value in module.state_dict().values() if _is_inexact(value)}
    if len(dtypes) > 1:
        return Remade(name, module, None)
    cast = "".join(f".to({dtype})" for dtype in dtypes - {torch.float32})
    return Remade(name, module, Reached(f"{made.text}{cast}", made.imports, made.missing))


def _is_inexact(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _constructed(module: Module) -> Reached | None:
    """The call that constructs a module, where its attributes have the names of the arguments."""
    kind = type(module)
    found = Reached(f"torch.nn.{kind.__name__}")
    if getattr(torch.nn, kind.__name__, None) is not kind:
        found = reached(kind)
    if kind is not Sequential:
        given = _arguments(module)
        return None if given is None else Reached(f"{found.text}({given})", found.imports, found.missing)
    names = [name for name, _ in module.named_children()]
    inside = [_constructed(child) for child in module.children()]
    known = [child for child in inside if child is not None]
    if len(known) < len(inside) or names != [str(index) for index in range(len(names))]:
        return None
    text = ", ".join(child.text for child in known)
    imports = dict.fromkeys(line for child in (found, *known) for line in child.imports)
    missing = dict.fromkeys(child.missing for child in known if child.missing)
    return Reached(f"{found.text}({text})", tuple(imports), "; ".join(missing))


def _arguments(module: Module) -> str | None:
    """The arguments of a constructor, from attributes of their names; None if one of them is not known."""
    given: list[str] = []
    takes_any = type(module).__init__ is Module.__init__  # which are refused
    for parameter in () if takes_any else inspect.signature(type(module)).parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
        if parameter.name in _OF_STATE:
            continue
        value = getattr(module, parameter.name, parameter.empty)
        if parameter.default is True and (value is None or isinstance(value, Tensor)):
            value = value is not None  # as of a bias, which is there or not
        if not _is_plain(value):
            if required:
                return None
        elif required and parameter.kind is not parameter.KEYWORD_ONLY:
            given.append(repr(value))
        elif value != parameter.default:
            given.append(f"{parameter.name}={value!r}")
    return ", ".join(given)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))
