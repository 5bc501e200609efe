"""Reverse mode, forward mode and batches while dynamo traces the program.

Here every step is a function that dynamo knows: those that enter and leave a nesting level, wrap a tensor for
it, and pull back. Nothing can be asked of the autograd graph or of values: the tensors are descriptions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch import eager_transforms as peer
from torch._functorch.autograd_function import autograd_function_apply

from covector._engine import graph, levels, versions
from covector._engine.twice import Substitutes, differentiable_attention
from covector.errors import UnsupportedError

T = TypeVar("T")


class TracedScope:
    """Reverse mode on a nesting level, as `scopes.LevelScope`, in steps that dynamo knows."""

    custom = shared = records_formulas = False
    found = graph.NOWHERE  # there is no graph to look at

    def __init__(self, order: int) -> None:
        self._order, self._nested = order, levels.traced_inside()
        # A program may be differentiated again: by a transform around it, or by what it captures.
        self._again = order > 1 or torch.is_grad_enabled() or self._nested

    def run(self, function: Callable[[list[Any]], T], leaves: Sequence[Any], chosen: Sequence[int]) -> T:
        """Run a function on stand-ins for the caller's tensors, the chosen ones to be differentiated by.

        It is run by operations whose derivatives can be batched. Fused attention, which has no second
        derivative, is elsewhere tried first, and done again without where it fails; dynamo does not do
        a thing twice.
        """
        # dynamo knows torch's context manager of a level by a `with` statement only.
        with peer.grad_increment_nesting() as number, torch.enable_grad():
            self._number = number
            inner = [levels.wrap(leaf, number) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            for index in chosen:
                inner[index] = peer._create_differentiable(inner[index], number)
            self.variables = [inner[index] for index in chosen]
            before = _custom_functions()
            attention = differentiable_attention() if self._again else nullcontext()
            with Substitutes(nested=self._again), attention:
                returned = function(inner)
            self.custom = _custom_functions() > before
            if self.custom and self._order + levels.gradients_around() > 1:
                raise UnsupportedError(_CUSTOM)
            return returned

    def track(self, tensor: Tensor) -> Tensor:
        """This new tensor as a leaf to differentiate by."""
        return peer._create_differentiable(tensor, self._number)

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Whether somebody could differentiate what a pull computes."""
        return self._nested or torch.is_grad_enabled()

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor as the caller may have it, once the level is left."""
        return levels.unwrap_if_dead(tensor)

    def settle(self, pulled: Tensor, variable: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """What was pulled back to a variable, batched where that is."""
        return self.in_batches_of(self.close(pulled), variable)

    def in_batches_of(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The tensor, batched where the other one is, which may be of the level that was left."""
        return tensor + torch.zeros_like(levels.unwrap_if_dead(like)) if self._nested else tensor

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it."""
        shown = levels.unwrap_if_dead(output)
        if self.custom and shown.requires_grad:  # by something outside, so the derivative should do, too
            raise UnsupportedError(_CUSTOM)
        return shown


_CUSTOM = (
    "inside torch.compile, torch takes the backward of a custom autograd.Function as constant. What "
    "differentiates it would be wrong: second derivatives, forward mode, and the gradient of a derivative by "
    "an argument or a captured tensor that requires grad. Use covector.compile, or a call that is not "
    "compiled; where nothing is to be differentiated again, torch.no_grad()."
)


def _custom_functions() -> int:
    """How many custom Functions the program that is being traced applies."""
    versions.require(versions.NEEDED_BY_DYNAMO, "a derivative inside torch.compile")
    translator = sys.modules["torch._dynamo.symbolic_convert"].InstructionTranslator.current_tx()
    return sum(node.target is autograd_function_apply for node in translator.output.graph.nodes)


# dynamo calls it while it traces, as it does for `levels.gradients_around`.
_custom_functions._dynamo_marked_constant = True  # type: ignore[attr-defined]
