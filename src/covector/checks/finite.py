"""Inputs that are not finite: where, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from covector._chart import Chart, refusal
from covector._engine.tensors import PLAIN
from covector.verify.finding import NAMED, OUTSIDE, Finding, Outcome
from covector.verify.leaves import is_differentiable
from covector.verify.problem import Problem


def said_first(problem: Problem, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings; an input that is not finite comes first, in place of what only follows from it.

    What cannot be differentiated is said where nothing else is wrong: a mask may well be infinite.
    """
    bad = [found for found in findings if found.outcome is not Outcome.PASSED]
    following = [found for found in bad if found.summary.startswith(OUTSIDE)]
    places = _not_finite(problem, chosen_only=following != bad)
    if not places:
        return tuple(findings)
    more = f", and {len(places) - NAMED} more" if len(places) > NAMED else ""
    first = Finding(
        "inputs",
        Outcome.INCONCLUSIVE,
        f"not every input is finite: {', '.join(places[:NAMED])}{more}",
        advice="Differences of the function say nothing at NaN or infinity: pass finite numbers there.",
    )
    return (first, *(found for found in findings if found not in following))


def _not_finite(problem: Problem, *, chosen_only: bool) -> list[str]:
    """The numbers that are not finite, of the inputs that are differentiated or of all, with their names."""
    asked = problem.asked
    arguments = asked.arguments.at(asked.arguments.leaves)
    if not chosen_only:
        arguments = arguments.select(arguments.slots, single=False).only(
            lambda leaf: is_differentiable(leaf) and type(leaf) in PLAIN and refusal(leaf) is None
        )
    tensors = arguments.primals()
    chart = Chart.around(tensors, masked=True)
    coordinates, names = chart.point(tensors).cpu(), arguments.paths(asked.caller.function)
    where = (~coordinates.isfinite()).nonzero().flatten().tolist()
    return [f"{chart.label(i, names)} is {float(coordinates[i])}" for i in where]
