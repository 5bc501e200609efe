"""The Taylor remainder along a random direction: a verdict on a derivative without a step length.

Let phi(t) = <v, f(x + t u)> for a random direction u and a random cotangent v. If d1 and d2 are its first two
derivatives at 0, then

    |phi(h) - phi(0) - h d1|                falls like h^2,
    |phi(h) - phi(0) - h d1 - h^2 d2 / 2|   falls like h^3,

and like h and h^2 if the last of these derivatives is wrong. The order is read off a ladder of steps, each
half of the one before: it is the slope of a line through the logarithms of the smallest remainders that are
above the noise, where terms of higher order are the least. No single step decides, and none is chosen.

The noise of phi is the largest of: the rounding error of its terms; what sixth differences of phi show (More
and Wild, "Estimating computational noise", 2011); the level at which the remainder stops falling. The
rounding error of d1 adds to it in proportion to h. Where phi stands still on the smallest steps, as the
result of a solver that stops at a tolerance, differences of a wider spacing show its noise. A remainder that
drops into the noise by more than one step of its order explains falls faster than that order: so it is where
a kink lies between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, takewhile
from math import comb, log2
from typing import TYPE_CHECKING

import numpy as np
import torch

from covector._chart import Sampled
from covector._engine import graph
from covector._engine.levels import GradMode
from covector._lazy import lazy
from covector.errors import UnsupportedError, first_sentence
from covector.verify import constants
from covector.verify.finding import Finding, Outcome, Table, failed
from covector.verify.forward import ForwardMap
from covector.verify.numeric import Numeric
from covector.verify.reverse import ReverseMap
from covector.verify.vectors import weights

if TYPE_CHECKING:
    from covector.checks.run import CheckRun

# The longest step moves each number by about its size; the shortest is lost in the last places of a double.
_LONGEST, _SHORTEST = 0, -46

# The ladder ends after so many steps on which the remainder is noise.
_QUIET = 3

# A remainder counts if it is this many times the noise, so that its logarithm is sharp.
_ABOVE = 32.0

# The order is fitted on so many steps, and on no fewer than the second number.
_FITTED, _FEWEST = 4, 3

# An order is as expected from this far below it on, and too low from this far on: a wrong derivative has one
# less. Between them the function is not smooth enough to tell.
_RIGHT, _WRONG = 0.25, 0.75

# A remainder that falls with less than this order does not fall: it is noise.
_FLAT = 0.5

# An error of this share of a derivative is that of a constant that was written in single precision.
_SINGLE = 2.0**-22

# Noise of this share of the function hides what it does.
_NOISY = 2.0**-10

# Spacings at which the noise is measured, by differences of this order.
_NARROW, _WIDE = 2.0**-30, 2.0**-14
_ORDER = 6

# What a Taylor polynomial adds to phi(0), from the step and the move that was really made.
Model = Callable[[float, np.ndarray], float]

# Two slopes that are seen down to this step, or to a few times the one at which rounding hides them, are the
# point's own, not those of a kink beside it.
_AT_THE_POINT, _NEXT = 2.0**-36, 4.0

# Noise of so many rounding errors is that of a function with kinks or steps.
_ROUGH = 2.0**10

# A function moves if it moves by this share of what its derivative says.
_MOVES = 0.1


@dataclass(frozen=True)
class Rung:
    """One step of the ladder."""

    step: float
    remainder: float
    noise: float

    @property
    def counts(self) -> bool:
        """Whether the remainder is above the noise."""
        return self.remainder > _ABOVE * self.noise


@dataclass(frozen=True)
class Rate:
    """The order with which a remainder falls."""

    what: str
    expected: int
    rungs: tuple[Rung, ...]
    noise: float
    slope: float
    """The size of the linear term, for a step of one."""
    dropped: bool = False
    """Whether the remainder falls into the noise faster than with the expected order."""

    @lazy
    def counted(self) -> list[Rung]:
        """The smallest steps on which the remainder counts, without a gap between them."""
        below = dropwhile(lambda rung: not rung.counts, reversed(self.rungs))
        return [*islice(takewhile(lambda rung: rung.counts, below), _FITTED)][::-1]

    @lazy
    def order(self) -> float | None:
        """The slope of a line through the logarithms; None where too few remainders are above the noise."""
        if len(self.counted) < _FEWEST:
            return None
        steps, remainders = np.log2([(rung.step, rung.remainder) for rung in self.counted]).T
        return float(np.polyfit(steps, remainders, 1)[0])

    @property
    def drops(self) -> bool:
        """Whether the remainder drops from the last step on which it counts into noise, and stays there."""
        if not self.counted:
            return False
        last = self.counted[-1]
        below = sum(rung.step < last.step for rung in self.rungs)
        return below >= _QUIET and last.remainder > 2.0 ** (self.expected + _RIGHT) * _ABOVE * last.noise

    @property
    def off(self) -> float:
        """How far the last derivative is off along the direction, if it is wrong."""
        if not self.counted:
            return 0.0
        last = self.counted[-1]
        return 2 * last.remainder / last.step**2 if self.expected == 3 else last.remainder / last.step

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        if self.dropped or 0 < self.off <= _SINGLE * self.slope:
            return Outcome.PASSED
        if self.order is None or self.expected - _WRONG < self.order < self.expected - _RIGHT:
            return Outcome.INCONCLUSIVE
        return Outcome.PASSED if self.order >= self.expected - _RIGHT else Outcome.FAILED

    @property
    def words(self) -> str:
        """The order, as far as it was measured."""
        if self.dropped:
            return "is noise" if self.order is None else f"falls faster than with order {self.expected}"
        if self.order is not None and self.order < self.expected - _RIGHT and self.outcome is Outcome.PASSED:
            return f"falls with order {self.order:.2f}, as a constant of single precision makes it"
        if self.order is None:
            return "is above the noise on too few steps to fit an order"
        return f"falls with order {self.order:.2f}"

    def said_of(self, derivative: str) -> str:
        """What is said of the derivative with which the remainder was taken."""
        return f"the remainder with {derivative} {self.words}, noise floor {self.noise:.1e}"


class Taylor:
    """The function of a problem along a random direction, and how its remainders fall."""

    def __init__(self, numeric: Numeric, seed: int) -> None:
        self._numeric, self._problem = numeric, numeric.problem
        height, width = self._problem.shape
        self.cotangent = weights(height, seed + 17).numpy()
        self.direction = weights(width, seed + 18).numpy() * self._scale()
        self._known: dict[float, tuple[float, np.ndarray]] = {}
        """Phi by step, and the move that was really made."""
        self.rates: list[Rate] = []
        """What was measured, for the report."""

    def _scale(self) -> np.ndarray:
        """How far each coordinate is moved: by its size, and no less than is typical of its tensor."""
        chart = self._problem.chart
        whole = chart.base.to(torch.float64).numpy() if isinstance(chart, Sampled) else self._problem.point
        scale = np.ones_like(whole)
        for place in chart.places:
            part = abs(whole[place.start : place.stop])
            part = np.where(np.isfinite(part), part, 0.0)
            typical = float(np.sqrt(np.square(part).mean())) if part.size else 0.0
            scale[place.start : place.stop] = np.maximum(part, typical) if typical > 0 else 1.0
        return scale[chart.kept.numpy()] if isinstance(chart, Sampled) else scale

    # The function along the direction.

    def _at(self, step: float) -> tuple[float, np.ndarray]:
        """Phi there, and the move that is really made."""
        problem = self._problem
        moved = problem.stored(problem.point + step * self.direction)
        return self._along(self._numeric.single(moved)), moved - problem.point

    def _along(self, values: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            return float(self.cotangent @ values)

    @lazy
    def _here(self) -> float:
        return self._along(self._problem.value)

    @lazy
    def _size(self) -> float:
        """The size of the terms of phi."""
        with np.errstate(all="ignore"):
            return float(np.sqrt(np.nansum(np.square(self.cotangent * self._problem.value))))

    @lazy
    def rounding(self) -> float:
        """The rounding error of phi."""
        return float(np.sqrt(np.nansum(np.square(self.cotangent * self._numeric.noise))))

    @lazy
    def noise(self) -> float:
        """The noise between neighbouring points."""
        return self._measured(_NARROW)

    @lazy
    def wide_noise(self) -> float:
        """The noise between points that are further apart."""
        return self._measured(_WIDE)

    def _measured(self, spacing: float) -> float:
        """The error of its terms, or what makes sixth differences as large as they are, if independent."""
        values = np.array([self._at(spacing * step)[0] for step in range(_ORDER + 2)])
        found = abs(np.diff(values, _ORDER)).max() / comb(2 * _ORDER, _ORDER) ** 0.5
        return max(self.rounding, float(found) if np.isfinite(found) else 0.0)

    # Remainders.

    def first(self, name: str, linear: Model, terms: np.ndarray) -> Rate:
        """With the first derivative, whose slope along the direction is the sum of these terms."""
        size = float(np.linalg.norm(terms))
        rate = self._rate(name, 2, linear, size, self.noise)
        if rate.outcome is Outcome.FAILED and self._stands(rate, float(terms.sum())):
            rate = self._rate(name, 2, linear, size, self.wide_noise)
        self.rates.append(rate)
        return rate

    def _stands(self, rate: Rate, slope: float) -> bool:
        """Whether phi stands still where the order was fitted: it goes in steps, as a solver's."""
        return all(
            abs(self._known[rung.step][0] - self._here) < _MOVES * rung.step * abs(slope)
            for rung in rate.counted
        )

    def second(self, name: str, linear: Model, curvature: float) -> Rate:
        """With the first two derivatives, and the noise by which the first was judged."""

        def quadratic(step: float, move: np.ndarray) -> float:
            return linear(step, move) + step**2 * curvature / 2

        first = self.rates[-1]
        self.rates.append(self._rate(name, 3, quadratic, first.slope, first.noise))
        return self.rates[-1]

    def _rate(self, name: str, expected: int, model: Model, slope: float, noise: float) -> Rate:
        """How the remainder of a Taylor polynomial falls; `slope` is the size of its linear term."""
        rate = Rate(name, expected, tuple(self._ladder(model, noise, slope)), noise, slope)
        if rate.drops:
            return replace(rate, dropped=True)
        while rate.order is not None and rate.order < _FLAT:
            # It does not fall: that is the noise.
            noise = max(rung.remainder for rung in rate.counted)
            rungs = (replace(rung, noise=max(rung.noise, noise)) for rung in rate.rungs)
            rate = replace(rate, rungs=tuple(rungs), noise=noise)
        # If all is noise, even on the longest step, the derivative is right but for that noise.
        hidden = bool(rate.rungs) and not rate.counted and rate.noise <= _NOISY * max(self._size, slope)
        return replace(rate, dropped=hidden)

    def _remainders(self, model: Model, step: float) -> list[float]:
        """On both sides of the point; not those outside of the domain."""
        found = []
        for side in (step, -step):
            if side not in self._known:
                self._known[side] = self._at(side)
            value, move = self._known[side]
            found.append(value - self._here - model(side, move))
        return [value for value in found if np.isfinite(value)]

    def _ladder(self, model: Model, noise: float, slope: float) -> Iterator[Rung]:
        """Steps from the longest down to where the remainder is noise."""
        quiet = 0
        for power in range(_LONGEST, _SHORTEST - 1, -1):
            step = 2.0**power
            found = self._remainders(model, step)
            if not found:
                continue
            rung = Rung(step, max(map(abs, found)), noise + step * self._problem.rounding * slope)
            yield rung
            quiet = 0 if rung.counts else quiet + 1
            if quiet == _QUIET:
                return

    def curvature(self) -> float:
        """The second derivative along the direction, by reverse mode twice."""
        problem = self._problem
        outputs = problem.fresh()
        if any(graph.survey(output).once for output in outputs):
            raise UnsupportedError("backward is marked once_differentiable")
        cotangents = problem.outputs.from_coords(torch.from_numpy(self.cotangent.copy()))
        direction = problem.inputs.from_coords(torch.from_numpy(self.direction.copy()))
        with GradMode(enabled=True):
            pulled = graph.backward(outputs, cotangents, problem.variables, keep=True, record=True)
            pairs = [(g, u) for g, u in zip(pulled, direction, strict=True) if g is not None]
            inner = [(g.conj() * u).real.sum() for g, u in pairs if g.requires_grad]
        if not inner:
            return 0.0
        ones = [torch.ones_like(part) for part in inner]
        pulled = graph.backward(inner, ones, problem.variables, keep=False, record=False)
        second = graph.written_out(problem.inputs.coordinates(pulled))
        return float(second.numpy() @ self.direction)

    def sides(self, rate: Rate, linear: Model) -> list[float]:
        """How far the slopes on either side are from the gradient's, at the smallest step that counts."""
        step = rate.counted[-1].step
        found = self._remainders(linear, step)
        return [value / side for value, side in zip(found, (step, -step), strict=False)]

    def table(self) -> Table:
        """Every step, with the remainders and the noise."""
        rates = self.rates
        steps = sorted({rung.step for rate in rates for rung in rate.rungs}, reverse=True)
        found = [{rung.step: rung for rung in rate.rungs} for rate in rates]
        rows = [
            (
                f"2^{round(log2(step))}",
                *(known[step].remainder if step in known else None for known in found),
                max(known[step].noise for known in found if step in known),
            )
            for step in steps
        ]
        order = ("order", *(rate.order for rate in rates), None)
        columns = ("step", *(rate.what for rate in rates), "noise floor")
        return Table("Taylor remainder", columns, (*rows, order))


