"""All entries at once, along one random combination v of the outputs: v^T A against v^T J.

The weights in v are random in size and sign, so that wrong entries of a column cancel with probability
zero. An error that the entry rule allows may show here: what does not agree is looked at entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart, Sampled
from covector.verify.directions import weights
from covector.verify.problem import Problem, Tolerance

# The share of an entry's tolerance that a sum over a column may be off by.
_FRACTION = 0.02

# The share of it that rounding may take before every entry is looked at instead.
_NOISY = 0.5

# Sums that agree to this share may agree better with a better difference.
_DIGITS = 1e-3


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

    def visible(self, columns: slice, noise: np.ndarray | float) -> bool:
        """Whether one wrong entry would show in each of these columns."""
        return bool((noise <= _NOISY * self._allowed[columns]).all())

    def agree(self, numeric: np.ndarray, columns: slice, noise: np.ndarray | float) -> bool:
        """Whether they are, in these columns."""
        with np.errstate(all="ignore"):
            off = abs(numeric - self.expected[columns]) - noise - self._rounding[columns]
            return bool((off <= _FRACTION * self._allowed[columns]).all())

    def similar(self, numeric: np.ndarray, columns: slice) -> bool:
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


def broadcasts(problem: Problem) -> bool:
    """Whether every input can be broadcast to the shape of every output."""
    if not isinstance(problem.inputs, Chart) or not isinstance(problem.outputs, Chart):
        return False
    if not (problem.inputs.can_batch and problem.outputs.can_batch):
        return False
    shapes = {place.shape for place in problem.inputs.places}
    return all(_fits(shape, place.shape) for shape in shapes for place in problem.outputs.places)


def _fits(small: torch.Size, large: torch.Size) -> bool:
    if len(small) > len(large):
        return False
    return all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


class Part(NamedTuple):
    """Coordinates of one input that are moved together: all, or the real or the imaginary ones."""

    columns: slice
    shape: torch.Size
    noise: np.ndarray
    """Of the sum that belongs to each coordinate."""


def elements_agree(problem: Problem, probe: Probe, tol: Tolerance) -> bool:
    """The same for a function that works element by element, with broadcasting.

    All elements of an input are moved at once, by random weights u. Where output r depends on the element
    c(r) that broadcasts to it and on no other, the sum of v_r (J u)_r over the outputs with c(r) = j is
    u_j (v^T A)_j. If it is for random u and v, then each side has these entries and no others.
    """
    step = problem.made(problem.steps(tol.eps) * weights(problem.inputs.size, tol.seed + 1).numpy())
    sums, parts = Sums(problem, probe, step, tol), _parts(problem, probe)
    if not all(sums.visible(part.columns, part.noise) for part in parts):
        return False
    near = _sums_along(problem, probe, parts, step)
    if all(map(sums.agree, near, *_columns_and_noise(parts))):
        return True
    if not all(sums.similar(row, part.columns) for row, part in zip(near, parts, strict=True)):
        return False
    # What is left may be the error of the difference: a second step takes the larger part of it away.
    far = _sums_along(problem, probe, parts, 2 * step)
    better = [(4 * one - two / 2) / 3 for one, two in zip(near, far, strict=True)]
    return all(map(sums.agree, better, *_columns_and_noise(parts)))


def _parts(problem: Problem, probe: Probe) -> list[Part]:
    with np.errstate(all="ignore"):
        squares = np.square(probe.cotangent.numpy() * problem.known.numpy())
        noise = {
            shape: 4 * problem.rounding * np.sqrt(_gathered(squares, problem.outputs, shape))
            for shape in {place.shape for place in problem.inputs.places}
        }
    return [
        Part(slice(place.start + part, place.stop, count), place.shape, noise[place.shape])
        for place in problem.inputs.places
        for count in (2 if place.dtype.is_complex else 1,)
        for part in range(count)
    ]


def _columns_and_noise(parts: list[Part]) -> tuple[list[slice], list[np.ndarray]]:
    return [part.columns for part in parts], [part.noise for part in parts]


def _sums_along(problem: Problem, probe: Probe, parts: list[Part], step: np.ndarray) -> list[np.ndarray]:
    """Differences along each part, weighted with v and summed for each coordinate of it."""
    moves = np.zeros((len(parts), step.size))
    for move, part in zip(moves, parts, strict=True):
        move[part.columns] = step[part.columns]
    weighted = problem.differences(torch.from_numpy(moves)).numpy() * probe.cotangent.numpy()
    return [_gathered(row, problem.outputs, part.shape) for row, part in zip(weighted, parts, strict=True)]


def _gathered(values: np.ndarray, outputs: Chart | Sampled, shape: torch.Size) -> np.ndarray:
    """The sum of what belongs to outputs to which the same element of a tensor of this shape broadcasts."""
    sums = [_summed(values[place.start : place.stop], place, shape) for place in outputs.places]
    return sums[0] if len(sums) == 1 else np.sum(sums, axis=0)


def _summed(values: np.ndarray, place: AnyPlace, shape: torch.Size) -> np.ndarray:
    if place.dtype.is_complex:
        values = values.reshape(-1, 2).sum(1)
    if place.shape == shape:
        return values
    return torch.from_numpy(values).reshape(place.shape).sum_to_size(shape).numpy().ravel()
