"""Random numbers of our own: others than those a caller draws with the same seed."""

from __future__ import annotations

import torch

# torch seeds its generator on the CPU with the lower 32 bits of a seed, so this differs there.
_OURS = 0x5EEDC0DE


def seeded(seed: int) -> torch.Generator:
    """A generator that does not give the caller's inputs again.

    After `torch.manual_seed(0)`, random inputs are the numbers of a generator with seed 0. Cotangents from it
    would be the inputs themselves, and much vanishes along these that is not zero elsewhere: a wrong second
    derivative of x / |x| passed.
    """
    return torch.Generator().manual_seed(seed ^ _OURS)
