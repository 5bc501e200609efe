"""What the numbers of a wrong tensor say about the mistake: a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.checks.forgiving import forgiving
from covector.kernels.comparison import Comparison
from covector.kernels.truth import Truth
from covector.verify.finding import Diagnosis

# What is left of the error once a mistake is explained, at most.
_LEFT = 0.1

# Precisions in which a kernel may have computed, coarsest first.
_COARSE = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Around:
    """What else is known of a kernel, by the names of its tensors."""

    known: Mapping[str, Tensor] = field(default_factory=dict)
    """Inputs and outputs, of which an error may be a multiple."""
    sums: Callable[[str], Tensor | None] = lambda name: None
    """A gradient of golden by the first row of the output, by the first two, and so on."""


@dataclass(frozen=True)
class Suspect:
    """A tensor that is wrong: what the kernel gave, what is true, and how it was measured."""

    got: Tensor
    truth: Truth
    comparison: Comparison
    around: Around

    @lazy
    def golden(self) -> Tensor:
        """What is true."""
        return self.truth.golden

    @lazy
    def error(self) -> Tensor:
        """The kernel's error, where both are finite."""
        return torch.where(self.truth.judged, self.got - self.golden, 0.0)

    def explains(self, expected: Tensor) -> bool:
        """Whether the kernel gave this: much closer to it than golden is, or as close as noise allows."""
        if expected.shape != self.got.shape:
            return False
        left = float(torch.where(self.truth.judged, self.got - expected, 0.0).norm())
        noise = float(torch.where(self.truth.judged, self.truth.floor, 0.0).sum().sqrt())
        return left <= _LEFT * float(self.error.norm()) or left <= 4 * noise < 0.5 * float(self.error.norm())


Found = tuple[str, float] | None


@dataclass(frozen=True)
class Rule:
    """A row of the table: what the rule is called, what it sees and how surely, what to look at."""

    name: str
    find: Callable[[Suspect], Found]
    look: str


def _zero(suspect: Suspect) -> Found:
    return None if bool(suspect.got.any()) else ("the kernel gives zero everywhere", 0.95)


def _factor(suspect: Suspect) -> Found:
    golden, got = suspect.golden[suspect.truth.judged], suspect.got[suspect.truth.judged]
    size = float(golden.square().sum())
    if size == 0.0:
        return None
    factor = float((got * golden).sum()) / size
    if factor == 0.0 or not suspect.explains(factor * suspect.golden):
        return None
    if abs(factor) < 1e-3:
        return "the kernel gives next to nothing, where golden does not", 0.9
    if abs(factor + 1) < 1e-2:
        return "the kernel gives the right numbers with the wrong sign", 0.95
    named = [
        f", which is the size of axis {a}" for a, n in enumerate(golden.shape) if abs(factor / n - 1) < 1e-2
    ]
    named += [
        f", which is the size of axis {a}"
        for a, n in enumerate(suspect.golden.shape)
        if n > 2 and (abs(factor / n - 1) < 1e-2 or abs(factor * n - 1) < 1e-2)
    ]
    word = factor if factor > 0.5 else 1 / factor
    text = f"{word:.4g} x" if factor > 0.5 else f"1 / {word:.4g} of"
    return f"the kernel gives {text} the golden values everywhere{named[0] if named else ''}", 0.9


def _transposed(suspect: Suspect) -> Found:
    golden = suspect.golden
    if golden.dim() < 2 or golden.shape[-1] != golden.shape[-2] or golden.shape[-1] < 2:
        return None
    return ("the last two axes are exchanged", 0.95) if suspect.explains(golden.mT) else None


def _displaced(suspect: Suspect) -> Found:
    for axis, size in enumerate(suspect.golden.shape):
        if size < 3:
            continue
        for shift in (1, -1):
            moved = suspect.golden.roll(shift, axis)
            if suspect.explains(moved):
                return (
                    f"the right numbers, one place {'later' if shift > 0 else 'earlier'} along axis {axis}",
                    0.9,
                )
        if suspect.explains(suspect.golden.flip(axis)):
            return f"the right numbers, reversed along axis {axis}", 0.9
    return None


