"""The differences of the function, as a linear map with noise; the only caller of it away from the point.

A single evaluation is the truth. A batch is a guess about how the function behaves under vmap: it is used
after it gave the known value at the point, and agreed with a single evaluation with every input moved.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from covector._chart import ShapeChange, is_sparse, is_strided
from covector._engine import graph
from covector._engine.batch import batched
from covector._engine.captured import captured
from covector._engine.functions import forwards_alone
from covector._engine.levels import GradMode
from covector._engine.memory import Watch
from covector._engine.messages import is_out_of_memory
from covector._lazy import lazy
from covector.errors import ResourceError, text_of
from covector.verify import constants
from covector.verify.moved import Shift
from covector.verify.problem import Problem
from covector.verify.steps import Steps
from covector.verify.vectors import Pieces, weights

_PLAIN = (Tensor, torch.nn.Parameter)


class BudgetSpent(Exception):
    """The check has run the function as often as it may."""


class Numeric:
    """Evaluations and differences of a problem's function, within a number of runs and of bytes."""

    def __init__(self, problem: Problem, eps: float, seed: int = 0, batch_bytes: int | None = None) -> None:
        self.problem = problem
        self.steps = Steps(problem.point, problem.rounding)
        # A function in low precision needs longer steps.
        self.eps = max(eps, problem.rounding ** (1 / 3)) if problem.low_precision else eps
        self.runs = 0
        self.spare = constants.EXTRA_RUNS
        """Runs that judging and halving may still take; looks are not limited."""
        self.refusal: BaseException | None = None
        self._bytes = constants.BATCH_BYTES if batch_bytes is None else batch_bytes
        self._seed = seed
        self._kept: np.ndarray | None = None
        self._ahead: np.ndarray | None = None
        self._made = np.zeros(0)
        """The step of each column that is kept; 0 where none is."""
        self._trusted: bool | None = None if self._stackable else False
        self._forwards_alone = False

    @property
    def _stackable(self) -> bool:
        problem = self.problem
        plain = all(type(tensor) in _PLAIN for tensor in problem.originals)
        sparse = any(isinstance(leaf, Tensor) and is_sparse(leaf) for leaf in problem.arguments.leaves)
        return plain and not sparse and not problem.closes_over and problem.outputs.can_batch

    @property
    def batches(self) -> bool:
        """Whether many points can be evaluated at once, as far as is known."""
        return self._trusted is not False

    @property
    def noise(self) -> np.ndarray:
        """The error of each output, as a standard deviation; a copy.

        A unit in the last place, or what two runs at the point differ by.
        """
        size = abs(self.problem.value)
        size[~np.isfinite(size)] = 0.0
        size *= self.problem.rounding
        return size if self.problem.unsteady is None else np.maximum(size, self.problem.unsteady)

    # Evaluations.

    def at(self, points: np.ndarray) -> np.ndarray:
        """The outputs at these points, a row for each; NaN where the function raises."""
        self.runs += len(points)
        if len(points) > 2 * constants.DIRECTIONS and self.batches:  # a batch of few points is slower
            try:
                rows = self._in_batches(points)
            except Exception:  # single evaluations work, or raise the same
                rows = None
            if rows is not None:
                return rows
            self._trusted = False
        return self._one_by_one(points)

    def spend(self, runs: int) -> None:
        """Take so many of the spare runs, unless there are fewer."""
        if runs > self.spare:
            raise BudgetSpent
        self.spare -= runs

    def _in_batches(self, points: np.ndarray) -> np.ndarray | None:
        """The outputs at these points, evaluated at once; None if single evaluations give others."""
        problem = self.problem
        if self._trusted:
            return self._in_chunks(points)
        along = weights(problem.inputs.size, self._seed + 1).numpy()
        moved = problem.point + self.steps.array(self.eps) * along
        held = [weakref.ref(one.tensor) for one in captured(problem.caller.function).tensors]
        alone = self._measured(moved)
        if any(tensor() is None for tensor in held):
            return None  # it keeps a tensor from each run, which must not be a batch
        probes = np.stack([problem.point, moved])
        try:
            self._batch(probes)
        except Exception:  # vmap may refuse a custom Function although its forward can be batched
            self._forwards_alone = True
            self._batch(probes)  # fails early if the function cannot be batched
        # The known points stand first and last: a rule may be wrong from some point of a batch on.
        probed = np.concatenate([problem.point[None], points, moved[None]])
        rows = self._in_chunks(probed)
        with np.errstate(all="ignore"):
            slack = constants.BATCH_ROUNDING * problem.rounding * (1 + abs(problem.value))
            self._trusted = _within(rows[0], problem.value, slack) and _within(rows[-1], alone, slack)
        return rows[1:-1] if self._trusted else None

    def _in_chunks(self, points: np.ndarray) -> np.ndarray:
        """The outputs at these points, as many at once as memory allows."""
        try:
            return np.concatenate([self._batch(chunk) for chunk in self._chunks(points)])
        finally:
            self.single(self.problem.point)  # so that the function keeps no batched tensor

    def _one_by_one(self, points: np.ndarray) -> np.ndarray:
        if len(points) == 1:
            return self.single(points[0])[None]
        rows = np.empty((len(points), self.problem.outputs.size))
        for row, point in zip(rows, points, strict=True):
            row[:] = self.single(point)
        return rows

    def single(
        self,
        point: np.ndarray,
        shift: Shift | None = None,
        use: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The outputs at one point; NaN if the function raises there, which is outside of its domain."""
        try:
            return self.problem.evaluate(point, shift, use)
        except ShapeChange:
            raise
        except Exception as error:
            if error is not self.problem.raised:
                raise
            if is_out_of_memory(error):
                raise ResourceError(
                    f"{self.problem.caller}: the function ran out of memory: {text_of(error)}"
                ) from error
            self.refusal, self.problem.raised = error, None
            return np.full(self.problem.outputs.size, np.nan)

    def _measured(self, point: np.ndarray) -> np.ndarray:
        """The outputs at one point, and what the run takes in memory, unless the graph tells enough."""
        large = 2 * self.problem.inputs.size * self._run_bytes > self._bytes
        if not large and not graph.through_custom(self.problem.reached.inner):
            return self.single(point)
        with Watch() as watch:
            outputs = self.single(point)
        self._run_bytes = max(1, watch.peak)
        return outputs

    def _batch(self, points: np.ndarray) -> np.ndarray:
        problem = self.problem
        stacks = map(_laid_out, problem.chart.from_coords(torch.from_numpy(points)), problem.variables)
        before = problem.runs
        with GradMode(enabled=False), forwards_alone() if self._forwards_alone else nullcontext():
            values = batched(problem.outputs_of, list(stacks), "same")
        problem.runs = before + len(points)
        rows = problem.outputs.stack_to_coords(values).cpu().numpy()
        if len(rows) != len(points):
            raise ValueError("a batching rule lost points")
        return rows

    # Memory.

    @lazy
    def _run_bytes(self) -> int:
        """What one run takes at most: every tensor in its graph."""
        return 8 * sum(self.problem.shape) + sum(self.problem.bytes_inside.values())

    def chunk(self) -> int:
        """How many points are evaluated at once, or held in memory to be evaluated one by one."""
        held = 8 * constants.COPIES * sum(self.problem.shape)
        return max(1, self._bytes // max(1, held, 0 if self._trusted is False else self._run_bytes))

    def _chunks(self, points: np.ndarray) -> Iterator[np.ndarray]:
        size = self.chunk()
        return (points[start : start + size] for start in range(0, len(points), size))

    # Differences.

    def differences(self, moves: np.ndarray) -> np.ndarray:
        """(f(x + s) - f(x - s)) / 2 for every row s."""
        here = self.problem.point
        if len(moves) == 1:
            return self.difference(lambda: [(slice(0, here.size), moves)])
        points = np.empty((2 * len(moves), here.size))
        np.add(here, moves, out=points[::2])
        np.subtract(here, moves, out=points[1::2])
        values = self.at(points)
        return _halved(values[::2], values[1::2])

    def difference(self, move: Callable[[], Pieces]) -> np.ndarray:
        """The same for one move, whose pieces are made anew for each run, since it may be large."""
        self.runs += 2
        here = self.problem.point
        plus = self.single(here, Shift(np.add, move))
        return self.single(here, Shift(np.subtract, move), partial(_halved, plus))[None]

    def sides(self, columns: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F(x + s e) and f(x - s e) for single coordinates, as many at once as memory allows."""
        here, size = self.problem.point, self.columns_at_once
        if len(columns) > size:
            spans = (slice(start, start + size) for start in range(0, len(columns), size))
            parts = [self.sides(columns[span], steps[span]) for span in spans]
            plus, minus = (np.concatenate(side) for side in zip(*parts, strict=True))
            return plus, minus
        points = np.repeat(here[None], 2 * len(columns), axis=0)
        each = 2 * np.arange(len(columns))  # one side after the other: a function may differ from run to run
        points[each, columns] += steps
        points[each + 1, columns] -= steps
        values = self.at(points)
        return values[::2], values[1::2]

    @property
    def columns_at_once(self) -> int:
        """How many columns are differenced at once."""
        return max(1, self.chunk() // 2)

    def singly(self, columns: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Differences along single coordinates; the first of each are kept, where memory allows."""
        height, width = self.problem.shape
        if self._kept is not None and np.array_equal(self._made[columns], steps):
            return self._kept[columns]
        plus, minus = self.sides(columns, steps)
        if 8 * height * width > self._bytes:
            return _halved(plus, minus)
        if self._kept is None:
            self._kept, self._made = np.empty((width, height)), np.zeros(width)
            self._ahead = np.empty((width, height)) if 16 * height * width <= self._bytes else None
        new = self._made[columns] == 0
        if self._ahead is not None:
            self._ahead[columns[new]] = plus[new]
        differences = _halved(plus, minus)
        self._kept[columns[new]], self._made[columns[new]] = differences[new], steps[new]
        return differences

    def first_steps(self, columns: np.ndarray) -> np.ndarray:
        """The steps of these columns that are kept, or else the usual ones."""
        usual = self.steps.array(self.eps)[columns]
        return usual if self._kept is None else np.where(self._made[columns], self._made[columns], usual)

    def moved_least(self, columns: np.ndarray) -> np.ndarray:
        """How far the outputs move to the side on which they move less, with the first steps."""
        if self._kept is not None and self._ahead is not None and bool(self._made[columns].all()):
            plus = self._ahead[columns]
            minus = plus - 2 * self._kept[columns]
        else:
            plus, minus = self.sides(columns, self.first_steps(columns))
        value = self.problem.value
        with np.errstate(all="ignore"):
            least: np.ndarray = np.minimum(abs(plus - value), abs(minus - value))
        return least

    @property
    def knows_columns(self) -> bool:
        """Whether every column was differenced by itself, and kept."""
        return self._kept is not None and bool(self._made.all())

    def columns(self, which: np.ndarray) -> np.ndarray:
        """Slopes along these coordinates: output, coordinate."""
        steps = self.first_steps(which)
        with np.errstate(all="ignore"):
            slopes: np.ndarray = (self.singly(which, steps) / steps[:, None]).T
        return slopes

    def slope_noise(self, rows: np.ndarray, which: np.ndarray) -> np.ndarray:
        """How far rounding may put the slopes off that stand in these rows and columns."""
        with np.errstate(all="ignore"):
            noise: np.ndarray = constants.SIGMAS * self.noise[rows][:, None] / abs(self.first_steps(which))
        return noise

    def bounds(self, rows: np.ndarray, which: np.ndarray) -> np.ndarray:
        """How far off these slopes may be: their noise, and the gap between the slopes on both sides.

        A gap that curvature explains does no harm. Next to a kink or a pole, and on a wave as short as the
        step, it is as large as the slope. It is known where both sides are kept.
        """
        noise = self.slope_noise(rows, which)
        if self._kept is None or self._ahead is None or not self._made[which].all():
            return noise
        at, steps = np.ix_(which, rows), abs(self._made[which][:, None])
        with np.errstate(all="ignore"):
            gap = (2 * abs(self._ahead[at] - self._kept[at] - self.problem.value[rows]) / steps).T
            size = 2 * abs(self._kept[at] / steps).T
            return np.where(gap > constants.CURVATURE * size + noise, noise + gap, noise)

    def stencil(self, column: int, step: float, kept: np.ndarray | slice) -> np.ndarray:
        """The outputs that are kept at x + j h for j = -3 ... 3 along one coordinate, each run by itself."""
        problem = self.problem
        self.spend(6)
        self.runs += 6
        rows = np.repeat(problem.value[kept][None], 7, axis=0)
        for j in (-3, -2, -1, 1, 2, 3):
            point = problem.point.copy()
            with np.errstate(over="ignore"):  # infinity is outside of the domain
                point[column] += step * j
            rows[3 + j] = self.single(point)[kept]
        return rows


def _halved(plus: np.ndarray, minus: np.ndarray) -> np.ndarray:
    """Half of what the function changes by from one side to the other, in the memory of the first."""
    unmoved = plus == minus
    with np.errstate(all="ignore"):
        plus -= minus
        plus *= 0.5
    plus[unmoved] = 0.0  # infinity that does not move
    return plus


def _laid_out(stack: Tensor, leaf: Tensor) -> Tensor:
    """The stack with every tensor in it laid out as a leaf, if that takes no more than twice the memory."""
    if not is_strided(leaf) or leaf.is_contiguous():
        return stack.contiguous()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    if extent > 2 * leaf.numel():
        return stack.contiguous()
    strides = (extent, *leaf.stride())
    return torch.empty_strided(stack.shape, strides, dtype=stack.dtype, device=stack.device).copy_(stack)


def _within(got: np.ndarray, expected: np.ndarray, slack: np.ndarray) -> bool:
    same = abs(got - expected) <= slack
    if not same.all():
        same |= (got == expected) | (np.isnan(got) & np.isnan(expected))
    return bool(same.all())
