"""The judge of one entry: slopes with an error bound, from stencils of a few lengths.

A stencil holds f at x + j h for j = -3 ... 3. With c_j = (f(x + jh) - f(x - jh)) / 2jh, the slope is (4 c_1
- c_2) / 3 up to h^4 and (15 c_1 - 6 c_2 + c_3) / 10 up to h^6 (Richardson extrapolation): the second is the
estimate, and the difference of the two bounds its truncation error. The noise of f is what its differences
of order 4, 5 and 6 hold, because those of a smooth function vanish with h^4 (More and Wild, Estimating
computational noise, 2011); independent errors of size s make the k-th difference as large as s times the
root of the binomial coefficient (2k, k), and the slope wrong by 1.08 s / h. A kink at x fills these
differences too; third differences of either side do not see it, and so tell it from noise.

The first stencil has the length of the look. Where truncation dominates, the function is not defined, or it
seems to have a kink, the next one is shorter; where noise does, longer; else it is four times shorter, to
confirm. What is narrower than the stencil looks like noise, so before a longer stencil a shorter one is
tried: so short that the function moves no further than it was seen to, if the analytic value is right. If a
slope shows in it, that is the scale of the function. Where it does not, as between the steps of a solver
that stops at a tolerance, the short stencil tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, sqrt

import numpy as np

from covector.verify import constants
from covector.verify.finding import Entry, Mismatch, Outcome
from covector.verify.numeric import BudgetSpent, Numeric
from covector.verify.tolerance import Tolerance

_OF_SLOPE = sqrt(2 * (45**2 + 9**2 + 1)) / 60

OUTSIDE = "outside the domain"
NOT_FINITE = "the analytic value is not finite"
NOISY = "the noise of the difference exceeds the tolerance"
UNSETTLED = "differences of several lengths do not agree"
KINK = "not differentiable here"


@dataclass(frozen=True)
class Slopes:
    """The slopes of every output along one coordinate, from one stencil."""

    length: float
    central: np.ndarray
    """The central difference."""
    value: np.ndarray
    """Extrapolated."""
    truncation: np.ndarray
    noise: np.ndarray
    left: np.ndarray
    right: np.ndarray
    left_noise: np.ndarray
    right_noise: np.ndarray
    some_finite: np.ndarray
    moved: np.ndarray
    """How far the function moved at most."""

    @property
    def bound(self) -> np.ndarray:
        """How far the values may be off."""
        return self.truncation + self.noise

    @property
    def side_noise(self) -> np.ndarray:
        """The noise of the one-sided slopes."""
        return np.maximum(self.left_noise, self.right_noise)

    @property
    def gap(self) -> np.ndarray:
        """How far the one-sided slopes are apart."""
        return abs(self.right - self.left)

    @property
    def bent(self) -> np.ndarray:
        """Where they are apart by more than the noise on either side explains."""
        size = abs(self.left) + abs(self.right)
        return (self.gap > 10 * self.side_noise + 1e-3 * size) & (self.noise > self.side_noise)

    @property
    def resolves(self) -> np.ndarray:
        """Where the slope is larger than its bound."""
        return abs(self.value) > self.bound

    def agrees(self, other: Slopes, row: int) -> bool:
        """Whether two stencils can both be right."""
        return bool(abs(self.value[row] - other.value[row]) <= self.bound[row] + other.bound[row])

    def proves(self, row: int, value: float, tol: Tolerance) -> bool:
        """Whether a derivative is as close as is allowed, and this slope known as well as that."""
        allowed = tol.allowed(float(self.value[row]))
        return bool(abs(value - self.value[row]) <= allowed and self.bound[row] <= allowed)

    def excludes(self, row: int, value: float, allowed: float) -> bool:
        """Whether a derivative is further off than is allowed, however wrong this slope may be."""
        return bool(abs(value - self.value[row]) > allowed + self.bound[row])


def slopes_of(stencil: np.ndarray, length: float, rounding: np.ndarray) -> Slopes:
    """Slopes with their bounds from the values of a stencil."""
    with np.errstate(all="ignore"):
        half = stencil[4:] - stencil[2::-1]
        central = half / (2 * length * np.arange(1.0, 4.0)[:, None])
        fourth = (4 * central[0] - central[1]) / 3
        sixth = (15 * central[0] - 6 * central[1] + central[2]) / 10
        orders = np.stack([_typical(stencil, order) for order in (4, 5, 6)])
        # Of noise, all orders tell the same; of a smooth function they shrink, and the last ones count. Of
        # the steps of a solver the last order may vanish by chance.
        alike = orders[:2].max(0) <= 4 * orders[:2].min(0)
        level = np.maximum(rounding, np.where(alike, orders.max(0), orders[1:].min(0)))
        sides = (_typical(half_stencil, 3) for half_stencil in (stencil[:4], stencil[3:]))
        left, right = (np.maximum(rounding, side) for side in sides)
        return Slopes(
            length,
            central[0],
            sixth,
            abs(sixth - fourth),
            constants.SIGMAS * _OF_SLOPE * level / length,
            (stencil[3] - stencil[2]) / length,
            (stencil[4] - stencil[3]) / length,
            constants.SIGMAS * _OF_SLOPE * left / length,
            constants.SIGMAS * _OF_SLOPE * right / length,
            np.isfinite(stencil[[0, 1, 2, 4, 5, 6]]).any(0),
            stencil.max(0) - stencil.min(0),
        )


def _typical(values: np.ndarray, order: int) -> np.ndarray:
    """The size of independent errors that would make differences of this order as large as they are."""
    return abs(np.diff(values, order, axis=0)).max(0) / sqrt(comb(2 * order, order))


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
    slopes: tuple[Slopes, ...]
    length: float
    """A step at which the truncation error of a central difference is small; 0 if no stencil was usable."""
    noise: np.ndarray
    """The size of the errors in each output, as far as it was measured."""

    def best(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The slopes of all outputs and their bounds, at the length that suits this one the best."""
        kept = _uncontradicted([s for s in self.slopes if np.isfinite(s.value[row])], row)
        one = min(kept or self.slopes, key=lambda s: s.bound[row])
        return one.value, one.bound


