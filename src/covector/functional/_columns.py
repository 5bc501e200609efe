"""Whole matrices by forward mode, a batch of columns at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covector._chart import AnyPlace, Chart
from covector._engine import levels, reverse
from covector._linear import Pushforward
from covector._tree import Evaluation, flatten
from covector.errors import OutputError
from covector.functional._door import Call, accept_any, accept_one_number, one_output, runner
from covector.functional._rows import rows_at_once


def columns(call: Call) -> Any:
    """The Jacobian of the call's function."""
    evaluation, blocks = _pushed(call, runner(call, accept_any))
    rows = tuple(row[0] if call.one_input else tuple(row) for row in blocks)
    return rows[0] if one_output(evaluation) else rows


def gradient_columns(call: Call) -> Any:
    """The Jacobian of the gradient of the call's function."""
    run = runner(call, accept_one_number)

    def gradient(leaves: list[Any]) -> Evaluation:
        recording = reverse.record(run, leaves, range(len(leaves)))
        gradients = recording.pull([torch.ones_like(recording.evaluation.outputs[0])])
        return Evaluation(gradients, flatten(tuple(gradients))[1], [], None)

    _, blocks = _pushed(call, gradient)
    rows = tuple(row[0] if call.one_input else tuple(row) for row in blocks)
    return rows[0] if call.one_input else rows


def _pushed(call: Call, run: reverse.Run) -> tuple[Evaluation, list[list[Tensor]]]:
    """One run of the function, and the Jacobian blocks, by output and input."""
    chart = Chart.of(call.inputs)
    forward = Pushforward(call.caller, run, call.arguments())
    stacks = forward.matrix(
        chart,
        chunk_size=rows_at_once(chart.size),
        # A function that draws has one Jacobian for each draw: all columns belong to the same one.
        randomness="same",
        like=call.inputs if levels.active() else None,
    )
    return forward.evaluation, [[_block(call, stack, place) for place in chart.places] for stack in stacks]


def _block(call: Call, stack: Tensor, place: AnyPlace) -> Tensor:
    """The columns that belong to one input, arranged as dy/dx."""
    own = stack[place.start : place.stop]
    if place.dtype.is_complex:
        own, turned = own[0::2], own[1::2]
        if not (own.is_complex() and torch.allclose(turned, 1j * own, rtol=_CAUCHY_RIEMANN, equal_nan=True)):
            raise OutputError(
                f"{call.caller}: the function is not holomorphic (the Cauchy-Riemann equations fail), so it "
                "has no complex derivative. Differentiate a function of torch.view_as_real(z) that returns "
                "real tensors, or use vjp/jvp, which take complex vectors."
            )
    return own.movedim(0, -1).reshape((*own.shape[1:], *place.shape))


_CAUCHY_RIEMANN = 1e-3
