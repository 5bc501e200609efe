"""The same call again: twice, from two threads, with another between, backward twice, on other numbers.

Runs serve several questions: two threads call it twice, a backward is run twice after another call, and that
call has other numbers in memory that the kernel has seen. Where such a run differs, its questions are asked
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.kernels.bench import Bench, Sample, Truths
from covector.kernels.combined import Combined, judged
from covector.kernels.row import Row, Status, row_of_error
from covector.kernels.subject import Run, detached, random_like, variables
from covector.kernels.truth import real, ulp
from covector.verify.leaves import is_differentiable

_TWICE, _THREADS = "called twice", "from two threads"
_BETWEEN, _BACKWARD = "another call between", "backward twice, with retain_graph"
_OVERWRITTEN = "inputs overwritten between"


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
    yield from _between(bench, first, _Elsewhere(bench, leaves[0]))


class _Elsewhere:
    """Other numbers in the memory of a call before, where a cache that goes by the address is stale."""

    def __init__(self, bench: Bench, leaves: list[Any]) -> None:
        self._bench, self._leaves = bench, leaves
        others = _other(bench)
        for index in bench.arguments.chosen:
            leaves[index].detach().copy_(others[index])
        self.row = Row(_OVERWRITTEN, Status.SKIPPED, bench.unjudged)

    @lazy
    def _truths(self) -> Truths:
        return self._bench.truths_of(Sample(_other(self._bench), self._bench.sample.cotangents))

    def call(self) -> None:
        """Forward and backward on these numbers, judged; and of another size, where there is one."""
        bench = self._bench
        if bench.unjudged:
            bench.kernel.run(self._leaves, bench.sample.cotangents)
        else:
            self.row = judged(bench, _OVERWRITTEN, self._leaves, bench.sample.cotangents, self._truths)
        if bench.other_size is not None:
            leaves = variables([_copied(leaf) for leaf in bench.other_size], bench.arguments.chosen)
            with torch.enable_grad():
                outputs = bench.kernel(leaves)
                bench.kernel.pull(outputs, leaves, random_like(outputs, bench.settings.seed))


def _between(bench: Bench, first: Run, elsewhere: _Elsewhere) -> Iterator[Row]:
    """Another call between forward and backward, and the backward twice."""
    both = _row(bench, _BETWEEN, first, lambda: _interleaved(bench, elsewhere, 2))
    once, twice = both, Row(_BACKWARD, both.status, both.text)
    if both.status is Status.FAILED:
        once = _row(bench, _BETWEEN, first, lambda: _interleaved(bench, elsewhere, 1))
        if bench.arguments.chosen:
            twice = _row(bench, _BACKWARD, first, lambda: _backward_twice(bench))
    yield once
    if bench.arguments.chosen:
        yield twice
    yield elsewhere.row


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


def _interleaved(bench: Bench, elsewhere: _Elsewhere, times: int) -> list[Run]:
    """Forward here, forward and backward elsewhere, then the backward of here; and outputs that stay."""
    leaves = _leaves(bench)
    with torch.enable_grad():
        outputs = bench.kernel(leaves)
        elsewhere.call()
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


def _row(bench: Bench, way: str, first: Run, make: Callable[[], list[Run]]) -> Row:
    """How far the runs are from the first."""
    try:
        runs = make()
    except Exception as error:
        return row_of_error(way, error)
    names = [*bench.names_of(first.outputs), *(f"grad {name}" for name in bench.names)]
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
