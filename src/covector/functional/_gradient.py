"""The gradient of a function, to be differentiated itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from covector._engine import reverse
from covector._engine.twice import another_way
from covector._tree import Evaluation, flatten
from covector.errors import CovectorError, StrictError
from covector.functional._door import Call, accept_one_number, runner

Result = TypeVar("Result")
Use = Callable[[reverse.Recording], Result]


def gradient(call: Call) -> reverse.Run:
    """The gradient of the call's function, as a function to push forward."""
    run = runner(call, accept_one_number)

    def gradients(leaves: list[Any]) -> Evaluation:
        recording = reverse.record(run, leaves, range(len(leaves)))
        found = recording.pull([torch.ones_like(recording.evaluation.outputs[0])])
        return Evaluation(found, flatten(tuple(found))[1], [], None)

    return gradients


def second_order(call: Call, use: Use[Result]) -> Result:
    """What `use` makes of a recording of the gradient; the value is its auxiliary output.

    Fused attention and distances have none; where these are met, everything is done again without them.
    """
    try:
        return use(_record(call))
    except CovectorError:
        raise
    except RuntimeError as error:
        again = another_way(error)
        if again is None:
            raise
    with again:
        return use(_record(call))


def _record(call: Call) -> reverse.Recording:
    run = runner(call, accept_one_number)
    recording = reverse.record_gradient(run, call.inputs, range(len(call.inputs)), call.scope())
    if call.strict:
        _check_dependent(call, recording)
    return recording


def _check_dependent(call: Call, recording: reverse.Recording) -> None:
    """With `strict`, every gradient is there and can be differentiated again."""
    for position, gradient in enumerate(recording.outputs):
        if not gradient.requires_grad:
            raise StrictError(
                f"{call.caller}: the gradient with respect to inputs[{position}] does not depend on the "
                "inputs: the function is linear in that one, or does not use it. strict=True refuses that; "
                "without strict its derivative is zero."
            )
