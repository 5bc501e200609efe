"""Functions that are only known to a tolerance: at random points, right ones pass and wrong ones fail.

A rounded result, a bisection, a solver that stops: such a function moves in steps, and a difference with a
step of 1e-6 may see none of them, or several that lie on a line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import covector
from covector.verify.finding import Outcome
from covering import paired
from holes.table import ruled

MANY, FEW = 20, 6
Function = Callable[[Tensor], Tensor]


def in_steps(size: float, amplitude: float = 1.0) -> Function:
    return lambda x: (amplitude * x.sin() / size).round() * size


def at_rounded_inputs(size: float) -> Function:
    return lambda x: ((x / size).round() * size).sin()


def bisected(width: float) -> Function:
    """The root y of sin(y) = sin(x) / 2 by bisection."""

    def solve(x: Tensor) -> Tensor:
        low, high = torch.full_like(x, -2.0), torch.full_like(x, 1.5)
        while float((high - low).max()) > width:
            middle = (low + high) / 2
            above = middle.sin() > x.sin() / 2
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2

    return solve


def hashed(size: float) -> Function:
    """The sine with noise that looks random, and is the same at every run."""

    def function(x: Tensor) -> Tensor:
        bits = x.detach().numpy().view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        unit = (bits ^ (bits >> np.uint64(32))).astype(np.float64) / 2.0**63 - 1
        return x.sin() + size * torch.from_numpy(unit)

    return function


def tabulated(spacing: float) -> Function:
    """The sine, by linear interpolation in a table."""

    def function(x: Tensor) -> Tensor:
        below = (x / spacing).floor()
        share = x / spacing - below
        return (1 - share) * (below * spacing).sin() + share * ((below + 1) * spacing).sin()

    return function


MATRIX = torch.linspace(-0.6, 1.0, 12, dtype=torch.float64).reshape(4, 3).contiguous()

SINE = torch.cos
FAMILIES: dict[str, tuple[Function, Callable[[Tensor], Tensor]]] = {
    "rounded to 1e-9": (in_steps(1e-9), SINE),
    "rounded to 1e-7": (in_steps(1e-7), SINE),
    "rounded to 1e-6": (in_steps(1e-6), SINE),
    "a fifth, rounded to 1e-6": (in_steps(1e-6, 0.2), lambda x: 0.2 * x.cos()),
    "inputs rounded to 1e-7": (at_rounded_inputs(1e-7), SINE),
    "bisection to 1e-6": (bisected(1e-6), lambda x: x.cos() / (2 * (1 - (x.sin() / 2) ** 2).sqrt())),
    "bisection to 1e-8": (bisected(1e-8), lambda x: x.cos() / (2 * (1 - (x.sin() / 2) ** 2).sqrt())),
    "single precision inside": (lambda x: x.float().sin().double(), SINE),
    "noise of 1e-8": (hashed(1e-8), SINE),
    "noise of 1e-6": (hashed(1e-6), SINE),
    "a table with a spacing of 1e-4": (tabulated(1e-4), SINE),
}


def point(seed: int, size: int) -> Tensor:
    drawn = 0.2 + torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn.requires_grad_()


def outcomes(function: Any, count: int, **keywords: Any) -> Counter[Outcome]:
    """The outcomes at random points of one and of three numbers."""
    points = (point(seed, (1, 3)[seed % 2]) for seed in range(count))
    return Counter(covector.check(function, x, **keywords).outcome for x in points)


both_modes = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
each_family = pytest.mark.parametrize("name", FAMILIES)


@both_modes
@each_family
def test_a_right_derivative_passes(name: str, fast: bool) -> None:
    function, slope = FAMILIES[name]
    found = outcomes(ruled(function, lambda g, x: g * slope(x)), MANY, fast_mode=fast)
    assert found[Outcome.FAILED] == 0
    assert found[Outcome.INCONCLUSIVE] <= MANY / 20


@pytest.mark.parametrize(("name", "factor", "fast"), paired(list(FAMILIES), [1.5, -1.0], [False, True]))
def test_a_wrong_derivative_fails(name: str, factor: float, fast: bool) -> None:
    function, slope = FAMILIES[name]
    wrong = ruled(function, lambda g, x: factor * g * slope(x))
    assert outcomes(wrong, FEW, fast_mode=fast) == {Outcome.FAILED: FEW}


@each_family
def test_with_a_longer_step_of_the_caller(name: str) -> None:
    function, slope = FAMILIES[name]
    assert outcomes(ruled(function, lambda g, x: g * slope(x)), FEW, eps=1e-3) == {Outcome.PASSED: FEW}
    wrong = ruled(function, lambda g, x: 1.5 * g * slope(x))
    assert outcomes(wrong, FEW, eps=1e-3) == {Outcome.FAILED: FEW}


UNIFORM = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SAMPLE = -UNIFORM.log().sort(descending=True).values

COARSE = {
    "rounded to 1e-3": (in_steps(1e-3), SINE),
    "bisection to 1e-3": (bisected(1e-3), lambda x: x.cos() / (2 * (1 - (x.sin() / 2) ** 2).sqrt())),
    "bfloat16 inside": (lambda x: x.bfloat16().sin().double(), SINE),
    "the share of 10,000 random numbers that are smaller": (
        lambda x: torch.searchsorted(SAMPLE, x.detach()).double() / len(SAMPLE),
        lambda x: (-x).exp(),
    ),
}


@pytest.mark.parametrize("name", COARSE)
def test_noise_that_no_step_outweighs_accuses_nobody(name: str) -> None:
    function, slope = COARSE[name]
    assert outcomes(ruled(function, lambda g, x: g * slope(x)), FEW)[Outcome.FAILED] == 0


@both_modes
def test_steps_of_several_inputs_are_told_from_errors(fast: bool) -> None:
    """Every output depends on every input, and each column is as noisy as the others."""
    solve = bisected(1e-7)
    slope = lambda x: x.cos() / (2 * (1 - (x.sin() / 2) ** 2).sqrt())
    right = ruled(lambda x: MATRIX @ solve(x), lambda g, x: (g @ MATRIX) * slope(x))
    wrong = ruled(lambda x: MATRIX @ solve(x), lambda g, x: (g @ MATRIX) * slope(x) * 1.1)
    for seed in range(6):
        assert covector.check(right, point(seed, 3), fast_mode=fast).outcome is Outcome.PASSED
        assert covector.check(wrong, point(seed, 3), fast_mode=fast).outcome is Outcome.FAILED


NARROW: dict[str, tuple[Function, float]] = {
    "a wave narrower than a step": (lambda x: x + (1e7 * x).sin() / 1e7, 0.3),
    "a bell narrower than a step": (lambda x: (-((x - 0.3) * 1e7).square()).exp() * 1e-7 + x, 0.3 + 4e-8),
    "a kink closer than a step": (lambda x: (x - 0.3).relu() + 0.5 * x, 0.3 + 3e-7),
    "a kink much closer": (lambda x: (x - 0.3).abs() + 20 * x, 0.3 + 1e-9),
    "a kink a hundredth away": (lambda x: (x - 0.31).relu() + 2 * x, 0.3),
    "a zigzag": (lambda x: x + ((x * 3e5) - (x * 3e5).round()).abs() / 3e5, 0.3 + 6e-7),
    "a line": (lambda x: 3 * x + 1, 0.3),
    "a constant": (lambda x: 0 * x + 1, 0.3),
}


@both_modes
@pytest.mark.parametrize("name", NARROW)
def test_what_is_narrower_than_a_step_is_no_noise(name: str, fast: bool) -> None:
    function, value = NARROW[name]
    x = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    assert covector.check(function, x, fast_mode=fast).outcome is Outcome.PASSED
    wrong = lambda x: function(x) + 0.3 * (x - x.detach())
    assert covector.check(wrong, x, fast_mode=fast).outcome is Outcome.FAILED


@pytest.mark.parametrize("rate", [3e7, 1e9])
def test_a_wave_that_every_step_is_longer_than_is_no_mistake(rate: float) -> None:
    """On the average it has no slope: stencils that step over it exclude the derivative, and agree.

    Next to an extremum, where the derivative is small, all of them may.
    """
    points = (torch.tensor([0.1 + 0.27 * i], dtype=torch.float64, requires_grad=True) for i in range(12))
    outcomes = Counter(covector.check(lambda x: (rate * x).sin(), x).outcome for x in points)
    assert outcomes[Outcome.FAILED] <= 1


def test_a_line_in_steps_never_looks_curved() -> None:
    """The second differences of seven rounded values on a line, against the noise that these show."""
    from covector.verify.slopes import slopes_of

    generator = np.random.default_rng(0)
    slopes, shifts = 10 ** generator.uniform(-2, 2, 20_000), generator.uniform(0, 1, 20_000)
    stairs = np.round(slopes * np.arange(-3, 4)[:, None] + shifts)
    found = slopes_of(stairs, 1.0, np.zeros(20_000))
    assert found.straight.all()
    wrong = abs(found.value - slopes) > found.bound
    on_a_line = (np.diff(stairs, 2, axis=0) == 0).all(0)
    assert (wrong == (on_a_line & (found.value != slopes))).all()
    assert math.isclose(on_a_line[slopes > 1].mean(), 1 / 6, abs_tol=0.02)