def judge(
    numeric: Numeric,
    column: int,
    rows: Sequence[int],
    analytic: Sequence[float],
    tol: Tolerance,
    known: ColumnJudgement | None = None,
) -> ColumnJudgement:
    """Decide entries of one column; the lengths of the stencils are chosen for the first of them.

    Where the column was judged before, its slopes are known.
    """
    slopes: list[Slopes] = []
    pending = [] if known is None else list(known.slopes)
    lengths = _Lengths(numeric, column)
    while pending or len(slopes) < constants.STENCILS:
        if pending:
            slopes.append(pending.pop(0))
        else:
            try:
                stencil = numeric.stencil(column, lengths.next)
            except BudgetSpent:
                if not slopes:
                    raise
                break
            slopes.append(slopes_of(stencil, lengths.next, numeric.noise))
        if _settled(slopes, rows[0], analytic[0], tol):
            break
        if not lengths.follow(slopes, rows[0], analytic[0], tol):
            break
    slopes += pending
    numeric.truncation = max(numeric.truncation, _truncation(slopes, rows[0]))
    entries = tuple(
        decide_entry(numeric, slopes, row, column, value, tol)
        for row, value in zip(rows, analytic, strict=True)
    )
    length, noise = _plainest(slopes, rows[0], tol), _measured(slopes, numeric.noise)
    return ColumnJudgement(entries, tuple(slopes), length, noise)


def _plainest(slopes: list[Slopes], row: int, tol: Tolerance) -> float:
    """A length at which a central difference is as good as the extrapolated one here; 0 if there is none."""
    finite = _uncontradicted([s for s in slopes if np.isfinite(s.value[row])], row)
    if not finite:
        return 0.0
    best = min(finite, key=lambda s: s.bound[row])
    truncation = abs(best.central[row] - best.value[row])
    allowed = tol.allowed(best.value[row]) / 4
    # The truncation error of a central difference is in proportion to the square of the step.
    return best.length * (1.0 if truncation <= allowed else float(np.sqrt(allowed / truncation)))


def _truncation(slopes: list[Slopes], row: int) -> float:
    """How far off the central difference of the first stencil was, relative to the slope."""
    finite = _uncontradicted([s for s in slopes if np.isfinite(s.value[row])], row)
    if not finite:
        return 0.0
    value = min(finite, key=lambda s: s.bound[row]).value[row]
    off = abs(slopes[0].central[row] - value) / abs(value) if value else 0.0
    return float(min(off, 1.0)) if off == off else 0.0


def _measured(slopes: list[Slopes], rounding: np.ndarray) -> np.ndarray:
    """The largest noise that third differences of either side show; a kink at the point is not in them."""
    levels = [s.side_noise * s.length / (constants.SIGMAS * _OF_SLOPE) for s in slopes]
    finite = [np.where(np.isfinite(level), level, 0.0) for level in levels]
    return np.max([rounding, *finite], axis=0)


