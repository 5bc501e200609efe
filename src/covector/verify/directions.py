"""Along which directions two maps are compared: the basis, coloured groups of it, random ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart, Sampled

# Above this share of the columns, colours save too little to be worth finding.
_WORTH = 0.5

# Up to this many columns, one batch of all is cheaper than finding colours.
FEW_COLUMNS = 64

# The same where there are no batches.
FEW_IN_A_LOOP = 4
_MOST_CLASSES = 50_000

# In an uneven vector, the share of ones and the length of a run of zeros.
_ONES = 0.05
_RUN = 64


# A power of two, so that scaling rounds nothing.
SHRINK = -1024.0

# Random vectors of up to this many numbers are kept for the next check.
_KEPT = 1 << 12


@dataclass(frozen=True)
class Groups:
    """A partition of the coordinates into colours, and a weight for each coordinate.

    Colour c stands for the direction sum of weight[j] e_j over the coordinates j of that colour. Within
    a colour no two columns of the pattern share a row, so each entry of the pattern stands alone; an
    entry that the pattern lacks disturbs the cell of its row. Weights are random in sign and size, so
    that two such disturbances cancel with probability zero.
    """

    colour: Tensor
    weight: Tensor
    count: int

    def members(self, colour: int) -> Tensor:
        """The coordinates of one colour."""
        return (self.colour == colour).nonzero().flatten()


@lru_cache(maxsize=128)
def singly(size: int) -> Groups:
    """Every coordinate by itself."""
    return Groups(torch.arange(size), torch.ones(size, dtype=torch.float64), size)


def coloured(
    rows: Tensor, columns: Tensor, shape: tuple[int, int], seed: int, few: int = FEW_COLUMNS
) -> Groups:
    """Groups for the pattern with entries at these rows and columns, or single columns if no better."""
    height, width = shape
    if width <= 1 or (width <= few and rows.numel() > height):
        return singly(width)
    per_row = torch.bincount(rows, minlength=max(height, 1))
    densest = int(per_row.max()) if rows.numel() else 0
    if densest <= 1:
        return _weighted(torch.zeros(width, dtype=torch.int64), 1, seed)
    if densest > _WORTH * width or width <= few:
        return singly(width)
    colour, count = _colour_classes(rows.numpy(), columns.numpy(), height, width, seed)
    if count > _WORTH * width:
        return singly(width)
    return _weighted(torch.from_numpy(colour), count, seed)


def _weighted(colour: Tensor, count: int, seed: int) -> Groups:
    generator = torch.Generator().manual_seed(seed)
    size = colour.numel()
    return Groups(colour, random_weights(1, size, generator)[0], count)


def _colour_classes(
    rows: np.ndarray, columns: np.ndarray, height: int, width: int, seed: int
) -> tuple[np.ndarray, int]:
    """Greedy colouring of classes of equal columns: a class takes as many colours as it has members."""
    keys = np.random.default_rng(seed).integers(1, 2**62, height, dtype=np.int64)
    signature = np.zeros(width, dtype=np.int64)
    np.add.at(signature, columns, keys[rows])
    _, first, which, sizes = np.unique(signature, return_index=True, return_inverse=True, return_counts=True)
    if len(first) > _MOST_CLASSES:
        return np.arange(width), width
    order = np.argsort(columns, kind="stable")
    starts = np.searchsorted(columns[order], np.arange(width + 1))
    taken = np.zeros((height, 8), dtype=bool)
    group = np.zeros(len(first), dtype=np.int64)
    for k in np.lexsort((first, -sizes)):
        column = first[k]
        touched = rows[order[starts[column] : starts[column + 1]]]
        free = np.flatnonzero(~taken[touched].any(axis=0))
        if len(free) == 0:
            taken = np.concatenate([taken, np.zeros_like(taken)], axis=1)
            free = np.flatnonzero(~taken[touched].any(axis=0))
        group[k] = free[0]
        taken[touched, free[0]] = True
    groups = group.max() + 1
    width_of = np.zeros(groups, dtype=np.int64)
    np.maximum.at(width_of, group, sizes)
    offset = np.concatenate([[0], np.cumsum(width_of)])
    by_class = np.argsort(which, kind="stable")
    begin = np.concatenate([[0], np.cumsum(sizes)])
    rank = np.empty(width, dtype=np.int64)
    rank[by_class] = np.arange(width) - np.repeat(begin[:-1], sizes)
    return offset[group[which]] + rank, int(offset[-1])


def random_signs(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Rows of independent +1 and -1."""
    return torch.randint(0, 2, (count, size), generator=generator, dtype=torch.float64) * 2 - 1


def random_weights(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Rows of independent numbers between 1/2 and 1, with random signs."""
    signs = random_signs(count, size, generator)
    return signs * (0.5 + 0.5 * torch.rand(count, size, generator=generator, dtype=torch.float64))


@lru_cache(maxsize=128)
def _weights(size: int, seed: int) -> Tensor:
    return 2 * random_weights(1, size, torch.Generator().manual_seed(seed))[0]


def weights(size: int, seed: int) -> Tensor:
    """Numbers between 1 and 2 with random signs, the same for the same arguments."""
    return _weights(size, seed) if size <= _KEPT else _weights.__wrapped__(size, seed)


@lru_cache(maxsize=128)
def _normal(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(size: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same for the same arguments."""
    return _normal(size, seed) if size <= _KEPT else _normal.__wrapped__(size, seed)


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
    """The tensors of v / SHRINK."""


def cotangents_of(chart: Chart | Sampled, seed: int) -> Cotangents:
    """Random cotangents, the same for the same arguments."""
    if isinstance(chart, Chart) and chart.can_batch and chart.size <= _KEPT:
        return _cotangents(chart, seed)
    return _cotangents.__wrapped__(chart, seed)


@lru_cache(maxsize=128)
def _cotangents(chart: Chart | Sampled, seed: int) -> Cotangents:
    even = weights(chart.size, seed)
    rows = torch.stack([even, _uneven(chart.size, seed) * -even]) if chart.size else even.new_zeros(2, 0)
    given = (even.clone(), rows[1].clone(), even / SHRINK)
    return Cotangents(rows, *map(chart.from_coords, given))
