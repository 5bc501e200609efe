"""The same call again: twice, from two threads, with another between, backward twice, on other numbers.

Runs serve several questions: two threads call it twice, and a backward is run twice after another call. Where
such a run differs, its questions are asked one by one.
"""

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

_TWICE, _THREADS = "called twice", "from two threads"
_BETWEEN, _BACKWARD = "another call between", "backward twice, with retain_graph"


def again(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Each gives the numbers of the first call, to the bit or within `nondet_tol`."""
    leaves = [_leaves(bench), _leaves(bench)]
    # A kernel that writes into its inputs was given other numbers at first.
    kept = bench.first.run if bench.first is not None and not bench.changed else None
    first = kept or bench.kernel.run(_leaves(bench), bench.sample.cotangents)
    both = _row(bench, _THREADS, first, lambda: _threads(bench, leaves))
    alone = both
    if both.status is Status.FAILED:
        alone = _row(
            bench, _TWICE, first, lambda: [bench.kernel.run(_leaves(bench), bench.sample.cotangents)]
        )
    yield Row(_TWICE, alone.status, alone.text)
    yield both if alone.status is Status.PASSED else Row(_THREADS, Status.SKIPPED, "two calls differ anyway")
    yield from _between(bench, first)
    yield _overwritten(bench, leaves[0])


def _between(bench: Bench, first: Run) -> Iterator[Row]:
    """Another call between forward and backward, and the backward twice."""
    both = _row(bench, _BETWEEN, first, lambda: _interleaved(bench, 2))
    if both.status is not Status.FAILED:
        yield both
        if bench.arguments.chosen:
            yield Row(_BACKWARD, both.status, both.text)
        return
    once = _row(bench, _BETWEEN, first, lambda: _interleaved(bench, 1))
    yield once
    if bench.arguments.chosen:
        yield _row(bench, _BACKWARD, first, lambda: _backward_twice(bench))


def _leaves(bench: Bench) -> list[Any]:
    return variables([_copied(leaf) for leaf in bench.leaves], bench.arguments.chosen)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _other(bench: Bench) -> list[Any]:
    """Numbers of another size, in another order; what is not differentiated, as a mask, stays as it is."""
    return [
        -0.5 * leaf.detach().flip(tuple(range(leaf.dim()))) if i in bench.arguments.chosen else leaf
        for i, leaf in enumerate(bench.leaves)
    ]


def _others(bench: Bench) -> list[Any]:
    """Other numbers of the same shapes; another size where the inputs are made from one."""
    if bench.other_size is not None:
        return variables([_copied(leaf) for leaf in bench.other_size], bench.arguments.chosen)
    return variables(_other(bench), bench.arguments.chosen)


def _interleaved(bench: Bench, times: int) -> list[Run]:
    """Forward here, forward and backward elsewhere, then the backward of here; and outputs that stay."""
    leaves, others = _leaves(bench), _others(bench)
    with torch.enable_grad():
        outputs = bench.kernel(leaves)
        elsewhere = bench.kernel(others)
        bench.kernel.pull(elsewhere, others, random_like(elsewhere, bench.settings.seed))
        return _pulled(bench, outputs, leaves, times)


def _backward_twice(bench: Bench) -> list[Run]:
    leaves = _leaves(bench)
    with torch.enable_grad():
        return _pulled(bench, bench.kernel(leaves), leaves, 2)


def _pulled(bench: Bench, outputs: list[Any], leaves: list[Any], times: int) -> list[Run]:
    """The backward so many times."""
    pulled = [
        bench.kernel.pull(outputs, leaves, bench.sample.cotangents, retain_graph=number + 1 < times)
        for number in range(times)
    ]
    return [Run([detached(output) for output in outputs], gradients) for gradients in pulled]


def _threads(bench: Bench, leaves: list[list[Any]]) -> list[Run]:
    """Twice at the same time."""
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(bench.kernel.run, some, bench.sample.cotangents) for some in leaves]
        return [done.result() for done in tasks]


def _overwritten(bench: Bench, leaves: list[Any]) -> Row:
    """Other numbers in the memory of a call before: a cache that goes by the address is stale."""
    way = "inputs overwritten between"
    if bench.wrong:
        return Row(way, Status.SKIPPED, "the kernel is wrong as it was given")
    others = _other(bench)
    truths = bench.truths_of(Sample(others, bench.sample.cotangents))
    for index in bench.arguments.chosen:
        leaves[index].detach().copy_(others[index])
    return judged(bench, way, leaves, bench.sample.cotangents, truths)


def _row(bench: Bench, way: str, first: Run, make: Callable[[], list[Run]]) -> Row:
    """How far the runs are from the first."""
    try:
        runs = make()
    except Exception as error:
        return Row(way, Status.FAILED, raised(error))
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
