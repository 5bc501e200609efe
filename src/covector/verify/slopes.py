"""Slopes with an error bound: several steps, extrapolation, both sides.

D(t) = (f(x + t d) - f(x - t d)) / 2t has an error of order t^2 from truncation and of order 1/t from
rounding. Steps go down by a factor of four; R = (16 D(t/4) - D(t)) / 15 removes the t^2 term, and the
spread of neighbouring values, with the rounding of the outputs, bounds what remains. The step with the
smallest bound wins, for each output by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covector.verify.problem import Problem

_DOUBLE = torch.finfo(torch.float64).eps

_STEPS = range(11)
_RATIO = 4.0
_LARGEST = 2.0**-5

# Steps that leave no doubt if they agree, down to the shortest of all, and to what share of the slope they
# have to. No two have a common measure, so that no wave or grid looks the same to all.
_FOUR = torch.tensor([2.0**-13, 3.0**-11, 5.0**-9, 2.0**-25], dtype=torch.float64)
STEADY = 0.01

# Closer to zero than this, steps relative to the coordinate are taken too.
_NEAR_ZERO = 0.1

# How many bounds two slopes are apart that contradict each other; noise may make a bound too small by chance.
_FAR_OUTSIDE = 10

# The first steps, those larger than the ones that torch's checker takes too, may leave the domain.
_FAR = 7


@dataclass(frozen=True)
class Family:
    """Slopes of all outputs along one direction, with steps in units of `scale`."""

    scale: Tensor
    value: Tensor
    bound: Tensor
    left: Tensor
    right: Tensor
    kink: Tensor
    some_finite: Tensor
    defined: Tensor


@dataclass(frozen=True)
class Estimate:
    """The slope of one output along one coordinate."""

    value: float
    bound: float
    left: float
    right: float
    kink: bool
    finite: bool
    one_sided: bool


@dataclass(frozen=True)
class Slopes:
    """The same slopes with absolute and with relative steps."""

    families: tuple[Family, ...]

    def undefined(self) -> bool:
        """Whether some output is not finite here or on a side of it."""
        return any(not bool((f.defined & f.value.isfinite()).all()) for f in self.families)

    def best(self, row: int, column: int) -> Estimate:
        """The estimate with the smallest bound, unless shorter steps contradict it."""
        estimates = [_estimate(family, row, column) for family in self.families]
        finite = [estimate for estimate in estimates if estimate.finite]
        best = min(finite or estimates, key=lambda e: e.bound if e.bound == e.bound else float("inf"))
        shortest = finite[-1] if finite else best
        apart = abs(best.value - shortest.value)
        return shortest if apart > _FAR_OUTSIDE * (best.bound + shortest.bound) else best


def _estimate(family: Family, row: int, column: int) -> Estimate:
    scale = float(family.scale[column])
    value, bound = float(family.value[row]) / scale, float(family.bound[row]) / scale
    left, right = float(family.left[row]) / scale, float(family.right[row]) / scale
    finite = abs(value) < float("inf") and bound == bound and bool(family.defined[row])
    return Estimate(value, bound, left, right, bool(family.kink[row]), finite, bool(family.some_finite[row]))


def slopes_along(problem: Problem, direction: Tensor, *, batch: bool = False) -> Slopes:
    """Slopes of the function along a direction, with absolute steps and, near zero, relative ones.

    A batch is quicker, but proves a derivative right only: one that is right must not be accused by a
    batching rule that is wrong.
    """
    size = problem.point.abs().nan_to_num(1.0, 1.0, 1.0)
    moving = direction != 0
    families = [_family(problem, direction, size.clamp(min=1.0), batch)]
    if (size[moving] < _NEAR_ZERO).any() and (size[moving] > 0).any():
        relative = torch.where(size > 0, size.clamp(max=1.0), 1.0)
        families.append(_family(problem, direction, relative, batch))
    return Slopes(tuple(families))


def steady_slope(problem: Problem, row: int, column: int) -> float | None:
    """The slope of one output along one coordinate, if steps of very different lengths agree on it.

    A slope of zero does not count: the steps may be lost in the rounding of something inside. Near zero
    nothing does: what happens there may be smaller than any of the steps.
    """
    if 0 < abs(float(problem.point[column])) < _NEAR_ZERO:
        return None
    steps = torch.outer(_FOUR, problem.steps.tensor(1.0))
    moves = torch.zeros_like(steps)
    moves[:, column] = steps[:, column]
    points = torch.cat([problem.point + moves, problem.point - moves])
    try:
        plus, minus = problem.values(points, batch=False)[:, row].chunk(2)
    except (RuntimeError, ValueError) as error:
        if error is not problem.raised:
            raise
        return None
    slopes = (plus - minus) / (2 * moves[:, column])
    middle = float(slopes.median())
    steady = middle != 0 and float(slopes.max() - slopes.min()) <= STEADY * abs(middle)
    return middle if steady else None


def _family(problem: Problem, direction: Tensor, scale: Tensor, batch: bool) -> Family:
    steps = _LARGEST * _RATIO ** -torch.tensor(_STEPS, dtype=torch.float64)
    moves = steps[:, None] * (direction * scale)
    points = torch.cat([problem.point + moves, problem.point - moves, problem.point[None]])
    values = _values(problem, points, batch)
    plus, minus, here = values[: len(_STEPS)], values[len(_STEPS) : -1], values[-1]
    central = (plus - minus) / (2 * steps[:, None])
    best, value, bound = _extrapolated(central, plus, minus, steps, problem.rounding)
    right, left = (plus - here) / steps[:, None], (here - minus) / steps[:, None]
    pick = best[None] + 1
    return Family(
        scale,
        value,
        bound,
        left.gather(0, pick)[0],
        right.gather(0, pick)[0],
        _kinks(left, right, best, bound),
        plus.isfinite().any(0) | minus.isfinite().any(0),
        here.isfinite(),
    )


def _values(problem: Problem, points: Tensor, batch: bool) -> Tensor:
    """The outputs at the point and around it; NaN at the far points that the function refuses.

    A wide step may leave the domain (the interval of a probability, say), and then a function may raise.
    """
    try:
        return problem.values(points, batch=batch)
    except (RuntimeError, ValueError) as error:
        if error is not problem.raised:
            raise
    rows = []
    for index, point in enumerate(points):
        try:
            rows.append(problem.values(point[None], batch=False)[0])
        except (RuntimeError, ValueError):
            near = index == len(points) - 1 or _STEPS[index % len(_STEPS)] >= _FAR
            if near or problem.raised is None:
                raise
            rows.append(torch.full((problem.outputs.size,), torch.nan, dtype=torch.float64))
    return torch.stack(rows)


def _extrapolated(
    central: Tensor, plus: Tensor, minus: Tensor, steps: Tensor, rounding: float
) -> tuple[Tensor, Tensor, Tensor]:
    """For each output: the index of the best step, the extrapolated slope there, and its bound."""
    better = (_RATIO**2 * central[1:] - central[:-1]) / (_RATIO**2 - 1)
    spread = (better - central[1:]).abs()
    change = (better[1:] - better[:-1]).abs()
    spread[:-1] = torch.maximum(spread[:-1], change)
    spread[-1] = torch.maximum(spread[-1], change[-1])
    noise = 8 * rounding * torch.maximum(plus.abs(), minus.abs())[1:] / steps[1:, None]
    if rounding > _DOUBLE:
        # The points are rounded too: a step is really off by that, however small the outputs are.
        noise += 2 * rounding * central.abs().nan_to_num(0.0, 0.0, 0.0).amax(0) / steps[1:, None]
    bounds = (spread + noise).nan_to_num(torch.inf, torch.inf, torch.inf)
    bounds[_contradicted(better, bounds)] = torch.inf
    bound, best = bounds.min(0)
    return best, better.gather(0, best[None])[0], torch.where(bound.isinf(), torch.nan, bound)


def _contradicted(value: Tensor, bounds: Tensor) -> Tensor:
    """Which slopes lie far outside what two shorter steps say: theirs goes across a pole or a jump."""
    gap = (value[:, None] - value[None]).abs()
    far = gap > _FAR_OUTSIDE * (bounds[:, None] + bounds[None])
    # One shorter step may seem sure of itself by chance, where the function has noise of its own.
    twice = far[:, :-1] & far[:, 1:]
    return twice.movedim(2, 0).triu(1).any(2).T


def _kinks(left: Tensor, right: Tensor, best: Tensor, bound: Tensor) -> Tensor:
    """Where the gap between the one-sided slopes does not shrink with the step."""
    gap = (right - left).abs()
    wide = gap.gather(0, best[None])[0]
    narrow = gap.gather(0, best[None] + 1)[0]
    return (
        (narrow > 0.7 * wide) & (narrow > 10 * bound) & (narrow > 1e-6 * (left.abs() + right.abs()).max(0)[0])
    )
