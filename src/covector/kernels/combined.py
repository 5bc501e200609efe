"""Layouts of inputs, layouts of cotangents and subsets that require grad, in runs that they share.

Every layout of the inputs meets every layout of the cotangents (all pairs), and the subsets take turns
among these runs. If one of them is wrong, what it combines is tried one by one, to say which part is to
blame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.kernels.bench import Bench, Sample, Truths, raised
from covector.kernels.layouts import CONTIGUOUS, STEPPED, STRIDED, TRANSPOSED, Layout, laid_out
from covector.kernels.row import Row, Status, row_of
from covector.kernels.subject import variables
from covector.verify.leaves import is_differentiable

# Up to so many subsets are all tried; of more, a sample.
SUBSETS = 16

_SUM = Layout("expanded, from .sum()", lambda t: t.new_ones(()).expand(t.shape))


@dataclass(frozen=True)
class Combination:
    """A layout for every leaf, one for the cotangents, and the leaves that require grad."""

    inputs: tuple[Layout, ...]
    cotangents: Layout
    wanted: tuple[int, ...]


def subsets(bench: Bench) -> list[tuple[int, ...]]:
    """The leaves that may require grad, in every way but none; all of them first."""
    chosen = tuple(bench.arguments.chosen)
    every = [some for size in range(len(chosen), 0, -1) for some in combinations(chosen, size)]
    if len(every) <= SUBSETS:
        return every
    generator = torch.Generator().manual_seed(bench.settings.seed)
    rest = torch.randperm(len(every) - 1, generator=generator)[: SUBSETS - 1] + 1
    return [every[0], *(every[i] for i in sorted(rest.tolist()))]


def tensors(bench: Bench) -> list[int]:
    """The leaves that can be laid out: floating-point tensors."""
    return [i for i, leaf in enumerate(bench.leaves) if is_differentiable(leaf) and leaf.dim() > 0]


class Combined:
    """The runs that the lenses share, made once, and whom they blame."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._single: dict[Combination, Row] = {}
        self._summed: Truths | None = None

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
                seen.setdefault((lens, name), Row(name, Status.PASSED))
            if row.status is not Status.PASSED:
                seen |= self._blamed(combination, row)
        return [(lens, row) for (lens, _), row in seen.items()]

    def _combinations(self) -> Iterator[Combination]:
        """All pairs of layouts; of the subsets, each at least once."""
        bench, leaves = self.bench, tensors(self.bench)
        known = [
            layout
            for layout in (CONTIGUOUS, *STRIDED)
            if layout is CONTIGUOUS or any(layout.make(bench.leaves[i]) is not None for i in leaves)
        ]
        cotangents = [CONTIGUOUS, TRANSPOSED, STEPPED, _SUM] if bench.arguments.chosen else [CONTIGUOUS]
        turns = subsets(bench) or [()]
        pairs = list(product(range(len(known)), range(len(cotangents))))[1:]
        for number in range(max(len(pairs), len(turns) - 1)):
            first, second = pairs[number % len(pairs)] if pairs else (0, 0)
            # Neighbouring leaves have different layouts: strides of one may be taken for those of another.
            inputs = tuple(
                known[(first + leaves.index(i)) % len(known)] if i in leaves and first else CONTIGUOUS
                for i in range(len(bench.leaves))
            )
            yield Combination(inputs, cotangents[second], turns[(number + 1) % len(turns)])

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
        summed = combination.cotangents is _SUM
        leaves = [
            laid_out(leaf, layout) if is_differentiable(leaf) else leaf
            for leaf, layout in zip(bench.leaves, combination.inputs, strict=True)
        ]
        cotangents = [
            None if c is None else laid_out(c, combination.cotangents) for c in bench.sample.cotangents
        ]
        name = " with ".join(part for _, part in self._parts(combination))
        return judged(bench, name, leaves, cotangents, self._truth(summed), combination.wanted)

    def _truth(self, summed: bool) -> Truths:
        """Of the inputs, with random cotangents or with ones."""
        if not summed:
            return self.bench.truths
        if self._summed is None:
            bench = self.bench
            ones = [None if c is None else torch.ones_like(c) for c in bench.sample.cotangents]
            self._summed = _as_noisy(bench.truths_of(Sample(bench.leaves, ones)), bench.truths)
        return self._summed


def _as_noisy(truths: Truths, other: Truths) -> Truths:
    """A gradient that the cotangent makes small (of a softmax, by ones) is a sum of terms that are not."""
    gradients = [
        mine if mine is None or theirs is None else replace(mine, least=theirs.floor)
        for mine, theirs in zip(truths.gradients, other.gradients, strict=True)
    ]
    return replace(truths, gradients=gradients)


def judged(
    bench: Bench,
    way: str,
    leaves: Sequence[Any],
    cotangents: Sequence[Tensor | None],
    truths: Truths,
    wanted: Sequence[int] | None = None,
) -> Row:
    """One run of the kernel in some way, beside the truth; a kernel that raises has failed."""
    wanted = bench.arguments.chosen if wanted is None else wanted
    try:
        run = bench.run(variables(leaves, wanted), cotangents, way)
    except Exception as error:
        return Row(way, Status.FAILED, raised(error))
    return row_of(way, bench.compared(run, truths, wanted))
