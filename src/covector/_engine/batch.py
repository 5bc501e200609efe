"""Batches: apply a function of tensors to many tensors at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from covector._engine.compiled import tracing
from covector._engine.levels import BatchLevel

# Torch tells on standard error which operators it applies point by point; whether it does cannot be asked.
show_remarks = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]

Apply = Callable[[list[Tensor]], list[Tensor]]


def batched(apply: Apply, stacks: Sequence[Tensor], randomness: str) -> list[Tensor]:
    """Apply to every slice along the first axis at once, by a batching level."""
    if tracing():
        # A function: of a bound method, dynamo of torch 2.9 cannot read the name.
        return torch.vmap(lambda some: apply(some), randomness=randomness)(list(stacks))
    with BatchLevel(stacks[0].shape[0], randomness) as level:
        return list(map(level.show, apply(list(map(level.hide, stacks)))))


def batched_values(apply: Apply, stacks: Sequence[Tensor]) -> list[Tensor]:
    """The same by torch's older batching, that of `autograd.grad(is_grads_batched=True)`.

    It batches the operations on these tensors and knows of no transform, so that custom Functions need no
    `setup_context` and no rule for vmap, and tensors that are not batched may be written to.
    """
    level = torch._C._vmapmode_increment_nesting()
    try:
        results = apply([torch._add_batch_dim(stack, 0, level) for stack in stacks])
        size = stacks[0].shape[0]
        return [torch._remove_batch_dim(result, level, size, 0) for result in results]
    finally:
        torch._C._vmapmode_decrement_nesting()


def looped(apply: Apply, stacks: Sequence[Tensor]) -> list[Tensor]:
    """Apply to every slice along the first axis in turn."""
    if stacks[0].shape[0] == 1:
        return [part.unsqueeze(0) for part in apply([stack[0] for stack in stacks])]
    results = [apply(list(slices)) for slices in zip(*(s.unbind() for s in stacks), strict=True)]
    return [torch.stack(parts) for parts in zip(*results, strict=True)]
