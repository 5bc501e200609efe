"""The same call again: twice, with another between, from two threads, backward twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from covector.kernels.bench import Bench, Sample, raised
from covector.kernels.combined import Combined, judged
from covector.kernels.row import Row, Status
from covector.kernels.subject import Run, detached, random_like, variables
from covector.kernels.truth import real, ulp
from covector.verify.leaves import is_differentiable


def again(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Each gives the numbers of the first call, to the bit or within `nondet_tol`."""
    first = _run(bench)
    ways: list[tuple[str, Callable[[Bench], list[Run]]]] = [
        ("called twice", lambda b: [_run(b)]),
        ("another call between", _interleaved),
        ("from two threads", _threads),
    ]
    if bench.arguments.chosen:
        ways.append(("backward twice, with retain_graph", _backward_twice))
    for way, make in ways:
        try:
            yield _row(bench, way, first, make(bench))
        except Exception as error:
            yield Row(way, Status.FAILED, raised(error))
    yield _overwritten(bench)


def _leaves(bench: Bench) -> list[Any]:
    return variables([_copied(leaf) for leaf in bench.leaves], bench.arguments.chosen)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _run(bench: Bench) -> Run:
    return bench.kernel.run(_leaves(bench), bench.sample.cotangents)


def _other(leaf: Any) -> Any:
    """Numbers of another size, in another order."""
    return -0.5 * leaf.detach().flip(tuple(range(leaf.dim()))) if is_differentiable(leaf) else leaf


def _others(bench: Bench) -> list[Any]:
    """Other numbers of the same shapes; another size where the inputs are made from one."""
    if bench.other_size is not None:
        return variables([_copied(leaf) for leaf in bench.other_size], bench.arguments.chosen)
    return variables(list(map(_other, bench.leaves)), bench.arguments.chosen)


def _interleaved(bench: Bench) -> list[Run]:
    """Forward here, forward and backward elsewhere, then the backward of here; and outputs that stay."""
    leaves, others = _leaves(bench), _others(bench)
    with torch.enable_grad():
        outputs = bench.kernel(leaves)
        elsewhere = bench.kernel(others)
        bench.kernel.pull(elsewhere, others, random_like(elsewhere, bench.settings.seed))
        gradients = bench.kernel.pull(outputs, leaves, bench.sample.cotangents)
    return [Run([detached(output) for output in outputs], gradients)]


def _threads(bench: Bench) -> list[Run]:
    """Twice at the same time."""
    with ThreadPoolExecutor(2) as pool:
        return [done.result() for done in [pool.submit(_run, bench) for _ in range(2)]]


def _overwritten(bench: Bench) -> Row:
    """Other numbers in the memory of the first ones: a cache that goes by the address is stale."""
    way = "inputs overwritten between"
    leaves, others = list(map(_copied, bench.leaves)), list(map(_other, bench.leaves))
    truths = bench.truths_of(Sample(others, bench.sample.cotangents))
    try:
        bench.kernel.run(variables(leaves, bench.arguments.chosen), bench.sample.cotangents)
    except Exception as error:
        return Row(way, Status.FAILED, raised(error))
    for leaf, numbers in zip(leaves, others, strict=True):
        if is_differentiable(leaf):
            leaf.copy_(numbers)
    return judged(bench, way, leaves, bench.sample.cotangents, truths)


def _backward_twice(bench: Bench) -> list[Run]:
    leaves = _leaves(bench)
    with torch.enable_grad():
        outputs = bench.kernel(leaves)
        kept = [
            bench.kernel.pull(outputs, leaves, bench.sample.cotangents, retain_graph=not last)
            for last in (False, True)
        ]
    return [Run([detached(output) for output in outputs], gradients) for gradients in kept]


def _row(bench: Bench, way: str, first: Run, runs: list[Run]) -> Row:
    """How far the runs are from the first."""
    names = [*bench.output_names, *(f"grad {name}" for name in bench.names)]
    expected = [*first.outputs, *first.gradients]
    apart = 0.0
    for run in runs:
        for name, was, now in zip(names, expected, [*run.outputs, *run.gradients], strict=True):
            if (was is None) != (now is None):
                return Row(way, Status.FAILED, f"{name}: there is one in one of the calls only")
            if not is_differentiable(was):
                continue
            spread, steps = _spread(was, now)
            if spread > bench.settings.nondet_tol:
                text = f"{name} differs by up to {spread:.2g} ({steps:.3g} ulp) from the first call"
                return Row(way, Status.FAILED, text)
            apart = max(apart, steps)
    return Row(way, Status.PASSED, f"up to {apart:.3g} ulp apart" if apart else "")


def _spread(was: Tensor, now: Tensor) -> tuple[float, float]:
    """The largest difference, and the same in units of the last place; NaN is equal to NaN."""
    if was.shape != now.shape:
        return float("inf"), float("inf")
    a, b = real(was), real(now)
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, 0.0, (a - b).abs().nan_to_num(float("inf")))
    if gap.numel() == 0:
        return 0.0, 0.0
    return float(gap.max()), float((gap / ulp(a, was.dtype)).max())
