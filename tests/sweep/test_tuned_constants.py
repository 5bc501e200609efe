"""Each tuned constant of a check, four times as large and four times as small: something has to change."""

from __future__ import annotations

import warnings

import pytest
import torch

import covector
from covector.verify import constants
from mutants import MUTANTS

pytestmark = pytest.mark.sweep

# What no verdict and no count turns on here: margins of safety, memory and time, each with its reason.
MARGINS = {
    "SCALE",
    "LARGE",
    "HALF",
    "FEW_ULPS",
    "BATCH_ROUNDING",
    "BATCH_BYTES",
    "COPIES",
    "REPEATED_ROWS",
    "ROUNDINGS_OF_A_PULLBACK",
    "ROUNDINGS_OF_A_SUM",
    "LOUDER",
    "CURVATURE",
}

TUNED = sorted(
    name for name, value in vars(constants).items() if name.isupper() and isinstance(value, int | float)
)


def noisy(x):
    """A sine by bisection, to 1e-9, with the derivative of the sine."""
    exact = x.sin()
    return exact + ((exact.detach() / 1e-9).round() * 1e-9 - exact.detach())


def point(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def linspace(first: float, last: float, count: int) -> torch.Tensor:
    return torch.linspace(first, last, count, dtype=torch.float64).requires_grad_()


FUNCTIONS = {
    "noisy": (noisy, point(0.3, 0.7, 1.1)),
    "large output": (lambda x: x.sin() + 1e7, point(0.3, 0.6)),
    "larger output": (lambda x: x.sin() + 1e9, point(0.3, 0.6)),
    "an output of 1e10": (lambda x: x.sin() + 1e10, point(0.3, 0.6)),
    "an output of 1e11": (lambda x: x.sin() + 1e11, point(0.3, 0.6)),
    "single precision": (torch.sin, torch.tensor([0.3, 0.6], requires_grad=True)),
    "bfloat16": (
        lambda x: (x.sin() * x).cumsum(0).tanh(),
        torch.tensor([0.3, 0.6, 0.9, 1.2], dtype=torch.bfloat16, requires_grad=True),
    ),
    "far from zero": (torch.sin, point(1e7, 3e6)),
    "waves far from zero": (lambda x: (300 * x).sin(), point(1e7, 3e6)),
    "too large an output": (lambda x: x.sin() + 1e15, point(0.3, 0.6)),
    "steep": (lambda x: (1e4 * x).sin(), point(0.3, 1.5)),
    "a narrow step": (lambda x: (1e7 * (x - 0.3)).tanh(), point(0.3, 1.5)),
    "steep and many": (lambda x: (300 * x).sin(), linspace(0.5, 1.5, 40)),
    "near zero": (torch.log, point(1e-7, 1e-12)),
    "waves near zero": (lambda x: torch.sin(1 / x), point(1e-5)),
    "kink": (torch.relu, point(0.0, 1.0)),
    "next to a kink": (torch.relu, point(1e-8, -1e-9)),
    "elementwise": (torch.sin, linspace(-1, 1, 60)),
    "elementwise, larger": (torch.sin, linspace(-1, 1, 300)),
    "a layer": (lambda x: (x.reshape(20, 10) @ torch.ones(10, 8).double()).tanh(), linspace(-1, 1, 200)),
    "off by a hundredth of what is allowed": (
        lambda x: x.sin() + 1e-7 * (x - x.detach()),
        linspace(0.5, 1.5, 8),
    ),
    "off by a tenth of what is allowed": (lambda x: x.sin() + 1e-6 * (x - x.detach()), linspace(0.5, 1.5, 8)),
    "off by half of what is allowed": (lambda x: x.sin() * 1.0 + 3e-4 * (x - x.detach()), linspace(0, 1, 8)),
    "one steep among many": (
        lambda x: torch.cat([(1e4 * x[:1]).sin(), x[1:].sin()]),
        linspace(0.5, 1.5, 400),
    ),
    "three steep among many": (
        lambda x: torch.cat([(1e4 * x[:3]).sin(), x[3:].sin()]),
        linspace(0.5, 1.5, 400),
    ),
    "unbatchable": (lambda x: x.sin() * (1.0 if x[0].item() < 9 else 2.0), linspace(0.5, 1.5, 3)),
    "four points": (torch.sin, point(0.3, 0.6)),
    "large beside small": (lambda x: torch.cat([1e7 * x[:1], x[1:].sin()]), point(0.3, 0.6, 0.9)),
    "float32 inside": (lambda x: x.float().sin().double(), point(0.3, 0.6, 0.9)),
    "mixed in float32": (
        lambda x: (torch.linspace(-1, 1, 60).cos().reshape(5, 12) @ x.float().sin()).double(),
        linspace(-1, 1, 12),
    ),
    "small steps and many": (lambda x: noisy(x) + x.sin().sum(), linspace(0.5, 1.5, 40)),
    "an undecided entry beside a wrong one": (
        lambda x: x * x.abs().sqrt() + 1e-2 * (x - x.detach()) * (torch.arange(3) == 1),
        point(0.0, 1.0, 2.0),
    ),
    "many numbers": (lambda x: x.sin().cumsum(0), linspace(0.5, 1.5, 900)),
}

# Looked at in fast mode alone: every column would take long.
MANY = {
    "noise in many numbers": (
        lambda x: (x * x).sum() + 1e-3 * torch.frac(1e9 * x.sum().detach()),
        linspace(0.5, 1.5, 30_000),
    ),
    "many steep among more": (
        lambda x: torch.cat([(1e4 * x[:60]).sin(), x[60:].sin()]),
        linspace(0.5, 1.5, 4_000),
    ),
}


def everything() -> dict[str, tuple[str, int, str]]:
    """The outcome, the number of runs and how it was decided, of every check of the table."""
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fast in (False, True):
            for name, (function, x) in (FUNCTIONS | (MANY if fast else {})).items():
                report = covector.check(function, x, fast_mode=fast)
                results[f"{name}, {fast}"] = (report.outcome.value, report.evaluations, report.method)
            for mutant in MUTANTS[::3]:
                if mutant.order == 1 and not mutant.keywords:
                    report = covector.check(mutant.wrong, mutant.draw(), fast_mode=fast)
                    results[f"{mutant.name}, {fast}"] = (
                        report.outcome.value,
                        report.evaluations,
                        report.method,
                    )
    return results


@pytest.fixture(scope="module")
def usual() -> dict[str, tuple[str, int, str]]:
    """What is the same every time: some wrong functions keep state."""
    first, second = everything(), everything()
    return {name: result for name, result in first.items() if second[name] == result}


@pytest.mark.parametrize("name", TUNED)
def test_a_constant_that_moves_moves_something(name, usual, monkeypatch):
    value = getattr(constants, name)
    moved = False
    for factor in (4, 0.25):
        monkeypatch.setattr(constants, name, type(value)(value * factor) or 1)
        results = everything()
        moved = moved or any(results[check] != result for check, result in usual.items())
    assert moved or name in MARGINS, f"{name} could go"
