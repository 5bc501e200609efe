"""Checks of reverse mode beside its entries: what a gradient is like, and cotangents of every kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covector._chart import Beyond, Sampled
from covector._engine import graph
from covector.checks.run import CheckRun
from covector.errors import described, first_sentence
from covector.verify import constants
from covector.verify.analytic import ZeroMap
from covector.verify.finding import Finding, Outcome, failed, passed
from covector.verify.locate import columns_apart
from covector.verify.vectors import Cotangent, normal, products, weights


def gradient_kind(run: CheckRun) -> Finding:
    """Each gradient has the dtype, shape, device and layout of its input, and its elements."""
    name, remarks, problem = "gradient kind", [], run.problem
    words = ("shape", "device", "layout", "dtype") if run.options.dtypes else ("shape", "device", "layout")
    for index, (place, value) in enumerate(zip(problem.inputs.places, run.reverse.pulled, strict=True)):
        if value is None:
            continue
        if (flaw := place.flaw(value, words)) is not None:
            what = f"the gradient for {problem.input_names[index]} {flaw.text}"
            # Of torch's own operations the layout of a gradient is known, and its numbers are right.
            if not flaw.tolerable or graph.only_custom(problem.graph_outputs, problem.variables[index]):
                return failed(name, what)
            remarks.append(what)
        if (beyond := place.beyond(value)) is not None and not _negligible(run, beyond):
            name_of, size = problem.input_names[index], beyond.size / run.reverse.random.factor
            return failed(
                name,
                f"the gradient for {name_of} goes beyond the mask: it is {size:.4g} in size at "
                f"{beyond.where}, which {name_of} does not specify",
                "With a mask, only what is specified is a variable: mask the gradient, or pass masked=False.",
            )
        if (missing := place.unspecified(value)) and (where := _lacking(run, missing)):
            return failed(
                name,
                f"the gradient for {problem.input_names[index]} does not specify {where}, by which the "
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
    columns, moves = members.numpy(), np.zeros((1, problem.inputs.size))
    wanted = numeric.steps.array(numeric.eps) * weights(problem.inputs.size, run.options.seed).numpy()
    moves[0, columns] = steps = wanted[columns]
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
    agreed = run.verdict(reverse).outcome is Outcome.PASSED and reverse.linear
    if agreed and _is_homogeneous(run) and run.options.undefined:
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
    if _is_homogeneous(run) and reverse.linear and (agreed or _is_additive(run)):
        return passed(name)
    return failed(
        name,
        f"the backward is not linear in the cotangent: {_nonlinearity(run)}",
        "Look in the backward for a clamp of grad_output, a threshold below which it counts as zero, or a "
        "solver whose tolerance is absolute: make that relative to the size of grad_output.",
    )


def _is_homogeneous(run: CheckRun) -> bool:
    """Whether the pullback scales with the cotangent."""
    got, expected = run.reverse.again, run.reverse.pulled_coordinates
    return torch.equal(got, expected) or run.close(got, expected, expected.abs() + 1)


def _is_additive(run: CheckRun) -> bool:
    """Whether the pullback of a sum of two cotangents is the sum of their pullbacks."""
    if run.problem.low_precision:  # of which rounding is another matter
        return True
    reverse, size = run.reverse, run.problem.outputs.size
    other = weights(size, run.options.seed + 1)
    apart, mine = reverse.pull_coordinates(other), reverse.pulled_coordinates
    got = reverse.pull_coordinates(torch.from_numpy(reverse.cotangents[0]) + other)
    return run.close(got, apart + mine, apart.abs() + mine.abs() + size**0.5)


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
    if not _is_homogeneous(run):
        times = f"{abs(random.factor / random.again):.0f} times smaller"
        return f"a cotangent {times} does not give a gradient {times}"
    if reverse.refused is not None:
        raised = described(reverse.refused)
        return f"it takes no cotangent that is expanded, as the gradient of a sum is, and raises {raised}"
    if reverse.odd is not None:
        factor = _odd_factor(run, reverse.odd) or (reverse.odd.words if _is_additive(run) else "")
        if factor:
            return f"the rows of the Jacobian do not add up to what it gives for a cotangent {factor}"
    return "the pullback of a sum is not the sum of the pullbacks"


def _odd_cotangent(run: CheckRun) -> Cotangent | None:
    """The first of the random cotangents that, sent as it is, gives another gradient than sent plainly."""
    reverse = run.reverse
    for cotangent, gradient in zip(reverse.every_cotangent, torch.from_numpy(reverse.mixed), strict=True):
        expected = reverse.pulled_as_sent(Cotangent(cotangent.row, cotangent.words))
        if not run.close(gradient, expected, expected.abs() + 1):
            return cotangent
    return None


def _odd_factor(run: CheckRun, cotangent: Cotangent) -> str:
    """What it is about the form of a cotangent that the backward is wrong for: pairs that differ in that."""
    plain = Cotangent(cotangent.row, cotangent.words)
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
        return failed(name, "when every cotangent is undefined the gradient is not that of a zero cotangent")
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
        run.require_memory(error)
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
