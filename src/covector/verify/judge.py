"""The judge of one entry: which stencils are taken, and what follows from them.

The first stencil has the usual length. The next one is shorter where truncation dominates, where the
function is not defined or seems to have a kink, and while the noise shrinks with the stencil. It is longer
where noise dominates. A stencil that excludes the analytic value is confirmed by one that is four times
shorter. A feature narrower than the stencil looks like noise, so a shorter stencil is tried before a longer
one: so short that a function with the analytic slope would move no further than this one was seen to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from covector.errors import described
from covector.verify import constants
from covector.verify.finding import JUMP, KINK, NOISY, NOT_FINITE, OUTSIDE, UNSETTLED, Mismatch, Outcome
from covector.verify.numeric import BudgetSpent, Numeric
from covector.verify.options import Tolerance
from covector.verify.slopes import Slopes, Stencils, slopes_of


@dataclass(frozen=True)
class Judgement:
    """What was decided about an entry."""

    outcome: Outcome
    mismatch: Mismatch
    kink: bool = False


@dataclass(frozen=True)
class ColumnJudgement:
    """What was decided about some entries of a column, worst first, and what was learnt of the function."""

    entries: tuple[Judgement, ...]
    stencils: Stencils
    best: Slopes | None
    """The stencil that knows the first entry best; None if none is usable."""
    length: float
    """A step with which a central difference is as good as the best stencil; 0 if there is none."""
    noise: np.ndarray
    """The size of the errors in each kept output, as the best stencil shows it; a kink is none."""
    kept: np.ndarray | slice
    """The outputs that the stencils hold: every one, or the numbers of some."""

    def holds(self, rows: Sequence[int]) -> bool:
        """Whether the stencils hold these outputs."""
        return isinstance(self.kept, slice) or bool(np.isin(rows, self.kept).all())


EVERY = slice(None)


def judge(
    numeric: Numeric,
    column: int,
    rows: Sequence[int],
    analytic: Sequence[float],
    tol: Tolerance,
    known: ColumnJudgement | None = None,
    first: float | None = None,
    kept: np.ndarray | slice = EVERY,
) -> ColumnJudgement:
    """Decide entries of one column; the lengths of the stencils are chosen for the first of them.

    Where the column was judged before, its stencils are known; `first` is the length of the first one, if
    not the usual one. Stencils hold the outputs that are `kept`, numbers in ascending order: a stencil of all
    of them is many times as large as an output, and most functions of many numbers move few along one.
    """
    if known is not None:
        known, kept = (known, known.kept) if known.holds(rows) else (None, EVERY)
    places = list(rows) if isinstance(kept, slice) else np.searchsorted(kept, rows).tolist()
    lengths, row, value = _Lengths(numeric, column, first), places[0], analytic[0]
    rounding = numeric.noise[kept]
    stencils = Stencils((), lengths.shortest, lengths.longest) if known is None else known.stencils
    while len(stencils.taken) < constants.STENCILS:
        length = lengths.after(stencils, row, value, tol)
        if length is None:
            break
        try:
            stencil = numeric.stencil(column, length, kept)
        except BudgetSpent:
            if not stencils.taken:
                raise
            break
        stencils = replace(stencils, taken=(*stencils.taken, slopes_of(stencil, length, rounding)))
    entries = tuple(
        decide_entry(numeric, stencils, place, (which, column), value, tol)
        for place, which, value in zip(places, rows, analytic, strict=True)
    )
    best = stencils.best(row, value, tol)
    if best is None:
        return ColumnJudgement(entries, stencils, None, 0.0, rounding, kept)
    slope = float(best.value[row])
    # The truncation error of a central difference is in proportion to the square of the step.
    truncation, allowed = abs(float(best.central[row]) - slope), tol.allowed(slope) / 4
    shorter = 1.0 if truncation <= allowed else float(np.sqrt(allowed / truncation))
    noise = np.minimum(best.level, np.maximum(best.left_level, best.right_level))
    return ColumnJudgement(entries, stencils, best, shorter * best.length, np.nan_to_num(noise), kept)


class _Lengths:
    """Which length comes next."""

    def __init__(self, numeric: Numeric, column: int, first: float | None) -> None:
        size = abs(float(numeric.problem.point[column]))
        # x + j h is exact for powers of two above the last places of x.
        self.shortest = max(8 * numeric.problem.rounding * (size if size < np.inf else 0.0), 1e-300)
        # Next to zero, a function may change as fast as its argument does.
        self._beside_zero = size / 16 if size > 0 else np.inf
        self.longest = np.inf
        scale = numeric.steps.scale_of(slice(column, column + 1)).item()
        self.longest = self._clamped(constants.LONGEST_STEP * scale)
        usual = float(numeric.steps.array(numeric.eps)[column])
        self._first = self._clamped(first or usual)

    def _clamped(self, length: float) -> float:
        return float(2.0 ** round(np.log2(min(max(length, self.shortest), self.longest))))

    def after(self, stencils: Stencils, row: int, analytic: float, tol: Tolerance) -> float | None:
        """The length after these; None if the entry is decided, or there is none left to try."""
        if not stencils.taken:
            return self._first
        if _settled(stencils, row, analytic, tol):
            return None
        tried = {one.length for one in stencils.taken}
        undefined = min((s.length for s in stencils.taken if not np.isfinite(s.value[row])), default=np.inf)
        wanted = map(self._clamped, self._wanted(stencils, row, analytic, tol))
        return next((length for length in wanted if length not in tried and length < undefined), None)

    def _wanted(self, stencils: Stencils, row: int, analytic: float, tol: Tolerance) -> list[float]:
        """Lengths to try, the best first."""
        last, longer = stencils.taken[-1], self._longer(stencils, row, tol)
        reach, ratio = stencils.reach(row, analytic), constants.NEXT_LENGTH
        shorter = min(last.length / constants.SHORTER, self._beside_zero, reach)
        lines = stencils.open_lines(row, analytic, tol)
        if lines and len(stencils.taken) > 1:
            return [lines[0].length / constants.SHORTER, longer]
        sure = [one for one in stencils.excluding(row, analytic, tol) if _is_known(one, row, tol)]
        if sure:
            return [min(sure[-1].length / ratio, sqrt(2) * reach), longer, sure[-1].length * ratio]
        if stencils.found_scale(row):
            return [last.length / ratio, last.length * ratio]
        allowed = constants.QUIET_SHARE * tol.allowed(float(last.value[row]))
        first_is_noisy = len(stencils.taken) == 1 and last.noise[row] > allowed
        steep = last.truncation[row] > max(last.noise[row], allowed)
        near = last.bent[row] or stencils.noise_is_beside(row) or stencils.noise_shrinks(row, tol)
        if not np.isfinite(last.value[row]) or steep or near or first_is_noisy:
            return [shorter, longer]
        return [longer, shorter]

    def _longer(self, stencils: Stencils, row: int, tol: Tolerance) -> float:
        """The length at which noise leaves enough of what is allowed, as the longest stencil shows it."""
        widest = max(stencils.taken, key=lambda one: one.length)
        noise = widest.noise[row]
        allowed = constants.QUIET_SHARE * tol.allowed(float(widest.value[row]))
        if noise <= allowed:
            return self.longest
        factor = noise / allowed if allowed > 0 else np.inf
        return widest.length * float(np.fmin(constants.SHORTER**2, np.fmax(constants.NEXT_LENGTH, factor)))


def _is_known(one: Slopes, row: int, tol: Tolerance) -> bool:
    """Whether a slope is known to within the tolerance."""
    return bool(one.bound[row] <= tol.allowed(float(one.value[row])))


def _settled(stencils: Stencils, row: int, analytic: float, tol: Tolerance) -> bool:
    """Whether no further stencil is needed."""
    last = stencils.taken[-1]
    if not np.isfinite(last.value[row]):
        return False
    if not np.isfinite(analytic):
        return True
    if stencils.open_lines(row, analytic, tol):
        return False
    if stencils.proving(row, analytic, tol):
        return True
    if len(stencils.taken) > 2 and stencils.kink(row) is not None:
        return True
    return not stencils.noise_shrinks(row, tol) and stencils.disprove(row, analytic, tol)


def decide_entry(
    numeric: Numeric, stencils: Stencils, row: int, entry: tuple[int, int], analytic: float, tol: Tolerance
) -> Judgement:
    """What stencils of several lengths say about one entry, which stands in this row of theirs."""
    best = stencils.best(row, analytic, tol)
    shown = best or stencils.taken[0]
    value, bound = float(shown.value[row]), float(shown.bound[row])
    allowed = tol.allowed(value)
    mismatch = Mismatch(numeric.problem.entry(*entry), analytic, value, bound, allowed, "", *entry)

    def outcome(which: Outcome, note: str = "", kink: bool = False) -> Judgement:
        return Judgement(which, replace(mismatch, note=note), kink)

    analytic_is_finite = abs(analytic) < float("inf")
    if best is None or (not analytic_is_finite and _undefined(stencils)):
        some_finite = any(one.some_finite[row] for one in stencils.taken)
        side = "on one side" if some_finite else "around this point"
        return outcome(Outcome.INCONCLUSIVE, f"{OUTSIDE} {side}{_raised(numeric)}")
    if best.proves(row, analytic, tol) or (analytic == value and best.moved[row] == 0):
        return outcome(Outcome.PASSED)
    if not np.isfinite(numeric.problem.point[entry[1]]):
        return outcome(Outcome.INCONCLUSIVE, f"{OUTSIDE}: the input is not finite there")
    if not analytic_is_finite:
        return outcome(Outcome.FAILED, NOT_FINITE)
    if (sides := stencils.kink(row)) is not None:
        low, high = min(sides), max(sides)
        bound = float(min(one.side_noise[row] for one in stencils.kept(row)))
        mismatch, slack = replace(mismatch, bound=bound), allowed + bound
        if low - slack <= analytic <= high + slack:
            note = (
                f"{KINK}; the analytic value lies between the one-sided slopes "
                f"{sides[0]:.4g} and {sides[1]:.4g}"
            )
            return outcome(Outcome.PASSED if tol.kinks == "pass" else Outcome.FAILED, note, kink=True)
        return outcome(Outcome.FAILED)
    if stencils.disprove(row, analytic, tol):
        return outcome(Outcome.FAILED)
    if bound <= allowed:
        return outcome(Outcome.INCONCLUSIVE, UNSETTLED)
    jumps = stencils.jumps(row, float(numeric.noise[entry[0]]))
    return outcome(Outcome.INCONCLUSIVE, JUMP if jumps else NOISY)


def outside(numeric: Numeric, row: int, column: int, analytic: float) -> Judgement:
    """An entry of an output that is not finite at the point itself."""
    nan = float("nan")
    entry = numeric.problem.entry(row, column)
    return Judgement(
        Outcome.INCONCLUSIVE,
        Mismatch(entry, analytic, nan, nan, nan, f"{OUTSIDE} around this point", row, column),
    )


def _raised(numeric: Numeric) -> str:
    """What the function raised away from the point, if it did."""
    error = numeric.refusal
    return "" if error is None else f": the function raised {described(error)}"


def _undefined(stencils: Stencils) -> bool:
    """Whether some output is not finite on a side of the point, at every length."""
    return all(not bool(np.isfinite(one.value).all()) for one in stencils.taken)
