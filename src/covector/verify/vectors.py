"""Random vectors, the same for the same arguments, and the cotangents that are made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial, wraps
from math import isfinite
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart, Sampled, one_number, part_of_larger, real_ones, reordered
from covector._random import seeded
from covector.verify import constants
from covector.verify.leaves import same_bits

# Of vectors of many numbers, so many are worked on at once: temporary ones are small beside them.
PIECE = 1 << 16

# In an uneven vector, the share of ones and the length of a run of zeros.
_ONES = 0.05
_RUN = 64

# Random vectors of up to this many numbers are kept for the next check.
_KEPT = 1 << 12

# How many other cotangents there are of so few numbers; else three.
_OTHERS = {0: 0, 1: 1}

_ONE = torch.ones((), dtype=torch.float64)

Draw = TypeVar("Draw", bound=Callable[..., Any])
# A weight for each byte: between 1 and 2, with a sign.
_OF_A_BYTE = np.outer([1.0, -1.0], 1 + np.arange(128) / 128).ravel()


def kept(draw: Draw) -> Draw:
    """The same, not drawn again if there are few numbers; the first argument says how many."""
    again = lru_cache(maxsize=128)(draw)

    @wraps(draw)
    def drawn(size: int, *args: Any, **kwargs: Any) -> Any:
        return (again if size <= _KEPT else draw)(size, *args, **kwargs)

    return cast(Draw, drawn)


@kept
def weights(size: int, seed: int, *, few_digits: bool = False) -> Tensor:
    """Numbers between 1 and 2 with random signs, so that every entry keeps its weight and few cancel.

    With few digits, they are exact in every precision; with all digits, a cast to lower precision shows.
    """
    generator = seeded(seed)
    if few_digits:
        beyond = torch.randint(-128, 128, (size,), generator=generator, dtype=torch.float64) / 128
    else:
        beyond = torch.rand(size, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
    for part in beyond.split(PIECE):  # the signs of all of them need not be there at once
        part.add_(torch.copysign(_ONE, part))
    return beyond


# A vector, some of its numbers at a time, as rows.
Pieces = Iterable[tuple[slice, np.ndarray]]


class Drawn(NamedTuple):
    """Weights like these for one direction of many columns, kept by nobody: each use draws them anew.

    They have few digits, so that a byte is drawn for each.
    """

    size: int
    seed: int

    def pieces(self) -> Pieces:
        """Some of them at a time, from the first on, as a row."""
        generator = np.random.default_rng(self.seed % 2**64)
        for start in range(0, self.size, PIECE):
            span = slice(start, min(start + PIECE, self.size))
            drawn = np.frombuffer(generator.bytes(span.stop - start), dtype=np.uint8)
            yield span, np.take(_OF_A_BYTE, drawn[None])


@kept
def normal(size: int, seed: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(size, generator=seeded(seed), dtype=torch.float64)


def in_pieces(*vectors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same numbers of several vectors, some at a time; few of them all at once."""
    if len(vectors[0]) <= PIECE:
        return (vectors,)
    return zip(*(vector.split(PIECE) for vector in vectors), strict=True)


def products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The products of the rows of one with those of the other, on one thread.

    NumPy's matrix product starts more, which costs more than so few rows. A long sum is added up in pieces,
    so that it loses fewer digits.
    """
    sums: np.ndarray = np.einsum("ik,jk->ij", first[:, :PIECE], second[:, :PIECE])
    for start in range(PIECE, first.shape[1], PIECE):
        span = slice(start, start + PIECE)
        sums += np.einsum("ik,jk->ij", first[:, span], second[:, span])
    return sums


def combined(coefficients: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Sums of the rows of a matrix with these coefficients, on one thread, too.

    In a process for each core, as a parallel test run has, the threads of NumPy's product wait for each other
    for ten times as long as they work.
    """
    sums: np.ndarray = np.einsum("...k,kj->...j", coefficients, matrix)
    return sums


