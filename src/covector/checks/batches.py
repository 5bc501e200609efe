"""Whether the derivative of a function can be batched: vmap over it gives what a loop gives."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from covector._chart import Chart, Sampled
from covector._engine.batch import Apply, batched, batched_values, looped
from covector.checks.run import CheckRun
from covector.errors import UnsupportedError, first_sentence
from covector.verify.finding import Finding, failed, passed
from covector.verify.vectors import normal


def batched_reverse(run: CheckRun) -> Finding:
    """Pulling two cotangents back at once gives what pulling each gives."""
    outputs, inputs = run.problem.output_names, run.problem.input_names
    names = [[f"d {output} / d {x}" for output in outputs] for x in inputs]
    batch = _Batch("batched gradients", "check_batched_grad", run.reverse.apply, names)
    return _batching(run, batch, run.problem.outputs)


def batched_forward(run: CheckRun) -> Finding:
    """Pushing two tangents forward at once gives what pushing each gives."""
    outputs, inputs = run.problem.output_names, run.problem.input_names
    names = [[f"d {output} / d {x}" for x in inputs] for output in outputs]
    # Not detached, for which torch's older batching has no rule.
    push = partial(run.forward.push, range(len(inputs)))
    batch = _Batch("batched forward gradients", "check_batched_forward_grad", push, names)
    return _batching(run, batch, run.problem.inputs)


class _Batch(NamedTuple):
    """A derivative that is applied to several directions at once."""

    check: str
    keyword: str
    apply: Apply
    names: list[list[str]]
    """Of the derivative, by the tensor among its results and the tensor among its directions."""


def _batching(run: CheckRun, batch: _Batch, chart: Chart | Sampled) -> Finding:
    """Whether a batch of two directions in this chart gives what a loop gives."""
    if layouts := run.problem.inputs.sparse_layouts + run.problem.outputs.sparse_layouts:
        raise UnsupportedError(f"torch has no vmap over tensors of layout {', '.join(layouts)}")
    stacks = chart.from_coords(normal(2 * chart.size, run.options.seed).clone().reshape(2, chart.size))
    expected = looped(batch.apply, stacks)
    try:
        got = _in_a_batch(batch.apply, stacks)
    except RuntimeError as error:
        run.raised = error
        return failed(
            batch.check,
            f"vmap over the derivative fails: {first_sentence(error)}",
            f"Pass {batch.keyword}=False if the operation is not meant to be batched.",
        )
    for which, (a, b) in enumerate(zip(got, expected, strict=True)):
        if not torch.allclose(a, b, equal_nan=True):
            source, got_alone, expected_alone = _alone(batch.apply, stacks, which) or (0, a, b)
            return failed(
                batch.check,
                f"vmap over {batch.names[which][source]} gives another result than a loop: "
                f"{_farthest(got_alone, expected_alone)}",
                f"A batching rule on the way is wrong; {batch.keyword}=False leaves this check out.",
            )
    return passed(batch.check)


def _in_a_batch(apply: Apply, stacks: list[Tensor]) -> list[Tensor]:
    """The derivative under vmap; where that refuses, by the batching that torch's own check uses."""
    try:
        return batched(apply, stacks, "error")
    except RuntimeError as refusal:
        try:
            return batched_values(apply, stacks)
        except RuntimeError:
            raise refusal from None


def _alone(apply: Apply, stacks: list[Tensor], which: int) -> tuple[int, Tensor, Tensor] | None:
    """The tensor among the directions that alone makes a batch differ in a result, and what it gives then."""
    for index in range(len(stacks)):
        alone = [stack if i == index else torch.zeros_like(stack) for i, stack in enumerate(stacks)]
        got, expected = _in_a_batch(apply, alone)[which], looped(apply, alone)[which]
        if not torch.allclose(got, expected, equal_nan=True):
            return index, got, expected
    return None


def _farthest(got: Tensor, expected: Tensor) -> str:
    """The number of two stacks that differs the most."""
    off = (got - expected).abs().nan_to_num(torch.inf)
    place = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    a, b = (values[place].item() for values in (got, expected))
    return f"got {a:.6g}, expected {b:.6g}" + (f", at {list(place[1:])}" if place[1:] else "")
