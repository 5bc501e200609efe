"""An analytic Jacobian against differences: along groups of columns first, entry by entry on suspicion.

The entry rule is |analytic - numeric| <= atol + rtol |numeric|. The first look uses one central
difference per group. Nothing is accused on its evidence: a cell that looks wrong is looked at again with
several steps and an error bound (`slopes`), and what remains is narrowed down to single entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covector.verify.combined import COARSER
from covector.verify.directions import FEW_COLUMNS, FEW_IN_A_LOOP, Groups, coloured, singly
from covector.verify.finding import Entry, Mismatch, Outcome
from covector.verify.maps import Matrix
from covector.verify.problem import Problem
from covector.verify.slopes import STEADY, Slopes, slopes_along, steady_slope
from covector.verify.surprises import NotBatchable
from covector.verify.tolerance import Tolerance, within

# How many groups are looked at again at a time, for each entry that is to be named.
_AGAIN = 4

_EPS = torch.finfo(torch.float64).eps

_OUTSIDE = "outside the domain"
_NOT_FINITE = "the analytic value is not finite"

# Up to this many numbers, every column is differenced by itself before slopes are taken along groups.
_FEW_NUMBERS = 1 << 20

# How many columns that the pattern lacks are tried for one cell.
_ROUNDS = 4

# How many times what is allowed an entry is off that is plainly wrong.
_PLAINLY = 10

# The relative tolerance of a cell in which several columns meet.
SHARED_RTOL = 1e-10


@dataclass(frozen=True)
class Verdict:
    """What came of a comparison."""

    outcome: Outcome
    mismatches: tuple[Mismatch, ...] = ()
    count: int = 0
    entries: int = 0
    counted: bool = True


@dataclass(frozen=True)
class Cells:
    """Cells that look wrong: the colour and the row of each, worst first."""

    colour: Tensor
    row: Tensor
    noisy: bool = False
    """Whether rounding alone could be what is wrong with some of them."""

    def among(self, others: Cells, height: int) -> Cells:
        """Those that are among the others too."""
        mine, theirs = (cells.colour * height + cells.row for cells in (self, others))
        both = torch.isin(mine, theirs)
        return Cells(self.colour[both], self.row[both])


_NO_CELLS = Cells(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def compare(problem: Problem, analytic: Matrix, tol: Tolerance) -> Verdict:
    """Compare every entry of the analytic Jacobian with differences of the function."""
    verdict = Verdict(Outcome.PASSED, entries=analytic.shape[0] * analytic.shape[1])
    if 0 in analytic.shape:
        return verdict
    groups = singly(analytic.shape[1])
    try:
        few = problem.batchable and analytic.shape[1] <= FEW_COLUMNS
        if not few and analytic.listed:
            groups = _coloured(analytic, tol, FEW_COLUMNS if problem.batchable else FEW_IN_A_LOOP)
        suspects = _first_look(problem, analytic, groups, tol, loop=not few)
    except NotBatchable:
        groups = _coloured(analytic, tol, FEW_IN_A_LOOP)
        suspects = _first_look(problem, analytic, groups, tol)
    if suspects.row.numel() and _cheap_singly(problem, groups):
        groups = singly(analytic.shape[1])
        suspects = _first_look(problem, analytic, groups, tol)
    if suspects.noisy and problem.batchable:
        longer = _first_look(problem, analytic, groups, tol._replace(eps=COARSER * tol.eps))
        suspects = suspects.among(longer, analytic.shape[0])
    if suspects.row.numel() == 0:
        return verdict
    return _second_look(problem, analytic, groups, suspects, tol, verdict)


def _cheap_singly(problem: Problem, groups: Groups) -> bool:
    """Whether cells that columns share leave doubt that a look at every column by itself settles cheaply."""
    columns, rows = groups.colour.numel(), problem.outputs.size
    return problem.batchable and groups.count < columns and columns * (columns + rows) <= _FEW_NUMBERS


def _coloured(analytic: Matrix, tol: Tolerance, few: int) -> Groups:
    rows, columns, _ = analytic.entries
    return coloured(rows, columns, analytic.shape, tol.seed, few)


def directions(groups: Groups, step: Tensor, first: int, last: int) -> Tensor:
    """The steps of colours first..last, a row for each."""
    size = groups.colour.numel()
    if groups.count == size and last - first == size:
        return torch.diag(step)
    inside = ((groups.colour >= first) & (groups.colour < last)).nonzero().flatten()
    rows = torch.zeros(last - first, size, dtype=torch.float64)
    rows[groups.colour[inside] - first, inside] = step[inside]
    return rows


def _first_look(
    problem: Problem, analytic: Matrix, groups: Groups, tol: Tolerance, *, loop: bool = True
) -> Cells:
    """One central difference along each group."""
    step, rtol = problem.steps.tensor(tol.eps), tol.rtol
    smallest, singly = step, groups.count == step.numel()
    if not singly:
        step = torch.from_numpy(problem.steps.made((step * groups.weight).numpy()))
        # In a shared cell the tolerance of a large entry must not hide a small one that A lacks.
        rtol = min(tol.rtol, SHARED_RTOL)
        smallest = torch.full((groups.count,), torch.inf, dtype=torch.float64)
        smallest.scatter_reduce_(0, groups.colour, step.abs(), "amin")
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    noisy = False
    strictest, size = tol.atol * float(smallest.numpy().min()), problem.block_size()
    for first in range(0, groups.count, size):
        last = min(first + size, groups.count)
        if singly:
            differences = problem.column_differences(step.numpy(), slice(first, last), loop=loop)
        else:
            differences = problem.differences(directions(groups, step, first, last)).numpy()
        expected = analytic.along(step, groups.colour, first, last)
        if within(expected.numpy(), differences, rtol, strictest):
            continue
        numeric = torch.from_numpy(differences)
        error = (expected - numeric).abs()
        allowed = tol.atols * smallest[first:last, None] + rtol * numeric.abs()
        bad = ~(error <= allowed)
        if bad.any():
            rounded = allowed + 8 * _EPS * problem.known.abs().nan_to_num(0.0, 0.0, 0.0)
            colour, row = bad.nonzero().unbind(1)
            ratio = (error / rounded)[colour, row].nan_to_num(torch.inf)
            noisy = noisy or bool((ratio <= 1).any())
            found.append((colour + first, row, ratio))
    if not found:
        return _NO_CELLS
    colour, row, ratio = (torch.cat(part) for part in zip(*found, strict=True))
    order = ratio.argsort(descending=True, stable=True)
    return Cells(colour[order], row[order], noisy)


def _second_look(
    problem: Problem, analytic: Matrix, groups: Groups, suspects: Cells, tol: Tolerance, verdict: Verdict
) -> Verdict:
    """Slopes with error bounds along the suspect groups; then the entries behind what remains."""
    problem.require_pure()
    if tol.named == 1 and _worst_is_wrong(problem, analytic, groups, suspects, tol):
        return replace(verdict, outcome=Outcome.FAILED)
    pending = suspects.colour.unique_consecutive()
    pending = pending[_first_occurrences(pending)]
    resolved = 0
    for start in range(0, pending.numel(), _AGAIN * tol.named):
        batch = pending[start : start + _AGAIN * tol.named]
        remaining: list[tuple[int, int]] = []
        slopes: dict[int, Slopes] = {}
        for colour in batch.tolist():
            rows = suspects.row[suspects.colour == colour]
            slope = _slopes_of(problem, groups, colour, batch=problem.batchable)
            bad = rows[~_settled(analytic, groups, colour, slope, tol)[rows]]
            if problem.batchable and bad.numel():
                slope = _slopes_of(problem, groups, colour)
                bad = bad[~_settled(analytic, groups, colour, slope, tol)[bad]]
            if bad.numel() > tol.named and groups.count < groups.colour.numel():
                bad = bad[~_explained(problem, analytic, groups, colour, slope, tol)[bad]]
            if bad.numel() and groups.count == groups.colour.numel():
                slopes[colour] = slope  # of one column, evaluated point by point
            resolved += rows.numel() - bad.numel()
            remaining += [(colour, row) for row in bad.tolist()]
        if remaining:
            count = suspects.row.numel() - resolved
            found = _name(problem, analytic, groups, remaining, tol, slopes)
            if found.outcome is not Outcome.PASSED:
                return replace(
                    found,
                    count=max(count, len(found.mismatches)),
                    entries=verdict.entries,
                    # Only where each column was looked at by itself is a cell an entry.
                    counted=groups.count == groups.colour.numel(),
                )
    return verdict


def _worst_is_wrong(
    problem: Problem, analytic: Matrix, groups: Groups, suspects: Cells, tol: Tolerance
) -> bool:
    """One entry that is wrong decides: whether the likeliest one is."""
    colour, row = int(suspects.colour[0]), int(suspects.row[0])
    for column in _candidates(problem, groups, analytic, colour, row):
        value = analytic.entry(row, column)
        if _plainly_wrong(problem, value, row, column, tol):
            return True
        slopes = slopes_along(problem, unit(problem.inputs.size, column))
        outcome, _ = judge(problem, value, slopes, row, column, tol)
        return outcome is Outcome.FAILED
    return False


def _plainly_wrong(problem: Problem, value: float, row: int, column: int, tol: Tolerance) -> bool:
    """Whether an entry is so far off a slope that is the same at all distances that no bound is needed."""
    if problem.low_precision or problem.rounding > _EPS or tol.kinks == "pass":
        return False
    slope = steady_slope(problem, row, column)
    if slope is None:
        return False
    return abs(value - slope) > _PLAINLY * (tol.allowed(row, slope) + STEADY * abs(slope))


def _first_occurrences(values: Tensor) -> Tensor:
    seen: set[int] = set()
    keep = []
    for position, value in enumerate(values.tolist()):
        if value not in seen:
            seen.add(value)
            keep.append(position)
    return torch.tensor(keep, dtype=torch.int64)


def _slopes_of(problem: Problem, groups: Groups, colour: int, *, batch: bool = False) -> Slopes:
    members = groups.members(colour)
    direction = torch.zeros(groups.colour.numel(), dtype=torch.float64)
    direction[members] = groups.weight[members]
    return slopes_along(problem, direction, batch=batch)


def _explained(
    problem: Problem, analytic: Matrix, groups: Groups, colour: int, slopes: Slopes, tol: Tolerance
) -> Tensor:
    """Which rows are off by an error of their own entry that the entry rule allows.

    With other weights on the columns, the error of the entry itself scales with its weight; that of an
    entry which the pattern lacks does not.
    """
    other = Groups(groups.colour, groups.weight.flip(0).sign() * (1.5 - groups.weight.abs()), groups.count)
    again = _slopes_of(problem, other, colour)
    weight = torch.ones(analytic.shape[0], dtype=torch.float64)
    weight_again = weight.clone()
    mine = groups.colour[analytic.entries.columns] == colour
    rows, columns = analytic.entries.rows[mine], analytic.entries.columns[mine]
    explained = torch.zeros(analytic.shape[0], dtype=torch.bool)
    for first, second in zip(slopes.families, again.families, strict=False):
        weight[rows] = (groups.weight * first.scale)[columns]
        weight_again[rows] = (other.weight * second.scale)[columns]
        off = first.value - analytic.along(groups.weight * first.scale, groups.colour, colour, colour + 1)[0]
        off_again = (
            second.value - analytic.along(other.weight * second.scale, groups.colour, colour, colour + 1)[0]
        )
        error, error_again = off / weight, off_again / weight_again
        value = (first.value / weight).abs()
        # The entry that is lacking may belong to the column with the shortest step.
        least = (groups.weight * first.scale)[groups.members(colour)].abs().min() / weight.abs()
        slack = tol.atols * least + SHARED_RTOL * value + (first.bound / weight).abs()
        same = (error - error_again).abs() <= slack
        explained |= same & (error.abs() <= tol.atols + tol.rtol * value)
    return explained


def _settled(analytic: Matrix, groups: Groups, colour: int, slopes: Slopes, tol: Tolerance) -> Tensor:
    """Which rows of a group agree, now that the numeric side has an error bound."""
    settled = torch.zeros(analytic.shape[0], dtype=torch.bool)
    for slope in slopes.families:
        step = groups.weight * slope.scale
        expected = analytic.along(step, groups.colour, colour, colour + 1)[0]
        smallest = step[groups.colour == colour].abs().min()
        rtol = tol.rtol if groups.count == groups.colour.numel() else min(tol.rtol, SHARED_RTOL)
        settled |= (expected - slope.value).abs() <= tol.atols * smallest + rtol * slope.value.abs()
    return settled


def _name(
    problem: Problem,
    analytic: Matrix,
    groups: Groups,
    cells: list[tuple[int, int]],
    tol: Tolerance,
    by_column: dict[int, Slopes],
) -> Verdict:
    """The entries behind these cells, each judged by itself, by slopes that are known or taken now."""
    judged: list[tuple[Outcome, Mismatch]] = []
    seen: set[tuple[int, int]] = set()
    for colour, row in cells:
        for column in _candidates(problem, groups, analytic, colour, row):
            if (row, column) in seen:
                break
            seen.add((row, column))
            if column not in by_column:
                by_column[column] = slopes_along(problem, unit(problem.inputs.size, column))
            outcome, mismatch = judge(
                problem, analytic.entry(row, column), by_column[column], row, column, tol
            )
            if outcome is not Outcome.PASSED:
                judged.append((outcome, mismatch))
                break
        if len(judged) == tol.named:
            break
    return verdict_of(judged)


def _candidates(problem: Problem, groups: Groups, analytic: Matrix, colour: int, row: int) -> Iterator[int]:
    """The columns that can be behind a wrong cell: the one of the pattern first, then one it lacks."""
    members, known = groups.members(colour), analytic.row_columns(row)
    known = known[groups.colour[known] == colour]
    yield from known.tolist()
    lacking = members[~torch.isin(members, known)]
    nothing = torch.zeros(problem.inputs.size, dtype=torch.float64)
    for _ in range(min(_ROUNDS, lacking.numel())):
        column = bisect(problem, lacking, nothing, unit(problem.outputs.size, row))
        yield column
        lacking = lacking[lacking != column]


def verdict_of(judged: list[tuple[Outcome, Mismatch]]) -> Verdict:
    """The worst outcome, with the entries that have it."""
    if not judged:
        return Verdict(Outcome.PASSED)
    if any(mismatch.note.startswith(_OUTSIDE) for _, mismatch in judged):
        # Zero times infinity: next to such an entry a derivative of NaN is no mistake of its own.
        judged = [
            (Outcome.INCONCLUSIVE if mismatch.note == _NOT_FINITE else outcome, mismatch)
            for outcome, mismatch in judged
        ]
    worst = Outcome.FAILED if any(o is Outcome.FAILED for o, _ in judged) else Outcome.INCONCLUSIVE
    named = [mismatch for outcome, mismatch in judged if outcome is worst]
    named.sort(key=lambda m: -m.error if m.error == m.error else float("-inf"))
    return Verdict(worst, tuple(named), len(named), counted=False)


def unit(size: int, index: int) -> Tensor:
    """A vector of the standard basis."""
    vector = torch.zeros(size, dtype=torch.float64)
    vector[index] = 1.0
    return vector


def bisect(
    problem: Problem, members: Tensor, expected: Tensor, weights: Tensor, signs: Tensor | None = None
) -> int:
    """Halve a set of columns, keeping the half where weights . J disagrees more with what is expected."""
    step = problem.steps.tensor(1e-6) if signs is None else problem.steps.tensor(1e-6) * signs
    while members.numel() > 1:
        half = members.numel() // 2
        parts = (members[:half], members[half:])
        moves = torch.zeros(2, problem.inputs.size, dtype=torch.float64)
        for move, part in zip(moves, parts, strict=True):
            move[part] = step[part]
        numeric = problem.differences(moves)
        residual = ((numeric * weights).nansum(1) - moves @ expected).abs()
        # Outside the domain is where to look first.
        residual[(numeric.isnan() & (weights != 0)).any(1)] = torch.inf
        members = parts[int(residual.argmax())]
    return int(members[0])


def judge(
    problem: Problem, analytic: float, slopes: Slopes, row: int, column: int, tol: Tolerance
) -> tuple[Outcome, Mismatch]:
    """Decide one entry by the most precise slope there is."""
    estimate = slopes.best(row, column)
    allowed = tol.allowed(row, estimate.value)
    mismatch = Mismatch(
        Entry(
            problem.outputs.label(row, problem.output_names),
            problem.inputs.label(column, problem.input_names),
        ),
        analytic,
        estimate.value,
        estimate.bound,
        allowed,
        row=row,
        column=column,
    )
    finite = abs(analytic) < float("inf")
    if not estimate.finite or (not finite and slopes.undefined()):
        side = "on one side" if estimate.one_sided else "around this point"
        return Outcome.INCONCLUSIVE, replace(mismatch, note=f"{_OUTSIDE} {side}")
    if mismatch.error <= allowed:
        return Outcome.PASSED, mismatch
    if not finite:
        return Outcome.FAILED, replace(mismatch, note=_NOT_FINITE)
    if estimate.kink:
        low, high = sorted((estimate.left, estimate.right))
        slack = allowed + estimate.bound
        if low - slack <= analytic <= high + slack:
            note = (
                "not differentiable here; the analytic value lies between the one-sided slopes "
                f"{estimate.left:.4g} and {estimate.right:.4g}"
            )
            passed = tol.kinks == "pass"
            return (Outcome.PASSED if passed else Outcome.FAILED), replace(mismatch, note=note)
    if mismatch.error <= allowed + estimate.bound:
        return Outcome.INCONCLUSIVE, replace(
            mismatch, note="the noise of the difference exceeds the tolerance"
        )
    return Outcome.FAILED, mismatch