_UNSMOOTH = (
    "The order lies between that of a right and of a wrong derivative: the function is not smooth enough at "
    "this point, or changes within the shortest steps."
)
_FEW = "The function is too noisy, or defined too close to the point only, to measure an order."
_SMOOTH_BELOW = (
    "Shorter steps exclude an error of that size: a kink or a wave lies within these steps, or the function "
    "is noisier than it looks."
)
_CHECK = "Taylor remainder"


def reverse_remainder(run: CheckRun) -> Finding:
    """The remainder falls with order 2 with the gradient, and with order 3 with the second derivative too."""
    taylor, problem = run.taylor, run.differenced
    reverse = run.reverse if problem is run.problem else ReverseMap(problem, run.options.seed)
    gradient = reverse.pull_coordinates(torch.from_numpy(taylor.cotangent)).numpy()

    def linear(_: float, move: np.ndarray) -> float:
        return float(gradient @ move)

    first = taylor.first("first derivative", linear, gradient * taylor.direction)
    if first.outcome is Outcome.FAILED and (found := _kink(taylor, first, linear, run.options.tol.kinks)):
        return found
    if first.outcome is Outcome.FAILED and _excluded(run, first):
        return Finding(_CHECK, Outcome.INCONCLUSIVE, first.said_of("reverse mode"), advice=_SMOOTH_BELOW)
    if first.outcome is not Outcome.PASSED:
        return _judged(_CHECK, first, "reverse mode")
    try:
        curvature = taylor.curvature()
    except Exception as error:  # it is not asked for by everybody, so a refusal is no failure
        remark = f"there is no second derivative to look at: {first_sentence(error)}"
        return _judged(_CHECK, first, "reverse mode", remark)
    second = taylor.second("second derivative", linear, curvature)
    if second.outcome is not Outcome.PASSED:
        return _judged(_CHECK, second, "the second derivative")
    return _judged(_CHECK, first, "reverse mode", f"with the second derivative it {second.words}")


