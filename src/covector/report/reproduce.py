"""The same check again, as Python that can be pasted: how the function is reached, the inputs, the call."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from covector._tree import parameter_names
from covector.report.inputs import Input, can_be_saved, known_inputs, loaded, save, written_out
from covector.report.modules import Remade, remade
from covector.report.reached import IMPORT, reached
from covector.verify.options import Options, Tolerance

_WIDTH = 96

# The file that text loads inputs from.
FILE = "inputs.npz"

# Tensors are written out if they have no more elements than this together.
_FEW = 8

# Where the report is that inputs are saved from, by how the reader gets at it.
_WHERE = {
    "report": "in the session that has the report",
    "error.report": "where `error` is the exception (sys.last_value if nothing caught it)",
}

# What is written as it prints.
_WRITTEN = bool, int, str, torch.dtype, torch.layout, torch.Size


@dataclass(frozen=True)
class Call:
    """What the user called: the verb, the function as it was given, and what goes beside the options."""

    verb: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Keywords of the verb that are no options of the check."""
    reference: Callable[..., Any] | None = None
    """What a kernel is compared with."""

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that were given, each with a name for one that has none."""
        if self.reference is None:
            return {"function": self.function}
        return {"kernel": self.function, "reference": self.reference}


# What each option is called by the user, by verb where that differs; the others are not options there.
_KEYWORDS: dict[str, tuple[tuple[str, Callable[[Options], Any]], ...]] = {
    verb: (
        ("eps", lambda o: o.tol.eps),
        ("atol", lambda o: o.tol.atol),
        ("rtol", lambda o: o.tol.rtol),
        ("nondet_tol", lambda o: o.nondet_tol),
        ("check_undefined_grad", lambda o: o.undefined),
        ("check_grad_dtypes", lambda o: o.dtypes),
        ("check_batched_grad", lambda o: o.batched),
        *(
            (
                ("check_fwd_over_rev", lambda o: o.forward),
                ("check_rev_over_rev", lambda o: o.reverse),
            )
            if verb == "gradgradcheck"
            else (
                ("check_batched_forward_grad", lambda o: o.batched_forward),
                ("check_forward_ad", lambda o: o.forward),
                ("check_backward_ad", lambda o: o.reverse),
            )
        ),
        ("fast_mode", lambda o: o.fast),
        ("kinks", lambda o: o.tol.kinks),
        ("masked", lambda o: o.masked),
        *(
            (
                ("probes", lambda o: o.probes),
                ("max_entries", lambda o: o.max_entries),
                ("taylor", lambda o: o.taylor),
            )
            if verb == "check"
            else ()
        ),
        ("seed", lambda o: o.seed),
    )
    for verb in ("check", "gradcheck", "gradgradcheck")
}

_DEFAULTS = Options(Tolerance(atol=1e-5, rtol=1e-3, eps=1e-6))


@dataclass(frozen=True)
class Reproduction:
    """Python that makes a check again."""

    imports: tuple[str, ...]
    missing: tuple[str, ...]
    """What no line can make, and the reader has to define first."""
    inputs: tuple[Input, ...]
    call: str
    modules: tuple[Remade, ...] = ()
    report: str = "report"
    """How the reader gets at the report."""

    def text(self, file: str = "") -> str:
        """The lines; inputs whose making is not known, and states of modules, are loaded from a file.

        If it is not written yet, a remark says how it is.
        """
        unknown = {given.name: given for given in self._unknown}
        loaded_from_file = [str(made) for made in self.modules if made.state] + [*map(str, unknown.values())]
        lines = [*self.imports, *(f"# define first: {what}" for what in self.missing)]
        if loaded_from_file and not file:
            remark = f"run first, {_WHERE[self.report]}: {self.report}.save_inputs({FILE!r}), which writes "
            lines += _remark(remark + "; ".join(loaded_from_file))
        if loaded_from_file:
            lines += ["import numpy", f"saved = numpy.load({file or FILE!r})"]
        for made in self.modules:
            lines += made.lines
        for given in self.inputs:
            lines += given.made or (loaded(given) if given.name in unknown else (f"# define first: {given}",))
        return "\n".join([*lines, self.call])

    @property
    def _unknown(self) -> tuple[Input, ...]:
        """The inputs whose making is not known, and that an array can hold."""
        return tuple(given for given in self.inputs if not given.made and can_be_saved(given.value))

    @property
    def saved(self) -> tuple[Input, ...]:
        """What is saved: the inputs whose making is not known, and the states of modules."""
        return (*self._unknown, *(given for made in self.modules for given in made.state))

    def save(self, path: Path) -> bool:
        """Save what the lines load; False if that is nothing."""
        return save(self.saved, path)


def _remark(text: str) -> list[str]:
    """A comment, in lines that are not too long."""
    return textwrap.wrap(
        f"# {text}", _WIDTH, subsequent_indent="#     ", break_long_words=False, break_on_hyphens=False
    )


def reproduction(call: Call, options: Options, *, by_name: bool = False) -> Reproduction:
    """How to make a check again, with the options that are not the default ones."""
    given = [
        f"{name}={value!r}"
        for name, read in _KEYWORDS[call.verb]
        if (value := read(options)) != read(_DEFAULTS) or name == "seed"
    ]
    return call_again(call, given, by_name=by_name)


def call_again(call: Call, options: Sequence[str], *, by_name: bool = False) -> Reproduction:
    """How to make a call again.

    Tensors that are few and small are written out. Of the others the making is looked for; with `by_name`
    the function holds them itself, and they go by their names.
    """
    written = _Written(call, by_name)
    parts = [written.function(function, name) for name, function in call.functions.items()]
    given = [*parts, *written.arguments(), *options, *written.extra()]
    line = _laid_out(f"print(covector.{call.verb}", given) + ")"  # of a script, nothing is shown by itself
    return Reproduction(
        tuple(written.imports),
        tuple(written.missing),
        known_inputs(written.tensors),
        line,
        tuple(written.modules.values()),
        "report" if call.verb.startswith("check") else "error.report",
    )


class _Written:
    """The arguments of a call as Python, and the tensors that go by a name in it."""

    def __init__(self, call: Call, by_name: bool) -> None:
        self.call = call
        self.by_name = by_name
        self.tensors: dict[str, Tensor] = {}
        self.modules: dict[int, Remade] = {}
        self.imports: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        sizes = [t.shape.numel() for t in _tensors((call.args, call.kwargs))]
        self.few = sum(sizes) <= _FEW

    def function(self, function: Callable[..., Any], name: str) -> str:
        """A function: how it is reached; a module is made again, with the state that it has."""
        if isinstance(function, torch.nn.Module):
            return self.module(function, "module" if name == "function" else name)
        if isinstance(function, MethodType) and isinstance(function.__self__, torch.nn.Module):
            return f"{self.module(function.__self__, 'module')}.{function.__name__}"
        found = reached(function, name)
        self.imports |= dict.fromkeys(found.imports)
        if found.missing:
            self.missing[found.missing] = None
        return found.text

    def module(self, module: torch.nn.Module, name: str) -> str:
        """A module: the name that it is given."""
        if id(module) not in self.modules:
            if (made := remade(module, name)) is None:
                self.missing[f"{name}, the {type(module).__name__} that was given"] = None
                return name
            self.modules[id(module)] = made
            self.imports |= dict.fromkeys((IMPORT, *made.imports))
            self.missing |= dict.fromkeys(made.missing)
        return self.modules[id(module)].name

    def arguments(self) -> list[str]:
        """The inputs, and the keyword arguments if there are any."""
        names = parameter_names(self.call.function)
        args = self.call.args
        given = [self.of(v, names[i] if i < len(names) else f"arg{i}") for i, v in enumerate(args)]
        inputs = ", ".join(given)
        if len(given) != 1 or not (isinstance(args[0], Tensor) or callable(args[0])):
            inputs = f"({inputs}{',' if len(given) == 1 else ''})"
        if not self.call.kwargs:
            return [inputs]
        inside = ", ".join(f"{k!r}: {self.of(v, k)}" for k, v in self.call.kwargs.items())
        return [inputs, "{" + inside + "}"]

    def extra(self) -> list[str]:
        """The keywords that are no options."""
        return [f"{name}={self.of(value, name)}" for name, value in self.call.extra.items()]

    def of(self, value: Any, name: str) -> str:
        """One value: written out, or a name for it."""
        if value is None or isinstance(value, _WRITTEN):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        plain = re.sub(r"\W", "_", name)
        if callable(value) and not isinstance(value, Tensor):
            return self.function(value, plain)
        if type(value) in (list, tuple):
            inside = ", ".join(self.of(item, f"{name}_{i}") for i, item in enumerate(value))
            return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
        if type(value) is dict and all(isinstance(key, str) for key in value):
            inside = ", ".join(f"{key!r}: {self.of(item, f'{name}_{key}')}" for key, item in value.items())
            return "{" + inside + "}"
        if self.by_name or type(value) not in (Tensor, torch.nn.Parameter):
            of = "which the function holds itself" if self.by_name else "that was given"
            self.missing[f"{plain}, the {type(value).__name__} {of}"] = None
            return plain
        if self.few and (text := written_out(value)):
            return text
        self.tensors[plain] = value
        return plain


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors of plain containers."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [t for item in tree for t in _tensors(item)] if isinstance(tree, list | tuple) else []


def _laid_out(verb: str, parts: list[str]) -> str:
    """On one line if it fits, otherwise an argument on each, and of a long one as much as fits."""
    line = f"{verb}({', '.join(parts)})"
    if len(line) <= _WIDTH - 8:
        return line
    lines = [
        piece
        for part in parts
        for piece in textwrap.wrap(
            f"{part},",
            _WIDTH - 4,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    return "\n".join([f"{verb}(", *lines, ")"])
