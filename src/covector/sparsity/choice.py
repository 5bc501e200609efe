"""Choosing among plans for the same matrix by how long they take: a mode, and how products are stored."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covector._engine import levels
from covector._tree import Arguments
from covector.errors import ForwardModeWarning
from covector.sparsity.coloring import rivals
from covector.sparsity.plan import SparsePlan, mode_of
from covector.sparsity.programs import Programs
from covector.transforms._plan import least_seconds


def compiled(plan: SparsePlan, backend: Any) -> SparsePlan:
    """The plan with its products compiled, in the way that is measured to be the fastest."""
    ways = [_with_programs(way, backend) for way in _modes(plan)]
    chosen = fastest(ways, plan._point)
    if backend != "inductor" or not 1 < chosen.coloring.products <= chosen.chunk:
        return chosen
    # Loops that go through the products of an element first read an index, or a coefficient, once for all.
    return fastest([*ways, _with_programs(replace(chosen, interleaved=True), backend)], plan._point)


def _with_programs(plan: SparsePlan, backend: Any) -> SparsePlan:
    return replace(plan, _programs=Programs.of(plan, backend))


def _modes(plan: SparsePlan) -> list[SparsePlan]:
    """The plan, and that of the other mode if it may be faster once it is compiled."""
    if not plan._free or plan.derivative.symmetric:
        return [plan]
    whole = plan.chunk >= plan.coloring.products
    return [
        replace(
            plan, coloring=other, mode=mode_of(other), chunk=max(other.products, 1) if whole else plan.chunk
        )
        for other in rivals(plan.pattern, plan.coloring)
    ]


def fastest(plans: list[SparsePlan], at: Arguments) -> SparsePlan:
    """The plan that is measured to take the least time, of those that give the same as the first."""
    if len(plans) == 1:
        return plans[0]
    expected = levels.bare(plans[0]._numbers(at)).detach()
    same = [plans[0], *(plan for plan in plans[1:] if _gives(plan, at, expected))]
    if len(same) == 1:
        return plans[0]
    times = least_seconds([partial(plan._numbers, at) for plan in same])
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
            found = levels.bare(plan._numbers(at)).detach()
    except (RuntimeError, ForwardModeWarning):
        return False
    precision = torch.finfo(expected.dtype).eps ** 0.5
    size = float(expected.abs().nan_to_num().max()) if expected.numel() else 0.0
    return torch.allclose(found.to(expected), expected, rtol=precision, atol=precision * size, equal_nan=True)


def _way(plan: SparsePlan) -> str:
    """What tells a plan from others for the same matrix."""
    count = plan.coloring.products
    interleaved = ", interleaved" if plan.interleaved else ""
    return f"{count} product{'' if count == 1 else 's'} by {plan.mode} mode{interleaved}"