def forward_remainder(run: CheckRun) -> Finding:
    """The remainder falls with order 2 with the derivative of forward mode."""
    taylor, problem = run.taylor, run.differenced
    forward = run.forward if problem is run.problem else ForwardMap(problem, run.options.seed)
    pushed = forward.push_coordinates(torch.from_numpy(taylor.direction)).numpy()
    slope = float(taylor.cotangent @ pushed)
    rate = taylor.first("forward mode", lambda step, _: step * slope, np.array([slope]))
    return _judged(f"{_CHECK}, forward mode", rate, "forward mode")


def _excluded(run: CheckRun, rate: Rate) -> bool:
    """Whether differences found the derivative right, and the ladder cannot know better.

    It cannot if they would have shown an error of that size, or if the function is rough between the steps.
    """
    verdict, taylor = run.verdict(run.reverse), run.taylor
    # Errors of every entry add up along random vectors like the lengths of these.
    size = float(np.linalg.norm(taylor.cotangent)) * float(np.linalg.norm(taylor.direction))
    rough = rate.noise > _ROUGH * taylor.rounding
    return verdict.outcome is Outcome.PASSED and (
        rough or rate.off > constants.SIGMAS * verdict.visible * size
    )


def _kink(taylor: Taylor, rate: Rate, linear: Model, kinks: str) -> Finding | None:
    """What is said of a function that has two slopes here: none of them is right on both sides."""
    slopes = taylor.sides(rate, linear)
    steepest, smallest = max(map(abs, slopes), default=0.0), rate.counted[-1].step
    if smallest > max(_AT_THE_POINT, _NEXT * _ABOVE * taylor.rounding / steepest if steepest else 0.0):
        return None  # it lies beside the point: smaller steps would show it, and do not
    if len(slopes) < 2 or abs(slopes[0] - slopes[1]) <= 0.5 * max(map(abs, slopes)):
        return None
    text = "the function is not differentiable at this point: along this direction it has two slopes"
    if kinks == "pass" and min(slopes) <= 0 <= max(slopes):
        return Finding(_CHECK, Outcome.PASSED, f"{text}, and the derivative lies between them")
    return failed(_CHECK, text)


def _judged(check: str, rate: Rate, derivative: str, remark: str = "") -> Finding:
    """A rate as a finding."""
    found = rate.said_of(derivative)
    if rate.outcome is Outcome.PASSED:
        return Finding(check, Outcome.PASSED, "; ".join(filter(None, (found, remark))))
    if rate.outcome is Outcome.FAILED:
        right = f"with a right one it falls with order {rate.expected}"
        return failed(check, f"{found}; {right}. Along this direction it is off by {rate.off:.2g}")
    return Finding(check, Outcome.INCONCLUSIVE, found, advice=_FEW if rate.order is None else _UNSMOOTH)
