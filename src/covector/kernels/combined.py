"""Layouts of inputs, layouts of cotangents and subsets that require grad, in runs that they share.

Layouts of the inputs, layouts of the cotangents and subsets take turns side by side, in different company,
without the runs that all combinations would take. If a run is wrong, what it combines is tried one by one, to
say which part is to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from covector._lazy import lazy
from covector._random import seeded
from covector.kernels.bench import Bench, Sample, Truths, compact, raised
from covector.kernels.comparison import Comparison
from covector.kernels.layouts import CONTIGUOUS, EXPANDED, STRIDED, Layout, laid_out
from covector.kernels.row import Row, Status, as_compared, row_of, row_of_error
from covector.kernels.subject import variables
from covector.verify.leaves import is_differentiable

# Up to so many subsets are all tried; of more, a sample. Of large inputs, those that share runs with layouts.
SUBSETS, OF_LARGE = 16, 7

_SUM = Layout("expanded, from .sum()", lambda t: t.new_ones(()).expand(t.shape))

# Layouts of cotangents in which these are other numbers.
_OTHER = (EXPANDED, _SUM)


@dataclass(frozen=True)
class Combination:
    """A layout for every leaf, one for the cotangents, the leaves that require grad, the outputs pulled.

    `alone` is the output that has a cotangent where the others have none; None if all have one.
    """

    inputs: tuple[Layout, ...]
    cotangents: Layout
    wanted: tuple[int, ...]
    alone: int | None = None


def subsets(bench: Bench) -> list[tuple[int, ...]]:
    """The leaves that may require grad, in every way but none; all of them first."""
    chosen = tuple(bench.arguments.chosen)
    every = [some for size in range(len(chosen), 0, -1) for some in combinations(chosen, size)]
    most = OF_LARGE if bench.is_large else SUBSETS
    if len(every) <= most:
        return every
    generator = seeded(bench.settings.seed)
    rest = torch.randperm(len(every) - 1, generator=generator)[: most - 1] + 1
    return [every[0], *(every[i] for i in sorted(rest.tolist()))]


def tensors(bench: Bench) -> list[int]:
    """The leaves that can be laid out: floating-point tensors."""
    return [i for i, leaf in enumerate(bench.leaves) if is_differentiable(leaf) and leaf.dim() > 0]


class Combined:
    """The runs that the lenses share, made once, and whom they blame."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._single: dict[Combination, Row] = {}
        self._truths: dict[tuple[Layout | None, int | None], Truths] = {}

    def rows(self, lens: str) -> list[Row]:
        """What the shared runs say about the part of them that belongs to a lens."""
        return [row for owner, row in self._rows if owner == lens]

    @lazy
    def _rows(self) -> list[tuple[str, Row]]:
        """The parts of all combinations, with the lens that each belongs to."""
        seen: dict[tuple[str, str], Row] = {}
        for combination in self._combinations():
            row = self._row(combination)
            for lens, name in self._parts(combination):
                passed = row.status is Status.PASSED
                seen.setdefault((lens, name), replace(row, way=name) if passed else Row(name, Status.PASSED))
            if row.status is not Status.PASSED:
                seen |= self._blamed(combination, row)
        return [(lens, row) for (lens, _), row in seen.items()]

    def _combinations(self) -> Iterator[Combination]:
        """Every layout of inputs and of cotangents, every subset, and every output alone, at least once."""
        bench, leaves = self.bench, tensors(self.bench)
        known = [
            layout
            for layout in (CONTIGUOUS, *STRIDED)
            if layout is CONTIGUOUS or any(layout.make(bench.leaves[i]) is not None for i in leaves)
        ]
        cotangents = [CONTIGUOUS]
        if bench.arguments.chosen:
            pulled = [c for c in bench.sample.cotangents if c is not None]
            possible = (*STRIDED, *_OTHER)
            cotangents += [layout for layout in possible if any(layout.make(c) is not None for c in pulled)]
        turns = subsets(bench) or [()]
        strided = max(1, len(known) - 1)
        given = [i for i, c in enumerate(bench.sample.cotangents) if c is not None]
        alone: list[int | None] = [None, *given] if len(given) > 1 else [None]
        count = max(
            len(known) - 1,
            len(cotangents) - 1,
            len(turns) - 1,
            len(alone) - 1,
        )
        for number in range(count):
            first = 1 + number % strided if len(known) > 1 else 0
            second = (1 + number) % len(cotangents)
            # Neighbouring leaves have different layouts: strides of one may be taken for those of another.
            inputs = tuple(
                known[(first + leaves.index(i)) % len(known)] if i in leaves and first else CONTIGUOUS
                for i in range(len(bench.leaves))
            )
            yield Combination(
                inputs,
                cotangents[second],
                turns[(number + 1) % len(turns)],
                alone[(number + 1) % len(alone)],
            )

    def _parts(self, combination: Combination) -> list[tuple[str, str]]:
        """What a combination varies, by the lens that it belongs to."""
        bench = self.bench
        names = dict(zip(bench.arguments.chosen, bench.names, strict=True))
        parts = [
            ("layout", f"{names.get(i, f'argument {i}')} {layout.name}")
            for i, layout in enumerate(combination.inputs)
            if layout is not CONTIGUOUS and layout.make(bench.leaves[i]) is not None
        ]
        if combination.cotangents is not CONTIGUOUS:
            parts.append(("layout", f"cotangent {combination.cotangents.name}"))
        if len(combination.wanted) < len(bench.arguments.chosen):
            wanted = ", ".join(names[i] for i in combination.wanted)
            parts.append(("requires grad", f"only {wanted}"))
        if combination.alone is not None:
            name = bench.output_names[combination.alone]
            parts.append(("requires grad", f"a cotangent for {name} alone"))
        return parts

    def _blamed(self, combination: Combination, row: Row) -> dict[tuple[str, str], Row]:
        """The parts that are wrong by themselves, or the combination if none is."""
        plain = Combination(
            (CONTIGUOUS,) * len(combination.inputs), CONTIGUOUS, tuple(self.bench.arguments.chosen)
        )
        singles = [
            replace(plain, inputs=(*plain.inputs[:i], layout, *plain.inputs[i + 1 :]))
            for i, layout in enumerate(combination.inputs)
            if layout is not CONTIGUOUS
        ]
        singles += [
            replace(plain, cotangents=combination.cotangents),
            replace(plain, wanted=combination.wanted),
            replace(plain, alone=combination.alone),
        ]
        wrong = {
            (lens, name): replace(self._row(single), way=name)
            for single in singles
            for lens, name in self._parts(single)
            if self._row(single).status is not Status.PASSED
        }
        if wrong:
            return wrong
        parts = self._parts(combination)
        names = " with ".join(name for _, name in parts)
        return {(parts[0][0] if parts else "layout", names): replace(row, way=names)}

    def _row(self, combination: Combination) -> Row:
        """One run, judged; made once."""
        if combination not in self._single:
            self._single[combination] = self._judged(combination)
        return self._single[combination]

    def _judged(self, combination: Combination) -> Row:
        bench = self.bench
        leaves = [
            laid_out(leaf, layout) if is_differentiable(leaf) else leaf
            for leaf, layout in zip(bench.leaves, combination.inputs, strict=True)
        ]
        cotangents = [
            None if c is None else laid_out(c, combination.cotangents)
            for c in _only(bench.sample.cotangents, combination.alone)
        ]
        name = " with ".join(part for _, part in self._parts(combination))
        return judged(bench, name, leaves, cotangents, self._truth(combination), combination.wanted)

    def _truth(self, combination: Combination) -> Truths:
        """Of the inputs, with random cotangents or with those of a layout, for all outputs or for one."""
        bench, alone = self.bench, combination.alone
        other = combination.cotangents if combination.cotangents in _OTHER else None
        if other is None and alone is None:
            return bench.truths
        if (other, alone) not in self._truths:
            cotangents = _only(bench.sample.cotangents, alone)
            if other is not None:
                cotangents = [None if c is None else compact(laid_out(c, other)) for c in cotangents]
            found = bench.truths_of(Sample(bench.leaves, cotangents))
            self._truths[other, alone] = _as_noisy(found, bench.truths) if other is not None else found
        return self._truths[other, alone]


