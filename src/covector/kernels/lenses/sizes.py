"""Other sizes: none, one, odd ones, primes, beside a power of two, many blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from covector.kernels.bench import Bench, Sample, raised
from covector.kernels.combined import Combined, judged
from covector.kernels.row import Row, Status
from covector.kernels.subject import random_like

# The size that the other lenses use, one that is called between, and those that this lens tries.
BASE = 64
OTHER = 33
SIZES = (0, 1, 7, 31, 63, 65, 257)

# Where a run is long, as few as are none, one, odd, prime, above and below a power of two, and many blocks.
OF_LARGE = (0, 1, 31, 257)


def sizes(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Every size, judged against the reference at it; a size that the reference refuses is left out."""
    if bench.sizes is None:
        yield Row("sizes", Status.SKIPPED, "inputs are given, not made: pass a function of a size to vary it")
        return
    for size in OF_LARGE if bench.is_large else SIZES:
        yield _row(bench, size)


def _row(bench: Bench, size: int) -> Row:
    assert bench.sizes is not None
    way = f"size {size}"
    try:
        leaves = bench.sizes(size)
        sample = _sample(bench, leaves)
        truths = bench.truths_of(sample)
    except Exception as error:
        return Row(way, Status.SKIPPED, f"the reference {raised(error)}")
    return judged(bench, way, sample.leaves, sample.cotangents, truths)


def _sample(bench: Bench, leaves: list[Any]) -> Sample:
    return Sample(leaves, random_like(bench.reference(leaves), bench.settings.seed + 1))
