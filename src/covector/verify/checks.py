"""The table of checks: which apply to a problem, and what each finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covector._chart import Chart, Sampled, ShapeChange, same_numbers, values_of
from covector._engine import graph
from covector._engine.batch import Apply, batched, looped
from covector.errors import CovectorError, UnsupportedError, first_sentence
from covector.verify.compare import bisect, compare
from covector.verify.derivatives import Derivatives
from covector.verify.directions import normal
from covector.verify.finding import Finding, Outcome, failed, finding, passed
from covector.verify.maps import Matrix, missing_kernel
from covector.verify.probes import compare_pushes
from covector.verify.surprises import Impure, NeedsGraph

# How often the backward is run once two runs have differed.
_RUNS = 5


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
            "Draw the numbers outside and pass them in, or seed the generator inside the function.",
        )
    return failed(
        "purity",
        f"the function is not a function of its inputs: {found.where} differs between two runs on the same "
        "input",
        "It keeps state from one call to the next, or an operation in it is not deterministic.",
    )


def reverse_mode(d: Derivatives) -> Finding:
    """Reverse mode agrees with differences."""
    if d.combined:
        return passed("reverse mode")
    if d.probing and d.probes_tell:
        return finding("reverse mode", d.probed, "reverse mode")
    tol = d.problem.tolerance(d.options.tol, d.matrix)
    return finding("reverse mode", compare(d.problem, d.matrix, tol), "reverse mode")


def forward_mode(d: Derivatives) -> Finding:
    """Forward mode agrees with differences."""
    if d.probing:
        verdict = compare_pushes(d.problem, d.forward, d.options.probes, d.options.tol)
        if d.told_by(verdict):
            return finding("forward mode", verdict, "forward mode")
    matrix = d.forward_matrix
    verdict = compare(d.problem, matrix, d.problem.tolerance(d.options.tol, matrix))
    return finding("forward mode", verdict, "forward mode")


def forward_linearity(d: Derivatives) -> Finding:
    """Forward mode is linear in the tangent: the push of a sum is the sum of the pushes."""
    size = d.problem.inputs.size
    if d.probing:
        first, second = (normal(size, d.options.tol.seed + i) for i in (1, 2))
        parts = torch.stack([d.push(first), d.push(second)])
        got, summed, total = d.push(first + second), parts.sum(0), parts.abs().sum(0)
    else:
        tangent, matrix = normal(size, d.options.tol.seed), d.forward_matrix.dense
        assert matrix is not None
        got, summed, total = d.push(tangent), matrix @ tangent, matrix.abs() @ tangent.abs()
    if d.close(got, summed, total):
        return passed("linearity")
    return failed("linearity", "forward mode is not linear in the tangent: the push of a sum is not the sum")


def no_derivative(d: Derivatives) -> Finding:
    """Where no output is differentiable, the function must be constant."""
    problem = d.problem
    zero = Matrix((problem.outputs.size, problem.inputs.size))
    verdict = compare(problem, zero, d.options.tol._replace(atol=1e-12, rtol=0.0))
    found = finding("no derivative", verdict, "an output without a graph")
    if found.outcome is Outcome.FAILED:
        return replace(
            found,
            summary="no output requires grad, so every derivative should be zero, but differences are not",
            advice="The function detaches its result, or runs under no_grad.",
        )
    return found


def gradient_kind(d: Derivatives) -> Finding:
    """Each gradient has the dtype, shape, device and layout of its input, and its elements."""
    name, remarks = "gradient kind", []
    words = ("shape", "device", "layout", "dtype") if d.options.dtypes else ("shape", "device", "layout")
    for index, (place, value) in enumerate(zip(d.problem.inputs.places, d.pulled, strict=True)):
        if value is None:
            continue
        if (flaw := place.flaw(value, words)) is not None:
            what = f"the gradient for {d.problem.input_names[index]} {flaw.text}"
            # Of torch's own operations the layout of a gradient is known, and its numbers are right.
            if not flaw.tolerable or graph.only_custom(d.problem.graph_outputs, d.problem.variables[index]):
                return failed(name, what)
            remarks.append(what)
        if (missing := place.unspecified(value)) and (where := _lacking(d, missing)):
            return failed(
                name,
                f"the gradient for {d.problem.input_names[index]} does not specify {where}, by which the "
                "derivative is not zero",
                "Without a mask every element is a variable: give the gradient of each, or pass masked=True.",
            )
    return Finding(name, Outcome.PASSED, "; ".join(remarks)) if remarks else passed(name)


def _lacking(d: Derivatives, missing: list[int]) -> str | None:
    """The first of these coordinates by which the outputs do move, along the random cotangent."""
    problem, members = d.problem, torch.tensor(missing)
    if isinstance(problem.inputs, Sampled):
        members = torch.isin(problem.inputs.kept, members).nonzero().flatten()
    move = torch.zeros(1, problem.inputs.size, dtype=torch.float64)
    steps = problem.steps.tensor(d.options.tol.eps) * normal(problem.inputs.size, d.options.tol.seed)
    move[0, members] = steps[members]
    slope = problem.differences(move)[0] / d.options.tol.eps
    if members.numel() == 0 or not (slope.abs() > d.options.tol.atol).any():
        return None
    nothing = torch.zeros(problem.inputs.size, dtype=torch.float64)
    column = bisect(problem, members, nothing, normal(problem.outputs.size, d.options.tol.seed))
    return problem.inputs.label(column, problem.input_names)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and same_numbers(a, b))


def determinism(d: Derivatives) -> Finding:
    """Pulling the same cotangent back again gives the same gradient."""
    if torch.equal(d.shrunk, d.pulled_coordinates):
        return passed("determinism")
    repeated = d.reverse.pull(d.cotangents)
    if all(map(_same, d.pulled, repeated)):
        return passed("determinism")
    runs = torch.stack(
        [d.pulled_coordinates, d.filled(repeated), *(d.pull(d.cotangents) for _ in range(_RUNS - 2))]
    )
    spread = runs.amax(0) - runs.amin(0)
    same = ((runs == runs[0]) | (runs.isnan() & runs[0].isnan())).all(0)
    spread = torch.where(same, 0.0, spread.nan_to_num(torch.inf))
    worst = float(spread.max()) if spread.numel() else 0.0
    if worst <= d.options.nondet_tol:
        return passed("determinism")
    where = d.problem.inputs.label(int(spread.argmax()), d.problem.input_names)
    return failed(
        "determinism",
        f"{_RUNS} runs of the backward on the same cotangent differ by {worst:.1e} at {where}, "
        f"more than nondet_tol={d.options.nondet_tol:g}",
        "Pass nondet_tol if that is the nature of the operation.",
    )


def linearity(d: Derivatives) -> Finding:
    """The backward is linear in the cotangent: zero gives zero, a sum the sum, a negative the negative."""
    name, problem = "linearity", d.problem
    if not d.cotangent_kept:
        return failed(name, "the backward writes to its cotangent, which others may need too")
    if d.agreed and d.homogeneous and d.options.undefined:
        # The pullback of a generic cotangent is right; that of zero is looked at as an undefined one.
        return passed(name)
    zero = d.of_zero()
    # Zero times infinity is NaN.
    if zero.numpy().any() and (wrong := (zero != 0) & zero.isfinite()).any():
        where = problem.inputs.label(int(wrong.nonzero()[0]), problem.input_names)
        return failed(
            name,
            f"a cotangent of zero gives a gradient that is not zero, at {where}",
            "The backward has to multiply by its grad_output.",
        )
    if d.is_linear() and d.homogeneous:
        return passed(name)
    negative = d.pull(d.opposite)
    odd = d.close(negative, -d.pulled_coordinates, d.pulled_coordinates.abs() + 1)
    what = "the pullback of a sum is not the sum of the pullbacks"
    if not odd:
        what = "a negative cotangent does not give the negative gradient"
    elif not d.homogeneous:
        what = "a cotangent 1024 times smaller does not give a gradient 1024 times smaller"
    return failed(name, f"the backward is not linear in the cotangent: {what}")


def undefined_cotangents(d: Derivatives) -> Finding:
    """The backward takes an undefined cotangent as zero."""
    problem = d.problem
    name = "undefined cotangents"
    outputs = problem.graph_outputs
    everything: list[list[int]] = [list(range(len(outputs)))]
    if len(outputs) > 1:
        everything += [[i] for i in range(len(outputs))]
    parts = []
    for missing in everything:
        which = "every cotangent"
        if len(missing) < len(outputs):
            which = f"the cotangent of {problem.output_names[missing[0]]}"
        through = [graph.undefined(t) if i in missing else t for i, t in enumerate(outputs)]
        try:
            pulled = d.reverse.pull(d.cotangents, through)
        except Exception as error:
            return failed(
                name,
                f"the backward fails when {which} is undefined: {first_sentence(error)}",
                "A cotangent may be None: treat it as zero, or pass check_undefined_grad=False.",
            )
        nothing = not any(value is not None and values_of(value).any() for value in pulled)
        if nothing and len(missing) == len(outputs):
            continue
        got = d.filled(pulled)
        expected = torch.zeros_like(got)
        if len(missing) < len(outputs):
            expected = d.pull([d.zeros[i] if i in missing else t for i, t in enumerate(d.cotangents)])
        if not d.close(got, expected, expected.abs() + 1):
            return failed(name, f"when {which} is undefined the gradient is not that of a zero cotangent")
        if len(missing) < len(outputs):
            parts.append(got)
    if parts:
        # Each cotangent was left out once.
        stack, whole = torch.stack(parts), (len(parts) - 1) * d.pulled_coordinates
        if not d.close(stack.sum(0), whole, stack.abs().sum(0) + 1):
            return failed(name, "when the cotangents are undefined in turn, the gradients do not add up")
    return passed(name)


def unspecified_cotangents(d: Derivatives) -> Finding:
    """A cotangent that leaves zeros out is the same as one that specifies them."""
    problem, name = d.problem, "unspecified cotangents"
    coordinates = normal(problem.outputs.places[-1].stop, d.options.tol.seed).clone()
    pairs = [place.halved(coordinates[place.start : place.stop]) for place in problem.outputs.places]
    expected, got = (d.pull([pair[i] for pair in pairs]) for i in (0, 1))
    if d.close(got, expected, expected.abs() + 1):
        return passed(name)
    return failed(
        name,
        "the gradient depends on which zeros of the cotangent are specified",
        "The backward reads the values of grad_output without its indices; a cotangent need not specify "
        "the same elements as the output.",
    )


def undefined_tangents(d: Derivatives) -> Finding:
    """Forward mode takes an input without a tangent as one with a tangent of zero."""
    problem = d.problem
    tangents = problem.inputs.from_coords(normal(problem.inputs.size, d.options.tol.seed).clone())
    for missing in range(len(tangents)):
        zeros = [torch.zeros_like(t) if i == missing else t for i, t in enumerate(tangents)]
        some = [i for i in range(len(tangents)) if i != missing]
        with_zero = d.pushed(d.forward.apply(zeros))
        without = d.pushed(d.forward.push(some, [tangents[i] for i in some]))
        if not d.close(without, with_zero, with_zero.abs() + 1):
            return failed(
                "undefined tangents",
                f"without a tangent for {problem.input_names[missing]} the result is not that of a zero one",
            )
    return passed("undefined tangents")


def batched_reverse(d: Derivatives) -> Finding:
    """Pulling two cotangents back at once gives what pulling each gives."""
    return _batching(d, "batched gradients", d.reverse.apply, d.problem.outputs)


def batched_forward(d: Derivatives) -> Finding:
    """Pushing two tangents forward at once gives what pushing each gives."""
    return _batching(d, "batched forward gradients", d.forward.apply, d.problem.inputs)


def _batching(d: Derivatives, name: str, apply: Apply, chart: Chart | Sampled) -> Finding:
    if layouts := d.problem.inputs.sparse_layouts + d.problem.outputs.sparse_layouts:
        raise UnsupportedError(f"torch has no vmap over tensors of layout {', '.join(layouts)}")
    stacks = chart.from_coords(normal(2 * chart.size, d.options.tol.seed).clone().reshape(2, chart.size))
    expected = looped(apply, stacks)
    try:
        got = batched(apply, stacks, "error")
    except RuntimeError as error:
        return failed(
            name,
            f"vmap over the derivative fails: {first_sentence(error)}",
            "Pass check_batched_grad=False if the operation is not meant to be batched.",
        )
    for a, b in zip(got, expected, strict=True):
        if not torch.allclose(a, b, equal_nan=True):
            return failed(
                name, "the batched derivative differs from the looped one: a batching rule is wrong"
            )
    return passed(name)


@dataclass(frozen=True)
class Check:
    """One row of the table: a check, the mode it belongs to, and what else asks for it."""

    name: str
    mode: str
    run: Callable[[Derivatives], Finding]
    wanted: Callable[[Derivatives], bool] | None = None


_REVERSE, _FORWARD, _NEITHER = "reverse", "forward", "neither"


def _modes(d: Derivatives) -> set[str]:
    """The modes that are checked."""
    if not d.problem.differentiable:
        return {_NEITHER}
    asked = ((_REVERSE, d.options.reverse), (_FORWARD, d.options.forward))
    return {mode for mode, wanted in asked if wanted}


def _unmasked(d: Derivatives) -> bool:
    return not d.options.masked and not d.problem.outputs.can_batch


CHECKS = (
    Check("no derivative", _NEITHER, no_derivative),
    Check("reverse mode", _REVERSE, reverse_mode),
    Check("forward mode", _FORWARD, forward_mode),
    Check("linearity", _FORWARD, forward_linearity),
    Check("gradient kind", _REVERSE, gradient_kind),
    Check("determinism", _REVERSE, determinism),
    Check("linearity", _REVERSE, linearity),
    Check("undefined cotangents", _REVERSE, undefined_cotangents, lambda d: d.options.undefined),
    Check("unspecified cotangents", _REVERSE, unspecified_cotangents, _unmasked),
    Check("undefined tangents", _FORWARD, undefined_tangents, lambda d: d.options.undefined),
    Check("batched gradients", _REVERSE, batched_reverse, lambda d: d.options.batched),
    Check("batched forward gradients", _FORWARD, batched_forward, lambda d: d.options.batched_forward),
)


_SUSPICIOUS = (Outcome.FAILED, Outcome.INCONCLUSIVE)


def run_checks(d: Derivatives) -> tuple[Finding, ...]:
    """Every check that applies; a function that is not one is reported as that and nothing else."""
    if changed := d.problem.mutated():
        return (mutation(changed),)
    try:
        findings = _all_findings(d)
        # An impure function differs from its differences, so entry by entry it is asked for on failure only.
        if not d.options.brief and any(f.outcome in _SUSPICIOUS for f in findings):
            d.problem.require_pure()
    except Impure as found:
        return (impurity(found),)
    except ShapeChange as error:
        return (failed("purity", str(error), "A derivative needs outputs of a fixed shape."),)
    return findings


def _all_findings(d: Derivatives) -> tuple[Finding, ...]:
    """What the checks find. A mode that raises or is not supported is reported once."""
    findings: list[Finding] = []
    modes, brief = _modes(d), d.options.brief
    for check in CHECKS:
        if check.mode not in modes or (check.wanted is not None and not check.wanted(d)):
            continue
        try:
            findings.append(check.run(d))
        except UnsupportedError as error:
            findings.append(Finding(check.name, Outcome.UNSUPPORTED, str(error)))
            modes.discard(check.mode)
        except Exception as error:
            # A derivative that raises is a finding; a function that raises is not.
            ours = isinstance(error, CovectorError | ShapeChange | Impure | NeedsGraph)
            if ours or error is d.problem.raised:
                raise
            d.raised = error
            if (missing := missing_kernel(error)) is not None:
                findings.append(Finding(check.name, Outcome.UNSUPPORTED, f"torch does not have {missing}"))
                modes.discard(check.mode)
                continue
            findings.append(failed(check.name, f"the derivative raised {type(error).__name__}: {error}"))
            modes.discard(check.mode)
        if brief and findings[-1].outcome is not Outcome.PASSED:
            break
    return tuple(findings)
