"""A derivative in low precision: what it is held against, and how far rounding may put it off.

If the function takes double precision, its derivative is checked there, and the one in low precision is held
against that, entry by entry. Of many columns, it is held along the random cotangents first, if these are
known to the tolerance, and entry by entry in the columns that differ there. Beyond the tolerance an entry may
be off by its own rounding error, which is measured: the function and its derivative are run a few times more
with every operation rounded at random.

That the function is the same in double precision is an assumption, and is tested: its values have to agree
at the point to within the same kind of noise, and where the derivatives differ, away from it too. If they do
not, the function is differenced in the precision that it was given in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from covector._engine.levels import GradMode
from covector._engine.rounding import RandomRounding
from covector.verify import constants
from covector.verify.finding import NAMED, Mismatch, Outcome
from covector.verify.forward import ForwardMap
from covector.verify.options import Tolerance
from covector.verify.problem import Problem
from covector.verify.record import Verdict
from covector.verify.reverse import ReverseMap
from covector.verify.vectors import weights

Map = ReverseMap | ForwardMap

# The spread of `ROUNDED_RUNS` runs is smaller by this factor once in four million times.
_BY_CHANCE = 16.0


class Rounding:
    """The rounding errors of a function in low precision and of its derivative, measured."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem, self._seed = problem, seed

    def of_columns(self, analytic: Map, columns: np.ndarray) -> np.ndarray:
        """How far rounding may put the entries of some columns off."""
        plain = analytic.columns(columns)
        spread = self._spread(analytic, plain, lambda fresh: fresh.unchecked_columns(columns))
        return constants.SIGMAS * self._at_least(spread, plain)

    def of_rows(self, analytic: ReverseMap, rows: np.ndarray) -> np.ndarray:
        """How far rounding may put the entries of some rows off."""
        plain = analytic.rows(rows)
        spread = self._spread(analytic, plain, lambda fresh: fresh.rows(rows))
        return constants.SIGMAS * self._at_least(spread, plain)

    def of_mixed(self, analytic: Map) -> np.ndarray:
        """How far rounding may put the pullbacks of the random cotangents off."""
        spread = self._spread(analytic, analytic.mixed, lambda fresh: fresh.mixed)
        rows = [self._at_least(row, numbers) for row, numbers in zip(spread, analytic.mixed, strict=True)]
        return constants.FEW_ULPS * np.stack(rows)

    def explains_value(self, point: np.ndarray, value: np.ndarray, off: np.ndarray) -> bool:
        """Whether rounding alone may put the outputs at a point off by this; by as few runs as tell."""
        squares = np.zeros(value.shape)
        for count in range(1, constants.ROUNDED_RUNS + 1):
            with RandomRounding(self._seed + count - 1):
                squares += np.nan_to_num(np.square(self._problem.evaluate(point) - value))
            noise = self._at_least(np.sqrt(squares / count), value)
            if not (off > constants.FEW_ULPS * noise).any():
                return True
        return False

    def explains_sums(self, analytic: ReverseMap) -> bool:
        """Whether rounding alone keeps the rows of a derivative from adding up to its pullbacks."""
        with np.errstate(all="ignore"):
            missing = analytic.missing_from_sums()
            spread = self._spread(analytic, missing, lambda fresh: fresh.missing_from_sums())
            return not (abs(missing) > constants.SIGMAS * spread).any()

    def _spread(self, analytic: Map, plain: np.ndarray, again: Callable[[Any], np.ndarray]) -> np.ndarray:
        """How far numbers move when they are taken from runs with every operation rounded at random."""
        squares = np.zeros(plain.shape)
        for index in range(constants.ROUNDED_RUNS):
            with RandomRounding(self._seed + index) as mode:
                squares += np.nan_to_num(np.square(again(self._fresh(analytic, mode)) - plain))
        return np.sqrt(squares / constants.ROUNDED_RUNS)

    def _fresh(self, analytic: Map, mode: RandomRounding) -> Map:
        """The derivative by another run of the function."""
        if isinstance(analytic, ForwardMap):
            return ForwardMap(self._problem, self._seed, varied=analytic.varied)
        outputs = self._problem.fresh()
        mode.keep_to(self._problem.rounding)
        with GradMode(enabled=True):
            return ReverseMap(self._problem, self._seed, varied=analytic.varied, outputs=outputs)

    def _at_least(self, noise: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """A number is rounded when it is stored. Of many spreads of a few runs, some are small by chance.

        What is much smaller than the others is so by itself, and hides no error as large as theirs.
        """
        stored = self._problem.rounding * np.nan_to_num(abs(numbers), posinf=0.0)
        some = noise[noise > 0]
        usual = np.minimum(np.median(some) if some.size else 0.0, _BY_CHANCE * noise)
        return np.maximum(np.maximum(noise, stored), usual)


def same_at_the_point(low: Problem, high: Problem, rounding: Rounding) -> bool:
    """Whether two functions have the same value at the point, as far as the rounding of one tells.

    A few units in the last place of an output, or of the median one, are rounding; of more, it is measured.
    """
    with np.errstate(all="ignore"):
        off, size = abs(low.value - high.value), abs(low.value)
        size = np.where(size < np.inf, size, 0.0)
        middle = size.size // 2
        usual = np.partition(size, middle)[middle] if size.size else 0.0
        if not (off > constants.FEW_ULPS * low.rounding * np.maximum(size, usual)).any():
            return True
        return rounding.explains_value(low.point, low.value, off)


def same_elsewhere(low: Problem, high: Problem, rounding: Rounding, seed: int) -> bool:
    """The same away from the point: functions with another slope have other values there."""
    along = weights(low.inputs.size, seed).numpy()
    for share in constants.FAR_SHARES:
        point = low.stored(low.point * (1 + share * along))
        try:
            value = low.evaluate(point)
            with np.errstate(all="ignore"):
                if not rounding.explains_value(point, value, abs(value - high.evaluate(point))):
                    return False
        except Exception as error:  # outside of the domain of either, which tells nothing
            if error is not low.raised and error is not high.raised:
                raise
            low.raised = high.raised = None
    return True


class Differing(NamedTuple):
    """Where a derivative in low precision is not the precise one, and how far the rest may be off."""

    mismatches: tuple[Mismatch, ...] = ()
    found: int = 0
    visible: float = 0.0

    def added_to(self, verdict: Verdict) -> Verdict:
        """The verdict on the precise derivative, with this."""
        if not self.mismatches:
            return replace(verdict, visible=max(verdict.visible, self.visible))
        cut_short = self.found > len(self.mismatches)
        return replace(verdict, outcome=Outcome.FAILED, mismatches=self.mismatches, cut_short=cut_short)


def differences_of(low: Map, high: Map, tol: Tolerance, rounding: Rounding) -> Differing:
    """Where the derivative in low precision is off by more than the tolerance and its own rounding error."""
    off, share = abs(low.mixed - high.mixed), constants.HIDDEN_SHARE * tol.atol
    if (off <= share).all():
        return Differing(visible=share)
    height, width = low.problem.shape
    columns = np.arange(width)
    if width > constants.WHOLE_COLUMNS:
        noise = rounding.of_mixed(low)
        known = np.median(noise) <= tol.atol + tol.rtol * np.median(abs(high.mixed))
        if not known and isinstance(low, ReverseMap) and isinstance(high, ReverseMap):
            return _by_rows(low, high, tol, rounding)
        with np.errstate(all="ignore"):
            excess = np.nan_to_num(off - (share + noise), nan=np.inf).max(0)
        if (excess <= 0).all():
            return Differing(visible=share + float(noise.max(initial=0.0)))
        columns = np.sort(np.argsort(-excess, kind="stable")[: constants.WHOLE_COLUMNS])
    block = _Block(np.arange(height), columns, low.columns(columns), high.columns(columns), tol)
    if (places := np.flatnonzero(block.bad.any(0))).size:
        block.noise[:, places] = rounding.of_columns(low, columns[places])
    return block.differing(low.problem)


def _by_rows(low: ReverseMap, high: ReverseMap, tol: Tolerance, rounding: Rounding) -> Differing:
    """The same by whole rows, as many at a time as memory allows."""
    height, width = low.problem.shape
    size = max(1, constants.BATCH_BYTES // (8 * constants.COPIES * width))
    shown: list[Mismatch] = []
    found, visible = 0, 0.0
    for start in range(0, height, size):
        rows = np.arange(start, min(start + size, height))
        block = _Block(rows, np.arange(width), low.rows(rows), high.rows(rows), tol)
        if (places := np.flatnonzero(block.bad.any(1))).size:
            block.noise[places] = rounding.of_rows(low, rows[places])
        part = block.differing(low.problem)
        shown += part.mismatches
        found, visible = found + part.found, max(visible, part.visible)
    shown.sort(key=lambda m: -np.nan_to_num(m.error, nan=np.inf))
    return Differing(tuple(shown[:NAMED]), found, visible)


class _Block:
    """Entries of both derivatives, and the rounding error of those that differ by more than the tolerance."""

    def __init__(
        self, rows: np.ndarray, columns: np.ndarray, got: np.ndarray, expected: np.ndarray, tol: Tolerance
    ) -> None:
        self._rows, self._columns, self._got, self._expected = rows, columns, got, expected
        self._allowed = tol.atol + tol.rtol * abs(expected)
        self.noise = np.zeros(got.shape)

    @property
    def bad(self) -> np.ndarray:
        """Which differ by more than is allowed; what is not finite in both does not."""
        got, expected = self._got, self._expected
        with np.errstate(all="ignore"):
            wrong = ~(abs(got - expected) <= self._allowed + self.noise) & (got != expected)
        return wrong & ~(np.isnan(got) & np.isnan(expected))

    def differing(self, problem: Problem) -> Differing:
        """The worst of them, and how far the rest may be off."""
        rows, at = np.nonzero(self.bad)
        allowed = self._allowed + self.noise
        with np.errstate(all="ignore"):
            error = np.nan_to_num(abs(self._got - self._expected), nan=np.inf)
        shown = []
        for place in np.argsort(-error[rows, at], kind="stable")[:NAMED]:
            where = rows[place], at[place]
            row, column = int(self._rows[where[0]]), int(self._columns[where[1]])
            a, n, bound, limit = (float(p[where]) for p in (self._got, self._expected, self.noise, allowed))
            shown.append(Mismatch(problem.entry(row, column), a, n, bound, limit, "", row, column))
        visible = float(np.where(np.isfinite(allowed), allowed, 0.0).max(initial=0.0))
        return Differing(tuple(shown), len(rows), visible)
