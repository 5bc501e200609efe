"""A derivative in low precision against the same derivative in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from covector.verify import constants
from covector.verify.analytic import ForwardMap, ReverseMap
from covector.verify.finding import Entry, Mismatch, Outcome
from covector.verify.record import Verdict
from covector.verify.tolerance import Tolerance


def held_against(
    low: ReverseMap | ForwardMap, high: ReverseMap | ForwardMap, verdict: Verdict, tol: Tolerance
) -> Verdict:
    """The verdict, after the derivative in low precision was compared with the one in double precision."""
    rounding = low.problem.rounding
    with np.errstate(all="ignore"):
        off = abs(low.mixed - high.mixed)
        slack = slack_of(high.mixed, rounding)
        if (off <= 0.5 * tol.atol + slack).all():
            visible = max(verdict.visible, 0.5 * tol.atol + float(slack.max()))
            return replace(verdict, visible=visible)
        every = np.arange(low.problem.inputs.size)
        got, expected = low.columns(every), high.columns(every)
        slack = slack_of(expected, rounding)
        error, allowed = abs(got - expected), tol.atol + slack + tol.rtol * abs(expected)
        bad = ~(error <= allowed) & ~(np.isnan(got) & np.isnan(expected)) & (got != expected)
    if not bad.any():
        largest = float(np.where(np.isfinite(allowed), allowed, 0.0).max())
        return replace(verdict, visible=max(verdict.visible, largest))
    rows, columns = np.nonzero(bad)
    order = np.argsort(-np.nan_to_num(error[rows, columns], nan=np.inf), kind="stable")[: constants.NAMED]
    problem, shown = low.problem, []
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        entry = Entry(
            problem.outputs.label(row, problem.output_names),
            problem.inputs.label(column, problem.input_names),
        )
        values = float(got[row, column]), float(expected[row, column])
        bound = float(slack[row, 0])
        shown.append(Mismatch(entry, *values, bound, float(allowed[row, column]), "", row, column))
    unseen = len(rows) - len(shown)
    return replace(verdict, outcome=Outcome.FAILED, mismatches=tuple(shown), unseen=unseen)


def slack_of(rows: np.ndarray, rounding: float) -> np.ndarray:
    """What rounding may add to the error of each row."""
    finite = np.where(np.isfinite(rows), abs(rows), 0.0)
    return constants.ULPS * rounding * finite.max(1, keepdims=True, initial=0.0)