def _mask(suspect: Suspect) -> Found:
    error = suspect.error.square()
    total = float(error.sum())
    masked = suspect.golden == 0
    kept = suspect.got == 0
    if bool(masked.any()) and not bool(masked.all()) and float(error[masked].sum()) > 0.9 * total:
        count = int((masked & (suspect.got != 0)).sum())
        return (
            f"{count} of {int(masked.sum())} entries that are masked to zero are not zero in the kernel",
            0.9,
        )
    lost = kept & ~masked
    if bool(lost.any()) and not bool(kept.all()) and float(error[lost].sum()) > 0.9 * total:
        return f"{int(lost.sum())} entries are zero in the kernel and should not be", 0.9
    return None


def _missing_term(suspect: Suspect) -> Found:
    for axis, size in enumerate(suspect.golden.shape):
        if size < 4 or suspect.golden.numel() // size < 2:
            continue
        common = suspect.error.mean(axis, keepdim=True).expand_as(suspect.error)
        if suspect.explains(suspect.golden + common) and float(common.norm()) > 0.5 * float(
            suspect.error.norm()
        ):
            return (
                f"the error is the same along axis {axis}: a term reduced over it is missing or wrong",
                0.8,
            )
    return None


def _multiple(suspect: Suspect) -> Found:
    """A term like y * sum(g * y), of which the sum is wrong: line by line, the error is a multiple of y."""
    noise, error = suspect.truth.floor.sqrt(), suspect.error
    if float((error.abs() > 8 * noise).double().mean()) < 0.5:
        return None
    for text, other in _others(suspect):
        for axis, size in enumerate(error.shape):
            if size < 8 or error.numel() // size < 2:
                continue
            ratios = torch.where(other != 0, error / other, torch.nan)
            factor = ratios.nanmedian(axis, keepdim=True).values
            explained = (error - factor * other).abs() <= _LEFT * error.abs() + 4 * noise
            if float(explained.double().mean()) > 0.9:
                return f"the error is, for each line along axis {axis}, a multiple of {text}", 0.8
    return None


def _others(suspect: Suspect) -> Iterator[tuple[str, Tensor]]:
    """What an error may be a multiple of: the golden values themselves, an input, an output."""
    if _factor(suspect) is None:
        yield "the golden values", suspect.golden
    for name, tensor in suspect.around.known.items():
        if tensor.shape == suspect.golden.shape and name != suspect.comparison.name:
            yield f"`{name}`", tensor


def _partial(suspect: Suspect) -> Found:
    """A gradient that is a sum over the rows of the output, of which some are left out."""
    sums = suspect.around.sums(suspect.comparison.name)
    for number, first in enumerate(() if sums is None else sums, 1):
        whole = 0 if sums is None else len(sums) + 1
        if suspect.explains(first):
            return f"the kernel gives the sum over the first {number} of {whole} rows of the output", 0.95
        if suspect.explains(suspect.golden - first):
            return f"the kernel leaves the first {number} of {whole} rows of the output out of a sum", 0.95
    return None


def _never_written(suspect: Suspect) -> Found:
    """Whole slices of zeros, whatever else is wrong."""
    for axis, size in enumerate(suspect.golden.shape):
        across = [a for a in range(suspect.golden.dim()) if a != axis]
        empty = ~suspect.got.bool().any(across) if across else ~suspect.got.bool()
        true = suspect.golden.bool().any(across) if across else suspect.golden.bool()
        found = torch.nonzero(empty & true).flatten().tolist()
        if 0 < len(found) < size and suspect.golden.numel() > size:
            return f"the kernel gives zeros at {_place(found, size)} of axis {axis} (of size {size})", 0.85
    return None


def _region(suspect: Suspect) -> Found:
    by_axis: dict[int, list[int]] = {}
    for measure in suspect.comparison.wrong:
        if measure.axis >= 0:
            by_axis.setdefault(measure.axis, []).extend(range(measure.start, measure.stop))
    places = []
    for axis, found in sorted(by_axis.items()):
        size = suspect.golden.shape[axis]
        if len(found) <= 0.75 * size:
            places.append(f"{_place(sorted(found), size)} of axis {axis} (of size {size})")
    return (f"what is wrong lies at {' and '.join(places)}", 0.7) if places else None


