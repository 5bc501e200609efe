"""The short way through reverse mode: tensors in, one tensor out, and nobody else who records.

That is what most calls are, and with small functions the steps of the general way, in `reverse`, take as
long as the operations. What turns out to be less simple is handed over to it, without a second run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from covector._engine import graph, levels
from covector._engine.reverse import Recording, resumed
from covector._engine.scopes import PlainScope, here, lasting
from covector._engine.writes import run_watched
from covector._tree import Evaluation


def applies(args: Sequence[Any]) -> bool:
    """Whether a call is simple, as far as can be told before it: real tensors that no graph leads to."""
    if levels.active() or forward_ad._current_level >= 0 or torch.is_inference_mode_enabled():
        return False
    for value in args:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return False
        if value.requires_grad or value.is_inference():
            return False
    return bool(args)


class ShortRun:
    """One run of a function on leaves of its own, some of which (`chosen`) are to be differentiated by."""

    __slots__ = ("_connected", "_shared", "returned", "variables")

    def __init__(self, function: Callable[..., Any], args: Sequence[Tensor], chosen: Sequence[int]) -> None:
        before = lasting()
        inner, variables = [], []  # in loops: a comprehension is a call of its own
        for value in args:
            inner.append(value.detach())
        for index in chosen:
            variables.append(graph.open_leaf(inner[index]))
        self._connected = connected = torch.is_grad_enabled()
        self.variables = variables
        if not connected:
            torch._C._set_grad_enabled(True)
        here.recorded += 1
        try:
            self.returned = run_watched(function, inner, {}, variables)
        finally:
            here.recorded -= 1
            torch._C._set_grad_enabled(connected)
            for variable in variables:
                graph.close_leaf(variable)
            self._shared = lasting() != before

    def shown(self) -> Tensor | None:
        """What was returned, without its graph; None where more than that has to be looked at."""
        output = self.returned
        if not isinstance(output, Tensor) or not output.requires_grad or not output.is_floating_point():
            return None
        return output.detach() if graph.survey(output) is graph.NOWHERE else None

    def pull(self, cotangent: Tensor, *, keep: bool) -> tuple[Any, ...] | None:
        """J^T v, if there was something to show; None where somebody could differentiate that."""
        if cotangent.requires_grad or forward_ad._current_level >= 0 or levels.active():
            return None
        variables = self.variables
        outputs, cotangents = (self.returned,), (cotangent,)
        keep = keep or self._shared
        pulled = tuple(graph.backward(outputs, cotangents, variables, keep=keep, record=False))
        for value in pulled:
            if value is None:
                pairs = zip(pulled, variables, strict=True)
                return tuple(torch.zeros_like(variable) if p is None else p for p, variable in pairs)
        return pulled

    def rows(self, shown: Tensor) -> Tensor | None:
        """The Jacobian by the only variable, rows in one batch; None where that needs more care."""
        count, variable = shown.numel(), self.variables[0]
        if count < 2 or forward_ad._current_level >= 0 or levels.active():
            return None
        basis = torch.eye(count, dtype=shown.dtype, device=shown.device).reshape(count, *shown.shape)
        try:
            with levels.BatchLevel(count, "error") as level:
                cotangents = (level.hide(basis),)
                pulled = graph.backward((self.returned,), cotangents, (variable,), keep=True, record=False)[0]
                if pulled is None:
                    return None
                rows = level.show(pulled)
        except (RuntimeError, TypeError):  # an operation that cannot be batched; the general way says which
            return None
        return rows.reshape(*shown.shape, *variable.shape)

    def recording(self, evaluation: Evaluation, at_top: type[PlainScope] = PlainScope) -> Recording:
        """The same run, for the general way."""
        return resumed(evaluation, self.variables, at_top, connected=self._connected, shared=self._shared)
