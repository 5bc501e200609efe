"""One look: the differences along its directions against what the derivative says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import sqrt

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.looks import Look
from covector.verify.numeric import Numeric
from covector.verify.tolerance import Tolerance
from covector.verify.vectors import products

# By how much (8 a - b) / 6 is noisier than a and b, if these are independent and a is what is looked at.
_EXTRAPOLATED = sqrt(8**2 + 1) / 6

# What falls so many times by extrapolation is truncation error: a mistake stays, and of many kinks, whose
# errors grow with the square of the step, two thirds do.
_FALLS = 8.0


@dataclass(frozen=True)
class Compared:
    """Directions of a look with what was differenced along each; every array has a row for each of them."""

    look: Look
    length: float
    """Of the steps."""
    least: np.ndarray
    """The smallest step."""
    noise: np.ndarray
    """How far rounding may put an answer off."""
    expected: np.ndarray
    """What the derivative says, for each cotangent."""
    differences: np.ndarray
    off: np.ndarray
    """How far differences and the derivative are apart, for each cotangent."""

    def __len__(self) -> int:
        return len(self.look)

    def part(self, some: np.ndarray | slice) -> Compared:
        """Some of the directions."""
        arrays = {name: getattr(self, name)[some] for name in _ARRAYS}
        return replace(self, look=self.look.part(some), **arrays)

    def hidden(self, tol: Tolerance) -> np.ndarray:
        """Where noise would hide what one entry is allowed."""
        return ~(self.noise <= 0.5 * tol.atol * self.least)

    def suspects(self, tol: Tolerance) -> Compared | None:
        """Those that are off beyond their noise by more than a share of what an entry is allowed.

        The worst come first.
        """
        off, allowed, hidden = abs(self.off).max(1), tol.atol * self.least, self.hidden(tol)
        if not hidden.any() and (off <= self.noise + self.look.share * allowed).all():
            return None
        with np.errstate(all="ignore"):
            excess = np.where(hidden, np.maximum(1.0, off / self.noise), (off - self.noise) / allowed)
        excess[np.isnan(excess)] = np.inf
        order = np.argsort(-excess, kind="stable")
        order = order[excess[order] > self.look.share]
        return self.part(order) if len(order) else None


_ARRAYS = tuple(field.name for field in fields(Compared) if field.name not in ("look", "length"))


class Examiner:
    """The two maps that are compared, and how far they may be apart."""

    def __init__(self, numeric: Numeric, analytic: Analytic, tol: Tolerance) -> None:
        self.numeric, self.analytic, self.tol = numeric, analytic, tol

    def noise(self, look: Look) -> np.ndarray:
        """How far rounding may put the answers of a look off."""
        return constants.SIGMAS * look.noise(self.numeric, self.analytic)

    def length(self, look: Look, noise: np.ndarray) -> float | None:
        """The shortest length of steps that shows a wrong entry in spite of noise; None if there is none.

        The extrapolated difference, whose noise is larger, has to show it too.
        """
        shortest, longest = look.lengths(self.numeric.eps)
        with np.errstate(all="ignore"):
            allowed = 0.5 * self.tol.atol * look.least_wanted(self.numeric)
            # A little more, for the rounding of steps.
            needed = 1.001 * _EXTRAPOLATED * float((noise / allowed).max())
        return max(needed, shortest) if needed <= longest else None

    def examine(self, look: Look, noise: np.ndarray, length: float) -> tuple[Compared | None, float]:
        """The directions that disagree, and the smallest error of an entry that would have shown."""
        found, visible = [], 0.0
        for some in self._spans(len(look)):
            part = look if some == slice(0, len(look)) else look.part(some)
            compared = self._compared(part, noise[some], length)
            found.append(compared.suspects(self.tol))
            with np.errstate(all="ignore"):
                visible = max(visible, float((compared.noise / compared.least).max()))
            del compared
        return _joined(found), visible + look.share * self.tol.atol

    def _compared(self, look: Look, noise: np.ndarray, length: float) -> Compared:
        steps = look.steps(self.numeric, length)
        expected, least = look.expected(self.analytic, steps), look.least(steps)
        if look.large:  # they are made anew for each run, and are not there while the function runs
            del steps
            differences = self.numeric.difference(lambda: look.steps(self.numeric, length)[0])
        else:
            differences = look.differences(self.numeric, steps)
        return Compared(look, length, least, noise, expected, differences, self._off(differences, expected))

    def _spans(self, count: int, start: int = 0) -> Iterator[slice]:
        """The directions that are differenced at once."""
        size = self.numeric.columns_at_once
        return (slice(at, min(at + size, count)) for at in range(start, count, size))

    def _off(self, differences: np.ndarray, expected: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return products(differences, self.analytic.cotangents) - expected

    def extrapolated(self, suspects: Compared) -> Compared | None:
        """What still disagrees with Richardson's extrapolation of steps s and 2s: the worst one first."""
        alone = suspects.look.weights.size == 1  # a judge costs little more
        if alone or suspects.hidden(self.tol).any():
            return suspects
        worst = suspects.part(slice(0, 1))
        if (better := self._extrapolated(worst)) is not None:
            if suspects.look.columns is not None:
                return suspects
            if _FALLS * abs(better.off).max() < abs(worst.off).max():
                # Truncation, with the shortest steps that show anything: directions cannot tell.
                return replace(suspects, noise=np.full(len(suspects), np.inf))
            return self._lengthened(suspects)
        spans = self._spans(len(suspects), start=1)
        return _joined([self._extrapolated(suspects.part(some)) for some in spans])

    def _lengthened(self, suspects: Compared) -> Compared | None:
        """What still disagrees with steps so long that a few roundings more would not show.

        The rounding of a mean is that of all outputs which it enters, and adds up; it does not grow with the
        step, as an error of the derivative does.
        """
        off = abs(suspects.off).max(1)
        longer = constants.LOUDER * float(
            (off / (suspects.look.share * self.tol.atol * suspects.least)).max()
        )
        length = longer * suspects.length
        far = not length <= suspects.look.lengths(self.numeric.eps)[1]
        if far or (off > constants.ROUNDINGS * suspects.noise).any():
            return suspects
        self.numeric.limit += 2 * len(suspects)
        again = self._compared(suspects.look, suspects.noise, length)
        return None if self._extrapolated(again) is None else suspects

    def _extrapolated(self, suspects: Compared) -> Compared | None:
        """What still disagrees once the leading truncation error is removed."""
        self.numeric.limit += 2 * len(suspects)
        steps = suspects.look.steps(self.numeric, suspects.length)
        far = suspects.look.differences(self.numeric, 2 * steps)
        with np.errstate(all="ignore"):
            better = (8 * suspects.differences - far) / 6
        off = self._off(better, suspects.expected)
        noise = _EXTRAPOLATED * suspects.noise
        return replace(suspects, differences=better, noise=noise, off=off).suspects(self.tol)


def _joined(parts: Sequence[Compared | None]) -> Compared | None:
    """The suspects of all parts of a look; only that of single columns has several."""
    some = [part for part in parts if part is not None]
    if len(some) <= 1:
        return some[0] if some else None
    columns, weights = ([getattr(part.look, name) for part in some] for name in ("columns", "weights"))
    look = replace(some[0].look, columns=np.concatenate(columns), weights=np.concatenate(weights))
    arrays = {name: np.concatenate([getattr(part, name) for part in some]) for name in _ARRAYS}
    return Compared(look, some[0].length, **arrays)
