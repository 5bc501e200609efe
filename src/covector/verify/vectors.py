"""Random vectors, the same for the same arguments, and the cotangents that are made from them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart, Sampled
from covector.verify import constants

# In an uneven vector, the share of ones and the length of a run of zeros.
_ONES = 0.05
_RUN = 64

# Random vectors of up to this many numbers are kept for the next check.
_KEPT = 1 << 12


def _drawn_weights(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size,), generator=generator, dtype=torch.float64) * 2 - 1
    return signs * (1 + torch.rand(size, generator=generator, dtype=torch.float64))


_kept_weights = lru_cache(maxsize=128)(_drawn_weights)


def weights(size: int, seed: int) -> Tensor:
    """Numbers between 1 and 2 with random signs: no wrong entry is weighed down, and no two cancel."""
    return _kept_weights(size, seed) if size <= _KEPT else _drawn_weights(size, seed)


def _drawn_normal(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_kept_normal = lru_cache(maxsize=128)(_drawn_normal)


def normal(size: int, seed: int) -> Tensor:
    """Normally distributed numbers."""
    return _kept_normal(size, seed) if size <= _KEPT else _drawn_normal(size, seed)


def unit(size: int, index: int) -> Tensor:
    """A vector of the standard basis."""
    vector = torch.zeros(size, dtype=torch.float64)
    vector[index] = 1.0
    return vector


def _uneven(size: int, seed: int) -> Tensor:
    """Powers of two: a few ones, others much smaller, and in runs that make up half of it, zeros."""
    generator = np.random.default_rng(seed)
    powers = np.where(generator.random(size) < _ONES, 0.0, generator.integers(-10, -3, size))
    run = max(1, min(_RUN, size // 4))
    kept = np.repeat(generator.random(size // run + 1) < 0.5, run)[:size]
    kept[generator.integers(size)] = True
    factors = np.where(kept, np.exp2(powers), 0.0)
    factors[np.flatnonzero(kept)[0]] = 1.0
    return torch.from_numpy(factors)


class Cotangents(NamedTuple):
    """Random cotangents of some outputs. A backward may write to what it is given: copies are for it."""

    rows: Tensor
    """In coordinates: v, and an uneven one with the opposite signs."""
    even: list[Tensor]
    """The tensors of v."""
    uneven: list[Tensor]
    """The tensors of the other."""
    small: list[Tensor]
    """The tensors of -v / SCALE."""


def cotangents_of(chart: Chart | Sampled, seed: int) -> Cotangents:
    """Random cotangents of the outputs in a chart."""
    if isinstance(chart, Chart) and chart.can_batch and chart.size <= _KEPT:
        return _kept_cotangents(chart, seed)
    return _made_cotangents(chart, seed)


def _made_cotangents(chart: Chart | Sampled, seed: int) -> Cotangents:
    even = weights(chart.size, seed)
    rows = torch.stack([even, _uneven(chart.size, seed) * -even]) if chart.size else even.new_zeros(2, 0)
    given = (even.clone(), rows[1].clone(), even / -constants.SCALE)
    return Cotangents(rows, *map(chart.from_coords, given))


_kept_cotangents = lru_cache(maxsize=128)(_made_cotangents)
