"""The derivatives that are checked: reverse mode and forward mode, as linear maps.

Each answers the same questions: what are v^T A for some cotangents v (`mixed`), what are whole columns of A
(`columns`), what is one entry.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import numpy as np

from covector._lazy import lazy
from covector._linear import LinearMap
from covector.verify import constants
from covector.verify.problem import Problem
from covector.verify.vectors import (
    Cotangents,
    Pieces,
    cotangents_of,
)

# A chunk of a Jacobian holds at most this many numbers of input and output: what fits a cache.
_CHUNK_NUMBERS = 1 << 18


class Analytic(Protocol):
    """A derivative A that differences are held against."""

    label: str

    def prepare(self) -> None:
        """Do what is needed in any case before steps take memory."""

    @property
    def cotangents(self) -> np.ndarray:
        """The random cotangents v, a row for each."""

    @property
    def mixed(self) -> np.ndarray:
        """The products v^T A."""

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """The products v^T A u for some directions u: cotangent, direction."""

    def mixed_in_pieces(self, move: Pieces) -> np.ndarray:
        """The same for one direction, which comes in pieces."""

    def columns(self, which: np.ndarray) -> np.ndarray:
        """These columns of A."""

    def entry(self, row: int, column: int) -> float:
        """One entry of A."""


class QuietMap(LinearMap):
    """A map of a problem: that a batch became a loop is remembered, not warned about."""

    _refuses_draws = False
    _held: Callable[[], np.ndarray | None] = staticmethod(lambda: None)
    _matrix: np.ndarray | None = None
    """A, once all of it is known."""

    def __init__(self, problem: Problem, seed: int = 0, *, varied: bool = True) -> None:
        super().__init__(problem.caller)
        self.problem = problem
        self._seed, self.varied = seed, varied
        if not (problem.inputs.can_batch and problem.outputs.can_batch):
            self.batching = self.batching.down("loop", "torch does not stack sparse tensors")

    def prepare(self) -> None:
        """Nothing, unless the derivative has something to do."""

    def _lowered(self, reason: str) -> None:
        self.batching = self.batching.down("loop", reason)

    @lazy
    def random(self) -> Cotangents:
        """Random cotangents of the outputs."""
        problem = self.problem
        return cotangents_of(
            problem.outputs,
            self._seed,
            varied=self.varied,
            few_digits=problem.low_precision or problem.is_lifted,
            half=problem.half_inside,
        )

    @property
    def cotangents(self) -> np.ndarray:
        """The random cotangents, a row for each: many are drawn anew, unless somebody holds them."""
        held = self._held()
        if held is None:
            held = self.random.rows.numpy()
            self._held = weakref.ref(held)
        return held

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """V^T A u for each random cotangent and each u."""
        raise NotImplementedError

    def mixed_in_pieces(self, move: Pieces) -> np.ndarray:
        """The same for one u, which is put together."""
        return self.mixed_along(np.concatenate([piece for _, piece in move], axis=1))

    def _adds_up(self, got: np.ndarray, expected: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Where a sum of images is the image of the sum; `size` is that of what was added up."""
        relative = 1e-3 + constants.ROUNDINGS_OF_A_PULLBACK * self.problem.rounding
        with np.errstate(all="ignore"):
            return ~(abs(got - expected) > 1e-5 + relative * size)

    @property
    def chunk(self) -> int:
        """How many rows or columns of the Jacobian are computed at once."""
        return max(1, _CHUNK_NUMBERS // max(1, sum(self.problem.shape)))


class ZeroMap(QuietMap):
    """The derivative of a function whose outputs have no graph: zero."""

    label = "an output without a graph"

    @lazy
    def mixed(self) -> np.ndarray:
        """Zero."""
        return np.zeros((len(self.cotangents), self.problem.inputs.size))

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """Zero."""
        return np.zeros((len(self.cotangents), len(moves)))

    def columns(self, which: np.ndarray) -> np.ndarray:
        """Zero."""
        return np.zeros((self.problem.outputs.size, len(which)))

    def entry(self, row: int, column: int) -> float:
        """Zero."""
        return 0.0
