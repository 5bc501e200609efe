"""One entry of a Jacobian by differences of many steps, so that a person sees truncation and rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from covector.verify.compare import unit
from covector.verify.problem import Problem
from covector.verify.slopes import slopes_along

# Steps from 1e-1 to 1e-12, two per decade.
_STEPS = [10 ** (-exponent / 2) for exponent in range(2, 25)]


@dataclass(frozen=True)
class Scan:
    """An entry, its refined slope, and what differences give with each step: central and one-sided."""

    entry: str
    analytic: float
    value: float
    bound: float
    kink: bool
    steps: tuple[float, ...]
    central: tuple[float, ...]
    left: tuple[float, ...]
    right: tuple[float, ...]


def scan(problem: Problem, analytic: float, row: int, column: int, entry: str) -> Scan:
    """Differences of one output along one input, with steps in units of max(1, |x|)."""
    direction = unit(problem.inputs.size, column)
    steps = torch.tensor(_STEPS, dtype=torch.float64) * problem.steps.tensor(1.0)[column]
    moves = steps[:, None] * direction
    # One by one, as where an entry is judged: a wrong batching rule must not show here.
    values = problem.values(torch.cat([moves, -moves, moves[:1] * 0]) + problem.point, batch=False)[:, row]
    count = len(_STEPS)
    plus, minus, here = values[:count], values[count:-1], values[-1]
    estimate = slopes_along(problem, direction).best(row, column)
    return Scan(
        entry,
        analytic,
        estimate.value,
        estimate.bound,
        estimate.kink,
        tuple(steps.tolist()),
        tuple(((plus - minus) / (2 * steps)).tolist()),
        tuple(((here - minus) / steps).tolist()),
        tuple(((plus - here) / steps).tolist()),
    )
