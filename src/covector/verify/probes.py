"""Random probes (fast mode): v^T J u from differences against v^T A u from the derivative.

The weights in u and v lie between 1 and 2, with random signs: a single wrong entry always shows, at its
full size or more; several wrong entries can hide only by cancelling along v, or along every u at once.
What is suspicious is judged against the noise of the difference itself, then narrowed down to an entry,
and decided there by the entry rule.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from covector.verify.combined import COARSER, FRACTION, Probes
from covector.verify.compare import Verdict, bisect, judge, unit, verdict_of
from covector.verify.directions import weights
from covector.verify.finding import Mismatch, Outcome
from covector.verify.maps import ForwardMap, ReverseMap
from covector.verify.problem import Problem
from covector.verify.slopes import slopes_along
from covector.verify.surprises import NotBatchable
from covector.verify.tolerance import Tolerance

# How many suspicious pairs are narrowed down.
_LOCATED = 3

# Up to this many entries, looking at every one is cheaper than slopes with an error bound along the probes.
_CHEAP = 1 << 18

# How much coarser than one entry's tolerance the noise may be before every entry is looked at instead.
_COARSE = 100


def compare_probe(
    problem: Problem, reverse: ReverseMap, probes: Probes, count: int, tol: Tolerance
) -> Verdict:
    """Compare v^T A u with v^T J u along random u, and name an entry where they differ.

    INCONCLUSIVE without a mismatch means that probes cannot tell: the noise hides an entry, or what is
    suspicious could not be narrowed down.
    """
    verdict = Verdict(Outcome.PASSED, entries=problem.inputs.size * problem.outputs.size)
    if verdict.entries == 0:
        return verdict
    along = weights(count * problem.inputs.size, tol.seed + 1).reshape(count, -1)
    cotangent, rounding = probes.cotangents[0], _rounding(problem)
    for eps, take in ((tol.eps, _differences), (COARSER * tol.eps, _extrapolated)):
        step = problem.steps.tensor(eps)
        smallest = tol.atol * step.min()
        if rounding <= smallest:
            numeric, noise = take(problem, cotangent, along * step, rounding)
            if noise <= smallest:
                break
    else:
        # Too coarse to show one entry.
        if problem.batchable and verdict.entries <= _CHEAP:
            return replace(verdict, outcome=Outcome.INCONCLUSIVE)
        # Slopes with an error bound instead of one difference.
        step = problem.steps.tensor(1.0)
        numeric, noise = _slopes(problem, cotangent, along)
        smallest = tol.atol * step.min()
        if not noise <= _COARSE * smallest:
            return replace(verdict, outcome=Outcome.INCONCLUSIVE)
    error = ((along * step) @ probes.pulled[0] - numeric).abs()
    suspicious = ~(error <= noise + FRACTION * smallest)
    pairs = suspicious.nonzero().flatten()[: min(_LOCATED, tol.named)].tolist()
    if pairs:
        problem.require_pure()
    judged: list[tuple[Outcome, Mismatch]] = []
    for direction in pairs:
        row, column = _narrow(problem, reverse, probes, along[direction])
        value = _entry(problem, reverse, row, column)
        slopes = slopes_along(problem, unit(problem.inputs.size, column))
        outcome, mismatch = judge(problem, value, slopes, row, column, tol)
        if outcome is not Outcome.PASSED and all(mismatch.entry != known.entry for _, known in judged):
            judged.append((outcome, mismatch))
    if pairs and not judged:
        return replace(verdict, outcome=Outcome.INCONCLUSIVE)
    return verdict_of(judged) if judged else verdict


def compare_pushes(problem: Problem, forward: ForwardMap, count: int, tol: Tolerance) -> Verdict:
    """Compare pushes along random directions with slopes, every output by itself.

    INCONCLUSIVE without a mismatch means that what is suspicious could not be narrowed down.
    """
    verdict = Verdict(Outcome.PASSED, entries=problem.inputs.size * problem.outputs.size)
    if verdict.entries == 0:
        return verdict
    scale = problem.steps.tensor(1.0)
    for direction in weights(count * problem.inputs.size, tol.seed + 2).reshape(count, -1):
        image = _push(problem, forward, direction * scale)
        slope = slopes_along(problem, direction).families[0]
        error = (image - slope.value).abs()
        if (error <= slope.bound.nan_to_num(0.0) + tol.atol + 1e-6 * slope.value.abs()).all():
            continue
        row = int(error.nan_to_num(torch.inf).argmax())
        column = _narrow_push(problem, forward, row, direction)
        value = float(_push(problem, forward, unit(problem.inputs.size, column))[row])
        slopes = slopes_along(problem, unit(problem.inputs.size, column))
        outcome, mismatch = judge(problem, value, slopes, row, column, tol)
        if outcome is not Outcome.PASSED:
            return verdict_of([(outcome, mismatch)])
        return replace(verdict, outcome=Outcome.INCONCLUSIVE)
    return verdict


def _differences(
    problem: Problem, cotangent: Tensor, moves: Tensor, rounding: float
) -> tuple[Tensor, Tensor]:
    """v^T (f(x + s) - f(x - s)) / 2 for every s, and how far off that may be."""
    both = problem.differences(torch.cat([moves, 2 * moves[:1]])) @ cotangent
    numeric, double = both[:-1], both[-1] / 2
    truncation = (double - numeric[0]).abs()
    return numeric, 4 * truncation + rounding


def _extrapolated(
    problem: Problem, cotangent: Tensor, moves: Tensor, rounding: float
) -> tuple[Tensor, Tensor]:
    """The same from steps s and 2s, which takes the larger part of the curvature away; in a batch only.

    In a loop the function may raise where these steps lead.
    """
    count = moves.shape[0]
    steps = torch.cat([moves, 2 * moves, 4 * moves[:1]])
    try:
        every = problem.differences(steps, loop=False) @ cotangent
    except NotBatchable:
        return moves.new_zeros(count), moves.new_tensor(torch.inf)
    near, far = every[:count], every[count:-1] / 2
    numeric = (4 * near - far) / 3
    longer = (4 * far[0] - every[-1] / 4) / 3
    return numeric, (longer - numeric[0]).abs() + 2 * rounding


def _rounding(problem: Problem) -> float:
    """How far rounding may put a weighted sum of the outputs off; those that are not finite do not count."""
    known = problem.known.numpy()
    with np.errstate(all="ignore"):
        square = known.dot(known)
        if not square < np.inf:
            known = known[abs(known) < np.inf]
            square = known.dot(known)
    return 8 * problem.rounding * math.sqrt(square)


def _slopes(problem: Problem, cotangent: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """v^T J u for every u, in units of the scale of each coordinate, with a bound for all."""
    families = [slopes_along(problem, direction, batch=problem.batchable).families[0] for direction in along]
    numeric = torch.stack([cotangent @ family.value for family in families])
    return numeric, 4 * torch.stack([family.bound.norm() for family in families]).max()


def _pull(problem: Problem, reverse: ReverseMap, cotangent: Tensor) -> Tensor:
    return problem.inputs.coordinates(reverse.pull(problem.outputs.from_coords(cotangent)))


def _entry(problem: Problem, reverse: ReverseMap, row: int, column: int) -> float:
    return float(_pull(problem, reverse, unit(problem.outputs.size, row))[column])


def _narrow(problem: Problem, reverse: ReverseMap, probes: Probes, along: Tensor) -> tuple[int, int]:
    """The entry behind a suspicious probe: the column by halving u, then the row by halving v."""
    cotangent = probes.cotangents[0]
    column = bisect(problem, torch.arange(problem.inputs.size), probes.pulled[0], cotangent, along)
    slope = slopes_along(problem, unit(problem.inputs.size, column)).families[0]
    rows = torch.arange(problem.outputs.size)
    while rows.numel() > 1:
        half = rows.numel() // 2
        parts = (rows[:half], rows[half:])
        residuals = []
        for part in parts:
            v = torch.zeros_like(cotangent)
            v[part] = cotangent[part]
            analytic = _pull(problem, reverse, v)[column] * slope.scale[column]
            residuals.append(float(((v * slope.value).nansum() - analytic).abs().nan_to_num(torch.inf)))
        rows = parts[0] if residuals[0] >= residuals[1] else parts[1]
    return int(rows[0]), column


def _push(problem: Problem, forward: ForwardMap, direction: Tensor) -> Tensor:
    return problem.outputs.coordinates(forward.apply(problem.inputs.from_coords(direction)))


def _narrow_push(problem: Problem, forward: ForwardMap, row: int, along: Tensor) -> int:
    """The column in which forward mode is the most wrong for this row."""
    members = torch.arange(problem.inputs.size)
    while members.numel() > 1:
        half = members.numel() // 2
        parts = (members[:half], members[half:])
        residuals = []
        for part in parts:
            direction = torch.zeros(problem.inputs.size, dtype=torch.float64)
            direction[part] = along[part]
            slope = slopes_along(problem, direction).families[0]
            image = _push(problem, forward, direction * slope.scale)
            residuals.append(float((image[row] - slope.value[row]).abs().nan_to_num(torch.inf)))
        members = parts[0] if residuals[0] >= residuals[1] else parts[1]
    return int(members[0])