def _place(indices: list[int], size: int) -> str:
    """Indices of an axis as a person would say it."""
    first, last, count = indices[0], indices[-1], len(indices)
    if last - first + 1 == count:
        if count == 1:
            return "the last index" if last == size - 1 else f"index {first}"
        if last == size - 1:
            block = 1 << (count - 1).bit_length()
            tail = f", the tail of a block of {block}" if first % block == 0 and first else ""
            return f"the last {count} indices, from {first}{tail}"
        return f"the first {count} indices" if first == 0 else f"indices {first} to {last}"
    step = indices[1] - indices[0]
    if all(b - a == step for a, b in pairwise(indices)):
        return f"every {step}th index from {first}"
    return "indices " + ", ".join(map(str, indices[:6])) + (f" and {count - 6} more" if count > 6 else "")


def _few(suspect: Suspect) -> Found:
    error = suspect.error.abs().flatten()
    beyond = error > 8 * suspect.truth.floor.sqrt().flatten().clamp_min(float(error.max()) * 1e-3)
    count = int(beyond.sum())
    if not 0 < count <= max(1, error.numel() // 64):
        return None
    at = torch.nonzero(beyond.reshape(suspect.error.shape))[0].tolist()
    return f"{count} of {error.numel()} entries are far off, the first at {at}; the others are right", 0.6


def _precision(suspect: Suspect) -> Found:
    """Errors without a pattern: rounding in a coarser dtype, or many roundings in this one."""
    if _region(suspect) is not None or _few(suspect) is not None:
        return None
    size = float(suspect.golden[suspect.truth.judged].norm())
    relative = float(suspect.error.norm()) / size if size else 0.0
    own = torch.finfo(suspect.truth.dtype).eps
    coarse = [
        str(dtype).removeprefix("torch.")
        for dtype in _COARSE
        if torch.finfo(dtype).eps > 2 * own
        and torch.finfo(dtype).eps / 16 < relative < 2 * torch.finfo(dtype).eps
    ]
    if coarse:
        return f"errors are of the size of rounding to {' or '.join(coarse)}", 0.6
    if own < relative < 64 * own:
        return (
            f"errors are {relative / own:.2g} x the rounding of the dtype everywhere, without a pattern",
            0.5,
        )
    return None


RULES = (
    Rule("zero", _zero, "a result that is never written, or a gradient that is not returned"),
    Rule(
        "factor",
        _factor,
        "a scale that is left out, or applied twice: the softmax scale, a mean, a rescaling",
    ),
    Rule("transposed", _transposed, "strides that are exchanged, or a transpose that is missing"),
    Rule("displaced", _displaced, "an index or an offset of a block that is off by one"),
    Rule(
        "mask",
        _mask,
        "the mask: its comparison, its block, and whether it is applied in forward and backward",
    ),
    Rule(
        "missing term", _missing_term, "a mean or a sum in the backward, such as that of g * y in a softmax"
    ),
    Rule(
        "multiple",
        _multiple,
        "a sum, a mean or a maximum over that axis: its mask, its size, and what it is multiplied by",
    ),
    Rule("never written", _never_written, "the last block, and a mask or a loop that leaves it out"),
    Rule("partial sum", _partial, "the last block of a reduction, and the number of blocks"),
    Rule(
        "region", _region, "what is special there: a tail that is masked, a block that is skipped, one head"
    ),
    Rule("few entries", _few, "an index, or a write that several threads make"),
    Rule("precision", _precision, "the dtype of the accumulator, and casts before a sum"),
)


def diagnoses(comparison: Comparison, around: Around | None = None) -> tuple[Diagnosis, ...]:
    """What the rules see, surest first."""
    if (
        comparison.got is None
        or comparison.truth is None
        or comparison.got.shape != comparison.truth.golden.shape
    ):
        return ()
    if comparison.worst is None or not comparison.got.numel():
        return ()
    suspect = Suspect(comparison.got, comparison.truth, comparison, around or Around())
    seen: list[Diagnosis] = []
    for rule in RULES:
        with forgiving():
            if (found := rule.find(suspect)) is not None:
                text, confidence = found
                seen.append(Diagnosis(rule.name, f"`{comparison.name}`: {text}", rule.look, confidence))
    seen.sort(key=lambda one: -one.confidence)
    return tuple(one for one in seen if one.confidence >= 0.7 * seen[0].confidence)[:3]
