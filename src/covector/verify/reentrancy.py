"""Whether the backward is reentrant: one cotangent gives one gradient, however often it is pulled back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector.verify import constants
from covector.verify.finding import Finding, failed, passed
from covector.verify.run import CheckRun
from covector.verify.vectors import Cotangent, unit

# How often a cotangent is pulled back to measure how far its gradients are apart.
_RUNS = 5


class _Spread(NamedTuple):
    """How far gradients of one cotangent are apart at most, where, and what was run."""

    size: float
    where: str
    runs: str


def determinism(run: CheckRun) -> Finding:
    """Pulling the same cotangent back again gives the same gradient, to `nondet_tol`.

    As in torch, `nondet_tol` bounds an entry of the Jacobian, or in fast mode the gradient of a cotangent of
    length one.
    """
    tolerance, found = run.options.nondet_tol, _of_two_pullbacks(run)
    if found is None and run.custom:
        found = _of_more_pullbacks(run)
    if found is not None and tolerance > 0:
        found = _of_products(run) if run.options.fast else _of_rows(run)
    if found is None or found.size <= tolerance:
        return passed("determinism")
    return failed(
        "determinism",
        f"{found.runs} differ by {found.size:.1e} at {found.where}, more than nondet_tol={tolerance:g}",
        "Pass nondet_tol if that is the nature of the operation.",
    )


def _of_two_pullbacks(run: CheckRun) -> _Spread | None:
    """How far gradients of the random cotangent are apart; None if the two that are known are the same."""
    reverse = run.reverse
    first, small = reverse.pulled_coordinates, reverse.shrunk
    if torch.equal(small, first):
        return None
    # Either the small cotangent gives another gradient, or another run does. What is off at every other run
    # is off in one of two that follow each other; what was off once, for the small one, is right now.
    _pull_again(run, 2)
    if (found := _of_cotangent(run, reverse.repeated)) is None:
        return _of_cotangent(run, [small, reverse.pulled_small()])
    _pull_again(run, _RUNS - len(reverse.repeated))
    return _of_cotangent(run, reverse.repeated) or found


def _of_more_pullbacks(run: CheckRun) -> _Spread | None:
    """The same for a backward that differs at times, by as many pullbacks as torch makes."""
    if run.options.fast:
        if not run.reverse_verdict.suspected:
            return None
        _pull_again(run, 2)  # what a look found may be a matter of the run
        return _of_cotangent(run, run.reverse.repeated)
    rows = _repeated(run, _all_but_two(run))
    _pull_again(run, 1)
    found = rows.spread or _of_cotangent(run, run.reverse.repeated)
    if found is None:
        missing = _missing_from_sums(run, rows)
        if missing.beyond_rounding:
            found = _of_others(run)
        if found is None and missing.beyond_tolerance:
            run.reverse.odd = run.reverse.odd or Cotangent(rows.sum, "with one number that is not zero")
    return found


def _of_others(run: CheckRun) -> _Spread | None:
    """How far the pullbacks that were made once are from two others, of which one at least is not off."""
    reverse = run.reverse
    first = torch.from_numpy(reverse.mixed[1:])
    triples = (
        [gradient, reverse.pulled_as_sent(cotangent), reverse.pulled_as_sent(cotangent)]
        for gradient, cotangent in zip(first, reverse.random.others, strict=True)
    )
    found = [spread for three in triples if (spread := _of_cotangent(run, three)) is not None]
    return max(found, key=lambda spread: spread.size, default=None)


def _pull_again(run: CheckRun, times: int) -> None:
    for _ in range(times):
        run.reverse.pull_again()


def _of_cotangent(run: CheckRun, gradients: list[Tensor]) -> _Spread | None:
    """How far gradients of one cotangent are apart; None if they are the same."""
    off = torch.stack([_difference(a, b) for a in gradients for b in gradients[1:]]).amax(0)
    if not off.any():
        return None
    where = run.problem.inputs.label(int(off.argmax()), run.problem.input_names)
    runs = f"{_count(len(gradients))} runs of the backward on the same cotangent"
    return _Spread(float(off.max()), where, runs)


def _count(number: int) -> str:
    return "two" if number == 2 else str(number)


def _of_products(run: CheckRun) -> _Spread | None:
    """How far the gradients of a cotangent of length one are apart: one for each output, as in torch."""
    reverse, worst = run.reverse, None
    whole = torch.from_numpy(reverse.cotangents[0])
    for place, name in zip(run.problem.outputs.places, run.problem.output_names, strict=True):
        part = torch.zeros_like(whole)
        part[place.start : place.stop] = whole[place.start : place.stop]
        length = part.norm().clamp_min(torch.finfo(torch.float64).tiny)
        found = _of_cotangent(run, [reverse.pull_coordinates(part / length) for _ in range(_RUNS)])
        if found is not None and (worst is None or found.size > worst.size):
            worst = found._replace(
                runs=f"{_RUNS} runs of the backward on a cotangent of {name} of length one"
            )
    return worst


def _of_rows(run: CheckRun) -> _Spread | None:
    """How far two runs of the backward are apart in some rows of the Jacobian."""
    return _repeated(run, range(run.problem.outputs.size)).spread


class _Rows(NamedTuple):
    """Rows of the Jacobian that were pulled back twice: which, the gradients, and how far they are apart."""

    chosen: list[int]
    gradients: list[Tensor]
    spread: _Spread | None
    sum: Tensor
    """Of the cotangents."""


def _repeated(run: CheckRun, rows: Sequence[int]) -> _Rows:
    """Pull some of these rows back, each of them two times, one after the other.

    Whatever the period of a fault is, it does not hit two runs that follow each other. What changes once is
    seen in the random cotangent, which is pulled back before and after.
    """
    height, worst = run.problem.outputs.size, None
    count = min(len(rows), constants.REPEATED_ROWS)
    chosen = [rows[i] for i in np.linspace(0, len(rows) - 1, count).round().astype(int)]
    gradients = []
    for row in chosen:
        pulled = [run.reverse.pull_coordinates(unit(height, row)) for _ in range(2)]
        gradients.append(pulled[0])
        found = _of_cotangent(run, pulled)
        if found is not None and (worst is None or found.size > worst.size):
            output = run.problem.outputs.label(row, run.problem.output_names)
            worst = found._replace(where=f"d {output} / d {found.where}")
    together = torch.zeros(height, dtype=torch.float64)
    together[chosen] = 1.0
    return _Rows(chosen, gradients, worst, together)


def _all_but_two(run: CheckRun) -> list[int]:
    """The rows that are repeated, within torch's number of pullbacks.

    The two that are not are those where most cotangents have numbers other than zero, so that each of these
    has a relation to the others (`_missing_from_sums`).
    """
    random = run.reverse.cotangents
    busy = np.flatnonzero((random != 0).sum(0) >= min(3, len(random)))
    left_out = {*busy[:1], *busy[-1:]}
    return [row for row in range(random.shape[1]) if row not in left_out]


class _Missing(NamedTuple):
    """Whether what adds up to zero gives something else than zero, by more than its rounding error allows."""

    beyond_rounding: bool
    beyond_tolerance: bool
    """By more than the tolerance: these are not the pullbacks of one linear map."""


def _missing_from_sums(run: CheckRun, rows: _Rows) -> _Missing:
    """Whether all pullbacks can be those of one linear map."""
    reverse, height = run.reverse, run.problem.outputs.size
    vectors = [*reverse.cotangents, *(unit(height, row).numpy() for row in rows.chosen)]
    images = [*reverse.mixed, *(gradient.numpy() for gradient in rows.gradients)]
    if len(vectors) <= height:  # nothing adds up to zero yet; torch pulls every row back, so one more may be
        rest = torch.from_numpy(vectors[0]) - rows.sum
        vectors.append(rest.numpy())
        images.append(reverse.pull_coordinates(rest).numpy())
    # Few vectors of many numbers: their triangular factor has the same sums, and is small.
    _, triangular = np.linalg.qr(np.stack(vectors).T)
    left, sizes, _ = np.linalg.svd(triangular.T)
    sums_to_zero = left[:, np.count_nonzero(sizes > 1e-9 * sizes.max(initial=0.0)) :].T
    with np.errstate(all="ignore"):
        off, size = abs(sums_to_zero @ np.stack(images)), abs(sums_to_zero) @ abs(np.stack(images))
    beyond_rounding = off > constants.ROUNDINGS_OF_A_SUM * run.problem.rounding * size.max(initial=0.0)
    missing, nothing = torch.from_numpy(off), torch.zeros(off.shape, dtype=torch.float64)
    linear = run.problem.low_precision or run.close(missing, nothing, torch.from_numpy(size))
    return _Missing(bool(beyond_rounding.any()), not linear)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """How far numbers are apart; those that are no numbers are the same as each other, and as no others."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(torch.inf))