class _Lengths:
    """Which length comes next."""

    def __init__(self, numeric: Numeric, column: int) -> None:
        self._longest = constants.LONGEST_STEP * float(numeric.steps.scale[column])
        size = abs(float(numeric.problem.point[column]))
        # x + j h is exact for powers of two that are not lost in the last places of x.
        self._shortest = max(8 * numeric.problem.rounding * (size if size < np.inf else 0.0), 1e-300)
        # Next to zero, a function may change as fast as its argument does.
        self._beside_zero = size / 16 if size > 0 else np.inf
        self._tried: set[float] = set()
        self._tried_shorter = False
        self._loudest = 0.0
        self._widest: Slopes | None = None
        self.next = self._clamped(float(numeric.steps.array(numeric.eps)[column]))

    def _clamped(self, length: float) -> float:
        return float(2.0 ** round(np.log2(min(max(length, self._shortest), self._longest))))

    def follow(self, taken: Sequence[Slopes], row: int, analytic: float, tol: Tolerance) -> bool:
        """Choose the next length from what the last one gave; False if there is none left to try."""
        slopes = taken[-1]
        self._tried.add(slopes.length)
        quieter = self._is_quieter(slopes, row)
        value, truncation, noise = slopes.value[row], slopes.truncation[row], slopes.noise[row]
        allowed = tol.allowed(value) if np.isfinite(value) else 0.0
        noisy, steep = noise > allowed / 8, truncation > max(noise, allowed / 8)
        longer = self._longer(slopes, row, tol)
        if np.isfinite(value) and not _tells(slopes, taken, row, analytic):
            wanted = [longer]
        elif not np.isfinite(value) or steep or slopes.bent[row] or (noisy and not self._tried_shorter):
            self._tried_shorter = True
            reach = _reach(slopes, row, analytic)
            wanted = [min(slopes.length / constants.SHORTER, self._beside_zero, reach)]
            wanted += [longer] if noisy else []
        elif noisy and not (slopes.resolves[row] and quieter):
            wanted = [longer]
        else:
            wanted = [slopes.length / 4, slopes.length * 4]
        fresh = [length for length in map(self._clamped, wanted) if length not in self._tried]
        if fresh:
            self.next = fresh[0]
        return bool(fresh)

    def _longer(self, slopes: Slopes, row: int, tol: Tolerance) -> float:
        """The length at which noise leaves an eighth of what is allowed, as the longest stencil shows it."""
        if self._widest is None or slopes.length > self._widest.length:
            self._widest = slopes
        value, noise = self._widest.value[row], self._widest.noise[row]
        allowed = tol.allowed(value) if np.isfinite(value) else 0.0
        factor = min(constants.LONGER, max(4.0, 8 * noise / allowed)) if allowed else constants.LONGER
        return self._widest.length * factor

    def _is_quieter(self, slopes: Slopes, row: int) -> bool:
        """Whether a shorter stencil has much less noise: what filled the longer one is narrower than that."""
        level = slopes.noise[row] * slopes.length
        self._loudest = max(self._loudest, level)
        return bool(slopes.length < max(self._tried) and level < self._loudest / 8)


def _reach(slopes: Slopes, row: int, analytic: float) -> float:
    """The length over which a function with this slope moves no further than it was seen to."""
    moved = float(slopes.moved[row])
    reach = moved / (4 * abs(analytic)) if analytic else np.inf
    return reach if 0 < reach < np.inf else np.inf


def _settled(slopes: list[Slopes], row: int, analytic: float, tol: Tolerance) -> bool:
    """Whether the last stencil proves the entry right, or the last two prove it wrong."""
    last = slopes[-1]
    value, bound = last.value[row], last.bound[row]
    if not np.isfinite(value) or not _tells(last, slopes, row, analytic):
        return False
    if not np.isfinite(analytic):
        return True
    allowed = tol.allowed(value)
    if last.proves(row, analytic, tol):
        return True
    if len(slopes) > 2 and _kink(slopes, row) is not None:
        return True
    return (
        len(slopes) > 1 and bound <= allowed and _confirmed(_uncontradicted(slopes, row), row, analytic, tol)
    )


def _tells(one: Slopes, slopes: Sequence[Slopes], row: int, analytic: float) -> bool:
    """Whether a stencil tells anything.

    One that is shorter than the first and has much less noise has to show a slope, or that of one side of the
    first: it may lie between two steps of a solver that stops at a tolerance. To speak against the analytic
    value, that side has to be quiet.
    """
    first = slopes[0]
    if one.length >= first.length or one.resolves[row]:
        return True
    if one.noise[row] * one.length >= first.noise[row] * first.length / 8:
        return True
    agrees = abs(one.value[row] - analytic) <= one.bound[row]
    sides = ((first.left[row], first.left_noise[row]), (first.right[row], first.right_noise[row]))
    return any(
        (agrees or noise < first.noise[row] / 8) and abs(one.value[row] - side) <= one.bound[row] + noise
        for side, noise in sides
    )


