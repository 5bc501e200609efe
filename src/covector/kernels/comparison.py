"""One tensor of a kernel beside the truth: its ratios, and which of them a right kernel does not show."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from covector.kernels.limits import (
    freedom_of_kernel,
    largest_quotient,
    largest_ratio,
)
from covector.kernels.slices import Slicing, but_largest
from covector.kernels.truth import Cut, Truth, real
from covector.verify.finding import Outcome

# The condition is bad where an error of this share of the values would pass.
PASSING_SHARE = 0.5

# An error that exceeds its limit this many times is one, however bad the condition.
BEYOND_DOUBT = 10

# The same for a whole tensor, of which a slice may be wrong.
BROADLY = 3

# Where a measure of all entries lies.
WHOLE = "the whole"


@dataclass(frozen=True)
class Measure:
    """The ratio of one slice, and the largest that a right kernel shows."""

    where: str
    ratio: float
    limit: float
    axis: int = -1
    start: int = 0
    stop: int = 0

    @property
    def excess(self) -> float:
        """How many times the limit it is."""
        return self.ratio / self.limit


@dataclass(frozen=True)
class Comparison:
    """What was measured on one tensor, and what it comes to."""

    name: str
    outcome: Outcome
    summary: str = ""
    whole: float = 0.0
    """The root mean square error over the root mean square of the floor."""
    worst: Measure | None = None
    """The slice that is the furthest from its limit, also where it is within."""
    quotient: float = 0.0
    """The largest error, over the reference's largest."""
    condition: float = 0.0
    """The floor, as a share of the values."""
    wrong: tuple[Measure, ...] = ()
    """What a right kernel does not show, worst first."""
    advice: str = ""
    got: Tensor | None = field(default=None, repr=False, compare=False)
    truth: Truth | None = field(default=None, repr=False, compare=False)


def compare(got: Tensor, truth: Truth, ratio: float, alpha: float) -> Comparison:
    """A tensor of the kernel beside the truth; `alpha` is the share of false alarms for each slice."""
    values = real(got)
    if (trouble := _not_finite(values, truth)) is not None:
        return Comparison(truth.name, Outcome.FAILED, trouble, got=values, truth=truth)
    squares = torch.where(truth.judged, (values - truth.golden).square(), 0.0)
    whole = _whole(squares, truth, ratio, alpha)
    slices = [m for cut in truth.cuts for m in _slices(squares, cut, ratio, alpha)]
    largest = float(squares.max().sqrt()) if squares.numel() else 0.0
    limit = largest_quotient(ratio, alpha, truth.freedom)
    peak = Measure("the largest error", _quotient(largest, _highest(truth)), limit)
    wrong = sorted((m for m in (whole, *slices, peak) if m.ratio > m.limit), key=lambda m: -m.excess)
    outcome, summary = _verdict(wrong, truth.condition, ratio)
    return Comparison(
        truth.name,
        outcome,
        summary,
        whole.ratio,
        max(slices, key=lambda m: m.excess, default=whole),
        peak.ratio,
        truth.condition,
        tuple(wrong),
        got=values,
        truth=truth,
    )


def _quotient(error: float, floor: float) -> float:
    """Nothing over nothing is nothing."""
    if error == 0.0:
        return 0.0
    return error / floor if floor > 0 else float("inf")


def _highest(truth: Truth) -> float:
    """The largest error of the reference's runs, or what rounding alone may do to the largest value."""
    if truth.golden.numel() == 0:
        return 0.0
    return max(truth.largest_error, truth.largest_ulp / 2)


def _whole(squares: Tensor, truth: Truth, ratio: float, alpha: float) -> Measure:
    total = float(but_largest(squares / truth.whole_floor)) / max(1, int(truth.judged.sum()))
    return Measure(WHOLE, total**0.5, largest_ratio(ratio, alpha, truth.freedom))


def _slices(squares: Tensor, cut: Cut, ratio: float, alpha: float) -> list[Measure]:
    """Every slice along an axis."""
    found = cut.slicing.sums_but_largest(squares / cut.floor) / cut.counts
    freedom = min(cut.freedom, freedom_of_kernel(found))
    return _named(cut.slicing, found.sqrt(), largest_ratio(ratio, alpha, freedom, cut.slicing.count))


def _named(slicing: Slicing, ratios: Tensor, limit: float) -> list[Measure]:
    """The slices of an axis that are beyond the limit, and the worst of them in any case."""
    shown = torch.nonzero(ratios > limit).flatten().tolist() or [int(ratios.argmax())]
    named = []
    for number in shown:
        start, stop = slicing.indices(number)
        place = [":"] * len(slicing.shape)
        place[slicing.axis] = str(start) if stop == start + 1 else f"{start}:{stop}"
        named.append(
            Measure(f"[{', '.join(place)}]", float(ratios[number]), limit, slicing.axis, start, stop)
        )
    return named


def _not_finite(values: Tensor, truth: Truth) -> str | None:
    """What is wrong with infinities and NaN: where the reference has none, or has others.

    Where the reference in the dtype is not finite it is the judge; a kernel that is finite there may be
    better than it, and is right if golden is finite too.
    """
    strange = ~values.isfinite()
    if bool((strange & truth.judged).any()):
        at = torch.nonzero(strange & truth.judged)
        return (
            f"{float(values[tuple(at[0])])} at {at[0].tolist()}, where the reference is finite "
            f"({at.shape[0]} of {values.numel()} entries)"
        )
    lost = ~truth.eager.isfinite() & ~strange & ~truth.golden.isfinite()
    # Infinity or NaN depends on the order of operations, as 0 times infinity; the sign does not.
    lost |= values.isinf() & (values == -truth.eager)
    if bool(lost.any()):
        at = torch.nonzero(lost)[0]
        return (
            f"{float(values[tuple(at)]):.4g} at {at.tolist()}, where the reference gives "
            f"{float(truth.eager[tuple(at)])}"
        )
    return None


def _verdict(wrong: list[Measure], condition: float, ratio: float) -> tuple[Outcome, str]:
    """How it ended, and why; where noise hides the values, an error has to be beyond doubt."""
    noisy = ratio * condition >= PASSING_SHARE
    if wrong and (not noisy or wrong[0].excess > BEYOND_DOUBT):
        first = wrong[0]
        peak = first.where == "the largest error"
        what = f"{first.where} is" if peak else f"the error of {first.where} is"
        than = "the reference's largest" if peak else "the noise floor"
        text = f"{what} {first.ratio:.3g} x {than}, a right kernel's at most {first.limit:.3g} x"
        return Outcome.FAILED, text
    if noisy:
        text = f"the problem is ill-conditioned: the noise floor is {condition:.2g} of the values"
        return Outcome.INCONCLUSIVE, text
    return Outcome.PASSED, ""
