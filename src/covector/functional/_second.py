"""Second derivatives: what is made of a recording of the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from covector._engine.reverse import Recording
from covector.errors import StrictError
from covector.functional._door import Call, accept_one_number, runner
from covector.transforms._second import Gradient, reverse_first

Result = TypeVar("Result")


def gradient(call: Call) -> Gradient:
    """The gradient of the call's function; the value rides along."""
    return Gradient(call.caller, call.arguments(), runner(call, accept_one_number), call.scope())


def second_order(call: Call, use: Callable[[Recording], Result]) -> Result:
    """What `use` makes of a recording of the gradient."""

    def by_reverse() -> Result:
        recording = gradient(call).record()
        if call.strict:
            _check_dependent(call, recording)
        return use(recording)

    return reverse_first(by_reverse)


def _check_dependent(call: Call, recording: Recording) -> None:
    """With `strict`, every gradient is there and can be differentiated again."""
    for position, found in enumerate(recording.outputs):
        if not found.requires_grad:
            raise StrictError(
                f"{call.caller}: the gradient with respect to inputs[{position}] does not depend on the "
                "inputs: the function is linear in that one, or does not use it. strict=True refuses that; "
                "without strict its derivative is zero."
            )
