"""Comparisons and rows as findings and tables of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from covector.kernels.comparison import Comparison
from covector.kernels.row import Row, Status, row_of
from covector.kernels.rules import Around, diagnoses
from covector.verify.finding import Diagnosis, Finding, Outcome, Table

if TYPE_CHECKING:
    from covector.kernels.trial import Trial

# How many slices and entries are shown.
_SHOWN = 5

# What a way of calling that fails says about the mistake, where the numbers do not.
_TELLING = {
    "another call between": Diagnosis(
        "stale value",
        "the backward of one call changes when the kernel is called elsewhere",
        "values kept outside of ctx (an attribute, a global, a cache, a buffer that is used again)",
        0.9,
    ),
    "inputs overwritten between": Diagnosis(
        "stale value",
        "the kernel gives what belongs to numbers that are no longer there",
        "a cache whose key is the address, the identity or the shape of a tensor",
        0.9,
    ),
    "from two threads": Diagnosis(
        "shared state", "two threads disturb each other", "buffers and counters that calls share", 0.7
    ),
    "called twice": Diagnosis(
        "not deterministic",
        "two calls on the same numbers differ",
        "memory that is read before it is written; atomic additions (nondet_tol allows for these)",
        0.7,
    ),
}

# How sure a rule can be of what shows in one way of calling alone.
_SEEN_IN_ONE_WAY = 0.7


def base_finding(name: str, compared: Sequence[Comparison], around: Around) -> Finding:
    """The kernel as it was given."""
    row = row_of(name, compared)
    worst = row.comparison
    if worst is None or worst.outcome is Outcome.PASSED:
        return Finding(name, Outcome.PASSED)
    bad = [one for one in compared if one.outcome is not Outcome.PASSED]
    wrong = [one for one in (worst, *bad) if one.outcome is Outcome.FAILED]
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return Finding(
        name,
        worst.outcome,
        f"{row.text}{others}",
        advice=worst.advice,
        diagnoses=next((seen for one in wrong if (seen := diagnoses(one, around))), ()),
        tables=tuple(_evidence(worst)),
    )


def lens_finding(name: str, rows: Sequence[Row], look_at: str = "") -> Finding:
    """What a lens showed: the first way that fails speaks for it; what is unsupported is a remark."""
    failed = [row for row in rows if row.status is Status.FAILED]
    if failed:
        first = failed[0]
        others = f" (and {len(failed) - 1} more ways)" if len(failed) > 1 else ""
        told = tuple(_told(name, first.way, look_at))
        seen = diagnoses(first.comparison) if first.comparison is not None else ()
        # The kernel is right as it was given: what the numbers show comes from the way of calling.
        seen = tuple(replace(one, confidence=min(one.confidence, _SEEN_IN_ONE_WAY)) for one in seen)
        tables = tuple(_evidence(first.comparison)) if first.comparison is not None else ()
        return Finding(
            name,
            Outcome.FAILED,
            f"{first.way}: {first.text}{others}",
            diagnoses=told + seen,
            tables=tables,
        )
    unsupported = [row.way for row in rows if row.status is Status.UNSUPPORTED]
    remark = f"{name}: {', '.join(unsupported)} unsupported" if unsupported else ""
    return Finding(name, Outcome.PASSED, remark)


def _told(lens: str, way: str, look_at: str) -> Iterator[Diagnosis]:
    """What the way itself says about the mistake."""
    if way in _TELLING:
        yield _TELLING[way]
    elif look_at:
        yield Diagnosis(lens, f"it depends on the way of calling: {way}", look_at, 0.7)


def _evidence(comparison: Comparison) -> Iterator[Table]:
    """The worst slices and the worst entries of a tensor."""
    slices = [m for m in comparison.wrong if m.axis >= 0][:_SHOWN]
    if slices:
        found = tuple((f"{comparison.name}{m.where}", m.ratio, m.limit) for m in slices)
        yield Table("slices", ("slice", "error / floor", "limit"), found)
    got, truth = comparison.got, comparison.truth
    if got is None or truth is None or not got.numel() or comparison.worst is None:
        return
    error = torch.where(truth.judged, (got - truth.golden).abs(), 0.0)
    ulps = truth.ulps
    rows: list[tuple[Any, ...]] = []
    for flat in error.flatten().topk(min(_SHOWN, error.numel())).indices.tolist():
        at = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
        step = float(ulps[at])
        rows.append(
            (
                f"{comparison.name}{list(at) if at else ''}",
                float(got[at]),
                float(truth.golden[at]),
                float(error[at]) / step,
                abs(float(truth.eager[at] - truth.golden[at])) / step,
                float(truth.floor[at]) ** 0.5 / step,
            )
        )
    columns = ("entry", "kernel", "golden", "error [ulp]", "reference's [ulp]", "floor [ulp]")
    yield Table("largest errors", columns, tuple(rows))


def ratio_table(trials: Iterable[Trial]) -> Table:
    """Every output and gradient as it was given: its ratios, also where they are within the limits."""
    rows: list[tuple[Any, ...]] = []
    for trial in trials:
        for one in trial.compared:
            worst = one.worst
            measured: tuple[Any, ...] = (None,) * 6
            if worst is not None:
                measured = (one.whole, worst.ratio, worst.where, worst.limit, one.quotient, one.condition)
            rows.append((one.name, trial.dtype, str(one.outcome), *measured))
    columns = ("tensor", "dtype", "outcome", "whole", "slice", "where", "limit", "largest", "condition")
    return Table("error over noise floor", columns, tuple(rows))


def lens_table(trials: Iterable[Trial]) -> Table:
    """Every way of calling."""
    rows = [
        (lens, row.way, trial.dtype, str(row.status), row.ratio, row.text)
        for trial in trials
        for lens, looked in trial.looked
        for row in looked
    ]
    return Table("lenses", ("lens", "way", "dtype", "outcome", "ratio", "remark"), tuple(rows))
