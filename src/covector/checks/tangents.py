"""Checks of forward mode: tangents of every kind, and inputs without one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from covector._chart import one_number, real_ones
from covector.checks.run import CheckRun
from covector.errors import first_sentence
from covector.verify.finding import Finding, failed, passed
from covector.verify.vectors import normal, uneven


class _Part(NamedTuple):
    """A part of a tangent, which is pushed by itself: a vector of the order of one, times a factor."""

    row: Tensor
    factor: float
    words: str = ""
    """What is special about it."""


def forward_linearity(run: CheckRun) -> Finding:
    """Forward mode is linear in the tangent: the push of a sum is the sum of the pushes."""
    parts, image, size = _parts_of_a_tangent(run)
    images = torch.stack([_pushed(run, part) for part in parts])
    if run.close(images.sum(0), image, size + images.abs().sum(0)):
        return passed("linearity")
    return failed("linearity", f"forward mode is not linear in the tangent: {_nonlinearity(run, parts)}")


def _parts_of_a_tangent(run: CheckRun) -> tuple[list[_Part], Tensor, Tensor]:
    """Tangents as programs send them, the image of their sum, which is known, and its size.

    A rule of the user's may treat some in a way of its own: ones, tiny ones, large ones with numbers of many
    sizes and zeros, and those that are zero but for one number. Of the last kind are the columns of the
    Jacobian, if these were computed. (An expanded tangent reaches a rule only with an expanded input: torch
    lays a tangent out as its primal.)
    """
    forward, chart = run.forward, run.problem.inputs
    tangent, image, size = map(torch.from_numpy, forward.sum_of_pushes())
    large, tiny = forward.random.large, -forward.random.tiny
    ones = _Part(real_ones(chart), large, "whose numbers are all equal")
    if not run.custom:
        return [ones, _Part(tangent - ones.row, tiny)], image, size
    parts, rest = [ones._replace(factor=1.0)], tangent - ones.row
    if not forward.knows_columns and chart.size > 1:
        single = one_number(chart, 1 + run.options.seed % (chart.size - 1))
        parts.append(_Part(single, 1.0, "with one number that is not zero"))
        rest = rest - single
    part = 2 * rest * uneven(chart.size, run.options.seed)
    return [*parts, _Part(part, large, "with numbers of many sizes"), _Part(rest - part, tiny)], image, size


def _pushed(run: CheckRun, part: _Part) -> Tensor:
    """The image of a part, scaled back."""
    return run.forward.push_coordinates(part.row * part.factor) / part.factor


def _nonlinearity(run: CheckRun, parts: list[_Part]) -> str:
    """In which way forward mode is not linear: pairs of tangents that differ in one thing only."""
    rest = parts[-1]._replace(factor=1.0)
    for part in parts:
        plain = part._replace(factor=1.0)
        expected = _pushed(run, plain)
        if not run.close(_pushed(run, part), expected, expected.abs() + 1):
            return f"a tangent {abs(part.factor):.0e} times as large does not give that many times the result"
        if not part.words:
            continue
        together, alone = _pushed(run, rest._replace(row=rest.row + part.row)), _pushed(run, rest)
        if not run.close(together - alone, expected, together.abs() + alone.abs() + 1):
            return f"the push of a sum is not the sum of the pushes, for a tangent {part.words}"
    return "the push of a sum is not the sum of the pushes"


def tangent_kind(run: CheckRun) -> Finding:
    """Forward mode gives a real output a real tangent, and a complex one a complex one."""
    problem, name = run.problem, "tangent kind"
    pushed = run.forward.apply(
        problem.inputs.from_coords(normal(problem.inputs.size, run.options.seed).clone())
    )
    for place, tangent, output in zip(problem.outputs.places, pushed, problem.output_names, strict=True):
        if not place.same_field(tangent.dtype):
            return failed(name, f"the tangent of {output} has dtype {tangent.dtype}, expected {place.dtype}")
    return passed(name)


def undefined_tangents(run: CheckRun) -> Finding:
    """Forward mode takes an input without a tangent as one with a tangent of zero, if another has one."""
    problem, forward, name = run.problem, run.forward, "undefined tangents"
    count = len(problem.inputs.places)
    if count == 1:
        return passed(name)
    tangent, image, size = map(torch.from_numpy, forward.sum_of_pushes())
    tangents, images = problem.inputs.from_coords(tangent.clone()), []
    for missing in range(count):
        some = [i for i in range(count) if i != missing]
        pushed = _pushed_for(run, some, [tangents[i] for i in some])
        if isinstance(pushed, Exception):
            return failed(
                name,
                f"the function raises without a tangent for {problem.input_names[missing]}: "
                f"{type(pushed).__name__}: {first_sentence(pushed)}",
                "A tangent may be None: treat it as zero, or pass check_undefined_grad=False.",
            )
        images.append(forward.coordinates(pushed))
    # Each tangent is left out once, so that all of these make count - 1 pushes of the whole.
    without = torch.stack(images)
    if run.close(without.sum(0), (count - 1) * image, without.abs().sum(0) + size):
        return passed(name)
    for missing, got in enumerate(images):
        zeros = [torch.zeros_like(t) if i == missing else t for i, t in enumerate(tangents)]
        expected = forward.coordinates(forward.apply(zeros))
        if not run.close(got, expected, expected.abs() + 1):
            which = problem.input_names[missing]
            return failed(name, f"without a tangent for {which} the result is not that of a zero one")
    return passed(name)


def _pushed_for(run: CheckRun, some: list[int], tangents: list[Tensor]) -> list[Tensor] | Exception:
    """Tangents of outputs where some inputs have none; what the function raises then, if it does so twice."""
    try:
        return run.forward.push(some, tangents)
    except Exception as first:
        if first is not run.problem.raised:
            raise
    try:
        return run.forward.push(some, tangents)
    except Exception as error:
        run.problem.raised = None
        return error