def has_infinite(numbers: Tensor) -> bool:
    """Whether some numbers are infinite or NaN. A finite sum rules that out without a copy."""
    return not isfinite(float(numbers.sum())) and not bool(numbers.isfinite().all())


def unit(size: int, index: int) -> Tensor:
    """A vector of the standard basis."""
    vector = torch.zeros(size, dtype=torch.float64)
    vector[index] = 1.0
    return vector


@kept
def uneven(size: int, seed: int) -> Tensor:
    """Powers of two: a few ones, others much smaller, and in runs that make up half of it, zeros."""
    generator = np.random.default_rng(seed % 2**64)  # of NumPy's, which takes no negative one
    powers = np.where(generator.random(size) < _ONES, 0.0, generator.integers(-10, -3, size))
    run = max(1, min(_RUN, size // 4))
    kept = np.repeat(generator.random(size // run + 1) < 0.5, run)[:size]
    kept[generator.permutation(size)[:2]] = True
    factors = np.where(kept, np.exp2(powers), 0.0)
    factors[np.flatnonzero(kept)[-1]] = 2.0**-10
    factors[np.flatnonzero(kept)[0]] = 1.0
    return torch.from_numpy(factors)


class Cotangent(NamedTuple):
    """A cotangent as it is sent: v times a power of two, in a form that programs send."""

    row: Tensor
    """V in coordinates, with numbers of the order of one."""
    words: str
    """What is special about v."""
    factor: float = 1.0
    expanded: bool = False
    """Whether one number stands for all of them in memory, as in the gradient of a sum."""
    recorded: bool = False
    """Whether it is pulled back under create_graph, as second derivatives do."""
    reordered: bool = False
    """Whether it is laid out in another order in memory, as the gradient of what is transposed."""
    part: bool = False
    """Whether it is a part of a larger tensor, as of what is put together; if complex, lazily conjugate."""

    def tensors(self, chart: Chart | Sampled) -> list[Tensor]:
        """The tensors of it, new ones: a backward may write to what it is given."""
        if self.expanded and isinstance(chart, Chart):
            numbers = chart.of_one_number(self.factor)
            if numbers is not None:
                return numbers
        tensors = chart.from_coords(self.row * self.factor)
        if self.reordered:
            return [*map(reordered, tensors)]
        return [*map(part_of_larger, tensors)] if self.part else tensors


class Cotangents(NamedTuple):
    """Cotangents of some outputs. A backward may write to what it is given: it is sent copies."""

    draw: Callable[[], Tensor]
    """What `rows` are: if many, they are drawn again each time, and kept by nobody."""
    times: Callable[[float], Tensor]
    """V in coordinates, times a number: a new tensor."""
    factor: float
    """By what v is multiplied when it is sent."""
    again: float
    """By what v is multiplied when it is sent a second time."""
    large: float
    tiny: float
    """By what vectors are multiplied to see whether large and small ones are treated otherwise."""
    others: tuple[Cotangent, ...]
    """What a backward may treat in a way of its own."""
    kept: tuple[list[Tensor], list[Tensor]] | None = None
    """The tensors of v as it is sent first and as it is sent again, where they are few numbers."""

    @property
    def rows(self) -> Tensor:
        """In coordinates: v at random, and the others."""
        return self.draw()

    def sent(self, chart: Chart | Sampled) -> list[Tensor]:
        """The tensors of v as it is sent, new ones."""
        if self.kept is not None:
            return [tensor.clone() for tensor in self.kept[0]]
        return chart.from_coords(self.times(self.factor))

    def sent_again(self, chart: Chart | Sampled) -> list[Tensor]:
        """The tensors of v as it is sent a second time, new ones."""
        if self.kept is not None:
            return [tensor.clone() for tensor in self.kept[1]]
        return chart.from_coords(self.times(self.again))

    def moderate(self) -> Cotangents:
        """The same without the large sizes, whose pullbacks may overflow."""
        return self._replace(factor=1.0, again=max(self.again, -1.0), large=1.0, kept=None)

    def unchanged(self, chart: Chart | Sampled, sent: list[Tensor]) -> bool:
        """Whether nobody wrote to the tensors of v that were sent."""
        return all(map(same_bits, sent, self.sent(chart) if self.kept is None else self.kept[0]))


def cotangents_of(
    chart: Chart | Sampled, seed: int, *, varied: bool, few_digits: bool, half: bool
) -> Cotangents:
    """Random cotangents of the outputs in a chart; with `half`, of sizes that half precision can hold.

    A backward may clip large cotangents or drop small ones, if only by a hook: so the random one is large.
    torch's own backward gets it a second time as a small one, negative. One that may treat any cotangent in a
    way of its own gets it a second time as large, negative, and others, which are `varied`.
    """
    if isinstance(chart, Chart) and chart.can_batch and chart.size <= _KEPT:
        return _kept_cotangents(chart, seed, varied, few_digits, half)
    return _made_cotangents(chart, seed, varied, few_digits, half)


def _made_cotangents(
    chart: Chart | Sampled, seed: int, varied: bool, few_digits: bool, half: bool
) -> Cotangents:
    large, tiny = (constants.HALF, 1 / constants.HALF) if half else (constants.LARGE, 1 / constants.SCALE)
    even = partial(_even, chart.size, seed, few_digits)
    if not varied and chart.size > _KEPT:
        return Cotangents(lambda: even()[None], even, large, -tiny, large, tiny, ())
    if not varied:
        one = even()[None]
        return Cotangents(lambda: one, even, large, -tiny, large, tiny, ())
    drawn = weights(chart.size, seed, few_digits=few_digits)
    rows = torch.empty(1 + _OTHERS.get(chart.size, 3), chart.size, dtype=torch.float64)
    rows[0] = 1.0 if chart.size == 1 else drawn
    others = tuple(_into(rows[1:], _others(chart, drawn, large, tiny, seed)))
    factor, again = (1.0, -tiny) if chart.size == 1 else (large, -large)  # `.backward()` sends a plain one
    return Cotangents(lambda: rows, lambda factor: rows[0] * factor, factor, again, large, tiny, others)


def _into(rows: Tensor, drawn: Iterator[Cotangent]) -> Iterator[Cotangent]:
    """The same cotangents as rows of one matrix, into which they are drawn one by one: they may be large."""
    for row, one in zip(rows, drawn, strict=True):
        row[:] = one.row
        yield one._replace(row=row)


def _even(size: int, seed: int, few_digits: bool, factor: float = 1.0) -> Tensor:
    """The random cotangent times a power of two; of one number, it is what `.backward()` sends."""
    if size == 1:
        return torch.full((1,), factor, dtype=torch.float64)
    drawn = weights(size, seed, few_digits=few_digits)
    return drawn * factor if size <= _KEPT else drawn.mul_(factor)


@lru_cache(maxsize=128)
def _kept_cotangents(chart: Chart, seed: int, varied: bool, few_digits: bool, half: bool) -> Cotangents:
    made = _made_cotangents(chart, seed, varied, few_digits, half)
    return made._replace(kept=(made.sent(chart), made.sent_again(chart)))


def _others(
    chart: Chart | Sampled, even: Tensor, large: float, tiny: float, seed: int
) -> Iterator[Cotangent]:
    """Each cotangent varies several things at once; where one disagrees, they are taken apart."""
    if chart.size == 0:
        return
    if chart.size == 1:  # every cotangent is a multiple of every other
        yield Cotangent(even, "", factor=large, recorded=True, part=True)
        return
    # Under create_graph every row is to show, so it is the one without zeros that is recorded.
    yield Cotangent(real_ones(chart), "whose numbers are all equal", expanded=True, recorded=True)
    varied = uneven(chart.size, seed) * -even
    yield Cotangent(varied, "with numbers of many sizes, and zeros", factor=tiny, part=True)
    # The first number stays where it is in every order of memory.
    single = one_number(chart, 1 + seed % (chart.size - 1))
    yield Cotangent(single, "with one number that is not zero", reordered=True)