def _uncontradicted(slopes: list[Slopes], row: int) -> list[Slopes]:
    """The stencils that no two shorter ones contradict: a longer one may have stepped over the function."""
    kept: list[Slopes] = []
    for one in sorted(slopes, key=lambda s: s.length):
        sure = [other for other in kept if other.resolves[row]]
        pairs = ((a, b) for i, a in enumerate(sure) for b in sure[i + 1 :] if a.agrees(b, row))
        if not any(not one.agrees(a, row) and not one.agrees(b, row) for a, b in pairs):
            kept.append(one)
    return kept


def _confirmed(slopes: list[Slopes], row: int, analytic: float, tol: Tolerance) -> bool:
    """Whether two lengths agree with each other and both exclude the analytic value."""
    sure = [s for s in slopes if s.excludes(row, analytic, tol.allowed(s.value[row]))]
    return any(one.agrees(two, row) for i, one in enumerate(sure) for two in sure[i + 1 :])


def decide_entry(
    numeric: Numeric, slopes: list[Slopes], row: int, column: int, analytic: float, tol: Tolerance
) -> Judgement:
    """What the slopes of several lengths say about one entry."""
    entry = _entry(numeric, row, column)
    finite = [s for s in slopes if np.isfinite(s.value[row]) and np.isfinite(s.bound[row])]
    finite = _uncontradicted([s for s in finite if _tells(s, slopes, row, analytic)] or finite, row)
    usable = finite or slopes
    right = [s for s in finite if s.proves(row, analytic, tol)]
    best = min(right or usable, key=lambda s: s.bound[row] if s.bound[row] == s.bound[row] else np.inf)
    value, bound = float(best.value[row]), float(best.bound[row])
    allowed = tol.allowed(value)
    mismatch = Mismatch(entry, analytic, value, bound, allowed, row=row, column=column)

    def outcome(which: Outcome, note: str = "", kink: bool = False) -> Judgement:
        return Judgement(which, replace(mismatch, note=note), kink)

    analytic_is_finite = abs(analytic) < float("inf")
    if not finite or (not analytic_is_finite and _undefined(slopes)):
        side = "on one side" if any(s.some_finite[row] for s in slopes) else "around this point"
        return outcome(Outcome.INCONCLUSIVE, f"{OUTSIDE} {side}{_raised(numeric)}")
    if best.proves(row, analytic, tol) or (analytic == value and best.moved[row] == 0):
        return outcome(Outcome.PASSED)
    if not analytic_is_finite:
        return outcome(Outcome.FAILED, NOT_FINITE)
    if (sides := _kink(slopes, row)) is not None:
        low, high = min(sides), max(sides)
        bound = float(min(s.side_noise[row] for s in finite))
        mismatch, slack = replace(mismatch, bound=bound), allowed + bound
        if low - slack <= analytic <= high + slack:
            note = (
                f"{KINK}; the analytic value lies between the one-sided slopes "
                f"{sides[0]:.4g} and {sides[1]:.4g}"
            )
            return outcome(Outcome.PASSED if tol.kinks == "pass" else Outcome.FAILED, note, kink=True)
        return outcome(Outcome.FAILED)
    if _confirmed(finite, row, analytic, tol):
        return outcome(Outcome.FAILED)
    return outcome(Outcome.INCONCLUSIVE, NOISY if bound > allowed else UNSETTLED)


def outside(numeric: Numeric, row: int, column: int, analytic: float) -> Judgement:
    """An entry of an output that is not finite at the point itself."""
    nan = float("nan")
    entry = _entry(numeric, row, column)
    return Judgement(
        Outcome.INCONCLUSIVE,
        Mismatch(entry, analytic, nan, nan, nan, f"{OUTSIDE} around this point", row, column),
    )


def _entry(numeric: Numeric, row: int, column: int) -> Entry:
    problem = numeric.problem
    return Entry(
        problem.outputs.label(row, problem.output_names), problem.inputs.label(column, problem.input_names)
    )


def _raised(numeric: Numeric) -> str:
    """What the function raised away from the point, if it did."""
    error = numeric.refusal
    return "" if error is None else f": the function raised {type(error).__name__}: {error}"


def _undefined(slopes: list[Slopes]) -> bool:
    """Whether some output is not finite on a side of the point, at every length."""
    return all(not bool(np.isfinite(s.value).all()) for s in slopes)


def _kink(slopes: Sequence[Slopes], row: int) -> tuple[float, float] | None:
    """The slopes on the left and on the right, where the gap between them stays as the step shrinks."""
    by_length = sorted((s for s in slopes if np.isfinite(s.gap[row])), key=lambda s: s.length)
    if len(by_length) < 2 or not by_length[0].bent[row] or not by_length[1].bent[row]:
        return None
    narrow, wide = float(by_length[0].gap[row]), float(by_length[1].gap[row])
    if not constants.GAP * wide < narrow < wide / constants.GAP:
        return None
    return float(by_length[0].left[row]), float(by_length[0].right[row])
