"""Whether the backward is reentrant: one cotangent gives one gradient, however often it is pulled back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector.verify import constants
from covector.verify.finding import Finding, failed, passed
from covector.verify.run import CheckRun
from covector.verify.vectors import unit

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
        found = _of_products(run) if run.options.fast else _of_rows(run, run.problem.outputs.size)
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
    if not run.options.fast:
        found = _of_rows(run, run.problem.outputs.size - 2)
        _pull_again(run, 1)
        return found or _of_cotangent(run, run.reverse.repeated)
    if run.reverse_verdict.suspected:  # what a look found may be a matter of the run
        _pull_again(run, 2)
        return _of_cotangent(run, run.reverse.repeated)
    return None


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


def _of_rows(run: CheckRun, count: int) -> _Spread | None:
    """How far two runs of the backward are apart in some rows of the Jacobian.

    Forwards and then backwards: the runs of a row are as many apart as those of no other, so that whatever
    the period of a fault is, it does not hit both runs of every row.
    """
    height, worst = run.problem.outputs.size, None
    count = max(0, min(count, constants.REPEATED_ROWS))
    chosen = np.linspace(0, height - 1, count).round().astype(int).tolist()
    first = [run.reverse.pull_coordinates(unit(height, row)) for row in chosen]
    for row, gradient in zip(reversed(chosen), reversed(first), strict=True):
        found = _of_cotangent(run, [gradient, run.reverse.pull_coordinates(unit(height, row))])
        if found is not None and (worst is None or found.size > worst.size):
            output = run.problem.outputs.label(row, run.problem.output_names)
            worst = found._replace(where=f"d {output} / d {found.where}")
    return worst


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """How far numbers are apart; those that are no numbers are the same as each other, and as no others."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(torch.inf))
