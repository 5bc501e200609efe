"""One look: the differences of its groups against what the derivative says, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.looks import Look
from covector.verify.numeric import Numeric
from covector.verify.tolerance import Tolerance


@dataclass(frozen=True)
class Suspects:
    """The groups of a look that disagree, with what was differenced, worst first."""

    look: Look
    steps: np.ndarray
    differences: np.ndarray
    excess: np.ndarray
    """By how much each group is off, in units of what an entry is allowed."""
    visible: float = 0.0
    """The smallest error of an entry that would have shown in the look."""
    steady: bool = True
    """Whether what the worst group is off by stays, or grows fourfold, when the steps are doubled: that of a
    wrong entry or of truncation does, and can be located by halving; that of noise does not."""

    def __len__(self) -> int:
        return len(self.look)


class Examiner:
    """The two maps that are compared, and how far they may be apart."""

    def __init__(self, numeric: Numeric, analytic: Analytic, tol: Tolerance) -> None:
        self.numeric, self.analytic, self.tol = numeric, analytic, tol

    def examine(self, look: Look) -> Suspects:
        """The groups of which some cell disagrees, with the shortest steps that show an entry."""
        noise = self.noise(look)
        steps = self._visible_steps(look, noise)
        with np.errstate(all="ignore"):
            visible = float((noise / look.least(steps)).max()) + look.share * self.tol.atol
        size = max(1, self.numeric.chunk() // 2)
        if len(look) <= size:
            differences = look.differences(self.numeric, steps)
            return replace(self._suspicious(look, steps, differences, noise), visible=visible)
        found = []
        for start in range(0, len(look), size):
            span = slice(start, start + size)
            part, made = look.part(span), steps[span]
            differences = part.differences(self.numeric, made)
            found.append(self._suspicious(part, made, differences, noise[span]))
        return replace(_joined(found), visible=visible)

    def doubled(self, suspects: Suspects) -> Suspects:
        """What still disagrees with Richardson's extrapolation of steps s and 2s: the worst group first."""
        alone = len(suspects) == 1 and not suspects.look.shared  # a judge costs little more
        if alone or self.hides(suspects) or self._gross(suspects):
            return suspects
        remaining = suspects
        for some in (slice(0, 1), slice(1, None)):
            look, steps, near = suspects.look.part(some), suspects.steps[some], suspects.differences[some]
            if len(look) == 0:
                break
            self.numeric.limit += 2 * (len(look) - 1)
            far = look.differences(self.numeric, 2 * steps)
            with np.errstate(all="ignore"):
                better = (4 * near - far / 2) / 3
            remaining = self._suspicious(look, steps, better, 2 * self.noise(look))
            if some.start == 0 and len(remaining):
                return replace(suspects, steady=self._steady(look, steps, near, far / 2))
        return replace(remaining, visible=suspects.visible)

    def noise(self, look: Look) -> np.ndarray:
        """How far rounding may put the cells of a look off."""
        return constants.SIGMAS * look.noise(self.numeric, self.analytic)

    def hides(self, suspects: Suspects) -> bool:
        """Whether noise would hide what one entry is allowed from some cell of these groups."""
        return bool(self._hidden(suspects.look, suspects.steps, self.noise(suspects.look)).any())

    def off(self, look: Look, steps: np.ndarray, differences: np.ndarray) -> np.ndarray:
        """What the cells of a look are off by."""
        with np.errstate(all="ignore"):
            return look.cells(self.analytic.cotangents, differences) - look.expected(self.analytic, steps)

    def _visible_steps(self, look: Look, noise: np.ndarray) -> np.ndarray:
        """The shortest steps with which one wrong entry would show; the usual ones if it never would."""
        for length in constants.LOOK_LENGTHS:
            steps = look.steps(self.numeric, length)
            if not self._hidden(look, steps, noise).any():
                return steps
        return look.steps(self.numeric, 1.0)

    def _hidden(self, look: Look, steps: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Where noise would hide what one entry is allowed, so that agreement proves nothing."""
        return ~(noise <= 0.5 * self.tol.atol * look.least(steps))

    def _suspicious(
        self, look: Look, steps: np.ndarray, differences: np.ndarray, noise: np.ndarray
    ) -> Suspects:
        """The groups that are off beyond their noise by more than a share of what an entry is allowed."""
        off = abs(self.off(look, steps, differences))
        hidden, share = self._hidden(look, steps, noise), look.share * self.tol.atol * look.least(steps)
        if not hidden.any() and (off <= noise + share).all():
            return Suspects(look.part(slice(0, 0)), steps[:0], differences[:0], np.zeros(0))
        with np.errstate(all="ignore"):
            excess = (off - noise) / (self.tol.atol * look.least(steps))
            excess = np.where(hidden, np.maximum(1.0, off / noise), excess)
        worst = np.where(np.isnan(excess), np.inf, excess).max((0, 2))
        bad = np.flatnonzero(worst > look.share)
        order = bad[np.argsort(-worst[bad], kind="stable")]
        return Suspects(look.part(order), steps[order], differences[order], worst[order])

    def _gross(self, suspects: Suspects) -> bool:
        """Whether the worst group is off by more than the truncation error of a difference can be."""
        look, steps, differences = (
            suspects.look.part(slice(0, 1)),
            suspects.steps[:1],
            suspects.differences[:1],
        )
        with np.errstate(all="ignore"):
            cells = look.cells(self.analytic.cotangents, differences)
            return bool(abs(self.off(look, steps, differences)).max() > constants.GROSS * abs(cells).max())

    def _steady(self, look: Look, steps: np.ndarray, near: np.ndarray, far: np.ndarray) -> bool:
        """Whether what a group is off by stays, or grows with the square of the step; noise does neither."""
        first, second = self.off(look, steps, near), self.off(look, steps, far)
        worst = np.unravel_index(np.nan_to_num(abs(first), nan=0.0).argmax(), first.shape)
        with np.errstate(all="ignore"):
            ratio = float(second[worst] / first[worst])
        return any(abs(ratio - power) <= 0.25 * power for power in (1, 4))


def _joined(parts: Sequence[Suspects]) -> Suspects:
    """The suspects of all chunks of a look, worst first."""
    some = [part for part in parts if len(part)] or list(parts[:1])
    excess = np.concatenate([part.excess for part in some])
    order = np.argsort(-excess, kind="stable")
    groups, weights = (
        np.concatenate([getattr(part.look, name) for part in some])[order] for name in ("groups", "weights")
    )
    steps, differences = (
        np.concatenate([getattr(part, name) for part in some])[order] for name in ("steps", "differences")
    )
    look = replace(some[0].look, groups=groups, weights=weights)
    return Suspects(look, steps, differences, excess[order])
