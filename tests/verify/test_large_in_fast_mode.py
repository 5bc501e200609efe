"""Fast mode of functions of many numbers: kinks, rounding and noise must not cost a run for every column."""

from __future__ import annotations

import pytest
import torch

import covector
from covector.verify import constants

MANY = 60_000


def drawn(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Kinks that many numbers reach together: those of a layer of a network."""
    weight = torch.linspace(-1, 1, 30 * 40, dtype=torch.float64).reshape(30, 40).cos()
    return torch.relu(x.reshape(-1, 30) @ weight).sum()


FUNCTIONS = {
    "kinks of single numbers": lambda x: x.abs().sum(),
    "kinks of many numbers together": mixed,
    "a large value, of which few digits are left": lambda x: 1e3 * (x * x).sum(),
}
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))


def a_share() -> float:
    """How many runs a fast check may take: to halve a direction, and of some columns for the report."""
    return constants.HALVING_SHARE * constants.FAST_RUNS + 2 * constants.WHOLE_COLUMNS + constants.SPARE_RUNS


@each_function
def test_right_functions_pass(function) -> None:
    report = covector.check(function, drawn(MANY), fast_mode=True)
    assert report, str(report)
    assert report.evaluations < a_share()


@each_function
def test_one_wrong_entry_is_named(function) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return function(x) + 10 * (x[1234] - x[1234].detach())

    report = covector.check(wrong, drawn(MANY), fast_mode=True)
    assert report.outcome == "failed"
    assert "[1234]" in report.worst.mismatches[0].entry.input
    assert report.evaluations < a_share()


def test_what_noise_hides_is_said_and_not_looked_for_in_every_column() -> None:
    """As many runs as torch's exhaustive mode are no fast check."""
    noisy = lambda x: (x * x).sum() + 1e-3 * torch.frac(1e9 * x.sum().detach())
    report = covector.check(noisy, drawn(MANY), fast_mode=True)
    assert report.outcome == "inconclusive"
    assert "no few columns explain it" in report.worst.summary
    assert "fast_mode=False" in report.worst.advice
    assert report.evaluations < a_share()


def test_entries_that_are_too_small_to_be_wrong_one_by_one_are_not_gone_through() -> None:
    """A gradient of zero for a mean: each entry is below `atol`, and together they are not."""

    class Mean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.size = x.shape
            return x.sin().mean()

        @staticmethod
        def backward(ctx, g):
            return g.new_zeros(ctx.size)

    report = covector.check(Mean.apply, drawn(4 * MANY), fast_mode=True)
    assert report.outcome == "inconclusive"
    assert report.evaluations < a_share()
