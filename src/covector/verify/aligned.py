"""Inputs whose axes are axes of the outputs: elementwise functions, batches, layers of independent units.

An axis of an input is aligned with one of an output if the output at index k along the one depends on the
input at index k along the other only. Then all k can be moved at once, by random weights u: where output
r has index k, v_r (J u)_r says something of the elements with index k alone, and summed over these r it
should be u_j (v^T A)_j for the element j that was moved there. If it is for random u and v, then the
axes are aligned in J and in A, and what they hold is the same. So an alignment may be guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import torch

from covector._chart import AnyPlace, Chart, Sampled
from covector._lazy import lazy
from covector.verify.combined import Probes, Sum, Sums, step_sizes
from covector.verify.directions import weights
from covector.verify.problem import Problem
from covector.verify.tolerance import Tolerance

# The share of the largest change of an output below which an element counts as not moved.
_UNMOVED = 1e-6

# Axes[i] says which axis of each output axis i of the input is aligned with.
Axes = dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Alignment:
    """An input, which of its axes are aligned with which of the outputs, and its coordinates by them.

    The real and the imaginary coordinates of a complex tensor are told apart by a last axis.
    """

    place: AnyPlace
    axes: Axes
    outputs: tuple[AnyPlace, ...]

    @lazy
    def groups(self) -> np.ndarray:
        """The coordinates that are moved together, a row for each group."""
        shape = self.place.real_shape
        aligned = list(self.axes)
        others = [axis for axis in range(len(shape)) if axis not in self.axes]
        coordinates = np.arange(self.place.start, self.place.stop).reshape(shape)
        return coordinates.transpose(others + aligned).reshape(self.count, -1)

    @lazy
    def count(self) -> int:
        """How many groups there are."""
        shape = self.place.real_shape
        return prod(size for axis, size in enumerate(shape) if axis not in self.axes)

    def gathered(self, values: np.ndarray) -> np.ndarray:
        """Rows of numbers, one for each output coordinate: their sums for each index of the aligned axes."""
        sums = [
            self._summed(values[:, place.start : place.stop], place, which)
            for which, place in enumerate(self.outputs)
        ]
        return sums[0] if len(sums) == 1 else np.sum(sums, axis=0)

    def _summed(self, values: np.ndarray, place: AnyPlace, which: int) -> np.ndarray:
        shape = place.real_shape
        kept = [axes[which] + 1 for axes in self.axes.values()]
        if kept == list(range(1, len(shape) + 1)):
            return values
        summed = [axis + 1 for axis in range(len(shape)) if axis + 1 not in kept]
        rows = values.reshape(-1, *shape)
        return (
            rows.transpose([0, *kept, *summed])
            .reshape(len(rows), -1, prod(shape[i - 1] for i in summed))
            .sum(2)
        )


class Seen(NamedTuple):
    """Alignments, the steps that are made together, and differences that were taken on the way."""

    alignments: list[Alignment]
    step: np.ndarray
    moves: np.ndarray
    differences: np.ndarray

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return sum(alignment.count for alignment in self.alignments)


def may_align(problem: Problem, most: float) -> bool:
    """Whether, as far as shapes tell, there can be so few groups."""
    if not _has_axes(problem):
        return False
    count = 0
    for place in _places(problem.inputs):
        free = [list(output.shape) for output in _places(problem.outputs)]
        groups = prod(place.real_shape[len(place.shape) :])
        for size in place.shape:
            if all(size in sizes for sizes in free):
                for sizes in free:
                    sizes.remove(size)
            else:
                groups *= size
        count += groups
    return count <= most


def by_moving(problem: Problem, tol: Tolerance) -> Seen:
    """The alignments that are seen when one slice along each axis of each input is moved.

    Where shapes say that the function may be elementwise, all of an input is moved as well: if it is one,
    no other difference is needed.
    """
    step = problem.steps.array(tol.eps)
    slices = list(_slices(problem))
    points = np.empty((len(slices), step.size))
    points[:] = problem.point.numpy()
    for point, (place, axis, index) in zip(points, slices, strict=True):
        part = point[place.start : place.stop].reshape(place.real_shape)
        sizes = step[place.start : place.stop].reshape(place.real_shape)
        at = (slice(None),) * axis + (index,)
        part[at] += sizes[at]
    inputs, outputs = _places(problem.inputs), tuple(_places(problem.outputs))
    made = _weighted(problem, tol.eps, tol.seed)
    if _broadcast(inputs, outputs):
        moves = np.zeros((len(inputs), step.size))
        for move, place in zip(moves, inputs, strict=True):
            move[place.start : place.stop] = made[place.start : place.stop]
        differences, values = problem.differences_and_values(moves, [points])
    else:
        differences = moves = points[:0]
        values = problem.values(torch.from_numpy(points)).numpy()
    with np.errstate(all="ignore"):
        changes = abs(values - problem.known.numpy())
    axes: dict[int, Axes] = {place.start: {} for place in inputs}
    for change, (place, axis, index) in zip(changes, slices, strict=True):
        match = _match(change, outputs, place, axis, index, axes[place.start])
        if match is not None:
            axes[place.start][axis] = match
    alignments = [Alignment(place, axes[place.start], outputs) for place in inputs]
    return Seen(alignments, made, moves, differences)


def _broadcast(inputs: Sequence[AnyPlace], outputs: Sequence[AnyPlace]) -> bool:
    """Whether every input is a real tensor that could be broadcast to every output."""
    for place in inputs:
        if len(place.real_shape) > len(place.shape):
            return False
        for output in outputs:
            pairs = zip(reversed(place.shape), reversed(output.shape), strict=False)
            if len(place.shape) > len(output.shape) or any(size not in (1, to) for size, to in pairs):
                return False
    return True


def _weighted(problem: Problem, eps: float, seed: int) -> np.ndarray:
    """The steps that are made together, by random weights."""
    return problem.steps.made(problem.steps.array(eps) * weights(problem.inputs.size, seed + 1).numpy())


def _has_axes(problem: Problem) -> bool:
    charts = (problem.inputs, problem.outputs)
    return all(isinstance(chart, Chart) and chart.can_batch for chart in charts)


def _places(chart: Chart | Sampled) -> list[AnyPlace]:
    """The places that have elements."""
    return [place for place in chart.places if place.stop > place.start]


def _slices(problem: Problem) -> Iterator[tuple[AnyPlace, int, int]]:
    """An input, an axis of it, and an index along that axis."""
    for place in _places(problem.inputs):
        for axis, size in enumerate(place.shape):
            if size > 1:
                yield place, axis, size // 2


def _match(
    change: np.ndarray, outputs: tuple[AnyPlace, ...], place: AnyPlace, axis: int, index: int, taken: Axes
) -> tuple[int, ...] | None:
    """An axis of each output along which nothing but this index has moved: the one of broadcasting first."""
    found = []
    for which, output in enumerate(outputs):
        used = [axes[which] for axes in taken.values()]
        free = [n for n, size in enumerate(output.shape) if size == place.shape[axis] and n not in used]
        if not free:
            return None
        free.sort(key=lambda n: n - len(output.shape) != axis - len(place.shape))
        part = change[output.start : output.stop].reshape(output.real_shape)
        moved = np.nonzero(part > _UNMOVED * part.max(initial=0.0))
        only = next((n for n in free if (moved[n] == index).all()), None)
        if only is None:
            return None
        found.append(only)
    return tuple(found)


class Piece(NamedTuple):
    """Some groups of an alignment."""

    alignment: Alignment
    groups: np.ndarray


def aligned_agree(problem: Problem, seen: Seen, probes: Probes, tol: Tolerance) -> bool:
    """Whether v^T A is v^T J in every column, all aligned elements differenced at once."""
    alignments = seen.alignments
    with np.errstate(all="ignore"):
        squares = np.square(probes.cotangents[:1].numpy() * problem.known.numpy())
    noise = {a.place.start: 4 * problem.rounding * np.sqrt(a.gathered(squares)) for a in alignments}

    def take(step: np.ndarray) -> list[np.ndarray]:
        return _differences(problem, seen, probes, pieces, step)

    for eps in step_sizes(problem, tol.eps):
        step = seen.step if eps == tol.eps else _weighted(problem, eps, tol.seed)
        sums = Sums(problem, probes, step, tol)
        if not sums.visible([Sum(a.groups, noise[a.place.start]) for a in alignments]):
            continue
        for pieces in _batches(alignments, max(1, problem.block_size() // 2)):
            if not sums.hold([Sum(p.groups, noise[p.alignment.place.start]) for p in pieces], take):
                return False
        return True
    return False


def _batches(alignments: Sequence[Alignment], size: int) -> Iterator[list[Piece]]:
    """All groups, so many at a time."""
    batch: list[Piece] = []
    room = size
    for alignment in alignments:
        start = 0
        while start < alignment.count:
            piece = Piece(alignment, alignment.groups[start : start + room])
            batch.append(piece)
            start += len(piece.groups)
            room -= len(piece.groups)
            if room == 0:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


def _differences(
    problem: Problem, seen: Seen, probes: Probes, pieces: list[Piece], step: np.ndarray
) -> list[np.ndarray]:
    """Differences along these groups, weighted with each v and summed for each coordinate of them."""
    moves = np.zeros((sum(len(piece.groups) for piece in pieces), step.size))
    start, spans = 0, []
    for piece in pieces:
        spans.append(slice(start, start + len(piece.groups)))
        moves[np.arange(start, spans[-1].stop)[:, None], piece.groups] = step[piece.groups]
        start = spans[-1].stop
    if np.array_equal(moves, seen.moves):
        differences = seen.differences
    else:
        differences = problem.differences(torch.from_numpy(moves)).numpy()
    cotangents = probes.cotangents.numpy()[:, None]
    sums = []
    for piece, span in zip(pieces, spans, strict=True):
        weighted = (cotangents * differences[span]).reshape(-1, differences.shape[1])
        sums.append(piece.alignment.gathered(weighted).reshape(len(cotangents), len(piece.groups), -1))
    return sums
