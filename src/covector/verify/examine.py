"""One look: the differences along its directions against what the derivative says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.looks import Look
from covector.verify.numeric import Numeric
from covector.verify.options import Tolerance
from covector.verify.vectors import products

# Richardson extrapolation: with what weights differences with steps s, 2s and 3s give that with s without its
# truncation error, up to 6th order.
_WEIGHTS = (45 / 30, -9 / 30, 1 / 30)

# By how much what was extrapolated is noisier than the differences, at most.
_EXTRAPOLATED = sqrt(sum(weight**2 for weight in _WEIGHTS))

# A disagreement that extrapolation reduces this many times is truncation error. A mistake stays as it is, and
# of the error of many kinks, which grows with the square of the step, two thirds stay.
_FALLS = 8.0


# What is known of each direction.
_ARRAYS = ("least", "expected", "off")


class Examined(NamedTuple):
    """What a look shows."""

    suspects: Compared | None
    """The directions that disagree."""
    visible: float
    """How far an entry may be off that does not disagree."""


@dataclass(frozen=True)
class Compared:
    """Directions of a look with what was differenced along each; every array has a row for each of them."""

    look: Look
    length: float
    """Of the steps."""
    noise: float
    """The bound of the rounding error of a mixed difference."""
    least: np.ndarray
    """The smallest step."""
    expected: np.ndarray
    """What the derivative says, for each cotangent."""
    off: np.ndarray
    """How far differences, extrapolated or not, and the derivative are apart, for each cotangent."""
    taken: tuple[np.ndarray, ...]
    """The differences with these steps, and with steps twice and three times as long if they were taken."""

    def __len__(self) -> int:
        return len(self.look)

    def part(self, some: np.ndarray | slice) -> Compared:
        """Some of the directions."""
        arrays = {name: getattr(self, name)[some] for name in _ARRAYS}
        taken = tuple(differences[some] for differences in self.taken)
        return replace(self, look=self.look.part(some), taken=taken, **arrays)

    def each(self) -> list[Compared]:
        """Every direction by itself."""
        return [self.part(slice(at, at + 1)) for at in range(len(self))]

    def fell_from(self, before: Compared) -> bool:
        """Whether extrapolation took most of what was off away: a mistake stays, and truncation falls."""
        return bool(_FALLS * abs(self.off).max() < abs(before.off).max())

    def hidden(self, tol: Tolerance) -> np.ndarray:
        """Where noise would hide an error as large as one entry's tolerance."""
        return ~(self.noise <= constants.HIDDEN_SHARE * tol.atol * self.least)

    def examined(self, tol: Tolerance) -> Examined:
        """The suspects, and how far an entry of the rest may be off; what noise would hide is suspect."""
        smallest, allowed = float(self.least.min()), self.look.share * tol.atol
        quiet = self.noise <= constants.HIDDEN_SHARE * tol.atol * smallest
        # Most agree along every direction by the measure of the smallest step, which takes the least time.
        if quiet and float(abs(self.off).max()) <= self.noise + allowed * smallest:
            return Examined(None, self.noise / smallest + allowed)
        shown = self.least[~self.hidden(tol)]
        noise = float(self.noise / shown.min()) if len(shown) else 0.0
        return Examined(self.suspects(tol), noise + allowed)

    def suspects(self, tol: Tolerance) -> Compared | None:
        """Directions that are off by more than noise and the share of an entry's tolerance; worst first.

        Those where noise would hide a wrong entry are among them.
        """
        hidden, off, allowed = self.hidden(tol), abs(self.off).max(1), tol.atol * self.least
        if not hidden.any() and (off <= self.noise + self.look.share * allowed).all():
            return None
        with np.errstate(all="ignore"):
            excess = np.where(hidden, np.maximum(1.0, off / self.noise), (off - self.noise) / allowed)
        excess[np.isnan(excess)] = np.inf
        order = np.argsort(-excess, kind="stable")
        order = order[excess[order] > self.look.share]
        return self.part(order) if len(order) else None


class _Noise(NamedTuple):
    """The noise of a function."""

    outputs: np.ndarray
    """An error of each output, as large as a standard deviation."""
    mixed: float
    """How far it may put an answer off."""


