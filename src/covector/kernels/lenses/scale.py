"""Numbers of other sizes: small and large ones, at the edge of the dtype, signed zeros, infinities, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._engine.rounding import EVERY, RandomRounding
from covector.kernels.bench import Bench, Sample, Truths
from covector.kernels.combined import Combined, judged, truths_or_row
from covector.kernels.comparison import Comparison
from covector.kernels.row import Row, Status, as_compared, beyond_doubt, broadly_wrong, row_of, row_of_error
from covector.kernels.subject import Run, variables
from covector.kernels.truth import Truth
from covector.verify.finding import Outcome

# The largest power of two that inputs and cotangents are multiplied by.
_POWER = 20

# Gradients are left out of which the scale makes this share zero, as of a softmax of large numbers.
_SATURATED = 0.25

# How far the reference may be off, and the kernel has to be, relative to golden, to be wrong beside it.
_SURE, _NOTHING_LIKE = 0.01, 0.5


def scale(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Judged against the reference at the same numbers; where that is not finite, it is the judge."""
    down, up = _powers(bench)
    powers = [(down, up), (up, down)]
    if not bench.is_large:
        powers.append((0, -_POWER))
    for inputs, cotangents in powers:
        way = f"inputs x 2^{inputs}, cotangents x 2^{cotangents}"
        sample = Sample(
            _scaled(bench.leaves, bench.arguments.chosen, inputs),
            [None if c is None else _times(c, cotangents) for c in bench.sample.cotangents],
        )
        found = truths_or_row(bench, way, sample)
        if isinstance(found, Row):
            yield found
            continue
        truths = _unsaturated(found, bench)
        # Large inputs saturate: in some slice, one rounding decides which of two numbers is the larger one.
        # Below the smallest normal number, every operation rounds to the same step, however small its result.
        doubtful = beyond_doubt if _is_subnormal(sample.cotangents) else as_compared
        held = broadly_wrong if inputs > 0 else doubtful
        row = judged(bench, way, sample.leaves, sample.cotangents, truths, held=held)
        if row.status is Status.FAILED and row.comparison is not None and _shows_no_noise(row.comparison):
            # Terms of the reference cancel to the last bit: the noise of others is drawn at random.
            noisy = replace(sample, context=lambda: RandomRounding(bench.settings.seed, EVERY))
            truths = _unsaturated(bench.truths_of(noisy), bench)
            row = judged(bench, way, sample.leaves, sample.cotangents, truths, held=held)
        yield row
    for special in _SPECIAL:
        yield _special(bench, special)


def _shows_no_noise(comparison: Comparison) -> bool:
    """Whether what is wrong is a ratio, and most entries of the reference are the same in all of its runs."""
    truth = comparison.truth
    if not comparison.wrong or truth is None:
        return False
    return bool((truth.errors == truth.errors[:1]).all(0).double().mean() > 0.5)


def _is_subnormal(tensors: list[Tensor | None]) -> bool:
    """Whether half of the numbers of a tensor are below the smallest normal one of its dtype."""
    return any(
        bool(t.detach().abs().double().median() < torch.finfo(t.dtype).tiny)
        for t in tensors
        if t is not None and t.numel()
    )


def _unsaturated(truths: Truths, bench: Bench) -> Truths:
    """Without gradients that the scale makes zero: which entries round to zero is no kernel's fault."""

    def kept(truth: Truth | None, given: Truth | None) -> Truth | None:
        if truth is None or given is None:
            return truth
        # What is no number for finite inputs depends on the order of operations, as 0 times infinity.
        truth = replace(truth, eager=torch.where(truth.golden.isnan(), 0.0, truth.eager))
        lost = (truth.golden == 0).double().mean() - (given.golden == 0).double().mean()
        return truth if float(lost) < _SATURATED else replace(truth, judged=torch.zeros_like(truth.judged))

    pairs = zip(truths.gradients, bench.truths.gradients, strict=True)
    return replace(truths, gradients=[kept(truth, given) for truth, given in pairs])


