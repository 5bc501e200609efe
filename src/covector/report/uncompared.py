"""Reports on functions of which nothing could be compared: there is no backward, or it could not be run."""

from __future__ import annotations

from covector._chart import ShapeChange
from covector._engine.levels import GradMode
from covector._engine.messages import missing_kernel
from covector.checks.forgiving import forgiving
from covector.diagnose.diagnosis import with_cuts
from covector.errors import Caller
from covector.evidence.cuts import traced
from covector.report.report import Report
from covector.verify.finding import Finding, Outcome, failed
from covector.verify.problem import Problem


def not_run(error: Exception) -> Finding | None:
    """What it says of a backward that it could not even be run; None if it is not known."""
    if isinstance(error, ShapeChange):
        return failed("purity", str(error), "A derivative needs outputs of one shape and dtype.")
    if (missing := missing_kernel(error)) is None:
        return None
    text = f"torch cannot differentiate this backward: it does not have {missing}"
    return Finding("reverse mode", Outcome.UNSUPPORTED, text)


def without_comparison(
    caller: Caller, first: Problem, again: str, found: Finding, error: BaseException
) -> Report:
    """The report on a backward that could not even be run."""
    return Report(
        caller.name,
        caller.verb,
        (found,),
        tuple(first.input_names),
        tuple(first.output_names),
        "nothing could be compared",
        evaluations=first.runs,
        reproduce=again,
        cause=error,
    )


def without_backward(caller: Caller, first: Problem, again: str) -> Report:
    """The report on a function of which no output has a graph, so that there is no backward to check."""
    found = Finding(
        "no derivative",
        Outcome.FAILED,
        "no output requires grad, so there is no backward whose derivative could be checked",
        advice="The function detaches its result, or runs under no_grad.",
    )
    with forgiving(), GradMode(enabled=True):
        found = with_cuts(found, traced(lambda: first.call(first.variables)))
    names = tuple(first.input_names), tuple(first.output_names)
    how = "nothing could be compared"
    return Report(caller.name, caller.verb, (found,), *names, how, evaluations=first.runs, reproduce=again)
