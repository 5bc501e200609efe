"""The table of checks: which apply to a problem, and what each finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from covector._chart import ShapeChange
from covector._engine.messages import missing_kernel
from covector.checks.batches import batched_forward, batched_reverse
from covector.checks.cotangents import gradient_kind, linearity, undefined_cotangents, unspecified_cotangents
from covector.checks.finite import said_first
from covector.checks.forgiving import is_mistake_of_ours
from covector.checks.reentrancy import determinism
from covector.checks.run import CheckRun
from covector.checks.tangents import forward_linearity, tangent_kind, undefined_tangents
from covector.checks.taylor import forward_remainder, reverse_remainder
from covector.errors import CovectorError, UnsupportedError, described
from covector.verify.analytic import ZeroMap
from covector.verify.finding import Finding, Outcome, failed, finding
from covector.verify.problem import Impure


def reverse_mode(run: CheckRun) -> Finding:
    """Reverse mode agrees with differences."""
    if run.custom and not run.options.fast:
        run.reverse.pull_again()
    return finding("reverse mode", run.verdict(run.reverse), "reverse mode")


def forward_mode(run: CheckRun) -> Finding:
    """Forward mode agrees with differences."""
    return finding("forward mode", run.verdict(run.forward), "forward mode")


def no_derivative(run: CheckRun) -> Finding:
    """Where no output is differentiable, the function must be constant."""
    zero = ZeroMap(run.problem, run.options.seed)
    found = finding("no derivative", run.verdict(zero), zero.label)
    if found.outcome is Outcome.FAILED:
        return replace(
            found,
            summary="no output requires grad, so every derivative should be zero, but differences are not",
            advice="The function detaches its result, or runs under no_grad.",
        )
    return found


@dataclass(frozen=True)
class Check:
    """One row of the table: a check, the mode it belongs to, and what else asks for it."""

    name: str
    mode: str
    run: Callable[[CheckRun], Finding]
    wanted: Callable[[CheckRun], bool] | None = None


_REVERSE, _FORWARD, _NEITHER = "reverse", "forward", "neither"


def _modes(run: CheckRun) -> set[str]:
    """The modes that are checked."""
    if not run.problem.differentiable:
        return {_NEITHER}
    asked = ((_REVERSE, run.options.reverse), (_FORWARD, run.options.forward))
    return {mode for mode, wanted in asked if wanted}


def _unmasked(run: CheckRun) -> bool:
    return not run.options.masked and not run.problem.outputs.can_batch


CHECKS = (
    Check("no derivative", _NEITHER, no_derivative),
    Check("reverse mode", _REVERSE, reverse_mode),
    Check("forward mode", _FORWARD, forward_mode),
    Check("linearity", _FORWARD, forward_linearity),
    Check("tangent kind", _FORWARD, tangent_kind, lambda run: run.options.dtypes),
    Check("gradient kind", _REVERSE, gradient_kind),
    Check("determinism", _REVERSE, determinism),
    Check("linearity", _REVERSE, linearity),
    Check("undefined cotangents", _REVERSE, undefined_cotangents, lambda run: run.options.undefined),
    Check("unspecified cotangents", _REVERSE, unspecified_cotangents, _unmasked),
    Check("Taylor remainder", _REVERSE, reverse_remainder, lambda run: run.options.taylor),
    Check("Taylor remainder, forward mode", _FORWARD, forward_remainder, lambda run: run.options.taylor),
    Check("undefined tangents", _FORWARD, undefined_tangents, lambda run: run.options.undefined),
    Check("batched gradients", _REVERSE, batched_reverse, lambda run: run.options.batched),
    Check("batched forward gradients", _FORWARD, batched_forward, lambda run: run.options.batched_forward),
)


# What to do about a function that gives another value for the same input.
_DRAWS = (
    "Draw the numbers outside and pass them in, or seed the generator inside the function. Dropout in a "
    "module is off after module.eval()."
)
_KEEPS_STATE = "It keeps state from one call to the next, or an operation in it is not deterministic."

_SUSPICIOUS = (Outcome.FAILED, Outcome.INCONCLUSIVE)


def run_checks(run: CheckRun) -> tuple[Finding, ...]:
    """Every check that applies; a function that is not one is reported as that and nothing else."""
    if changed := run.problem.mutated():
        what = f"the function changes its input {', '.join(changed)} in place"
        return (failed("purity", what, "A derivative is taken at a point; let the function work on a copy."),)
    try:
        findings = _all_findings(run)
        # An impure function differs from its differences, so entry by entry it is asked for on failure only.
        if not run.options.brief and any(f.outcome in _SUSPICIOUS for f in findings):
            run.problem.require_pure()
            findings = said_first(run.problem, findings)
    except Impure as found:
        what = "draws random numbers" if found.draws else "is not a function of its inputs"
        differs = f"{found.where} differs between two runs on the same input"
        return (failed("purity", f"the function {what}: {differs}", _DRAWS if found.draws else _KEEPS_STATE),)
    except ShapeChange as error:
        run.raised = error
        return (failed("purity", str(error), "A derivative needs outputs of one shape and dtype."),)
    return findings


def _all_findings(run: CheckRun) -> tuple[Finding, ...]:
    """What the checks find. A mode that raises or is not supported is reported once."""
    findings: list[Finding] = []
    modes, brief = _modes(run), run.options.brief
    for check in CHECKS:
        if check.mode not in modes or (check.wanted is not None and not check.wanted(run)):
            continue
        try:
            found = check.run(run)
        except UnsupportedError as error:
            found = Finding(check.name, Outcome.UNSUPPORTED, str(error))
            modes.discard(check.mode)
        except Exception as error:
            # A derivative that raises is a finding; a function that raises is not.
            ours = isinstance(error, CovectorError | ShapeChange | Impure)
            if ours or error is run.problem.raised or is_mistake_of_ours(error):
                raise
            run.require_memory(error)
            run.raised = error
            found = failed(check.name, f"the derivative raised {described(error)}")
            if (missing := missing_kernel(error)) is not None:
                found = Finding(check.name, Outcome.UNSUPPORTED, f"torch does not have {missing}")
            modes.discard(check.mode)
        findings.append(found)
        if brief and found.outcome is not Outcome.PASSED:
            break
    return tuple(findings)
