"""A kernel that takes float64: its derivative against differences, on a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from covector.api import check
from covector.errors import ResourceError, first_sentence
from covector.kernels.bench import Bench
from covector.kernels.subject import Subject, random_like, variables
from covector.kernels.truth import real
from covector.verify.finding import Finding, Outcome
from covector.verify.leaves import doubled, is_differentiable

# How many numbers of the inputs and outputs are looked at; of large ones, where there is a suspicion.
_NUMBERS, _FEW = 64, 4

# A kernel computes in float64 if it is this close to golden, relative to its size.
_DIGITS = 1e-10

# The step of the difference along one direction, and what it may differ by: so short a step crosses few of
# the kinks of a million numbers, and each moves the sum by about 1e-3 of its size.
_STEP, _APART = 1e-7, 1e-2


def precise(bench: Bench, name: str) -> list[Finding]:
    """What a gradient check in float64 finds, if the kernel computes in it.

    Where a run is long, one difference along one direction says whether there is something to find.
    """
    chosen = bench.arguments.chosen
    leaves = variables([doubled(leaf) for leaf in bench.leaves], chosen)
    outputs = _in_double(bench, leaves) if chosen else None
    if outputs is None:
        return []
    if bench.is_large and _agrees(bench, leaves, outputs):
        return [Finding(name, Outcome.PASSED)]
    try:
        wrong = _wrong(bench, bench.kernel, leaves)
        if not wrong or _wrong(bench, bench.reference, leaves):
            # What the reference has on purpose (straight through a rounding) is compared with it.
            return [Finding(name, Outcome.PASSED)]
    except ResourceError as error:
        return [Finding(name, Outcome.INCONCLUSIVE, first_sentence(error))]
    return [replace(found, check=f"{name}: {found.check}") for found in wrong]


def _wrong(bench: Bench, subject: Subject, leaves: list[Any]) -> list[Finding]:
    """Where the derivative of a function is not that of its values."""
    args, kwargs = bench.arguments.rebuild(leaves)

    def function(*args: Any, **kwargs: Any) -> Any:
        subject.count.forward += 1
        return subject.function(*args, **kwargs)

    most = _FEW if bench.is_large else _NUMBERS
    # Numbers of a coarse dtype are often equal, which is a kink of a maximum.
    report = check(function, tuple(args), kwargs, max_entries=most, kinks="pass", seed=bench.settings.seed)
    return [found for found in report.findings if found.outcome is Outcome.FAILED]


def _in_double(bench: Bench, leaves: list[Any]) -> list[Any] | None:
    """The outputs with their graph, if the kernel takes float64 and gives its digits."""
    try:
        with torch.enable_grad():
            outputs = bench.kernel(leaves)
    except Exception:  # it does not take it
        return None
    if len(outputs) != len(bench.truths.outputs):
        return None
    for got, truth in zip(outputs, bench.truths.outputs, strict=True):
        if truth is not None and not is_differentiable(got):
            return None
        if truth is not None and real(got).shape == truth.golden.shape:
            golden = truth.golden[truth.judged]
            apart = (real(got)[truth.judged] - golden).norm()
            if not float(apart) <= _DIGITS * float(golden.norm()):
                return None
    return outputs


def _agrees(bench: Bench, leaves: list[Any], outputs: list[Any]) -> bool:
    """Whether v^T J u is the same by reverse mode and by a difference, for a random u and v."""
    chosen, seed = bench.arguments.chosen, bench.settings.seed
    cotangents = random_like(outputs, seed + 6)
    tangents = random_like([leaf if i in chosen else None for i, leaf in enumerate(leaves)], seed + 7)
    try:
        gradients = bench.kernel.pull(outputs, leaves, cotangents)
        with torch.no_grad():
            ahead = bench.kernel(_moved(leaves, tangents, _STEP))
    except Exception:  # the check says what
        return False
    rise = sum(_inner(c, a) - _inner(c, b) for c, a, b in zip(cotangents, ahead, outputs, strict=True))
    pairs = list(zip(gradients, (tangents[i] for i in chosen), strict=True))
    size = sum(float((real(g) * real(t)).square().sum()) for g, t in pairs if g is not None and t is not None)
    slope = sum(_inner(t, g) for g, t in pairs)
    return abs(slope - rise / _STEP) <= _APART * size**0.5


def _moved(leaves: Sequence[Any], tangents: Sequence[Tensor | None], step: float) -> list[Any]:
    return [
        leaf if tangent is None else leaf.detach() + step * tangent
        for leaf, tangent in zip(leaves, tangents, strict=True)
    ]


def _inner(a: Tensor | None, b: Any) -> float:
    return 0.0 if a is None or b is None else float((real(a) * real(b)).sum())
