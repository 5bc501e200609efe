"""One entry of a Jacobian by differences of many steps, so that a person sees truncation and rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from covector.verify import constants
from covector.verify.finding import Mismatch
from covector.verify.judge import judge
from covector.verify.numeric import Numeric
from covector.verify.options import Tolerance

# Steps from 1e-1 to 1e-12, two per decade.
_STEPS = np.array([10 ** (-exponent / 2) for exponent in range(2, 25)])


@dataclass(frozen=True)
class Scan:
    """An entry, its refined slope, and what differences give with each step: central and one-sided."""

    entry: str
    analytic: float
    value: float
    bound: float
    allowed: float
    """How far off the analytic value may be: by the tolerance, and in low precision by rounding."""
    kink: bool
    steps: tuple[float, ...]
    central: tuple[float, ...]
    left: tuple[float, ...]
    right: tuple[float, ...]


def scan(numeric: Numeric, mismatch: Mismatch, tol: Tolerance) -> Scan:
    """Differences of one output along one input, with steps in units of max(1, |x|)."""
    analytic, row, column = mismatch.analytic, mismatch.row, mismatch.column
    steps = _STEPS * numeric.steps.array(1.0)[column]
    here = numeric.problem.point
    moves = np.zeros((len(steps), len(here)))
    moves[:, column] = steps
    # One by one, as where an entry is judged: a wrong batching rule must not show here.
    plus, minus = (
        np.array([numeric.single(point)[row] for point in here + sign * moves]) for sign in (1.0, -1.0)
    )
    numeric.spare = constants.EXTRA_RUNS
    judged = judge(numeric, column, [row], [analytic], tol).entries[0]
    value = numeric.problem.value[row]
    with np.errstate(all="ignore"):
        return Scan(
            str(mismatch.entry),
            analytic,
            judged.mismatch.numeric,
            judged.mismatch.bound,
            mismatch.allowed if math.isfinite(mismatch.allowed) else judged.mismatch.allowed,
            judged.kink,
            tuple(steps.tolist()),
            tuple(((plus - minus) / (2 * steps)).tolist()),
            tuple(((value - minus) / steps).tolist()),
            tuple(((plus - value) / steps).tolist()),
        )
