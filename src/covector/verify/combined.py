"""All entries at once, along one random combination v of the outputs: v^T A against v^T J.

The weights in v are random in size and sign, so that wrong entries of a column cancel with probability
zero. An error that the entry rule allows may show here: what does not agree is looked at entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from torch import Tensor

from covector.verify.problem import Problem
from covector.verify.tolerance import Tolerance

# The share of an entry's tolerance that a sum over a column may be off by.
_FRACTION = 0.02

# The share of it that rounding may take before every entry is looked at instead.
_NOISY = 0.5

# Sums that agree to this share may agree better with a better difference.
_DIGITS = 1e-3


Columns: TypeAlias = slice | np.ndarray


@dataclass(frozen=True)
class Probe:
    """A cotangent v and its pullback v^T A."""

    cotangent: Tensor
    pulled: Tensor


class Sums:
    """What sums of weighted entries should be, times the step, and by how much they may be off."""

    def __init__(self, problem: Problem, probe: Probe, step: np.ndarray, tol: Tolerance) -> None:
        pulled = probe.pulled.numpy()
        with np.errstate(all="ignore"):
            self.expected = pulled * step
            # Of x + s and x - s only the first is exact.
            self._rounding = 2 * problem.rounding * abs(problem.point.numpy() * pulled)
        self._allowed = tol.atol * abs(step)

    def visible(self, columns: Columns, noise: np.ndarray | float) -> bool:
        """Whether one wrong entry would show in each of these columns."""
        return bool((noise <= _NOISY * self._allowed[columns]).all())

    def agree(self, numeric: np.ndarray, columns: Columns, noise: np.ndarray | float) -> bool:
        """Whether they are, in these columns."""
        with np.errstate(all="ignore"):
            off = abs(numeric - self.expected[columns]) - noise - self._rounding[columns]
            return bool((off <= _FRACTION * self._allowed[columns]).all())

    def similar(self, numeric: np.ndarray, columns: Columns) -> bool:
        """Whether they are to a few digits."""
        with np.errstate(all="ignore"):
            off = abs(numeric - self.expected[columns])
            return bool((off <= self._allowed[columns] + _DIGITS * abs(numeric)).all())


def columns_agree(problem: Problem, probe: Probe, tol: Tolerance) -> bool:
    """Whether v^T A is v^T J in every column, each differenced by itself in batches."""
    cotangent, step = probe.cotangent.numpy(), problem.steps(tol.eps)
    sums = Sums(problem, probe, step, tol)
    # Rounding of the outputs, which adds up as independent numbers do.
    noise = 4 * problem.rounding * float(np.linalg.norm(cotangent * problem.known.numpy()))
    if not sums.visible(slice(None), noise):
        return False
    size = problem.block_size()
    for first in range(0, step.size, size):
        columns = slice(first, first + size)
        numeric = problem.column_differences(step, columns, loop=False) @ cotangent
        if not sums.agree(numeric, columns, noise):
            return False
    return True
