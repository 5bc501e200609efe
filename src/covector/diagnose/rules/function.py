"""What is the matter with the function or the point rather than with a formula: state, precision, kinks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Suspect, listed
from covector.evidence.evidence import COARSE
from covector.verify.finding import JUMP, KINK, NOISY, OUTSIDE

# So many elements are named.
_FEW = 3


def stale(case: Case) -> Iterator[Observation]:
    """The pullback of one run of the function changes when the function is run elsewhere."""
    if case.evidence.gradient_changes_with_another_run:
        text = f"{case.rule} uses a value of another call: it changes when the function is run elsewhere"
        yield Observation(text, 0.98)


def changed(case: Case) -> Iterator[Observation]:
    """The backward writes into the cotangent that it is given, which belongs to others."""
    if names := case.evidence.overwritten_cotangents:
        named = listed([f"`{name}`" for name in names])
        yield Observation(f"{case.rule} changes the cotangent of {named} in place", 0.99)


def rounded(case: Case) -> Iterator[Observation]:
    """The gradient of any cotangent has the numbers of a smaller dtype."""
    if not case.evidence.has_wrong_entries and (dtype := case.evidence.rounded_to) is not None:
        name = torch.finfo(dtype).dtype
        text = f"{case.rule} computes in {name}: the gradient of a random cotangent is made of {name} numbers"
        yield Observation(text, 0.97)


def precision(case: Case) -> Iterator[Observation]:
    """Errors of the size of rounding in less than double precision."""
    if case.evidence.is_low_precision:
        return
    for s in case.suspects:
        if int(s.support.sum()) > 2 and not bool((s.bad & ~s.support).any()):
            yield from _rounded(s, case.noun)


def _rounded(s: Suspect, noun: str) -> Iterator[Observation]:
    off = (s.analytic - s.numeric)[s.support]
    relative = (off / s.numeric[s.support]).abs()
    largest = float(relative.max())
    for dtype in COARSE:
        eps, name = torch.finfo(dtype).eps, torch.finfo(dtype).dtype
        exact = bool((s.analytic == s.analytic.to(dtype).to(torch.float64)).all())
        if exact and eps / 64 < largest <= 2 * eps:
            text = f"the {noun} for {{where}} was rounded to {name}: its entries are {name} numbers"
            yield Observation(f"{text}, off by up to {largest:.0e} of themselves", 0.97, s.where)
            return
    both = bool((off > 0).any()) and bool((off < 0).any())
    if both and 1e-9 < largest <= 1e-5 and float(relative.median()) > largest / 1e3:
        text = (
            f"the error for {{where}} is of the order of float32 rounding: up to {largest:.0e} of the values"
        )
        yield Observation(f"{text}, of both signs", 0.75, s.where)


def not_finite(case: Case) -> Iterator[Observation]:
    """The gradient is infinite or NaN where the derivative is finite."""
    for s in () if _is_outside(case) else case.suspects:
        wrong = s.bad & ~s.analytic.isfinite()
        if not bool(wrong.any()):
            continue
        value = "nan" if bool(s.analytic[wrong].isnan().any()) else "infinite values"
        part, columns = s.inputs.parts[0], wrong.any(0).nonzero().flatten().tolist()
        named = [f"`{part.label(int(s.inputs.coordinates[at]) - part.place.start)}`" for at in columns[:_FEW]]
        if len(columns) > _FEW:
            named.append(f"{len(columns) - _FEW} others")
        text = f"{case.rule} gives {value} for {{where}}, at {listed(named)}; differences are finite there"
        yield Observation(text, 0.97, s.where, explained=int(wrong.sum()))


def kink(case: Case) -> Iterator[Observation]:
    """The one-sided slopes differ."""
    notes = [m.note for m in case.finding.mismatches]
    if notes and all(note.startswith(KINK) for note in notes):
        text = "the slopes on the two sides of the point differ, the analytic value lies between them"
        yield Observation(text, 0.99)


def jump(case: Case) -> Iterator[Observation]:
    """The values on both sides of the point differ, however near they are."""
    if any(m.note.startswith(JUMP) for m in case.finding.mismatches):
        yield Observation("the values on the two sides of the point differ by as much at every length", 0.99)


def _is_outside(case: Case) -> bool:
    return any(m.note.startswith(OUTSIDE) for m in case.finding.mismatches)


def domain(case: Case) -> Iterator[Observation]:
    """The function is not finite around the point."""
    if _is_outside(case):
        here = bool(np.isfinite(case.evidence.run.problem.value).all())
        where = "on some side of the point" if here else "at the point itself"
        yield Observation(f"the function is not finite {where}", 0.99)


def noise(case: Case) -> Iterator[Observation]:
    """Differences cannot tell."""
    hidden = [m for m in case.finding.mismatches if m.note.startswith(NOISY)]
    if hidden:
        worst = max(hidden, key=lambda m: m.bound / m.allowed if m.allowed else m.bound)
        known = f"differences are known to {worst.bound:.0e} only"
        yield Observation(f"{known}, the tolerance asks for {worst.allowed:.0e}", 0.99)
