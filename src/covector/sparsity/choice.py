"""Choosing among plans for the same matrix by how long they take: a mode, and how many products at once."""

from __future__ import annotations

import warnings
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from covector._engine import levels
from covector._tree import Arguments
from covector.errors import ForwardModeWarning
from covector.sparsity.coloring import rivals
from covector.sparsity.plan import SparsePlan, mode_of

# Runs of each plan; the fastest counts.
_TRIALS = 5
# At most so many products are compiled as a loop each, from so many elements on: 1 MB in double precision.
_FEW = 8
_CACHED = 2**17


def rivals_of(plan: SparsePlan, backend: Any) -> list[SparsePlan]:
    """The plan, and the other ways to compute the same that may be faster once they are compiled."""
    if not plan._free or plan._point is None or plan.derivative.symmetric:
        return [plan]
    plans = [
        replace(plan, coloring=coloring, mode=mode_of(coloring), chunk=min(plan.chunk, coloring.products))
        for coloring in rivals(plan.pattern, plan.coloring)
    ]
    if backend == "inductor":
        plans += [replace(plan, chunk=1) for plan in plans if _exceeds_cache(plan)]
    return plans


def _exceeds_cache(plan: SparsePlan) -> bool:
    """Whether there are a few products, so large that a compiler does better to write a loop for each."""
    elements = plan.coloring.products * max(plan.pattern.shape)
    return 1 < plan.coloring.products <= _FEW and elements > _CACHED and plan.chunk > 1


def fastest(plans: list[SparsePlan], at: Arguments) -> SparsePlan:
    """The plan that is measured to take the least time, of those that give the same as the first."""
    expected = levels.bare(plans[0]._values(at)).detach()
    same = [plans[0], *(plan for plan in plans[1:] if _gives(plan, at, expected))]
    if len(same) == 1:
        return plans[0]
    times = [min(_seconds(plan, at) for _ in range(_TRIALS)) for plan in same]
    order = sorted(range(len(same)), key=times.__getitem__)
    slower = [
        f"{_way(same[other])} {times[other] / times[order[0]]:.2g} times as long" for other in order[1:]
    ]
    return replace(same[order[0]], reason=f"it was measured to be the fastest ({', '.join(slower)})")


def _gives(plan: SparsePlan, at: Arguments, expected: Tensor) -> bool:
    """Whether a plan can do it, and gives this: forward mode may have no rule, or another derivative."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ForwardModeWarning)
            found = levels.bare(plan._values(at)).detach()
    except (RuntimeError, ForwardModeWarning):
        return False
    precision = torch.finfo(expected.dtype).eps ** 0.5
    size = float(expected.abs().nan_to_num().max()) if expected.numel() else 0.0
    return torch.allclose(found.to(expected), expected, rtol=precision, atol=precision * size, equal_nan=True)


def _seconds(plan: SparsePlan, at: Arguments) -> float:
    start = perf_counter()
    plan._values(at)
    return perf_counter() - start


def _way(plan: SparsePlan) -> str:
    """What tells a plan from others for the same matrix."""
    count = plan.coloring.products
    one_by_one = ", one by one" if plan.chunk == 1 < count else ""
    return f"{count} product{'' if count == 1 else 's'} by {plan.mode} mode{one_by_one}"
