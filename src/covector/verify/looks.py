"""Looks: the directions along which the function is differenced and the derivative is compared.

Along a direction u, which moves some columns together, the function is differenced once. The difference,
mixed by random cotangents v, should be v^T A u. A wrong entry changes it by at least its own error times the
step of its column.

- `signs`: all columns at once, by random weights between 1 and 2 with random signs. Several wrong entries are
  missed only if they cancel along every direction.
- `singles`: every column by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.numeric import Numeric
from covector.verify.options import Options
from covector.verify.steps import ALL, Columns, steps_made
from covector.verify.vectors import PIECE, Drawn, Pieces, kept, weights

# Steps of so many numbers (8 MB) are made anew for each use; of fewer, that would take more time than room.
_MANY = 1 << 20


@dataclass(frozen=True)
class Look:
    """Directions, each a group of columns with the weight of its step."""

    name: str
    columns: np.ndarray | None
    """The column that each direction moves; None: each moves all of them."""
    weights: np.ndarray | Drawn
    """Of each column that is moved, in units of its step: a row for each direction."""
    share: float
    """The share of an entry's `atol` by which the mixed difference may be off."""

    def __len__(self) -> int:
        return 1 if isinstance(self.weights, Drawn) else len(self.weights)

    @property
    def width(self) -> int:
        """How many columns are moved together."""
        return self.weights.size if isinstance(self.weights, Drawn) else self.weights.shape[1]

    @property
    def large(self) -> bool:
        """Whether there is one direction, of so many columns that a copy of it matters."""
        return isinstance(self.weights, Drawn)

    def lengths(self, eps: float) -> tuple[float, float]:
        """The shortest and the longest steps, in units of `eps`.

        A sum of columns inside the function moves about as far as if one column moved by the norm of all
        steps: with a norm of `eps`, a direction crosses about as many kinks as a single column. Single
        columns begin near: what a longer step would step over shows there.
        """
        if self.columns is None:
            return self.width**-0.5, constants.LONGEST_STEP / eps
        return 1.0, 1.0

    def part(self, some: np.ndarray | slice) -> Look:
        """Some of the directions."""
        whole = isinstance(some, slice) and some == slice(0, len(self))
        if whole or isinstance(self.weights, Drawn):  # of which there is one
            return self
        columns = None if self.columns is None else self.columns[some]
        return replace(self, columns=columns, weights=self.weights[some])

    def steps(self, numeric: Numeric, length: float) -> np.ndarray:
        """The steps that are really made: a point is rounded."""
        if self.columns is not None and length == 1:
            return numeric.steps.array(numeric.eps)[self.columns, None]
        if isinstance(self.weights, np.ndarray) and self.width <= PIECE:
            columns = ALL if self.columns is None else self.columns[:, None]
            wanted = self.weights * numeric.steps.wanted(numeric.eps * length, columns)
            return numeric.steps.made_at(columns, wanted)
        steps = np.empty((len(self), self.width))
        for span, piece in self.pieces(numeric, length):
            steps[:, span] = piece
        return steps

    def pieces(self, numeric: Numeric, length: float, times: int = 1) -> Pieces:
        """The same times a number, some columns at a time: there may be little memory beside them."""
        for span, wanted, columns in self._wanted(numeric, length):
            steps = steps_made(numeric.problem.point[columns], wanted)
            yield span, steps if times == 1 else times * steps

    def _wanted(self, numeric: Numeric, length: float) -> Iterator[tuple[slice, np.ndarray, Columns]]:
        """The steps of some columns at a time before rounding, and which these are."""
        for span, drawn in self._weights():
            columns = span if self.columns is None else self.columns[:, None]
            yield span, drawn * numeric.steps.wanted(numeric.eps * length, columns), columns

    def _weights(self) -> Pieces:
        if isinstance(self.weights, Drawn):
            return self.weights.pieces()
        spans = (slice(start, start + PIECE) for start in range(0, self.width, PIECE))
        return ((span, self.weights[:, span]) for span in spans)

    def least_wanted(self, numeric: Numeric) -> np.ndarray:
        """The smallest step along each direction, of length one and before rounding."""
        return reduce(np.minimum, (self.least(steps) for _, steps, _ in self._wanted(numeric, 1.0)))

    def differences(self, numeric: Numeric, steps: np.ndarray) -> np.ndarray:
        """The differences of the outputs with these steps, a row for each direction."""
        if self.columns is None:
            return numeric.differences(steps)
        return numeric.singly(self.columns, steps[:, 0])

    def expected(self, analytic: Analytic, steps: np.ndarray) -> np.ndarray:
        """What the derivative says: v^T A u, direction by cotangent."""
        if self.columns is None:
            return analytic.mixed_along(steps).T
        with np.errstate(all="ignore"):  # zero times infinity
            products: np.ndarray = analytic.mixed.T[self.columns] * steps
        return products

    def least(self, steps: np.ndarray) -> np.ndarray:
        """The smallest step along each direction: a wrong entry may belong to any of its columns."""
        least: np.ndarray = abs(steps).min(1)
        return least

    def compare(self, numeric: Numeric, analytic: Analytic, length: float) -> tuple[np.ndarray, np.ndarray]:
        """What the derivative says, and the smallest step, of one direction whose steps nobody keeps."""
        least: list[np.ndarray] = []

        def pieces() -> Pieces:
            for span, steps in self.pieces(numeric, length):
                least.append(self.least(steps))
                yield span, steps

        return analytic.mixed_in_pieces(pieces()).T, reduce(np.minimum, least)


def singles(size: int) -> Look:
    """Every column by itself."""
    return Look("singles", np.arange(size), np.ones((size, 1)), constants.SUM_SHARE)


def signs(size: int, count: int, seed: int, *, fast: bool = False) -> Look:
    """All columns at once, along random directions."""
    share = constants.FAST_SHARE if fast else constants.SUM_SHARE
    if count == 1 and size > _MANY:
        return Look("signs", None, Drawn(size, seed + 1), share)
    return Look("signs", None, _drawn(size, count, seed + 1), share)


@kept
def _drawn(size: int, count: int, seed: int) -> np.ndarray:
    """Weights for some directions, which take few bytes: there may be many."""
    return weights(count * size, seed).numpy().astype(np.float32).reshape(count, size)


def ladder(numeric: Numeric, options: Options) -> Iterator[Iterator[Look]]:
    """The looks in the order of their price; each is taken only if those before could not decide.

    In fast mode, single columns are not moved if there are too many of them.
    """
    width, probes = numeric.problem.inputs.size, options.directions
    if 0 < probes < width:
        size = min(probes, numeric.columns_at_once)
        spans = ((at, min(size, probes - at)) for at in range(0, probes, size))
        yield (signs(width, count, options.seed + at, fast=options.fast) for at, count in spans)
    if not options.fast or 2 * width <= constants.FAST_RUNS:
        yield iter([singles(width)])
