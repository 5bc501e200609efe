"""One look: the differences of its groups against what the derivative says, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.looks import Look
from covector.verify.numeric import Numeric
from covector.verify.tolerance import Tolerance

# The noise of up to this many cells is kept for the next question.
_KEPT = 1 << 12

# Some of the cells of a look, or all of them.
Cells = np.ndarray | Literal[True]


@dataclass(frozen=True)
class Suspects:
    """The groups of a look that disagree, with what was differenced, worst first."""

    look: Look
    steps: np.ndarray
    differences: np.ndarray
    excess: np.ndarray
    """By how much each group is off, in units of what an entry is allowed."""
    cells: np.ndarray
    """Which cells of each group disagree."""
    plain: np.ndarray
    """The differences before any extrapolation."""

    def __len__(self) -> int:
        return len(self.look)

    @property
    def many(self) -> bool:
        """Whether moving the owners of these cells takes as many runs as moving each column."""
        return 2 * self.look.owners * int(self.cells.sum()) > self.look.size

    def part(self, some: np.ndarray | slice) -> Suspects:
        """Some of the groups."""
        arrays = {name: getattr(self, name)[some] for name in _BY_GROUP}
        return replace(self, look=self.look.part(some), **arrays)


# What there is one of for each group.
_BY_GROUP = ("steps", "differences", "excess", "cells", "plain")


class Examiner:
    """The two maps that are compared, and how far they may be apart."""

    def __init__(self, numeric: Numeric, analytic: Analytic, tol: Tolerance) -> None:
        self.numeric, self.analytic, self.tol = numeric, analytic, tol
        self._noise: tuple[Look | None, np.ndarray] = (None, np.zeros(0))

    def examine(self, look: Look) -> tuple[Suspects | None, float]:
        """The groups of which some cell disagrees, each cell with the shortest step that shows an entry.

        And the smallest error of an entry that would have shown.
        """
        found, visible = [], 0.0
        for part, length, which in self._parts(look):
            differences = part.differences(self.numeric, length)
            suspects, shown = self._compare(part, length, differences, which)
            found.append(suspects)
            visible = max(visible, shown)
            del differences
        return _joined(found), visible + look.share * self.tol.atol

    def _compare(
        self, look: Look, length: float, differences: np.ndarray, which: Cells
    ) -> tuple[Suspects | None, float]:
        """What disagrees of a look, and the smallest error that would have shown.

        Piece by piece first, if it has many cells: there may be no memory for them, and most derivatives are
        right.
        """
        if look.large and (visible := self._agree_in_pieces(look, length, differences, which)) is not None:
            return None, visible
        steps, noise = look.steps(self.numeric, length), self.noise(look)
        visible = _visible(noise, look.least(steps), which)
        return self._suspicious(look, steps, differences, noise, which), visible

    def _agree_in_pieces(
        self, look: Look, length: float, differences: np.ndarray, which: Cells
    ) -> float | None:
        """The smallest error that would have shown; None if a piece disagrees."""
        least = np.min([piece.least(piece.steps(self.numeric, length)) for piece in look.pieces()], axis=0)
        visible, start = 0.0, 0
        held = self.analytic.cotangents  # or every piece would draw them anew
        for piece in look.pieces():
            steps, noise = piece.steps(self.numeric, length), self.noise(piece)
            some = which if which is True else which[:, start : start + noise.shape[1]]
            start += noise.shape[1]
            if self._suspicious(piece, steps, differences, noise, some, least=least) is not None:
                return None
            visible = max(visible, _visible(noise, least, some))
        del held
        return visible

    def _parts(self, look: Look) -> Iterator[tuple[Look, float, Cells]]:
        """What is differenced at once: some groups, the length of a step, and its cells."""
        size = 1 if len(look) == 1 else self.numeric.columns_at_once
        for length, which in self._lengths(look):
            if which is True and len(look) <= size:
                yield look, length, which
                continue
            groups = np.arange(len(look)) if which is True else np.flatnonzero(which.any(1))
            for start in range(0, len(groups), size):
                some = groups[start : start + size]
                yield look.part(some), length, which is True or which[some]

    def doubled(self, suspects: Suspects) -> Suspects | None:
        """What still disagrees with Richardson's extrapolation of steps s and 2s: the worst group first."""
        alone = suspects.look.weights.size == 1  # a judge costs little more
        if alone or self.hides(suspects) or self._gross(suspects):
            return suspects
        worst = suspects.part(slice(0, 1))
        far = self._twice_as_far(worst)
        remaining = self._extrapolated(worst, far)
        if remaining is not None and not (
            remaining.look.guessed and remaining.cells.sum() < worst.cells.sum()
        ):
            return suspects
        size = self.numeric.columns_at_once
        parts = [suspects.part(slice(start, start + size)) for start in range(1, len(suspects), size)]
        return _joined([remaining, *(self._extrapolated(part, self._twice_as_far(part)) for part in parts)])

    def _twice_as_far(self, suspects: Suspects) -> np.ndarray:
        """Half the differences with doubled steps."""
        self.numeric.limit += 2 * len(suspects)
        return suspects.look.differences_along(self.numeric, 2 * suspects.steps) / 2

    def _extrapolated(self, suspects: Suspects, far: np.ndarray) -> Suspects | None:
        """What still disagrees once the leading truncation error is removed."""
        look, near = suspects.look, suspects.plain
        with np.errstate(all="ignore"):
            better = (4 * near - far) / 3
        return self._suspicious(look, suspects.steps, better, 2 * self.noise(look), suspects.cells, near)

    def noise(self, look: Look) -> np.ndarray:
        """How far rounding may put the cells of a look off.

        That of many cells is computed anew each time: it need not be there while the function runs.
        """
        known, noise = self._noise
        if known is not look:
            noise = look.noise(self.numeric, self.analytic)
            noise *= constants.SIGMAS
            if noise.size <= _KEPT:
                self._noise = look, noise
        return noise

    def hides(self, suspects: Suspects) -> bool:
        """Whether noise would hide what one entry is allowed from some of these cells."""
        look = suspects.look
        hidden = ~(self.noise(look) <= 0.5 * self.tol.atol * look.least(suspects.steps))
        return bool((hidden & suspects.cells).any())

    def off(self, look: Look, steps: np.ndarray, differences: np.ndarray) -> np.ndarray:
        """What the cells of a look are off by."""
        with np.errstate(all="ignore"):
            cells = look.cells(self.analytic.cotangents, differences)
            cells -= look.expected(self.analytic, steps)
            return cells

    def _lengths(self, look: Look) -> list[tuple[float, Cells]]:
        """The lengths of steps, and the cells in which each is the first to show a wrong entry.

        Where none does, it is the usual one. Of many groups all have one length: another costs runs of each.
        """
        longer, pulled = look.lengths(self.numeric.eps), self.analytic.sensitivity
        held = self.analytic.cotangents  # behind the pullback, which takes memory of its own
        shortest = next(longer)
        with np.errstate(all="ignore"):
            # A little more, for the rounding of steps.
            unit = 0.5 / 1.001 * self.tol.atol * look.least_wanted(self.numeric)
            if all((self.noise(piece) / unit).max() <= shortest for piece in look.pieces()):
                return [(shortest, True)]
            needed = self.noise(look) / unit
        del pulled, held
        lengths, most = [shortest, *longer], needed.max()
        if needed.size == 1 and most <= lengths[-1]:  # no longer than need be: fewer kinks are crossed
            return [(float(most), True)]
        if len(look) > 1 or needed.size == 1 or self.numeric.columns_are_cheap:
            return [(next((length for length in lengths if most <= length), 1.0), True)]
        chosen = np.array([*lengths, 1.0])[np.searchsorted(lengths, needed)]
        return [(float(length), chosen == length) for length in np.unique(chosen)]

    def _suspicious(
        self,
        look: Look,
        steps: np.ndarray,
        differences: np.ndarray,
        noise: np.ndarray,
        which: Cells,
        plain: np.ndarray | None = None,
        least: np.ndarray | None = None,
    ) -> Suspects | None:
        """The groups that are off beyond their noise by more than a share of what an entry is allowed.

        `which` says which cells of each group are looked at; `least` is the smallest step of each, of all of
        its columns.
        """
        off = self.off(look, steps, differences)
        allowed = self.tol.atol * (look.least(steps) if least is None else least)
        np.abs(off, off)
        hidden = ~(noise <= 0.5 * allowed)
        plain = differences if plain is None else plain
        if not hidden.any() and (off <= noise + look.share * allowed).all():
            return None
        with np.errstate(all="ignore"):
            excess = (off - noise) / allowed
            excess = np.where(hidden, np.maximum(1.0, off / noise), excess)
        cells = np.where(which, np.where(np.isnan(excess), np.inf, excess).max(0), -np.inf)
        worst = cells.max(1)
        bad = np.flatnonzero(worst > look.share)
        if len(bad) == 0:
            return None
        order = bad[np.argsort(-worst[bad], kind="stable")]
        return Suspects(look, steps, differences, worst, cells > look.share, plain).part(order)

    def _gross(self, suspects: Suspects) -> bool:
        """Whether the worst group is off by more than the truncation error of a difference can be."""
        worst = suspects.part(slice(0, 1))
        with np.errstate(all="ignore"):
            cells = worst.look.cells(self.analytic.cotangents, worst.differences)
            off = self.off(worst.look, worst.steps, worst.differences)
            return bool(abs(off).max() > constants.GROSS * abs(cells).max())


def _visible(noise: np.ndarray, least: np.ndarray, which: Cells) -> float:
    """The smallest error of an entry that shows in spite of noise."""
    with np.errstate(all="ignore"):
        return float((noise / least).max(where=which, initial=0.0))


def _joined(parts: Sequence[Suspects | None]) -> Suspects | None:
    """The suspects of all chunks of a look, worst first."""
    some = [part for part in parts if part is not None]
    if len(some) <= 1:
        return some[0] if some else None
    columns, weights = (
        np.concatenate([getattr(part.look, name) for part in some]) for name in ("groups", "weights")
    )
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in some]) for name in _BY_GROUP
    }
    joined = replace(some[0], look=replace(some[0].look, columns=columns, weights=weights), **arrays)
    return joined.part(np.argsort(-joined.excess, kind="stable"))
