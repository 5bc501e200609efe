"""The entries to show of a failed check: the worst there are, once both Jacobians are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from covector.verify.compare import judge, unit
from covector.verify.evidence import Evidence
from covector.verify.finding import Finding, Mismatch, Outcome
from covector.verify.forgiving import forgiving
from covector.verify.jacobians import Jacobians
from covector.verify.problem import Problem
from covector.verify.slopes import Slopes, slopes_along

# Of how many entries each of those shown is chosen; differences that mislead are left out.
_TRIED = 2


def worst(evidence: Evidence) -> Finding:
    """The finding with its largest errors, and how many entries differ if each of them was looked at."""
    found, problem = evidence.finding, evidence.derivatives.problem
    if not evidence.steady or not _concerns_entries(found) or not evidence.has_wrong_entries:
        return found
    jacobians = evidence.jacobians
    if jacobians is None or jacobians.bad.shape != (problem.outputs.size, problem.inputs.size):
        return found
    # The function may not let itself be run again; then those that the check came upon are shown.
    with forgiving():
        return _with_largest_errors(found, jacobians, problem, evidence.derivatives.options.tol.named)
    return found


def _with_largest_errors(found: Finding, jacobians: Jacobians, problem: Problem, named: int) -> Finding:
    known = {(m.row, m.column): m for m in found.mismatches}
    bad = jacobians.bad.clone()
    for place in known:
        bad[place] = True
    tried = list(_judged(jacobians, problem, bad, known, named))
    wrong = known | {(m.row, m.column): m for outcome, m in tried if outcome is Outcome.FAILED}
    size = _size(jacobians, bad)
    places = sorted(wrong, key=lambda place: (-float(size[place]), place))
    shown = tuple(wrong[place] for place in places[:named])
    # With kinks="pass", a kink still disagrees with a difference, so that entries cannot be counted by it.
    exact = all(outcome is Outcome.FAILED for outcome, _ in tried) and jacobians.tol.kinks == "fail"
    count = int(bad.sum()) if exact else max(found.count, len(shown))
    return replace(found, mismatches=shown, count=count, entries=bad.numel(), counted=exact)


def _concerns_entries(found: Finding) -> bool:
    """Whether entries are wrong, not the point."""
    if found.outcome is not Outcome.FAILED or any(m.row < 0 for m in found.mismatches):
        return False
    notes = [m.note for m in found.mismatches]
    outside = any(note.startswith("outside the domain") for note in notes)
    return not outside and not all(note.startswith("not differentiable") for note in notes)


def _judged(
    jacobians: Jacobians,
    problem: Problem,
    bad: Tensor,
    known: dict[tuple[int, int], Mismatch],
    named: int,
) -> Iterator[tuple[Outcome, Mismatch]]:
    """The verdict on the entries with the largest errors, until there are enough."""
    most = min(_TRIED * named, int(bad.sum()))
    order = _size(jacobians, bad).flatten().argsort(descending=True, stable=True)[:most]
    slopes: dict[int, Slopes] = {}
    failures = 0
    for row, column in (divmod(place, bad.shape[1]) for place in order.tolist()):
        if failures == named:
            return
        if (row, column) in known:
            outcome, mismatch = Outcome.FAILED, known[row, column]
        else:
            if column not in slopes:
                slopes[column] = slopes_along(problem, unit(problem.inputs.size, column))
            analytic = float(jacobians.analytic[row, column])
            outcome, mismatch = judge(problem, analytic, slopes[column], row, column, jacobians.tol)
        failures += outcome is Outcome.FAILED
        yield outcome, mismatch


def _size(jacobians: Jacobians, bad: Tensor) -> Tensor:
    """The errors of the wrong entries, to six digits: the noise of differences is not to order them."""
    mantissa, exponent = jacobians.error.nan_to_num(torch.inf, torch.inf).frexp()
    rounded = torch.ldexp((mantissa * 2**20).round(), exponent - 20)
    return torch.where(bad, rounded, -1.0)