def _powers(bench: Bench) -> tuple[int, int]:
    """How far inputs can be scaled such that sums of their squares are still numbers of the dtype."""
    tensors = [bench.leaves[i] for i in bench.arguments.chosen]
    down, up = _POWER, _POWER
    for tensor in tensors:
        values = tensor.detach().abs().double()
        known = values[values.isfinite() & (values > 0)]
        if known.numel():
            info = torch.finfo(tensor.dtype)
            up = min(up, math.floor(math.log2(math.sqrt(info.max / known.numel()) / float(known.max()))))
            down = min(down, math.floor(math.log2(float(known.median()) / math.sqrt(info.tiny))))
    return -max(down, 0), max(up, 0)


def _times(tensor: Tensor, power: int) -> Tensor:
    """The tensor times a power of two; what does not fit into the dtype stays at its edge."""
    if tensor.is_complex():
        return tensor.detach() * 2.0**power
    scaled = tensor.detach().double() * 2.0**power
    most = torch.finfo(tensor.dtype).max
    return scaled.clamp(-most, most).to(tensor.dtype)


def _scaled(leaves: list[Any], chosen: Any, power: int) -> list[Any]:
    return [_times(leaf, power) if i in chosen else leaf for i, leaf in enumerate(leaves)]


def _put(value: Callable[[torch.finfo], float]) -> Callable[[Tensor], None]:
    """Put a number into the first entry: the first row is never what a mask leaves out."""

    def put(tensor: Tensor) -> None:
        tensor.view(-1)[0] = value(torch.finfo(tensor.dtype))

    return put


def _zeros(tensor: Tensor) -> None:
    flat = tensor.view(-1)
    flat[0::7], flat[3::7] = 0.0, -0.0


def _special(bench: Bench, special: Special) -> Row:
    """Outputs alone: what becomes of infinities in a gradient depends on the order of operations."""
    way, chosen = special.way, bench.arguments.chosen
    leaves = list(bench.leaves)
    for index in chosen[:1] if "first input" in way else chosen:
        leaves[index] = bench.leaves[index].detach().clone(memory_format=torch.contiguous_format)
        if leaves[index].numel():
            special.spoil(leaves[index])
    truths = truths_or_row(bench, way, Sample(leaves, bench.sample.cotangents))
    if isinstance(truths, Row):
        return truths
    try:
        with torch.no_grad():
            outputs = bench.kernel(variables(leaves, ()))
    except Exception as error:
        return row_of_error(way, error)
    return row_of(way, list(map(special.held, bench.compared_outputs(Run(outputs), truths))))


def _finiteness(comparison: Comparison) -> Comparison:
    """One large number leaves no digits to the others, so ratios are not held against a kernel here.

    An entry that has no digit right is, where all runs of the reference have several.
    """
    if comparison.outcome is Outcome.PASSED or comparison.worst is None or comparison.truth is None:
        return comparison
    if comparison.got is not None and (at := _lost(comparison.got, comparison.truth)) is not None:
        golden = float(comparison.truth.golden[at])
        text = f"{float(comparison.got[at]):.4g} at {list(at)}, where the reference gives {golden:.4g}"
        return replace(comparison, outcome=Outcome.FAILED, summary=text)
    return Comparison(comparison.name, Outcome.PASSED, whole=comparison.whole, worst=comparison.worst)


def _lost(got: Tensor, truth: Truth) -> tuple[int, ...] | None:
    """The first entry that is nothing like what the reference gives without fail; not where it underflows."""
    info, size = torch.finfo(truth.dtype), truth.golden.abs()
    known = truth.judged & (truth.errors.abs().amax(0) < _SURE * size) & (size > info.tiny / info.eps)
    wrong = torch.nonzero(known & ((got - truth.golden).abs() > _NOTHING_LIKE * size))
    return tuple(wrong[0].tolist()) if len(wrong) else None


class Special(NamedTuple):
    """Numbers that are put into the inputs, and what is then held against a kernel."""

    way: str
    spoil: Callable[[Tensor], None]
    held: Callable[[Comparison], Comparison] = _finiteness


_SPECIAL = (
    Special("a NaN in every input", _put(lambda info: math.nan)),
    Special("an infinity in every input", _put(lambda info: math.inf)),
    Special("a number at the edge of the dtype in the first input", _put(lambda info: info.max / 2)),
    Special("zeros of both signs", _zeros, beyond_doubt),
)
