"""A problem, and the derivatives of it that several checks need, each computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from covector._chart import ShapeChange
from covector._engine import graph
from covector._lazy import lazy
from covector.verify.aligned import aligned_agree, by_moving, may_align
from covector.verify.combined import Probes, columns_agree
from covector.verify.compare import Verdict
from covector.verify.directions import SHRINK, Cotangents, cotangents_of, weights
from covector.verify.finding import Outcome
from covector.verify.maps import ForwardMap, Matrix, ReverseMap, forward_matrix, reverse_matrix
from covector.verify.probes import compare_probe
from covector.verify.problem import Problem
from covector.verify.stand_ins import same_bits
from covector.verify.surprises import NotBatchable
from covector.verify.tolerance import Tolerance, within

# Below this many numbers to compute, every column is differenced even in fast mode: it takes no longer.
_FEW_NUMBERS = 1 << 13

# Above this many, differencing every column takes more than pulling every row back, unless there are twice
# as many rows as columns.
_MANY_NUMBERS = 1 << 17

# Above this share of the columns, groups of them save too little.
_WORTH = 0.5

# Above this many, groups take longer than the random directions of fast mode.
_FEW_GROUPS = 8

_DOUBLE = torch.finfo(torch.float64).eps


class Options(NamedTuple):
    """What is to be checked, and how."""

    tol: Tolerance
    fast: bool = False
    probes: int = 4
    max_entries: int | None = None
    nondet_tol: float = 0.0
    reverse: bool = True
    forward: bool = False
    undefined: bool = True
    masked: bool = False
    dtypes: bool = False
    batched: bool = False
    batched_forward: bool = False

    @property
    def brief(self) -> bool:
        """Whether the verdict alone is asked for, so that the first thing wrong is enough."""
        return self.tol.named == 1


class Derivatives:
    """A problem, and the derivatives of it that several checks need, each computed once."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem = problem
        self.options = options
        self.reverse = ReverseMap(problem)
        self._linear = True
        self.raised: BaseException | None = None

    @property
    def probing(self) -> bool:
        """Whether differences are taken along random directions instead of every column."""
        return self.options.fast and not self._few

    @lazy
    def _few(self) -> bool:
        problem = self.problem
        columns, rows = problem.inputs.size, problem.outputs.size
        few = columns * (columns + rows) <= _FEW_NUMBERS
        return few and problem.stackable and not problem.one_by_one

    @property
    def has_matrix(self) -> bool:
        """Whether every entry of the Jacobian was computed after all."""
        return "matrix" in self.__dict__

    @property
    def rows_combined(self) -> bool:
        """Whether no more was needed than a random combination of the rows."""
        return self.__dict__.get("combined", False) and not self.has_matrix

    @lazy
    def combined(self) -> bool:
        """Whether every entry agreed with differences, along a random combination of the outputs."""
        problem = self.problem
        columns, rows = problem.inputs.size, problem.outputs.size
        if 0 in (columns, rows):
            return True
        if problem.low_precision or problem.rounding > _DOUBLE:
            return False
        numbers = columns * (columns + rows)
        if numbers <= _FEW_NUMBERS and problem.batchable and not self.probing:
            agree = self._each_column()
            if problem.batchable:
                return agree
        if self.probing and numbers <= _MANY_NUMBERS and self.probes_tell:
            return False
        if self._aligned():
            return True
        if self.probing:
            return False
        if not problem.batchable or (numbers > _MANY_NUMBERS and rows < 2 * columns):
            return False
        return self._each_column()

    def _each_column(self) -> bool:
        """Whether all entries agreed with differences, every column moved by itself in batches."""
        with self._guessing():
            return columns_agree(self.problem, self.probes, self.options.tol)
        return False

    @contextmanager
    def _guessing(self) -> Iterator[None]:
        """A guess may move the function to where it raises; that proves nothing."""
        try:
            yield
        except (NotBatchable, ShapeChange):
            pass
        except Exception as error:
            if error is not self.problem.raised:
                raise
            self.problem.raised = None

    def _aligned(self) -> bool:
        """Whether all entries agreed with differences, aligned elements moved at once where that saves."""
        problem, tol = self.problem, self.options.tol
        most = _FEW_GROUPS if self.probing else _WORTH * problem.inputs.size
        if not may_align(problem, most):
            return False
        with self._guessing():
            seen = by_moving(problem, tol)
            if seen.groups <= most:
                return aligned_agree(problem, seen, self.probes, tol)
        return False

    @lazy
    def agreed(self) -> bool:
        """Whether the pullback of the random cotangent agreed with differences."""
        return self.combined or (self.probing and self.probed.outcome is Outcome.PASSED)

    @property
    def probes_tell(self) -> bool:
        """Whether differences along random directions came to a verdict."""
        return self.told_by(self.probed)

    def told_by(self, verdict: Verdict) -> bool:
        """Whether random directions tell; what low precision may do to one entry they do not know."""
        if verdict.outcome is Outcome.PASSED:
            return True
        return bool(verdict.mismatches) and not self.problem.low_precision

    @lazy
    def probed(self) -> Verdict:
        """The pullback of the random cotangent against differences along random directions."""
        return compare_probe(self.problem, self.reverse, self.probes, self.options.probes, self.options.tol)

    @lazy
    def probes(self) -> Probes:
        """The random cotangent and its pullback; if it is not to be fast, an uneven cotangent too.

        That one shows what a sum of rows hides; of one row it is a multiple.
        """
        rows = self._random.rows
        if self.options.fast or self.problem.outputs.size == 1:
            return Probes(rows[:1], self.pulled_coordinates[None])
        pulled = self.pull(_copies(self._random.uneven))
        return Probes(rows, torch.stack([self.pulled_coordinates, pulled]))

    @lazy
    def _random(self) -> Cotangents:
        return cotangents_of(self.problem.outputs, self.options.tol.seed)

    @property
    def _cotangent(self) -> Tensor:
        return self._random.rows[0]

    @lazy
    def cotangents(self) -> list[Tensor]:
        """One random cotangent, the same for every check."""
        return _copies(self._random.even)

    @property
    def cotangent_kept(self) -> bool:
        """Whether no backward has written to the random cotangent."""
        return all(map(same_bits, self.cotangents, self._random.even))

    @lazy
    def shrunk(self) -> Tensor:
        """The pullback of a negative cotangent, 1024 times smaller, scaled back: if linear, the same bits."""
        return self.pull(_copies(self._random.small)) * SHRINK

    @lazy
    def homogeneous(self) -> bool:
        """Whether the pullback scales with the cotangent."""
        got, expected = self.shrunk, self.pulled_coordinates
        if torch.equal(got, expected) or self.problem.low_precision:
            return True
        return self.close(got, expected, expected.abs() + 1)

    @lazy
    def opposite(self) -> list[Tensor]:
        """Its negative."""
        return self.problem.outputs.from_coords(-self._cotangent)

    @lazy
    def zeros(self) -> list[Tensor]:
        """A cotangent of zero."""
        return self.problem.outputs.from_coords(torch.zeros_like(self._cotangent))

    @lazy
    def pulled(self) -> list[Tensor | None]:
        """Its pullback, as the graph gave it."""
        return list(self.reverse.pull(self.cotangents))

    def pull(self, cotangents: list[Tensor]) -> Tensor:
        """A pullback in coordinates."""
        return self.filled(self.reverse.pull(cotangents))

    def filled(self, pulled: Sequence[Tensor | None]) -> Tensor:
        """Gradients in coordinates, zeros where there is none."""
        return graph.written_out(self.problem.inputs.coordinates(pulled))

    @lazy
    def forward(self) -> ForwardMap:
        """The derivative by forward mode."""
        return ForwardMap(self.problem)

    @lazy
    def forward_matrix(self) -> Matrix:
        """The Jacobian by forward mode."""
        return forward_matrix(self.problem, self.forward)

    def push(self, tangent: Tensor) -> Tensor:
        """A push in coordinates."""
        return self.pushed(self.forward.apply(self.problem.inputs.from_coords(tangent.clone())))

    def pushed(self, tensors: list[Tensor]) -> Tensor:
        """Tangents of the outputs in coordinates."""
        return graph.written_out(self.problem.outputs.coordinates(tensors))

    @lazy
    def pulled_coordinates(self) -> Tensor:
        """The pullback of the random cotangent, in coordinates: a copy, of what may be a workspace."""
        return self.filled(self.pulled).clone()

    @lazy
    def matrix(self) -> Matrix:
        """The Jacobian by reverse mode, by a loop if the batch disagrees with a single pullback."""
        matrix = reverse_matrix(self.problem, self.reverse)
        if self.consistent(matrix):
            return matrix
        looping = self._looping()
        matrix = reverse_matrix(self.problem, looping)
        if self.consistent(matrix):
            self.reverse = looping
        else:
            self._linear = False
        return matrix

    def consistent(self, matrix: Matrix) -> bool:
        """Whether the pullback of a sum is the sum of the pullbacks."""
        v, got = self._cotangent, self.pulled_coordinates
        if matrix.dense is not None:
            summed = v @ matrix.dense
            if within(got.numpy(), summed.numpy(), self.options.tol.rtol, self.options.tol.atol):
                return True
            size = v.abs() @ matrix.dense.abs()
        else:
            rows, columns, values = matrix.entries
            weighted = v[rows] * values
            zeros = torch.zeros(matrix.shape[1], dtype=torch.float64)
            summed = zeros.index_add(0, columns, weighted)
            size = zeros.index_add(0, columns, weighted.abs())
        return self.close(got, summed, size)

    def close(self, got: Tensor, expected: Tensor, size: Tensor) -> bool:
        """Equal by the tolerance, relative to the size of what was added up; NaN tells nothing here."""
        rtol, atol = self.options.tol.rtol, self.options.tol.atol + self.options.nondet_tol
        if within(got.numpy(), expected.numpy(), rtol, atol):
            return True
        allowed = rtol * size + atol
        rounded = (got - expected).abs() <= allowed + 16 * self.problem.derivative_rounding * size
        return bool((rounded | got.isnan() | expected.isnan() | ~size.isfinite()).all())

    def is_linear(self) -> bool:
        """Whether pullbacks add up: all rows, or where they were combined, those of two cotangents."""
        if not self._sampling:
            return self.matrix is not None and self._linear
        chart = self.problem.outputs
        other = weights(chart.size, self.options.tol.seed + 1)
        pulled = self.pull(chart.from_coords(other.clone()))
        got = self.pull(chart.from_coords(self._cotangent + other))
        size = pulled.abs() + self.pulled_coordinates.abs() + chart.size**0.5
        return self.close(got, pulled + self.pulled_coordinates, size)

    @property
    def _sampling(self) -> bool:
        """Whether the rows of the Jacobian were combined instead of computed one by one."""
        return not self.has_matrix and (self.probing or self.combined)

    def of_zero(self) -> Tensor:
        """The pullback of a cotangent of zero."""
        known = None if self._sampling else self.matrix.of_zero
        if known is not None:
            return known
        return self.pull(self.zeros)

    def _looping(self) -> ReverseMap:
        looping = ReverseMap(self.problem)
        looping.batching = looping.batching.down("loop", "the batch disagrees with a single pullback")
        return looping


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]
