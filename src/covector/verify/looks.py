"""Looks: which columns of a Jacobian are moved together, and who owns each cell of the answer.

Along a group of columns the function is differenced once. The answer is mixed by random cotangents v and
gathered into cells; a cell should be v^T A e for the column that owns it, times the step of that column. In
each look a wrong entry disturbs some cell by at least its own error times the step:

- `singles`: every column by itself. One cell, owned by the column.
- `signs`: all columns at once, by random weights. One cell, owned by all of them.
- `axes`: all indices along an axis of an input at once, where the output at index k of some axis depends on
  the input at index k alone. One cell for each index, owned by the column with that index. Entries that break
  this assumption disturb the cells of other columns, so it may be guessed, and is tested by the look itself.
- `elementwise`: the boldest such guess, that all axes of all inputs are aligned with those of the outputs.
  One cell for each element, owned by the columns of that element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import numpy as np
import torch

from covector._chart import AnyPlace, Chart, Place, Sampled
from covector._lazy import lazy
from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.numeric import Numeric
from covector.verify.problem import Problem
from covector.verify.steps import ALL, Columns, steps_made
from covector.verify.vectors import PIECE, weights

# Some coordinates of the outputs.
Rows = slice | np.ndarray

# Axes[i] says which axis of each output axis i of the input is aligned with.
Axes = dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class Look:
    """Groups of columns, the step of each column in its group, and how an answer is gathered into cells."""

    name: str
    columns: np.ndarray | None
    """Those that are moved together, a row for each group; None: all of them in their order."""
    weights: np.ndarray
    """Of each column in its group, in units of the step of the column."""
    size: int
    """How many columns there are in all."""
    gathered: Callable[[np.ndarray], np.ndarray] | None = None
    """The sums of numbers of each output, in rows, for each cell; None: one cell for all."""
    owners: int = 1
    """How many columns of a group own each cell: one of each input, if all are moved together."""
    guessed: bool = False
    """Whether the owners are a guess that nothing supports yet: where many cells disagree, it is wrong."""
    outputs: tuple[AnyPlace, ...] | None = None
    """Those of which element k is gathered into cell k, if that is what cells are."""
    rows: Rows = field(default_factory=lambda: ALL)
    """The coordinates of the outputs that are gathered."""

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def width(self) -> int:
        """How many columns are moved together."""
        return self.weights.shape[1]

    @lazy
    def groups(self) -> np.ndarray:
        """The columns that are moved together, a row for each group."""
        if self.columns is not None:
            return self.columns
        return np.broadcast_to(_columns(self.size), self.weights.shape)

    @property
    def shared(self) -> bool:
        """Whether one cell belongs to all columns, which then move together."""
        return self.gathered is None and self.width > 1

    @property
    def share(self) -> float:
        """The share of one entry's tolerance by which a cell may be off."""
        return constants.SHARED_CELL_SHARE if self.shared else constants.CELL_SHARE

    def lengths(self, eps: float) -> Iterator[float]:
        """Lengths of steps to choose from, in units of `eps`.

        Where columns share a cell, what they are added up to inside the function moves as far as one column
        that moves by the norm of all steps: with that norm, as few kinks are crossed. Else there is one
        length for many cells, which does not grow far: others would show their truncation error.
        """
        length, longest = 1.0, constants.SHORTER * eps
        if self.shared:
            length, longest = self.width**-0.5, constants.LONGEST_STEP
        yield length
        while (length := length * constants.NEXT_LENGTH) * eps <= longest:
            yield length

    def part(self, some: np.ndarray | slice) -> Look:
        """Some of the groups."""
        columns = None if self.columns is None else self.columns[some]
        return replace(self, columns=columns, weights=self.weights[some])

    @property
    def large(self) -> bool:
        """Whether a group has so many columns that they are worked on piece by piece."""
        return self.width > PIECE

    def pieces(self) -> Iterator[Look]:
        """The same with fewer cells at a time, where each belongs to an element: there may be many."""
        if self.outputs is None or not self.large:
            yield self
            return
        elements = self.size // self.owners
        owned = (self.owners, elements)
        for start in range(0, elements, PIECE):
            span = slice(start, min(start + PIECE, elements))
            if self.columns is None:
                columns = np.arange(self.owners)[:, None] * elements + np.arange(span.start, span.stop)
            else:
                columns = self.columns.reshape(owned)[:, span]
            weights = self.weights.reshape(owned)[:, span]
            outputs, rows = _cut(self.outputs, span)
            yield replace(
                self,
                columns=columns.reshape(1, -1),
                weights=weights.reshape(1, -1),
                gathered=partial(_summed_along, {0: (0,) * len(outputs)}, outputs),
                outputs=outputs,
                rows=rows,
            )

    def _by_group(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of all columns, for the columns of each group."""
        if self.columns is not None:
            return numbers[..., self.columns]
        if len(self) == 1:  # there may be many: no copy
            return numbers[..., None, :]
        return np.broadcast_to(numbers[..., None, :], (*numbers.shape[:-1], *self.weights.shape))

    def steps(self, numeric: Numeric, length: float) -> np.ndarray:
        """The steps that are really made: a point is rounded."""
        if self.width == 1 and length == 1:
            return self._by_group(numeric.steps.array(numeric.eps))
        if not self.large:
            wanted, columns = self._wanted(numeric, length, ALL)
            return steps_made(numeric.problem.point[columns], wanted)
        steps = np.empty(self.weights.shape)
        for span in self._spans():
            wanted, columns = self._wanted(numeric, length, span)
            steps[:, span] = steps_made(numeric.problem.point[columns], wanted)
        return steps

    def _wanted(self, numeric: Numeric, length: float, span: slice) -> tuple[np.ndarray, Columns]:
        """Of some columns of each group, the steps before rounding; and which these are."""
        columns = span if self.columns is None else self.columns[:, span]
        return self.weights[:, span] * numeric.steps.wanted(numeric.eps * length, columns), columns

    def least_wanted(self, numeric: Numeric) -> np.ndarray:
        """The smallest step of each group, of length one and before rounding."""
        if not self.large:
            return self.least(self._wanted(numeric, 1.0, ALL)[0])
        wanted = (self._wanted(numeric, 1.0, span)[0] for span in self._spans())
        return np.min([abs(steps).min(1, keepdims=True) for steps in wanted], axis=0)

    def _spans(self) -> Iterator[slice]:
        """Some columns at a time: there may be many, and little memory beside them."""
        return (slice(start, start + PIECE) for start in range(0, self.width, PIECE))

    def moves(self, steps: np.ndarray) -> np.ndarray:
        """The moves of all coordinates, a row for each group."""
        if self.columns is None:
            return steps
        moves = np.zeros((len(self), self.size))
        moves[np.arange(len(self))[:, None], self.groups] = steps
        return moves

    def differences(self, numeric: Numeric, length: float) -> np.ndarray:
        """The differences of the outputs with steps of a length, a row for each group."""
        if len(self) == 1 and self.width > 1:
            return numeric.difference(lambda: self.moves(self.steps(numeric, length))[0])
        return self.differences_along(numeric, self.steps(numeric, length))

    def differences_along(self, numeric: Numeric, steps: np.ndarray) -> np.ndarray:
        """The same with these steps."""
        if self.width == 1:
            return numeric.singly(self.groups[:, 0], steps[:, 0])
        return numeric.differences(self.moves(steps))

    def cells(self, cotangents: np.ndarray, differences: np.ndarray) -> np.ndarray:
        """Differences as cells: cotangent, group, cell."""
        cotangents, differences = cotangents[:, self.rows], differences[:, self.rows]
        if self.gathered is None:
            return (cotangents @ differences.T)[:, :, None]
        mixed = cotangents[:, None] * differences
        rows = self.gathered(mixed.reshape(-1, differences.shape[1]))
        return rows.reshape(len(cotangents), len(differences), -1)

    def expected(self, analytic: Analytic, steps: np.ndarray) -> np.ndarray:
        """What the derivative says that the cells are."""
        if self.shared:
            return analytic.mixed_along(self.moves(steps))[:, :, None]
        return self._by_owner(self._by_group(analytic.mixed) * steps)

    def owned(self, values: np.ndarray, groups: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Of values of the columns of each group, those of the owners of these cells: cell, owner."""
        return values.reshape(len(self), self.owners, -1)[groups, :, cells]

    def _by_owner(self, values: np.ndarray) -> np.ndarray:
        """The sums, for each cell, of what belongs to the columns that own it."""
        if self.owners == 1:
            return values
        return values.reshape(*values.shape[:-1], self.owners, -1).sum(-2)

    def noise(self, numeric: Numeric, analytic: Analytic) -> np.ndarray:
        """The rounding error of the cells, as a standard deviation: of the outputs and of the points."""
        problem = numeric.problem
        with np.errstate(all="ignore"):  # in place: there may be many numbers
            squares = numeric.noise_of(self.rows)
            squares *= analytic.cotangents[0, self.rows]
            squares *= squares
            if self.gathered is None:
                squares = squares.sum(keepdims=True)
            of_outputs = squares if self.gathered is None else self.gathered(squares[None])[0]
            moved = abs(self._by_group(analytic.sensitivity))
            moved = moved[0] if len(moved) == 1 else moved.max(0)
            moved *= self._by_group(problem.point)
            moved *= moved
            moved = moved.sum(1, keepdims=True) if self.shared else self._by_owner(moved)
            # Of x + s and x - s only the first is exact.
            of_points = np.sqrt(moved, out=moved)
            of_points *= problem.rounding
            of_points += np.sqrt(of_outputs, out=of_outputs)
        return of_points

    def least(self, steps: np.ndarray) -> np.ndarray:
        """The smallest step of each group: a wrong entry may belong to any of its columns."""
        if not self.large:
            return abs(steps).min(1, keepdims=True)
        return np.min([abs(steps[:, span]).min(1, keepdims=True) for span in self._spans()], axis=0)


def _cut(outputs: Sequence[AnyPlace], span: slice) -> tuple[tuple[AnyPlace, ...], Rows]:
    """Of these outputs some elements, as if there were no others; and which coordinates these are."""
    places: list[AnyPlace] = []
    rows = []
    for place in outputs:
        parts = (place.stop - place.start) // prod(place.shape)
        rows.append(slice(place.start + parts * span.start, place.start + parts * span.stop))
        start = places[-1].stop if places else 0
        count = span.stop - span.start
        places.append(Place(torch.Size([count]), place.dtype, place.device, start, start + parts * count))
    return tuple(places), rows[0] if len(rows) == 1 else np.r_[tuple(rows)]


def singles(size: int) -> Look:
    """Every column by itself."""
    return Look("singles", np.arange(size)[:, None], np.ones((size, 1)), size)


def signs(size: int, count: int, seed: int) -> Look:
    """All columns at once, along random directions."""
    along = _drawn(count * size, seed).reshape(count, size)
    return Look("signs", None, along, size)


def _columns(size: int) -> np.ndarray:
    """All columns in their order; there may be so many that the bytes of an index count."""
    return np.arange(size, dtype=np.int32 if size < 1 << 31 else np.int64)


def _drawn(size: int, seed: int) -> np.ndarray:
    """Random weights of columns, in few bytes."""
    return weights(size, seed + 1).numpy().astype(np.float32)


# Aligned axes.


def elementwise(problem: Problem, seed: int) -> Look | None:
    """All inputs at once, if they and the outputs have one shape.

    The guess is that element k of each output depends on element k of the inputs alone. If it is wrong, cells
    disagree, since every column is moved by a random weight.
    """
    if not _dense(problem):
        return None
    inputs, outputs = _places(problem.inputs), tuple(_places(problem.outputs))
    shape = inputs[0].shape
    alike = all(place.real_shape == inputs[0].real_shape for place in inputs)
    if not alike or any(output.shape != shape for output in outputs):
        return None
    if 2 * prod(shape) <= constants.FEW_POINTS:  # single columns take as few
        return None
    aligned = {axis: (axis,) * len(outputs) for axis in range(len(shape))}
    size, elements = problem.inputs.size, prod(shape)
    # By the owners of an element: one column of each input, two of a complex one, which stand side by side.
    by_owner = (len(inputs), elements, -1)
    drawn, columns = _drawn(size, seed).reshape(by_owner).transpose(0, 2, 1).reshape(1, -1), None
    if inputs[0].dtype.is_complex:
        columns = _columns(size).reshape(by_owner).transpose(0, 2, 1).reshape(1, -1)
    gathered = partial(_summed_along, aligned, outputs)
    return Look("elementwise", columns, drawn, size, gathered, size // elements, True, outputs)


def may_align(problem: Problem) -> bool:
    """Whether, as far as shapes tell, aligned axes can halve the number of groups."""
    if not _dense(problem):
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
    return 2 * count <= problem.inputs.size


def axes(numeric: Numeric, seed: int) -> list[Look]:
    """A look for each input, by the alignments that show when one slice along each of its axes is moved."""
    problem = numeric.problem
    drawn = weights(problem.inputs.size, seed + 1).numpy()
    moves = numeric.steps.array(numeric.eps) * drawn  # equal ones cancel in an FFT
    slices = list(_slices(problem))
    points = np.repeat(problem.point[None], len(slices), axis=0)
    for point, (place, axis, index) in zip(points, slices, strict=True):
        part = point[place.start : place.stop].reshape(place.real_shape)
        sizes = moves[place.start : place.stop].reshape(place.real_shape)
        at = (slice(None),) * axis + (index,)
        part[at] += sizes[at]
    numeric.limit += len(points)
    with np.errstate(all="ignore"):
        changes = abs(numeric.at(points) - problem.value)
    inputs, outputs = _places(problem.inputs), tuple(_places(problem.outputs))
    aligned: dict[int, Axes] = {place.start: {} for place in inputs}
    for change, (place, axis, index) in zip(changes, slices, strict=True):
        match = _match(change, outputs, place, axis, index, aligned[place.start])
        if match is not None:
            aligned[place.start][axis] = match
    return [_of_input(place, aligned[place.start], outputs, drawn) for place in inputs]


def _of_input(place: AnyPlace, aligned: Axes, outputs: tuple[AnyPlace, ...], drawn: np.ndarray) -> Look:
    """The look that moves all indices of the aligned axes of one input at once."""
    shape = place.real_shape
    others = [axis for axis in range(len(shape)) if axis not in aligned]
    coordinates = np.arange(place.start, place.stop).reshape(shape).transpose([*others, *aligned])
    groups = coordinates.reshape(prod(shape[axis] for axis in others), -1)
    if groups.shape[1] == 1:
        return Look("singles", groups, np.ones(groups.shape), len(drawn))
    return Look("axes", groups, drawn[groups], len(drawn), partial(_summed_along, aligned, outputs))


def _summed_along(aligned: Axes, outputs: tuple[AnyPlace, ...], values: np.ndarray) -> np.ndarray:
    """Rows of numbers, one for each output coordinate: their sums for each index of the aligned axes."""
    sums = []
    for which, place in enumerate(outputs):
        part, shape = values[:, place.start : place.stop], place.real_shape
        kept = [of[which] + 1 for of in aligned.values()]
        summed = [axis + 1 for axis in range(len(shape)) if axis + 1 not in kept]
        if summed or kept != sorted(kept):
            rows = part.reshape(-1, *shape).transpose([0, *kept, *summed])
            part = rows.reshape(len(rows), -1, prod(shape[axis - 1] for axis in summed)).sum(2)
        sums.append(part)
    return sums[0] if len(sums) == 1 else np.sum(sums, axis=0)


def _dense(problem: Problem) -> bool:
    """Whether all elements of all tensors are looked at, and have their place in a shape."""
    charts = (problem.inputs, problem.outputs)
    return all(isinstance(chart, Chart) and chart.can_batch for chart in charts)


def _places(chart: Chart | Sampled) -> list[AnyPlace]:
    """The places that have elements."""
    return [place for place in chart.places if place.stop > place.start]


def _slices(problem: Problem) -> Iterator[tuple[AnyPlace, int, int]]:
    """An input, an axis of it, and an index along that axis, which is not the middle: a flip leaves that."""
    for place in _places(problem.inputs):
        for axis, size in enumerate(place.shape):
            if size > 1:
                yield place, axis, (size - 1) // 3


def _match(
    change: np.ndarray, outputs: Sequence[AnyPlace], place: AnyPlace, axis: int, index: int, taken: Axes
) -> tuple[int, ...] | None:
    """An axis of each output along which nothing but this index has moved: the one of broadcasting first."""
    if not change.any():  # which tells nothing
        return None
    found = []
    for which, output in enumerate(outputs):
        used = [of[which] for of in taken.values()]
        free = [n for n, size in enumerate(output.shape) if size == place.shape[axis] and n not in used]
        free.sort(key=lambda n: n - len(output.shape) != axis - len(place.shape))
        part = change[output.start : output.stop].reshape(output.real_shape)
        moved = np.nonzero(part > constants.UNMOVED * part.max(initial=0.0))
        only = next((n for n in free if (moved[n] == index).all()), None)
        if only is None:
            return None
        found.append(only)
    return tuple(found)


def ladder(numeric: Numeric, probes: int, seed: int) -> Iterator[list[Look]]:
    """The looks in the order of their price; the next ones are made if those before could not decide."""
    width = numeric.problem.inputs.size
    if 0 < probes < width:
        yield [signs(width, probes, seed)]
    if not (numeric.columns_are_cheap and numeric.may_batch):
        guess = elementwise(numeric.problem, seed)
        if guess is not None:
            yield [guess]
    if not numeric.columns_are_cheap and may_align(numeric.problem):
        looks = axes(numeric, seed)
        if 2 * sum(map(len, looks)) <= width:
            yield looks
    if probes == 0 or 2 * width <= constants.FAST_RUNS:
        yield [singles(width)]
