"""All entries at once, along one random combination v of the outputs: v^T A against v^T J.

The weights in v are random in size and sign, so that wrong entries of a column cancel with probability
zero. An error that the entry rule allows may show here: what does not agree is looked at entry by entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from covector.verify.problem import Problem
from covector.verify.tolerance import Tolerance

# The share of an entry's tolerance that a sum over a column may be off by.
FRACTION = 0.02

# The share of it that rounding may take before every entry is looked at instead.
_NOISY = 0.5

# Sums that agree to this share may agree better with a better difference.
_DIGITS = 1e-3

# How much longer a step is that is taken where rounding would hide an entry.
COARSER = 64


@dataclass(frozen=True)
class Probes:
    """Cotangents v and their pullbacks v^T A, a row for each."""

    cotangents: Tensor
    pulled: Tensor


class Sum(NamedTuple):
    """Which columns sums of weighted entries belong to, and how far off rounding may put them.

    Columns in one row of an array were moved together, so that a sum may hold entries of any of them;
    those of a slice were moved one by one.
    """

    columns: np.ndarray | slice
    noise: np.ndarray | float


class Sums:
    """What sums of weighted entries should be, times the step, and by how much they may be off."""

    def __init__(self, problem: Problem, probes: Probes, step: np.ndarray, tol: Tolerance) -> None:
        pulled = probes.pulled.numpy()
        self.step = step
        with np.errstate(all="ignore"):
            self._expected = pulled * step
            # Of x + s and x - s only the first is exact.
            self._rounding = 2 * problem.rounding * abs(problem.point.numpy() * pulled).max(0)
        self._allowed = tol.atol * abs(step)

    def visible(self, of: Sequence[Sum]) -> bool:
        """Whether one wrong entry would show in each of these sums."""
        with np.errstate(all="ignore"):
            return all(
                (noise + self._rounding[columns] <= _NOISY * self._least(columns)).all()
                for columns, noise in of
            )

    def _least(self, columns: np.ndarray | slice) -> np.ndarray:
        """What the entry rule allows, for the smallest step of those that were made together."""
        allowed = self._allowed[columns]
        return allowed if isinstance(columns, slice) else allowed.min(1, keepdims=True)

    def hold(self, of: Sequence[Sum], take: Callable[[np.ndarray], list[np.ndarray]]) -> bool:
        """Whether these sums, taken from differences with a step, are what they should be."""
        near = take(self.step)
        if self._agree(of, near):
            return True
        if not self._similar(of, near):
            return False
        # What is left may be the error of the difference: a second step takes the larger part of it away.
        far = take(2 * self.step)
        return self._agree(of, [(4 * one - two / 2) / 3 for one, two in zip(near, far, strict=True)])

    def _agree(self, of: Sequence[Sum], numeric: list[np.ndarray]) -> bool:
        with np.errstate(all="ignore"):
            for (columns, noise), value in zip(of, numeric, strict=True):
                off = abs(value - self._expected[:, columns]) - (noise + self._rounding[columns])
                if not (off <= FRACTION * self._least(columns)).all():
                    return False
        return True

    def _similar(self, of: Sequence[Sum], numeric: list[np.ndarray]) -> bool:
        with np.errstate(all="ignore"):
            for (columns, _), value in zip(of, numeric, strict=True):
                off = abs(value - self._expected[:, columns])
                if not (off <= self._least(columns) + _DIGITS * abs(value)).all():
                    return False
        return True


def step_sizes(problem: Problem, eps: float) -> tuple[float, ...]:
    """The step, and one with less noise, for functions that cannot refuse a point by raising an error."""
    return (eps, COARSER * eps) if problem.batchable else (eps,)


def columns_agree(problem: Problem, probes: Probes, tol: Tolerance) -> bool:
    """Whether v^T A is v^T J in every column, each differenced by itself in batches."""
    cotangents, size = probes.cotangents.numpy(), problem.block_size()
    # Rounding of the outputs, which adds up as independent numbers do.
    with np.errstate(all="ignore"):
        weighted = cotangents[0] * problem.known.numpy()
        noise = 4 * problem.rounding * math.sqrt(weighted.dot(weighted))

    def take(step: np.ndarray) -> list[np.ndarray]:
        return [cotangents @ problem.column_differences(step, span, loop=False).T]

    for eps in step_sizes(problem, tol.eps):
        sums = Sums(problem, probes, problem.steps.array(eps), tol)
        if not sums.visible([Sum(slice(None), noise)]):
            continue
        for first in range(0, problem.inputs.size, size):
            span = slice(first, first + size)
            if not sums.hold([Sum(span, noise)], take):
                return False
        return True
    return False
