"""J u by one run in forward mode, where that gives what reverse mode would give; else nothing.

Forward mode does not see `torch.no_grad()`, hooks, or anything else that acts on the graph, some
operations have no rule for it, and on its tensors the function may work in place. A run that meets any
of this is thrown away.
"""

from __future__ import annotations

from typing import Any

import torch

from covector._engine import forward, levels
from covector._engine.tensors import version
from covector._engine.watch import ForwardWatch, NotForward
from covector._lazy import Remembered
from covector.functional._door import Call, Tensors, runner

# Functions (by their code) whose run was thrown away: they are not tried again.
_not_forward = Remembered()


def push(call: Call, direction: Tensors) -> forward.Pushed | None:
    """The run and its tangents, or None if forward mode is not the way."""
    if call.create_graph or call.strict or levels.active() or levels.dual_level_open():
        return None
    key = getattr(call.caller.function, "__code__", call.caller.function)
    if key in _not_forward:
        return None
    draws = torch.get_rng_state()
    try:
        return _watched(call, direction)
    except Exception:
        # Whatever it was: if the function is to blame, reverse mode will say so too.
        _not_forward.add(key)
        torch.set_rng_state(draws)
        return None


def _watched(call: Call, direction: Tensors) -> forward.Pushed:
    function = call.caller.function

    def watched(*inputs: Any) -> Any:
        with ForwardWatch(function) as watch:
            returned = function(*inputs)
        if watch.noticed:
            raise NotForward
        return returned

    run = runner(call._replace(caller=call.caller._replace(function=watched)))
    # Copies, because in forward mode nothing would stop the function from changing the caller's tensors.
    copies = [tensor.clone() for tensor in call.inputs]
    versions = [version(copy) for copy in copies]
    pushed = forward.push(run, copies, range(len(copies)), direction)
    lost = any(
        tangent is None and (output.is_floating_point() or output.is_complex())
        for output, tangent in zip(pushed.evaluation.outputs, pushed.tangents, strict=True)
    )
    if lost or versions != [version(copy) for copy in copies]:
        raise NotForward
    return pushed
