"""Slopes with an error bound, from stencils of a few lengths.

A stencil holds f at x + j h for j = -3 ... 3. With c_j = (f(x + jh) - f(x - jh)) / 2jh, the slope is (4 c_1
- c_2) / 3 up to h^4 and (15 c_1 - 6 c_2 + c_3) / 10 up to h^6 (Richardson extrapolation): the second is the
estimate, and the difference of the two bounds its truncation error. The noise of f is what its differences
of order 4, 5 and 6 hold, because those of a smooth function vanish with h^4 (More and Wild, Estimating
computational noise, 2011); independent errors of size s make the k-th difference as large as s times the
root of the binomial coefficient (2k, k), and the slope wrong by 1.08 s / h. A kink at x fills these
differences too; third differences of either side do not see it, and so tell it from noise.

A function that is rounded, or that solves something to a tolerance, moves in steps. It shows its noise in
every stencil that is not straight. A straight one lies between two steps, or on a line by chance, for one
slope in six. So the noise of a straight stencil is the largest that it or a longer one shows, and it counts
against an analytic value only after a longer one was tried. Steps never look like a smooth curve, or like the
same line at two lengths of which one is many times the other (the slope of such a line is right to one in
384). Such stencils show all of their noise, and a longer one that shows more may contain a wave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, sqrt

import numpy as np

from covector._lazy import lazy
from covector.verify import constants
from covector.verify.options import Tolerance

# A function jumps if it moves, at so many lengths, by the same amount up to this share, which is so many
# times the rounding of its values.
_LENGTHS = 3
_ALIKE = 0.1
_ROUNDINGS = 1e3

_OF_SLOPE = sqrt(2 * (45**2 + 9**2 + 1)) / 60


@dataclass(frozen=True)
class Slopes:
    """The slopes of every output along one coordinate, from one stencil."""

    length: float
    central: np.ndarray
    """The central difference."""
    value: np.ndarray
    """Extrapolated."""
    truncation: np.ndarray
    level: np.ndarray
    """The size of the errors in the values."""
    left: np.ndarray
    right: np.ndarray
    left_level: np.ndarray
    right_level: np.ndarray
    curvature: np.ndarray
    """The size of errors that would make the second differences as large as they are."""
    some_finite: np.ndarray
    moved: np.ndarray
    """How far the function moved at most."""

    def _of_slope(self, level: np.ndarray) -> np.ndarray:
        """How far errors of this size put a slope off."""
        return constants.SIGMAS * _OF_SLOPE * level / self.length

    @lazy
    def noise(self) -> np.ndarray:
        """How far noise may put the values off."""
        return self._of_slope(self.level)

    @lazy
    def bound(self) -> np.ndarray:
        """How far the values may be off."""
        return self.truncation + self.noise

    @lazy
    def side_noise(self) -> np.ndarray:
        """The noise of the one-sided slopes."""
        return self._of_slope(np.maximum(self.left_level, self.right_level))

    @property
    def gap(self) -> np.ndarray:
        """How far the one-sided slopes are apart."""
        return abs(self.right - self.left)

    @lazy
    def bent(self) -> np.ndarray:
        """Where they are apart by more than the noise on either side explains."""
        size = abs(self.left) + abs(self.right)
        return (self.gap > 10 * self.side_noise + constants.CURVATURE * size) & (self.noise > self.side_noise)

    @lazy
    def straight(self) -> np.ndarray:
        """Where the values lie on a line, as far as noise tells; steps never look like a curve."""
        return ~(self.curvature > constants.SIGMAS * self.level)

    @lazy
    def resolves(self) -> np.ndarray:
        """Where the slope is larger than its bound."""
        return abs(self.value) > self.bound

    def level_for(self, one: Slopes) -> np.ndarray:
        """The noise that this stencil shows for a shorter, straight one.

        None where truncation dominates; that of one side alone where the shorter one continues that side.
        """
        level = np.where(self.noise >= self.truncation, self.level, 0.0)
        for side, continued in zip((self.left_level, self.right_level), self._continued_by(one), strict=True):
            level = np.where(continued, np.minimum(level, side), level)
        return np.where(np.isfinite(level), level, 0.0)

    def allows(self, one: Slopes, row: int) -> bool:
        """Whether a shorter stencil can be right, and continue one side."""
        return any(bool(continued[row]) for continued in self._continued_by(one))

    @np.errstate(all="ignore")
    def _continued_by(self, one: Slopes) -> tuple[np.ndarray, np.ndarray]:
        """Where the slope of a shorter stencil can be that on the left, and that on the right."""
        sides = (self.left, self.left_level), (self.right, self.right_level)
        left, right = (abs(one.value - side) <= one.bound + self._of_slope(level) for side, level in sides)
        return left, right

    @np.errstate(all="ignore")
    def is_line_of(self, other: Slopes) -> np.ndarray:
        """Where this stencil and a much longer or shorter one lie on the same line, which is not flat."""
        lines = self.straight & self.resolves & other.straight & other.resolves
        same = abs(self.value - other.value) <= self.bound + other.bound
        return lines & same & (self._is_much_shorter(other) or other._is_much_shorter(self))

    def _is_much_shorter(self, other: Slopes) -> bool:
        return other.length >= constants.SHORTER * self.length

    @np.errstate(all="ignore")
    def shares_side_with(self, other: Slopes) -> np.ndarray:
        """Where one side of both is the same line, up to curvature, and their noise is on the other side."""

        def same(mine: np.ndarray, level: np.ndarray, its: np.ndarray, its_level: np.ndarray) -> np.ndarray:
            quiet = constants.LOUDER * np.stack([level, its_level]) < [self.level, other.level]
            allowed = self._of_slope(level) + other._of_slope(its_level) + constants.CURVATURE * abs(its)
            return quiet.all(0) & (abs(mine - its) <= allowed)

        left = same(self.left, self.left_level, other.left, other.left_level)
        return left | same(self.right, self.right_level, other.right, other.right_level)

    def agrees(self, other: Slopes, row: int) -> bool:
        """Whether two stencils can both be right."""
        return bool(abs(self.value[row] - other.value[row]) <= self.bound[row] + other.bound[row])

    def proves(self, row: int, value: float, tol: Tolerance) -> bool:
        """Whether a derivative is as close as is allowed, and this slope known as well as that."""
        allowed = tol.allowed(float(self.value[row]))
        return bool(abs(value - self.value[row]) <= allowed and self.bound[row] <= allowed)

    def excludes(self, row: int, value: float, tol: Tolerance) -> bool:
        """Whether a derivative is further off than is allowed, however wrong this slope may be."""
        return bool(abs(value - self.value[row]) > tol.allowed(float(self.value[row])) + self.bound[row])


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
        left, right = (_typical(half_stencil, 3) for half_stencil in (stencil[:4], stencil[3:]))
        return Slopes(
            length,
            central[0],
            sixth,
            abs(sixth - fourth),
            np.maximum(rounding, np.where(alike, orders.max(0), orders[1:].min(0))),
            (stencil[3] - stencil[2]) / length,
            (stencil[4] - stencil[3]) / length,
            np.maximum(rounding, left),
            np.maximum(rounding, right),
            _typical(stencil, 2),
            np.isfinite(stencil[[0, 1, 2, 4, 5, 6]]).any(0),
            stencil.max(0) - stencil.min(0),
        )


def _typical(values: np.ndarray, order: int) -> np.ndarray:
    """The size of independent errors that would make differences of this order as large as they are."""
    return abs(np.diff(values, order, axis=0)).max(0) / sqrt(comb(2 * order, order))


@dataclass(frozen=True)
class Stencils:
    """The stencils that were taken along one coordinate, and what they tell together."""

    taken: tuple[Slopes, ...]
    shortest: float
    longest: float
    """The steps that may be taken."""

    @lazy
    def _shown(self) -> tuple[np.ndarray, ...]:
        """Where each shows a curve, or a line together with another one.

        No steps look like that.
        """
        return tuple(
            np.any([~one.straight, *(one.is_line_of(two) for two in self.taken)], axis=0)
            for one in self.taken
        )

    @lazy
    def heard(self) -> tuple[Slopes, ...]:
        """The stencils with their noise: if they show no shape, the largest that they or longer ones have."""
        return tuple(map(self._heard, self.taken, self._shown))

    def _heard(self, one: Slopes, shown: np.ndarray) -> Slopes:
        levels = [other.level_for(one) for other in self.taken if other.length > one.length]
        return replace(one, level=np.where(shown, one.level, np.max([one.level, *levels], axis=0)))

    def open_lines(self, row: int, analytic: float, tol: Tolerance) -> list[Slopes]:
        """Lines that would exclude a value, which no other stencil continues, or looked at much closer."""
        shortest = min(one.length for one in self.taken)
        return [
            one
            for one in self.taken
            if one.straight[row]
            and one.resolves[row]
            and one.excludes(row, analytic, tol)
            and shortest * constants.SHORTER > one.length
            and not any(one.agrees(other, row) for other in self.taken if other is not one)
        ]

    @property
    def _tried_longer(self) -> bool:
        first = self.taken[0].length
        return first >= self.longest or any(one.length > first for one in self.taken)

    def found_scale(self, row: int) -> bool:
        """Whether the last one shows a curve with much less noise than a longer one: that was a wave."""
        last = self.taken[-1]
        loudest = max(one.level[row] for one in self.taken if one.length >= last.length)
        return not last.straight[row] and bool(last.level[row] < loudest / constants.LOUDER)

    def noise_shrinks(self, row: int, tol: Tolerance) -> bool:
        """Whether the last one is shorter and much less noisy, but too noisy to tell.

        What shrinks with the step is no noise: kinks are within the stencil.
        """
        if len(self.taken) < 2:
            return False
        before, last = self.taken[-2:]
        shrunk = last.length < before.length and constants.LOUDER * last.level[row] < before.level[row]
        return bool(shrunk and last.noise[row] > tol.allowed(float(last.value[row])))

    def noise_is_beside(self, row: int) -> bool:
        """Whether the last two share one side and are noisy on the other: a jump or a kink is next to x."""
        return len(self.taken) > 1 and bool(self.taken[-1].shares_side_with(self.taken[-2])[row])

    def kept(self, row: int) -> list[Slopes]:
        """Those that no two shorter ones contradict: a longer one may have stepped over the function."""
        kept: list[Slopes] = []
        for one in sorted(self.heard, key=lambda s: s.length):
            if not np.isfinite(one.value[row]):
                continue
            sure = [other for other in kept if other.resolves[row]]
            pairs = ((a, b) for i, a in enumerate(sure) for b in sure[i + 1 :] if a.agrees(b, row))
            if not any(not one.agrees(a, row) and not one.agrees(b, row) for a, b in pairs):
                kept.append(one)
        return kept

    def proving(self, row: int, analytic: float, tol: Tolerance) -> list[Slopes]:
        """Those that prove a value right, where no shorter one that shows a curve excludes it.

        A flat one does if longer ones allow that the function is flat.
        """
        lengths = {one.length for one in self.kept(row)}
        curves = [one for one in self.taken if not one.straight[row]]
        nearest = min((one.length for one in curves if one.excludes(row, analytic, tol)), default=np.inf)
        right = [one for one in self.taken if one.length in lengths and one.proves(row, analytic, tol)]
        return [one for one in right if one.length < nearest and (one.resolves[row] or self._allow(one, row))]

    def _allow(self, one: Slopes, row: int) -> bool:
        longer = (other for other in self.taken if other.length > one.length)
        return all(other.allows(one, row) for other in longer if np.isfinite(other.value[row]))

    def excluding(self, row: int, analytic: float, tol: Tolerance) -> list[Slopes]:
        """Those that exclude a value."""
        pairs = zip(self.taken, self._shown, strict=True)
        lengths = {one.length for one, shown in pairs if shown[row] or self._tried_longer}
        known = (one for one in self.kept(row) if one.length in lengths)
        return [one for one in known if one.excludes(row, analytic, tol)]

    def disprove(self, row: int, analytic: float, tol: Tolerance) -> bool:
        """Whether two lengths agree with each other and both exclude a value, and one is within its reach."""
        sure, reach = self.excluding(row, analytic, tol), self.reach(row, analytic)
        if not any(one.length <= 2 * reach for one in sure):  # lengths are powers of two
            return False
        return any(one.agrees(two, row) for i, one in enumerate(sure) for two in sure[i + 1 :])

    def reach(self, row: int, analytic: float) -> float:
        """The length over which a function with this slope moves no further than this one was seen to.

        Longer stencils may have stepped over the function: a fast wave has no slope on the average.
        """
        moved = max((float(one.moved[row]) for one in self.taken if one.moved[row] >= 0), default=0.0)
        reach = moved / (4 * abs(analytic)) if analytic else np.inf
        # What moves by no more within so few of the shortest steps is rounding, which no stencil resolves.
        return reach if reach > constants.SHORTER**2 * self.shortest else np.inf

    def best(self, row: int, analytic: float, tol: Tolerance) -> Slopes | None:
        """The stencil that proves a value, or else the one that knows the slope best; None if none does."""
        usable = self.proving(row, analytic, tol) or self.kept(row)
        return min(usable, key=lambda one: one.bound[row], default=None)

    def kink(self, row: int) -> tuple[float, float] | None:
        """The slopes on the left and on the right, where the gap between them stays as the step shrinks."""
        by_length = sorted((s for s in self.taken if np.isfinite(s.gap[row])), key=lambda s: s.length)
        if len(by_length) < 2 or not by_length[0].bent[row] or not by_length[1].bent[row]:
            return None
        narrow, wide = float(by_length[0].gap[row]), float(by_length[1].gap[row])
        if not constants.GAP * wide < narrow < wide / constants.GAP:
            return None
        return float(by_length[0].left[row]), float(by_length[0].right[row])

    def jumps(self, row: int, rounding: float) -> bool:
        """Whether the values on both sides differ by as much at several lengths, far above rounding."""
        shortest = sorted(self.taken, key=lambda one: one.length)[:_LENGTHS]
        apart = np.array([2 * one.length * one.central[row] for one in shortest])
        if len(apart) < _LENGTHS or not np.isfinite(apart).all():
            return False
        size = abs(apart).max()
        return bool(np.ptp(apart) <= _ALIKE * size and size > _ROUNDINGS * rounding)
