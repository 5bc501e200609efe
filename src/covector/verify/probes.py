"""Random signs (fast mode): v^T J u from differences against v^T A u from the derivative.

With signs on both sides a single wrong entry always shows, at its full size; several wrong entries can
hide only by cancelling in every pair of probes at once. What is suspicious is judged against the noise
of the difference itself, then narrowed down to an entry, and decided there by the entry rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covector.verify.compare import Verdict, bisect, judge, unit, verdict_of
from covector.verify.directions import random_signs
from covector.verify.maps import ForwardMap, ReverseMap
from covector.verify.problem import Problem, Tolerance
from covector.verify.report import Mismatch, Outcome
from covector.verify.slopes import slopes_along

_LOCATED = 3


@dataclass(frozen=True)
class Probes:
    """Cotangents v with their pullbacks, a row for each."""

    cotangents: Tensor
    pulled: Tensor


def draw(problem: Problem, reverse: ReverseMap, count: int, seed: int) -> Probes:
    """Random signs on the outputs, pulled back."""
    generator = torch.Generator().manual_seed(seed)
    signs = random_signs(count, problem.outputs.size, generator)
    pulled = reverse.apply_batch(problem.outputs.from_coords(signs))
    return Probes(signs, problem.inputs.stack_to_coords(pulled))


def compare_probes(problem: Problem, reverse: ReverseMap, probes: Probes, tol: Tolerance) -> Verdict:
    """Compare v^T A u with v^T J u for every pair of probes, and name an entry where they differ."""
    verdict = Verdict(Outcome.PASSED, entries=problem.inputs.size * problem.outputs.size)
    if verdict.entries == 0:
        return verdict
    generator = torch.Generator().manual_seed(tol.seed + 1)
    along = random_signs(probes.cotangents.shape[0], problem.inputs.size, generator)
    step = problem.step(tol.eps)
    numeric, noise = _differences(problem, probes.cotangents, along * step)
    error = (probes.pulled @ (along * step).T - numeric).abs()
    suspicious = ~(error <= noise + tol.atol * step.min())
    judged: list[tuple[Outcome, Mismatch]] = []
    for which, _ in suspicious.nonzero()[:_LOCATED].tolist():
        row, column = _narrow(problem, reverse, probes.cotangents[which], probes.pulled[which])
        value = _entry(problem, reverse, row, column)
        outcome, mismatch = judge(
            problem, value, slopes_along(problem, unit(problem.inputs.size, column)), row, column, tol
        )
        if outcome is not Outcome.PASSED and all(mismatch.entry != known.entry for _, known in judged):
            judged.append((outcome, mismatch))
    found = verdict_of(judged)
    if found.outcome is Outcome.PASSED and suspicious.any():
        return replace(verdict, outcome=Outcome.INCONCLUSIVE)
    return found if judged else verdict


def compare_pushes(problem: Problem, forward: ForwardMap, count: int, tol: Tolerance) -> Verdict:
    """Compare pushes along random signs with differences, every output by itself."""
    verdict = Verdict(Outcome.PASSED, entries=problem.inputs.size * problem.outputs.size)
    if verdict.entries == 0:
        return verdict
    generator = torch.Generator().manual_seed(tol.seed + 2)
    signs = random_signs(count, problem.inputs.size, generator)
    scale = problem.step(1.0)
    along = signs * scale
    pushed = problem.outputs.stack_to_coords(forward.apply_batch(problem.inputs.from_coords(along)))
    judged: list[tuple[Outcome, Mismatch]] = []
    for direction, image in zip(along, pushed, strict=True):
        slope = slopes_along(problem, direction / scale).families[0]
        error = (image - slope.value).abs()
        bad = ~(error <= slope.bound.nan_to_num(0.0) + tol.atol + 1e-6 * slope.value.abs())
        if not bad.any():
            continue
        row = int(error.nan_to_num(torch.inf).argmax())
        column = _narrow_push(problem, forward, row)
        value = float(_push_unit(problem, forward, column)[row])
        slopes = slopes_along(problem, unit(problem.inputs.size, column))
        outcome, mismatch = judge(problem, value, slopes, row, column, tol)
        if outcome is not Outcome.PASSED:
            judged.append((outcome, mismatch))
            break
    return verdict_of(judged) if judged else verdict


def _differences(problem: Problem, cotangents: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """v^T (f(x + s) - f(x - s)) / 2 for every v and s, and how far off that may be."""
    count = moves.shape[0]
    points = [problem.point + moves, problem.point - moves, problem.point + 2 * moves[:1]]
    points.append(problem.point - 2 * moves[:1])
    values = problem.values(torch.cat(points))
    difference = (values[:count] - values[count : 2 * count]) / 2
    double = (values[2 * count] - values[2 * count + 1]) / 4
    numeric = cotangents @ difference.T
    truncation = (cotangents @ (double - difference[0])).abs().max()
    rounding = 8 * problem.rounding * values.abs().amax(0).norm()
    return numeric, 4 * truncation + rounding


def _pull(problem: Problem, reverse: ReverseMap, cotangent: Tensor) -> Tensor:
    pulled = reverse.apply(problem.outputs.from_coords(cotangent))
    return problem.inputs.to_coords([tensor.detach() for tensor in pulled]).to(torch.float64)


def _entry(problem: Problem, reverse: ReverseMap, row: int, column: int) -> float:
    return float(_pull(problem, reverse, unit(problem.outputs.size, row))[column])


def _narrow(problem: Problem, reverse: ReverseMap, cotangent: Tensor, pulled: Tensor) -> tuple[int, int]:
    """The entry behind a suspicious probe: the column by halving u, then the row by halving v."""
    column = bisect(problem, torch.arange(problem.inputs.size), pulled, cotangent)
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


def _push_unit(problem: Problem, forward: ForwardMap, column: int) -> Tensor:
    pushed = forward.apply(problem.inputs.from_coords(unit(problem.inputs.size, column)))
    return problem.outputs.to_coords([tensor.detach() for tensor in pushed]).to(torch.float64)


def _narrow_push(problem: Problem, forward: ForwardMap, row: int) -> int:
    """The column in which forward mode is the most wrong for this row."""
    members = torch.arange(problem.inputs.size)
    while members.numel() > 1:
        half = members.numel() // 2
        parts = (members[:half], members[half:])
        residuals = []
        for part in parts:
            direction = torch.zeros(problem.inputs.size, dtype=torch.float64)
            direction[part] = 1.0
            slope = slopes_along(problem, direction).families[0]
            pushed = forward.apply(problem.inputs.from_coords(direction * slope.scale))
            image = problem.outputs.to_coords([t.detach() for t in pushed]).to(torch.float64)
            residuals.append(float((image[row] - slope.value[row]).abs().nan_to_num(torch.inf)))
        members = parts[0] if residuals[0] >= residuals[1] else parts[1]
    return int(members[0])