def _only(cotangents: Sequence[Tensor | None], alone: int | None) -> list[Tensor | None]:
    """The cotangents, or one of them and none for the other outputs."""
    return [c if alone is None or i == alone else None for i, c in enumerate(cotangents)]


def _as_noisy(truths: Truths, other: Truths) -> Truths:
    """A gradient that the cotangent makes small (of a softmax, by ones) is a sum of terms that are not."""
    gradients = [
        mine if mine is None or theirs is None else replace(mine, least=theirs.floor)
        for mine, theirs in zip(truths.gradients, other.gradients, strict=True)
    ]
    return replace(truths, gradients=gradients)


def truths_or_row(bench: Bench, way: str, sample: Sample) -> Truths | Row:
    """The truth about these numbers; if the reference does not take them, a row that says so."""
    try:
        return bench.truths_of(sample)
    except Exception as error:
        return Row(way, Status.SKIPPED, f"the reference {raised(error)}")


def judged(
    bench: Bench,
    way: str,
    leaves: Sequence[Any],
    cotangents: Sequence[Tensor | None],
    truths: Truths,
    wanted: Sequence[int] | None = None,
    held: Callable[[Comparison], Comparison] = as_compared,
) -> Row:
    """One run of the kernel in some way, beside the truth; a kernel that raises has failed.

    `held` says what of a comparison is held against the kernel.
    """
    wanted = bench.arguments.chosen if wanted is None else wanted
    try:
        run = bench.run(variables(leaves, wanted), cotangents, way)
    except Exception as error:
        return row_of_error(way, error)
    return row_of(way, list(map(held, bench.compared(run, truths, wanted))))
