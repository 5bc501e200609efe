"""One tensor for another: a gradient that is zero, another input's, another output's, lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect, listed
from covector.evidence.cuts import Cut
from covector.evidence.evidence import NO_DERIVATIVE

# How many lines at which a derivative is lost are shown.
_LINES = 3

# What to look at where there are several.
_INTENDED = 'these lines; if they are intended, `stop_gradients="constant"` checks the rest'


def zero(case: Case) -> Iterator[Observation]:
    """Analytic = 0."""
    for s in case.suspects:
        if not s.analytic.any() and s.support.any() and not case.has_gradient(s):
            text = f"{case.rule} returns zero for {{where}}, the numeric {case.noun} is not zero"
            yield Observation(text, 0.95, s.where)


def cut(case: Case) -> Iterator[Observation]:
    """The derivative is lost on the way, at lines that are known."""
    lines, known = _lost(case)
    if lines and not any(line.is_saved for line in lines):
        agree = "are zero too" if case.evidence.mode == NO_DERIVATIVE else "agree with reverse mode"
        tested = f"; with what is cut held constant, differences {agree}" if known else ""
        look = "" if len(lines) == 1 else _INTENDED
        yield Observation(f"{shown(lines)}{tested}", 0.98 if known else 0.7, look=look)


def saved(case: Case) -> Iterator[Observation]:
    """A second derivative lacks the part through what the forward of a custom Function computes."""
    lines, _ = _lost(case)
    if inside := [str(line) for line in lines if line.is_saved]:
        uses = f"`backward` uses {listed(inside[:_LINES])}, which `forward` computes without a graph"
        also = "".join(f"; {line}" for line in lines if not line.is_saved)
        lacking = "it" if len(lines) == 1 else "these"
        text = f"{uses}{also}: the second derivative lacks the part through {lacking}, and nothing else"
        yield Observation(text, 0.98)


def _lost(case: Case) -> tuple[tuple[Cut, ...], bool | None]:
    """The lines at which the derivative is lost, and whether that is known to explain what it lacks."""
    if not case.evidence.has_wrong_entries or any(m.note for m in case.finding.mismatches):
        return (), None
    lines, known = case.evidence.cut_lines
    return ((), None) if known is False else (lines, known)


def shown(lines: Sequence[Cut]) -> str:
    """The first lines at which a derivative is lost, and how many more there are."""
    more = f" (and at {len(lines) - _LINES} other lines)" if len(lines) > _LINES else ""
    return f"{'; '.join(map(str, lines[:_LINES]))}{more}"


def _others(case: Case, s: Suspect) -> Iterator[tuple[str, Tensor, Tensor]]:
    """The other inputs of the same shape: name, analytic and numeric Jacobian on the suspect's rows."""
    both, mine = case.evidence.jacobians, s.inputs.parts[0]
    if both is None:
        return
    at = torch.isin(both.rows, s.outputs.coordinates)
    for part in both.inputs:
        if part.name != mine.name and part.place.real_shape == mine.place.real_shape:
            over = both.columns_of(part)
            if not s.inputs.has_indices_of(Side((part,), both.columns[over])):
                continue
            yield part.name, both.analytic[at][:, over], both.numeric[at][:, over]


def swapped(case: Case) -> Iterator[Observation]:
    """The gradients of two inputs stand in each other's place."""
    for s in case.suspects:
        for name, analytic, numeric in _others(case, s):
            if s.explains(numeric) and s.same(analytic, s.numeric):
                first, second = sorted([s.inputs.parts[0].name, name])
                text = f"{case.rule} has the {case.noun}s of `{first}` and `{second}` in each other's place"
                yield Observation(text, 0.98, s.where)


def another(case: Case) -> Iterator[Observation]:
    """The gradient for one input is that of another."""
    for s in case.suspects:
        for name, _, numeric in _others(case, s):
            if numeric.any() and s.explains(numeric):
                text = f"{case.rule} returns for {{where}} the {case.noun} with respect to `{name}`"
                yield Observation(text, 0.96, s.where)


def outputs_swapped(case: Case) -> Iterator[Observation]:
    """The cotangents of two outputs stand in each other's place."""
    for s in () if case.is_sampled else case.suspects:
        for i, first in enumerate(s.outputs.parts):
            for second in s.outputs.parts[i + 1 :]:
                if first.place.real_shape != second.place.real_shape:
                    continue
                order = _exchanged(s, first.place.start, second.place.start, first.place.stop)
                if s.explains(s.numeric[order]):
                    names = f"`{first.name}` and `{second.name}`"
                    text = f"{case.rule} has the cotangents of {names} in each other's place, for {{where}}"
                    yield Observation(text, 0.96, s.where)


def _exchanged(s: Suspect, first: int, second: int, stop: int) -> Tensor:
    """The rows of the suspect with those of two outputs exchanged."""
    size = stop - first
    wanted = s.outputs.coordinates.clone()
    mine = (wanted >= first) & (wanted < first + size)
    other = (wanted >= second) & (wanted < second + size)
    wanted[mine] += second - first
    wanted[other] -= second - first
    return torch.searchsorted(s.outputs.coordinates, wanted)


def ignored(case: Case) -> Iterator[Observation]:
    """The same gradient whatever the cotangent is."""
    if case.finding.check == "linearity":  # every entry is right: that of a cotangent of one
        if case.evidence.cotangent_is_ignored:
            yield Observation(f"{case.rule} returns the same {case.noun} for every cotangent", 0.98)
        return
    if case.evidence.pullback_of_zero is None:
        return
    for s in case.suspects:
        mine = case.gradient_of_zero(s)
        if mine is not None and mine.any() and s.explains(mine.expand_as(s.analytic)):
            text = f"{case.rule} returns the same {case.noun} for {{where}} for every cotangent"
            yield Observation(text, 0.98, s.where)
