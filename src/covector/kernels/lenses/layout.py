"""Layouts of inputs and cotangents: strides, offsets, steps, shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from covector.kernels.bench import Bench, Sample, Truths, compact
from covector.kernels.combined import Combined, judged, tensors, truths_or_row
from covector.kernels.layouts import SHARED, laid_out
from covector.kernels.row import Row, Status


def layout(bench: Bench, combined: Combined) -> Iterator[Row]:
    """What the shared runs say about layouts; and inputs whose entries share memory."""
    yield from combined.rows("layout")
    for shared in SHARED:
        leaves = list(bench.leaves)
        reached = [i for i in tensors(bench) if shared.make(bench.leaves[i]) is not None]
        for index in reached:
            leaves[index] = laid_out(bench.leaves[index], shared)
        if reached:
            way = f"inputs {shared.name}"
            truths = truths_or_row(bench, way, Sample(leaves, bench.sample.cotangents))
            yield truths if isinstance(truths, Row) else _of_shared(bench, way, leaves, truths)


def _of_shared(bench: Bench, way: str, leaves: list[Any], truths: Truths) -> Row:
    """A row on inputs whose entries share memory: these may be refused, and are other numbers too.

    Overlapping ones are no leaves that a gradient belongs to, so their outputs alone are compared.
    """
    wanted = () if "overlapping" in way else None
    row = judged(bench, way, leaves, bench.sample.cotangents, truths, wanted)
    if row.status is not Status.FAILED:
        return row
    if row.comparison is None:
        return Row(way, Status.UNSUPPORTED, f"refused: {row.text}") if "overlapping" in way else row
    plain = judged(bench, way, list(map(compact, leaves)), bench.sample.cotangents, truths, wanted)
    if plain.status is Status.FAILED:
        return Row(way, Status.INCONCLUSIVE, f"it is not the layout, these numbers fail in any: {row.text}")
    return row


def requires_grad(bench: Bench, combined: Combined) -> Iterator[Row]:
    """What the shared runs say about subsets that require grad; and outputs without a cotangent."""
    yield from combined.rows("requires grad")
    if not combined.rows("requires grad"):
        yield Row("one input, one output", Status.SKIPPED, "there is no other subset")
