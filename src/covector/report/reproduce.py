"""A call that makes the same check again, as Python that can be pasted."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covector._chart import is_strided
from covector._tree import parameter_names
from covector.verify.run import Options
from covector.verify.tolerance import Tolerance

_WIDTH = 96

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


def code(call: Call, options: Options, *, by_name: bool = False) -> str:
    """The call; tensors that are few and small are written out, the others have their parameters' names."""
    names = parameter_names(call.function)
    sizes = [value.numel() for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
    by_name = by_name or sum(sizes) > _FEW
    given = [
        _written(value, names[i] if i < len(names) else f"arg{i}", by_name)
        for i, value in enumerate(call.args)
    ]
    inputs = ", ".join(given)
    if len(given) != 1 or not isinstance(call.args[0], Tensor):
        inputs = f"({inputs}{',' if len(given) == 1 else ''})"
    parts = [_function(call.function), inputs]
    if call.kwargs:
        inside = ", ".join(f"{k!r}: {_written(v, k, by_name)}" for k, v in call.kwargs.items())
        parts.append("{" + inside + "}")
    for name, read in _KEYWORDS[call.verb]:
        if (value := read(options)) != read(_DEFAULTS) or name == "seed":
            parts.append(f"{name}={value!r}")
    return _laid_out(f"covector.{call.verb}", [*parts, *call.extra]) + _remark(call.function)


def _remark(function: Callable[..., Any]) -> str:
    """Where a function stands that has no name."""
    place = getattr(function, "__code__", None)
    if place is None or function.__name__.isidentifier():
        return ""
    return f"  # the lambda of line {place.co_firstlineno} in {Path(place.co_filename).name}"


def _function(function: Callable[..., Any]) -> str:
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
    return name if name.isidentifier() else "function"


def _written(value: Any, name: str, by_name: bool) -> str:
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if by_name or type(value) is not Tensor or not _plain(value):
        return name
    grad = ", requires_grad=True" if value.requires_grad else ""
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype}{grad})"


def _plain(value: Tensor) -> bool:
    """Whether numbers, dtype and shape are all there is to a tensor."""
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
