"""The same check again, as Python that can be pasted: how the function is reached, the inputs, the call."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covector._chart import is_strided
from covector._tree import parameter_names
from covector.report.inputs import Input, can_be_saved, known_inputs, loaded, save
from covector.verify.options import Options, Tolerance

_WIDTH = 96

# The file that text loads inputs from.
FILE = "inputs.npz"

# Tensors are written out if they have no more elements than this together.
_FEW = 8


@dataclass(frozen=True)
class Call:
    """What the user called: the verb, the function as it was given, and what goes beside the options."""

    verb: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
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
    inputs: tuple[Input, ...]
    call: str

    def text(self, file: str = "") -> str:
        """The lines; inputs whose making is not known are loaded from a file.

        If it is not written yet, a remark says how it is. Nothing loads what no file of arrays can hold.
        """
        lines, saved = list(self.imports), can_be_saved(self.unknown)
        if saved and not file:
            lines.append(f"# report.save_inputs({FILE!r}) writes {'; '.join(map(str, self.unknown))}")
        if saved:
            lines += ["import numpy", f"saved = numpy.load({file or FILE!r})"]
        for given in self.inputs:
            lines += given.made or (loaded(given) if saved else (f"# {given}: as it was given",))
        return "\n".join([*lines, self.call])

    @property
    def unknown(self) -> tuple[Input, ...]:
        """The inputs whose making is not known."""
        return tuple(given for given in self.inputs if not given.made)

    def save(self, path: Path) -> bool:
        """Save the inputs whose making is not known; False if there are none, or not all can be."""
        return save(self.unknown, path)


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
    written, functions = _Written(call, by_name), call.functions
    parts = [reached(function, name) for name, function in functions.items()]
    parts += [*written.arguments(), *options, *call.extra]
    line = _laid_out(f"covector.{call.verb}", parts) + remark(*functions.values())
    imports = dict.fromkeys(one for function in functions.values() for one in _imports(function))
    return Reproduction(tuple(imports), known_inputs(written.tensors), line)


class _Written:
    """The arguments of a call as Python, and the tensors that go by a name in it."""

    def __init__(self, call: Call, by_name: bool) -> None:
        self.call = call
        self.by_name = by_name
        self.tensors: dict[str, Tensor] = {}
        sizes = [t.shape.numel() for t in _tensors((call.args, call.kwargs))]
        self.few = sum(sizes) <= _FEW

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

    def of(self, value: Any, name: str) -> str:
        """One value: written out, or a name for it."""
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        if self.by_name:
            return name
        if callable(value) and not isinstance(value, Tensor):
            return reached(value, name)
        if type(value) in (list, tuple):
            inside = ", ".join(self.of(item, f"{name}_{i}") for i, item in enumerate(value))
            return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
        if type(value) is dict and all(isinstance(key, str) for key in value):
            inside = ", ".join(f"{key!r}: {self.of(item, f'{name}_{key}')}" for key, item in value.items())
            return "{" + inside + "}"
        name = re.sub(r"\W", "_", name)
        if type(value) is not Tensor:
            return name
        if self.few and _plain(value):
            grad = ", requires_grad=True" if value.requires_grad else ""
            return f"torch.tensor({value.tolist()!r}, dtype={value.dtype}{grad})"
        self.tensors[name] = value
        return name


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors of plain containers."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [t for item in tree for t in _tensors(item)] if isinstance(tree, list | tuple) else []


def _imports(function: Callable[..., Any]) -> tuple[str, ...]:
    """What has to be imported, where the function can be: from torch, or from a module of the caller's.

    Functions of a script or a session, and those made inside of others, are pasted where they are.
    """
    if reached(function).startswith("torch."):
        return ("import torch, covector",)
    owner = getattr(function, "__self__", None)
    target = owner if isinstance(owner, type) else function
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if module in (None, "__main__", "builtins") or not name.isidentifier():
        return ()
    if getattr(sys.modules.get(module), name, None) is not target or not _importable(module):
        return ()
    return ("import torch, covector", f"from {module} import {name}")


def _importable(module: str) -> bool:
    """Whether a name of a module is one that an import statement takes."""
    return all(part.isidentifier() for part in module.split("."))


def remark(*functions: Callable[..., Any]) -> str:
    """Where functions stand that have no name."""
    codes = [f.__code__ for f in functions if hasattr(f, "__code__") and not f.__name__.isidentifier()]
    places = [f"the lambda of line {code.co_firstlineno} in {Path(code.co_filename).name}" for code in codes]
    return f"  # {', '.join(dict.fromkeys(places))}" if places else ""


def reached(function: Callable[..., Any], nameless: str = "function") -> str:
    """How the function is reached: torch's own from torch, a lambda by a name that it has not."""
    name = getattr(function, "__name__", "")
    for module, prefix in ((torch, "torch"), (torch.nn.functional, "torch.nn.functional")):
        if name and getattr(module, name, None) is function:
            return f"{prefix}.{name}"
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return f"{owner.__name__}.{name}"
    if isinstance(function, torch.nn.Module):
        return "module"
    return name if name.isidentifier() else nameless


def _plain(value: Tensor) -> bool:
    """Whether a tensor can be written out: numbers, dtype and shape are all there is to it."""
    return (
        is_strided(value)
        and value.device.type == "cpu"
        and value.is_contiguous()
        and value.numel() > 0
        and not value.is_conj()
        and bool(value.isfinite().all())
    )


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
