"""A kernel that takes float64: its derivative against differences, on a few numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from covector.api import check
from covector.kernels.bench import Bench
from covector.kernels.subject import Run, variables
from covector.kernels.truth import real
from covector.verify.finding import Finding, Outcome
from covector.verify.leaves import doubled

# How many numbers of the inputs and outputs are looked at. Where a run is long, fewer, along one direction.
_NUMBERS, _FEW = 64, 4

# A kernel computes in float64 if it is this close to golden, relative to its size.
_DIGITS = 1e-10


def precise(bench: Bench, name: str) -> list[Finding]:
    """What a gradient check in float64 finds, if the kernel computes in it."""
    chosen = bench.arguments.chosen
    leaves = variables([doubled(leaf) for leaf in bench.leaves], chosen)
    if not chosen or not _computes_in_double(bench, leaves):
        return []
    args, kwargs = bench.arguments.rebuild(leaves)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        bench.kernel.count.forward += 1
        return bench.kernel.function(*args, **kwargs)

    if not bench.is_large:
        report = check(kernel, tuple(args), kwargs, max_entries=_NUMBERS, seed=bench.settings.seed)
    else:
        report = check(
            kernel,
            tuple(args),
            kwargs,
            max_entries=_FEW,
            fast_mode=True,
            probes=1,
            check_undefined_grad=False,  # a lens asks that
            seed=bench.settings.seed,
        )
    wrong = [found for found in report.findings if found.outcome is Outcome.FAILED]
    if not wrong:
        return [Finding(name, Outcome.PASSED)]
    return [replace(found, check=f"{name}: {found.check}") for found in wrong]


def _computes_in_double(bench: Bench, leaves: list[Any]) -> bool:
    """Whether the kernel takes float64, and gives its digits."""
    try:
        with torch.no_grad():
            outputs = bench.kernel(leaves)
    except Exception:  # it does not take it
        return False
    for got, truth in zip(Run(outputs).outputs, bench.truths.outputs, strict=True):
        if truth is not None and real(got).shape == truth.golden.shape:
            golden = truth.golden[truth.judged]
            apart = (real(got)[truth.judged] - golden).norm()
            if not float(apart) <= _DIGITS * float(golden.norm()):
                return False
    return True
