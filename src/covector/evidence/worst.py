"""The entries to show of a failed check: the worst there are, once both Jacobians are known."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from covector.evidence.evidence import Evidence
from covector.evidence.jacobians import Jacobians
from covector.verify.finding import KINK, NAMED, OUTSIDE, Finding, Outcome


def worst(evidence: Evidence) -> Finding:
    """The finding with the largest errors, and how many entries differ, of those that were looked at."""
    found, problem = evidence.finding, evidence.run.problem
    if not evidence.steady or not _concerns_entries(found) or not evidence.has_wrong_entries:
        return found
    jacobians = evidence.jacobians
    # With kinks="pass", a kink still disagrees with a difference.
    if jacobians is None or evidence.run.options.tol.kinks == "pass":
        return found
    rows, columns = (
        {number: place for place, number in enumerate(numbers.tolist())}
        for numbers in (jacobians.row_numbers, jacobians.column_numbers)
    )
    judged = {(rows.get(m.row), columns.get(m.column)): m for m in found.mismatches}
    if any(None in place for place in judged):  # beside the sample
        return found
    bad = jacobians.bad.clone()
    for place in judged:
        bad[place] = True
    count, every = int(bad.sum()), bad.shape == problem.shape and not bool((jacobians.doubtful & ~bad).any())
    size = _size(jacobians, bad)
    order = size.flatten().argsort(descending=True, stable=True)[: min(NAMED, count)]
    places = [divmod(place, bad.shape[1]) for place in order.tolist()]
    if judged.keys().isdisjoint(places):  # what decided has to be shown, whatever a single difference says
        places[-1] = max(judged, key=lambda place: float(size[place]))
    shown = tuple(judged[place] if place in judged else jacobians.mismatch(*place) for place in places)
    height, width = problem.shape
    return replace(found, mismatches=shown, count=count, entries=height * width, counted=every)


def _concerns_entries(found: Finding) -> bool:
    """Whether entries are wrong, not the point."""
    if found.outcome is not Outcome.FAILED or any(m.row < 0 for m in found.mismatches):
        return False
    notes = [m.note for m in found.mismatches]
    outside = any(note.startswith(OUTSIDE) for note in notes)
    return not outside and not all(note.startswith(KINK) for note in notes)


def _size(jacobians: Jacobians, bad: Tensor) -> Tensor:
    """The errors of the wrong entries, to six digits: the noise of differences is not to order them."""
    mantissa, exponent = jacobians.error.nan_to_num(torch.inf, torch.inf).frexp()
    rounded = torch.ldexp((mantissa * 2**20).round(), exponent - 20)
    return torch.where(bad, rounded, -1.0)
