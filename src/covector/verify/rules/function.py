"""What is the matter with the function or the point rather than with a formula: state, precision, kinks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from covector._chart import values_of
from covector.verify.maps import ReverseMap
from covector.verify.rules.found import Found
from covector.verify.suspects import Case, Suspect, listed

_COARSE = ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"), (torch.float32, "float32"))


def stale(case: Case) -> Iterator[Found]:
    """The pullback of one run of the function changes when the function is run elsewhere."""
    d = case.derivatives
    if case.mode != "reverse mode" or d.problem.closes_over:
        return
    run = ReverseMap(d.problem, d.problem.fresh())
    before, again = (d.filled(run.pull(d.cotangents)) for _ in range(2))
    if not torch.equal(before, again):
        return
    d.problem.values((d.problem.point + 0.5 * d.problem.steps.tensor(1.0))[None], batch=False)
    if not torch.equal(before, d.filled(run.pull(d.cotangents))):
        text = f"{case.rule} uses a value of another call: it changes when the function is run elsewhere"
        yield Found(text, 0.98)


def changed(case: Case) -> Iterator[Found]:
    """The backward writes into the cotangent that it is given, which belongs to others."""
    d = case.derivatives
    if case.mode != "reverse mode":
        return
    given = d.problem.outputs.from_coords(torch.ones(d.problem.outputs.size, dtype=torch.float64))
    before = [values_of(cotangent).clone() for cotangent in given]
    ReverseMap(d.problem).pull(given)
    after = [values_of(cotangent) for cotangent in given]
    names = d.problem.output_names
    wrong = [n for n, a, b in zip(names, before, after, strict=True) if not torch.equal(a, b)]
    if wrong:
        named = listed([f"`{name}`" for name in wrong])
        yield Found(f"{case.rule} changes the cotangent of {named} in place", 0.99)


def precision(case: Case) -> Iterator[Found]:
    """Errors of the size of rounding in less than double precision."""
    if case.derivatives.problem.low_precision:
        return
    for s in case.suspects:
        if int(s.support.sum()) > 2 and not bool((s.bad & ~s.support).any()):
            yield from _rounded(s, case.noun)


def _rounded(s: Suspect, noun: str) -> Iterator[Found]:
    off = (s.analytic - s.numeric)[s.support]
    relative = (off / s.numeric[s.support]).abs()
    largest = float(relative.max())
    for dtype, name in _COARSE:
        eps = torch.finfo(dtype).eps
        exact = bool((s.analytic == s.analytic.to(dtype).to(torch.float64)).all())
        if exact and eps / 64 < largest <= 2 * eps:
            text = f"the {noun} for {{where}} was rounded to {name}: its entries are {name} numbers"
            yield Found(f"{text}, off by up to {largest:.0e} of themselves", 0.97, s.where)
            return
    both = bool((off > 0).any()) and bool((off < 0).any())
    if both and 1e-9 < largest <= 1e-5 and float(relative.median()) > largest / 1e3:
        text = (
            f"the error for {{where}} is of the order of float32 rounding: up to {largest:.0e} of the values"
        )
        yield Found(f"{text}, of both signs", 0.75, s.where)


def kink(case: Case) -> Iterator[Found]:
    """The one-sided slopes differ."""
    notes = [m.note for m in case.finding.mismatches]
    if notes and all(note.startswith("not differentiable") for note in notes):
        text = "the slopes on the two sides of the point differ, the analytic value lies between them"
        yield Found(text, 0.99)


def domain(case: Case) -> Iterator[Found]:
    """The function is not finite around the point."""
    if any(m.note.startswith("outside the domain") for m in case.finding.mismatches):
        yield Found("the function is not finite on some side of the point", 0.99)


def noise(case: Case) -> Iterator[Found]:
    """Differences cannot tell."""
    hidden = [m for m in case.finding.mismatches if m.note.startswith("the noise of the difference")]
    if hidden:
        worst = max(hidden, key=lambda m: m.bound / m.allowed if m.allowed else m.bound)
        known = f"differences are known to {worst.bound:.0e} only"
        yield Found(f"{known}, the tolerance asks for {worst.allowed:.0e}", 0.99)