class Examiner:
    """The two maps that are compared, and how far they may be apart."""

    def __init__(self, numeric: Numeric, analytic: Analytic, tol: Tolerance) -> None:
        analytic.prepare()
        self.numeric, self.analytic, self.tol = numeric, analytic, tol
        self.measured: np.ndarray | None = None
        """The noise of each output, if it was measured."""

    def rounding(self, look: Look) -> float:
        """The bound of the rounding error of a mixed difference of a look."""
        noise = self.numeric.noise
        if self.measured is not None and look.columns is not None:
            noise = np.maximum(noise, self.measured)
        return self._mixed(noise)

    def _mixed(self, noise: np.ndarray) -> float:
        """The bound of the mixture of independent errors of this size, which are overwritten.

        The first cotangent gives every output its largest weight.
        """
        with np.errstate(all="ignore"):  # in place: there may be many numbers
            noise *= self.analytic.cotangents[0]
            noise *= noise
            return constants.SIGMAS * float(np.sqrt(noise.sum()))

    def length(self, look: Look, noise: float) -> float | None:
        """The shortest steps that show a wrong entry in spite of noise; None if there are none.

        They have to show it after extrapolation, which amplifies noise. Single columns for which they do not
        are judged entry by entry.
        """
        shortest, longest = look.lengths(self.numeric.eps)
        if self.measured is not None and look.columns is not None:
            longest = constants.SHORTER**2
            noise = constants.SIGMAS * float(np.maximum(self.numeric.noise, self.measured).max())
        if self._needed(noise, self.numeric.eps) <= shortest:  # no step is shorter than `eps`
            return shortest
        needed = self._needed(noise, float(look.least_wanted(self.numeric).min()))
        if look.columns is None and not needed <= longest:
            return None
        return float(np.fmin(longest, max(needed, shortest)))

    def _needed(self, noise: float, least: float) -> float:
        """The length at which steps show a wrong entry, if the smallest is this large at length one."""
        allowed = constants.HIDDEN_SHARE * self.tol.atol * least
        # A little more than needed, since steps are rounded.
        return 1.001 * _EXTRAPOLATED * noise / allowed if allowed else inf

    def examine(self, look: Look) -> Examined | None:
        """What a look shows; None if it has no steps that would show a wrong entry."""
        noise = self.rounding(look)
        length = self.length(look, noise)
        if length is None:
            return None
        suspects, visible = [], 0.0
        for some in self._spans(len(look)):
            found = self._compared(look.part(some), noise, length).examined(self.tol)
            suspects.append(found.suspects)
            visible = max(visible, found.visible)
        return Examined(_joined(suspects), visible)

    def _compared(self, look: Look, noise: float, length: float) -> Compared:
        if look.large:
            expected, least = look.compare(self.numeric, self.analytic, length)
            differences = self._differences(look, length)
        else:
            steps = look.steps(self.numeric, length)
            expected, least = look.expected(self.analytic, steps), look.least(steps)
            differences = look.differences(self.numeric, steps)
        off = self._off(differences, expected)
        return Compared(look, length, noise, least, expected, off, (differences,))

    def _differences(self, look: Look, length: float, times: int = 1) -> np.ndarray:
        """The differences with steps of this length times a number; many steps are made anew for each run."""
        if not look.large:
            return look.differences(self.numeric, times * look.steps(self.numeric, length))
        return self.numeric.difference(lambda: look.pieces(self.numeric, length, times))

    def _spans(self, count: int) -> Iterator[slice]:
        """The directions that are differenced at once."""
        size = self.numeric.columns_at_once
        return (slice(at, min(at + size, count)) for at in range(0, count, size))

    def _off(self, differences: np.ndarray, expected: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return products(differences, self.analytic.cotangents) - expected

    def extrapolated(self, suspects: Compared) -> Compared | None:
        """What still disagrees once truncation errors and noise are taken into account.

        Of single columns a judge decides, who finds a better step for all of them.
        """
        if suspects.look.columns is not None or suspects.hidden(self.tol).any():
            return suspects
        few = 2 * suspects.look.width <= constants.EXTRA_RUNS  # to move each column costs no more
        worst, *others = suspects.each()
        better = self._extrapolated(worst)
        if better.suspects(self.tol) is None:
            return self._still_off(others)
        if better.fell_from(worst):  # truncation, with the shortest steps that show anything
            return replace(suspects, noise=inf)
        return suspects if few else self._beyond_noise(suspects, better)

    def _still_off(self, suspects: Sequence[Compared]) -> Compared | None:
        """What disagrees without its truncation error too."""
        return _joined([self._extrapolated(one).suspects(self.tol) for one in suspects])

    def _beyond_noise(self, suspects: Compared, worst: Compared) -> Compared | None:
        """What still disagrees with steps so long that the noise of the function does not matter."""
        noise = self._noise(suspects, worst)
        if noise is None:
            return suspects
        look, self.measured = suspects.look, noise.outputs
        length = self.length(look, noise.mixed)
        if length is None:
            return replace(suspects, noise=inf)
        longer = self._compared(look, noise.mixed, length).suspects(self.tol)
        if longer is None:
            return None
        worst, *others = longer.each()
        better = self._extrapolated(worst).suspects(self.tol)
        return self._still_off(others) if better is None else _joined([better, *others])

    @np.errstate(all="ignore")
    def _noise(self, suspects: Compared, worst: Compared) -> _Noise | None:
        """The noise that explains a disagreement; None if it shrinks with the step, as no noise does.

        A mistake shrinks as the step does, and kinks, waves and truncation shrink faster. What a jump next to
        the point leaves is the same at every step. The estimate of a single output may be small by chance, so
        much shorter steps, of three lengths, are looked at whatever it says.
        """
        noise, off = self._noise_along(worst), abs(suspects.off).max()
        near = min(suspects.look.lengths(self.numeric.eps)[0], suspects.length / constants.SHORTER)
        closer = self._compared(worst.look, suspects.noise, near)
        taken = self._longer(closer)
        apart = np.concatenate([self._off(d, n * closer.expected) for n, d in enumerate(taken, start=1)])
        size = abs(apart).max()
        near_by = self._noise_along(replace(closer, taken=taken))
        mixed = max(noise.mixed, near_by.mixed, constants.SIGMAS * float(size))
        stays = constants.LOUDER * constants.SIGMAS * size >= max(noise.mixed, constants.SIGMAS * off)
        jumps = not constants.LOUDER * np.ptp(apart, axis=0).max() > size
        if jumps or not (stays and off <= mixed):
            return None
        return _Noise(np.maximum(abs(noise.outputs), abs(near_by.outputs)), mixed)

    def _noise_along(self, compared: Compared) -> _Noise:
        """The noise of the function along one direction: what is left of differences with steps s, 2s and 3s.

        Of d(s) = a s + b s^3 + ..., the sum 5 d(s) - 4 d(2s) + d(3s) is left with what is of 5th order.
        """
        near, far, farthest = self._longer(compared)
        with np.errstate(all="ignore"):
            left = 5 * near - 4 * far + farthest
            # Each is half of a difference of two values.
            left = np.nan_to_num(left / sqrt((5**2 + 4**2 + 1) / 2))
            mixed = constants.SIGMAS * float(abs(products(left, self.analytic.cotangents)).max())
        return _Noise(left[0], max(mixed, self._mixed(left[0].copy())))

    def _longer(self, compared: Compared) -> tuple[np.ndarray, ...]:
        """The differences with steps s, 2s and 3s; those that are known are not taken again."""
        times = range(len(compared.taken) + 1, len(_WEIGHTS) + 1)
        return *compared.taken, *(self._differences(compared.look, compared.length, n) for n in times)

    def _extrapolated(self, compared: Compared) -> Compared:
        """The same without truncation errors up to 6th order.

        With steps of two lengths, a mistake could be cancelled by what they leave of the truncation error.
        """
        taken = self._longer(compared)
        with np.errstate(all="ignore"):
            better = np.add.reduce([weight * part for weight, part in zip(_WEIGHTS, taken, strict=True)])
        off = self._off(better, compared.expected)
        return replace(compared, noise=_EXTRAPOLATED * compared.noise, off=off, taken=taken)


def _joined(parts: Sequence[Compared | None]) -> Compared | None:
    """The suspects of all parts of a look."""
    some = [part for part in parts if part is not None]
    if len(some) <= 1:
        return some[0] if some else None
    looks = [part.look for part in some]
    columns = None if looks[0].columns is None else np.concatenate([look.columns for look in looks])
    joined = np.concatenate([look.weights for look in looks if isinstance(look.weights, np.ndarray)])
    look = replace(looks[0], columns=columns, weights=joined)
    arrays = {name: np.concatenate([getattr(part, name) for part in some]) for name in _ARRAYS}
    taken = tuple(map(np.concatenate, zip(*(part.taken for part in some), strict=False)))
    noise = max(part.noise for part in some)
    return Compared(look, some[0].length, noise, **arrays, taken=taken)
