"""Whole matrices from a recording, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from covector._chart import Chart
from covector._engine import reverse
from covector._linear import LinearMap
from covector.errors import Caller
from covector.functional._door import Call, Tensors, check_reached

# A batch of rows holds at most this many numbers of input and output together.
_NUMBERS = 2**22

Inspect = Callable[[Sequence["Tensor | None"]], None]


class Rows(LinearMap):
    """v -> J^T v through a recording; where a batch fails, the rows are made one by one, in silence.

    The original makes them one by one always, so nothing is lost that was promised.
    """

    label = "reverse mode"
    _refuses_draws = False
    _batch_failures = (Exception,)

    def __init__(self, caller: Caller, recording: reverse.Recording, inspect: Inspect | None) -> None:
        super().__init__(caller)
        self._recording = recording
        self._inspect = inspect

    def apply(self, direction: Tensors) -> Tensors:
        pulled = self._recording.reach(direction)
        if self._inspect is not None:
            self._inspect(pulled)
        return self._recording.filled(pulled)

    def _lowered(self, reason: str) -> None:
        self.batching = self.batching.down("loop", reason)


def rows_at_once(numbers: int) -> int:
    """How many directions are applied as one batch, where each has this many numbers."""
    return max(1, _NUMBERS // max(1, numbers))


def dependence_of(call: Call, derivative: str, output: Callable[[int], str]) -> Callable[[int], Inspect]:
    """For each output, what `strict` asks of its rows."""
    return lambda position: lambda pulled: check_reached(call, pulled, derivative, output(position))


def matrix(
    call: Call, recording: reverse.Recording, *, together: bool, inspect: Callable[[int], Inspect]
) -> list[list[Tensor]]:
    """The Jacobian blocks, by output and input.

    `together` sends the rows of all outputs through the graph in one batch. Otherwise each output has
    its own batches: what is found about a block is about that output alone, and no zero cotangent meets
    an infinite slope of another output.
    """
    outputs = recording.evaluation.outputs
    if together:
        return _blocks(call, recording, outputs, None)
    return [
        _blocks(call, recording.only(i), [output], inspect(i) if call.strict else None)[0]
        for i, output in enumerate(outputs)
    ]


def _blocks(
    call: Call, recording: reverse.Recording, outputs: Tensors, inspect: Inspect | None
) -> list[list[Tensor]]:
    if len(outputs) == 1 and outputs[0].numel() == 1:
        (row,) = [Rows(call.caller, recording, inspect).apply([torch.ones_like(outputs[0])])]
        return [[stack.reshape((*outputs[0].shape, *stack.shape)) for stack in row]]
    chart = Chart.of(outputs)
    inputs = sum(variable.numel() for variable in recording.variables)
    at_once = rows_at_once(inputs + chart.size)
    rows = Rows(call.caller, recording, inspect).matrix(chart, chunk_size=at_once, randomness="different")
    if call.create_graph and _lost_graph(recording, chart, rows):
        rows = Rows(call.caller, recording, inspect).matrix(chart, chunk_size=1, randomness="different")
    return [
        [stack[p.start : p.stop].reshape((*p.shape, *stack.shape[1:])) for stack in rows]
        for p in chart.places
    ]


def _lost_graph(recording: reverse.Recording, chart: Chart, rows: Tensors) -> bool:
    """Whether a batch depends on nothing where a single row is connected to the inputs.

    Some batching rules leave out an operand whose value does not matter.
    """
    if all(stack.requires_grad for stack in rows) or chart.size == 0:
        return False
    single = recording.pull([stack[0] for stack in chart.basis(0, 1)])
    return any(one.requires_grad and not stack.requires_grad for one, stack in zip(single, rows, strict=True))
