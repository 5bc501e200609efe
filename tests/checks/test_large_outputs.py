"""Of many outputs a check keeps what leads to their graph alone; what it finds is the same."""

import pytest
import torch

import covector
from mutants import ruled

COUNT = 70_000


def _point() -> torch.Tensor:
    return torch.linspace(-2, 2, COUNT, dtype=torch.float64, requires_grad=True)


def _sine(factor: float):
    return ruled(torch.sin, lambda g, x: factor * g * x.cos())


def _hooked(x):
    y = x.sin()
    y.register_hook(lambda g: None if g is None else 2 * g)
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x.view(-1, 2),
        lambda x: (x.sin(), x.exp()),
        lambda x: x.clone().mul_(2),
        _sine(1.0),
    ],
    ids=["a leaf", "a view", "several", "in place", "custom"],
)
def test_a_right_derivative_passes(function):
    assert covector.check(function, _point(), fast_mode=True)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_sine(1.1), "`backward` returns 1.100 x the numeric gradient for input `arg0`, everywhere"),
        (_hooked, "reverse mode returns 2.000 x the numeric gradient for input `x`, everywhere"),
    ],
    ids=["custom", "a hook on the output"],
)
def test_a_wrong_one_is_named(function, said):
    report = covector.check(function, _point(), fast_mode=True)
    assert said in [diagnosis.evidence for finding in report.findings for diagnosis in finding.diagnoses]


def test_second_derivatives():
    assert covector.gradgradcheck(torch.sin, _point(), fast_mode=True)


class Sine(torch.autograd.Function):
    """Without a rule for forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def test_forward_mode_names_the_functions_of_the_caller_alone():
    report = covector.check(Sine.apply, _point(), fast_mode=True, check_forward_ad=True)
    (summary,) = {finding.summary for finding in report.findings if finding.summary}
    assert summary.startswith("Sine defines no jvp, which forward mode needs")
