"""The table of checks: which apply to a problem, and what each finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from covector._chart import Beyond, Sampled, ShapeChange
from covector._engine import graph
from covector._engine.messages import is_out_of_memory, missing_kernel
from covector.checks.batches import batched_forward, batched_reverse
from covector.checks.finite import said_first
from covector.checks.forgiving import is_mistake_of_ours
from covector.checks.reentrancy import determinism
from covector.checks.run import CheckRun
from covector.checks.tangents import forward_linearity, tangent_kind, undefined_tangents
from covector.checks.taylor import forward_remainder, reverse_remainder
from covector.errors import CovectorError, ResourceError, UnsupportedError, described, first_sentence, text_of
from covector.verify import constants
from covector.verify.analytic import ZeroMap
from covector.verify.finding import Finding, Outcome, failed, finding, passed
from covector.verify.locate import columns_apart
from covector.verify.problem import Impure
from covector.verify.vectors import Cotangent, normal, products, weights


def mutation(changed: list[str]) -> Finding:
    """The function does not leave its inputs alone."""
    return failed(
        "purity",
        f"the function changes its input {', '.join(changed)} in place",
        "A derivative is taken at a point; let the function work on a copy.",
    )


def impurity(found: Impure) -> Finding:
    """The function gives another value for the same input."""
    if found.draws:
        return failed(
            "purity",
            f"the function draws random numbers: {found.where} differs between two runs on the same input",
            "Draw the numbers outside and pass them in, or seed the generator inside the function. "
            "Dropout in a module is off after module.eval().",
        )
    return failed(
        "purity",
        f"the function is not a function of its inputs: {found.where} differs between two runs on the same "
        "input",
        "It keeps state from one call to the next, or an operation in it is not deterministic.",
    )


def reverse_mode(run: CheckRun) -> Finding:
    """Reverse mode agrees with differences."""
    if run.custom and not run.options.fast:
        run.reverse.pull_again()
    return finding("reverse mode", run.reverse_verdict, "reverse mode")


def forward_mode(run: CheckRun) -> Finding:
    """Forward mode agrees with differences."""
    return finding("forward mode", run.forward_verdict, "forward mode")


def no_derivative(run: CheckRun) -> Finding:
    """Where no output is differentiable, the function must be constant."""
    found = finding("no derivative", run.zero_verdict, "an output without a graph")
    if found.outcome is Outcome.FAILED:
        return replace(
            found,
            summary="no output requires grad, so every derivative should be zero, but differences are not",
            advice="The function detaches its result, or runs under no_grad.",
        )
    return found


def gradient_kind(run: CheckRun) -> Finding:
    """Each gradient has the dtype, shape, device and layout of its input, and its elements."""
    name, remarks = "gradient kind", []
    words = ("shape", "device", "layout", "dtype") if run.options.dtypes else ("shape", "device", "layout")
    for index, (place, value) in enumerate(zip(run.problem.inputs.places, run.reverse.pulled, strict=True)):
        if value is None:
            continue
        if (flaw := place.flaw(value, words)) is not None:
            what = f"the gradient for {run.problem.input_names[index]} {flaw.text}"
            # Of torch's own operations the layout of a gradient is known, and its numbers are right.
            if not flaw.tolerable or graph.only_custom(
                run.problem.graph_outputs, run.problem.variables[index]
            ):
                return failed(name, what)
            remarks.append(what)
        if (beyond := place.beyond(value)) is not None and not _negligible(run, beyond):
            name_of, size = run.problem.input_names[index], beyond.size / run.reverse.random.factor
            return failed(
                name,
                f"the gradient for {name_of} goes beyond the mask: it is {size:.4g} in size at "
                f"{beyond.where}, which {name_of} does not specify",
                "With a mask, only what is specified is a variable: mask the gradient, or pass masked=False.",
            )
        if (missing := place.unspecified(value)) and (where := _lacking(run, missing)):
            return failed(
                name,
                f"the gradient for {run.problem.input_names[index]} does not specify {where}, by which the "
                "derivative is not zero",
                "Without a mask every element is a variable: give the gradient of each, or pass masked=True.",
            )
    return Finding(name, Outcome.PASSED, "; ".join(remarks)) if remarks else passed(name)


def _negligible(run: CheckRun, beyond: Beyond) -> bool:
    """Whether what a gradient says beyond the mask is zero, to the tolerance and its rounding error."""
    atol = run.options.tol.atol * run.reverse.random.factor  # as the cotangent was sent
    return not beyond.size > atol + constants.ROUNDINGS_OF_A_PULLBACK * run.problem.rounding * beyond.largest


def _lacking(run: CheckRun, missing: list[int]) -> str | None:
    """One of these coordinates by which the outputs do move."""
    problem, numeric, members = run.problem, run.numeric, torch.tensor(missing)
    if isinstance(problem.inputs, Sampled):
        members = torch.isin(problem.inputs.kept, members).nonzero().flatten()
    if members.numel() == 0:
        return None
    columns = members.numpy()
    steps = (numeric.steps.array(numeric.eps) * weights(problem.inputs.size, run.options.seed).numpy())[
        columns
    ]
    moves = np.zeros((1, problem.inputs.size))
    moves[0, columns] = steps
    nothing = ZeroMap(problem, run.options.seed)
    numeric.spare = constants.EXTRA_RUNS
    off = products(nothing.cotangents, numeric.differences(moves))[:, 0]
    allowed = run.options.tol.atol * numeric.eps
    if (abs(off) <= allowed).all():
        return None
    column = next(columns_apart(numeric, nothing, columns, steps, allowed, off), None)
    return None if column is None else problem.inputs.label(column, problem.input_names)


def linearity(run: CheckRun) -> Finding:
    """The backward is linear in the cotangent: zero gives zero, a sum the sum, a negative the negative."""
    name, problem, reverse = "linearity", run.problem, run.reverse
    if reverse.writes:
        return failed(name, "the backward writes to its cotangent, which others may need too")
    agreed = run.reverse_verdict.outcome is Outcome.PASSED and reverse.linear
    if agreed and run.homogeneous and run.options.undefined:
        # The pullbacks of two generic cotangents are right; that of zero is looked at as an undefined one.
        return passed(name)
    zero = reverse.of_zero
    if (wrong := _not_zero(run, zero)).any():
        where = problem.inputs.label(int(wrong.nonzero()[0]), problem.input_names)
        return failed(
            name,
            f"a cotangent of zero gives a gradient that is not zero, at {where}",
            "The backward has to multiply by its grad_output.",
        )
    if not agreed and reverse.linear and not problem.low_precision:  # of which rounding is another matter
        reverse.odd = _odd_cotangent(run)
    if run.homogeneous and reverse.linear and (agreed or run.additive):
        return passed(name)
    return failed(
        name,
        f"the backward is not linear in the cotangent: {_nonlinearity(run)}",
        "Look in the backward for a clamp of grad_output, a threshold below which it counts as zero, or a "
        "solver whose tolerance is absolute: make that relative to the size of grad_output.",
    )


def _not_zero(run: CheckRun, pulled: Tensor) -> Tensor:
    """Where the gradient of a cotangent of zero is not zero; of an infinite derivative, it is NaN."""
    return (pulled != 0) & (pulled.isfinite() | run.reverse.pulled_coordinates.isfinite())


def _nonlinearity(run: CheckRun) -> str:
    """In which way the backward is not linear."""
    reverse, random = run.reverse, run.reverse.random
    sent = torch.from_numpy(reverse.cotangents[0]) * random.factor
    negative, pulled = reverse.pull_coordinates(-sent), reverse.pull_coordinates(sent)
    if not run.close(negative, -pulled, pulled.abs() + 1):
        return "a negative cotangent does not give the negative gradient"
    if not run.homogeneous:
        times = f"{abs(random.factor / random.again):.0f} times smaller"
        return f"a cotangent {times} does not give a gradient {times}"
    if reverse.refused is not None:
        raised = described(reverse.refused)
        return f"it takes no cotangent that is expanded, as the gradient of a sum is, and raises {raised}"
    if reverse.odd is not None:
        factor = _odd_factor(run, reverse.odd) or (reverse.odd.words if run.additive else "")
        if factor:
            return f"the rows of the Jacobian do not add up to what it gives for a cotangent {factor}"
    return "the pullback of a sum is not the sum of the pullbacks"


def _plain(cotangent: Cotangent) -> Cotangent:
    return cotangent._replace(factor=1.0, expanded=False, recorded=False, reordered=False, part=False)


def _odd_cotangent(run: CheckRun) -> Cotangent | None:
    """The first of the random cotangents that, sent as it is, gives another gradient than sent plainly."""
    reverse = run.reverse
    for cotangent, gradient in zip(reverse.every_cotangent, torch.from_numpy(reverse.mixed), strict=True):
        expected = reverse.pulled_as_sent(_plain(cotangent))
        if not run.close(gradient, expected, expected.abs() + 1):
            return cotangent
    return None


def _odd_factor(run: CheckRun, cotangent: Cotangent) -> str:
    """What it is about the form of a cotangent that the backward is wrong for: pairs that differ in that."""
    plain = _plain(cotangent)
    factors = (
        ("under create_graph", plain._replace(recorded=cotangent.recorded)),
        ("that is expanded, as the gradient of a sum is", plain._replace(expanded=cotangent.expanded)),
        ("in another order of memory, as if transposed", plain._replace(reordered=cotangent.reordered)),
        ("that is a part of a larger tensor, or lazily conjugate", plain._replace(part=cotangent.part)),
        (f"of numbers around {cotangent.factor:.0e}", plain._replace(factor=cotangent.factor)),
    )
    expected = run.reverse.pulled_as_sent(plain)
    for words, varied in factors:
        if not run.close(run.reverse.pulled_as_sent(varied), expected, expected.abs() + 1):
            return words
    return ""


def undefined_cotangents(run: CheckRun) -> Finding:
    """The backward takes an undefined cotangent as zero: all of them, each in turn, and all but one."""
    name, reverse = "undefined cotangents", run.reverse
    every = range(len(run.problem.graph_outputs))
    nothing = _pulled_without(run, set(every), "every cotangent")
    if isinstance(nothing, Finding):
        return nothing
    if not reverse.is_zero(nothing) and _not_zero(run, reverse.scaled_back(nothing)).any():
        what = "when every cotangent is undefined the gradient is not that of a zero cotangent"
        return failed(name, what)
    if len(every) == 1:
        return passed(name)
    whole, names = reverse.pulled_coordinates, run.problem.output_names
    for index in every:
        which = f"the cotangent of {names[index]}"
        without = _pulled_without(run, {index}, which)
        if isinstance(without, Finding):
            return without
        left = reverse.scaled_back(without)
        only = _pulled_without(run, set(every) - {index}, f"every cotangent but that of {names[index]}")
        if isinstance(only, Finding):
            return only
        alone = reverse.scaled_back(only)
        if not run.close(left + alone, whole, left.abs() + alone.abs() + 1):
            what = which if len(names) == 2 else f"{which}, or each of the others,"
            return failed(name, f"when {what} is undefined the gradient is not that of a zero cotangent")
    return passed(name)


def _pulled_without(run: CheckRun, missing: set[int], which: str) -> Sequence[Tensor | None] | Finding:
    """The gradients where the cotangents of some outputs are undefined; a finding if the backward raises."""
    reverse, outputs = run.reverse, run.problem.graph_outputs
    through = [graph.undefined(t) if i in missing else t for i, t in enumerate(outputs)]
    try:
        return reverse.pull(reverse.sent, through)
    except Exception as error:
        _require_memory(run, error)
        return failed(
            "undefined cotangents",
            f"the backward fails when {which} is undefined: {first_sentence(error)}",
            "A cotangent may be None: treat it as zero, or pass check_undefined_grad=False.",
        )


def unspecified_cotangents(run: CheckRun) -> Finding:
    """A cotangent that leaves zeros out is the same as one that specifies them."""
    problem, name = run.problem, "unspecified cotangents"
    coordinates = normal(problem.outputs.places[-1].stop, run.options.seed).clone()
    pairs = [place.halved(coordinates[place.start : place.stop]) for place in problem.outputs.places]
    expected, got = (run.reverse.coordinates(run.reverse.pull([pair[i] for pair in pairs])) for i in (0, 1))
    if run.close(got, expected, expected.abs() + 1):
        return passed(name)
    return failed(
        name,
        "the gradient depends on which zeros of the cotangent are specified",
        "The backward reads the values of grad_output without its indices; a cotangent need not specify "
        "the same elements as the output.",
    )


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


_SUSPICIOUS = (Outcome.FAILED, Outcome.INCONCLUSIVE)


def run_checks(run: CheckRun) -> tuple[Finding, ...]:
    """Every check that applies; a function that is not one is reported as that and nothing else."""
    if changed := run.problem.mutated():
        return (mutation(changed),)
    try:
        findings = _all_findings(run)
        # An impure function differs from its differences, so entry by entry it is asked for on failure only.
        if not run.options.brief and any(f.outcome in _SUSPICIOUS for f in findings):
            run.problem.require_pure()
            findings = said_first(run.problem, findings)
    except Impure as found:
        return (impurity(found),)
    except ShapeChange as error:
        run.raised = error
        return (failed("purity", str(error), "A derivative needs outputs of one shape and dtype."),)
    return findings


def _require_memory(run: CheckRun, error: Exception) -> None:
    """A derivative that runs out of memory may be right: that is no finding."""
    if is_out_of_memory(error):
        raise ResourceError(
            f"{run.problem.caller}: a derivative ran out of memory: {text_of(error)}"
        ) from error


def _all_findings(run: CheckRun) -> tuple[Finding, ...]:
    """What the checks find. A mode that raises or is not supported is reported once."""
    findings: list[Finding] = []
    modes, brief = _modes(run), run.options.brief
    for check in CHECKS:
        if check.mode not in modes or (check.wanted is not None and not check.wanted(run)):
            continue
        try:
            findings.append(check.run(run))
        except UnsupportedError as error:
            findings.append(Finding(check.name, Outcome.UNSUPPORTED, str(error)))
            modes.discard(check.mode)
        except Exception as error:
            # A derivative that raises is a finding; a function that raises is not.
            ours = isinstance(error, CovectorError | ShapeChange | Impure)
            if ours or error is run.problem.raised or is_mistake_of_ours(error):
                raise
            _require_memory(run, error)
            run.raised = error
            if (missing := missing_kernel(error)) is not None:
                findings.append(Finding(check.name, Outcome.UNSUPPORTED, f"torch does not have {missing}"))
                modes.discard(check.mode)
                continue
            findings.append(failed(check.name, f"the derivative raised {described(error)}"))
            modes.discard(check.mode)
        if brief and findings[-1].outcome is not Outcome.PASSED:
            break
    return tuple(findings)
