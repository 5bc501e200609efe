"""How many vectors of the size of the input a check keeps while the function runs, counted in bytes."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import torch
from torch import Tensor

import covector

COUNT = 100_000
VECTOR = 8 * COUNT


def bytes_alive() -> int:
    """What large arrays and tensors take together."""
    taken = [trace.size for trace in tracemalloc.take_snapshot().traces]
    for storage in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors_alive()}.values():
        taken.append(storage.nbytes())
    return sum(size for size in taken if size >= VECTOR // 2)


def tensors_alive() -> list[Tensor]:
    """The large dense tensors that Python knows of."""
    dense = [t for t in gc.get_objects() if type(t) is Tensor and t.layout is torch.strided]
    return [t for t in dense if t.numel() >= COUNT]


@pytest.mark.parametrize(
    ("dtype", "keywords", "most"),
    [
        (torch.float64, {}, 7),
        (torch.float64, {"fast_mode": True}, 7),
        (torch.float64, {"fast_mode": True, "max_entries": 100}, 2),
        (torch.float32, {}, 12),
    ],
)
def test_a_check_keeps_few_vectors_of_the_size_of_the_input(dtype, keywords, most):
    """Beside the input, and what the function makes while it runs."""
    before, found = 0, []

    def sine(x):
        found.append(bytes_alive() - before)
        return x.sin()

    gc.freeze()  # what other tests have made is not gone through at every run
    x = torch.linspace(-1, 1, COUNT, dtype=dtype).requires_grad_()
    tracemalloc.start()
    try:
        before = bytes_alive()
        assert covector.check(sine, x, **keywords)
    finally:
        tracemalloc.stop()
    assert max(found) <= most * VECTOR
