"""Functions in low precision that hold tensors of their own, such as the weights of a network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

import covector
from covector import gradcheck, gradgradcheck
from covector.checks.promotion import Promoted


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


WEIGHT, BIAS = normal(5, 4, seed=1), normal(5, seed=2)
PERCEPTRON = seeded(
    lambda: nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3), nn.Tanh())
)
IMAGES = seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Softplus(), nn.AvgPool2d(2)))
SMALL = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
ATTENTION = seeded(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True))


class Held(Function):
    """A layer whose backward multiplies by a weight from outside."""

    @staticmethod
    def forward(ctx, x):
        return x @ WEIGHT.T

    @staticmethod
    def backward(ctx, grad):
        return grad @ WEIGHT


class Wrong(Held):
    """The same with a factor that should not be there."""

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad @ WEIGHT


RIGHT = {
    "linear": (lambda x: F.linear(x, WEIGHT, BIAS).tanh(), normal(3, 4)),
    "in a list": (lambda x: torch.cat([x, WEIGHT], 0).sin(), normal(3, 4)),
    "by keyword": (lambda x: F.linear(x, weight=WEIGHT, bias=BIAS).cos(), normal(3, 4)),
    "added in place": (lambda x: WEIGHT.clone().add_(x.sum()).sin(), normal(4)),
    "perceptron": (PERCEPTRON, normal(6, 4)),
    "images, in training": (IMAGES, normal(2, 1, 6, 6)),
    "attention": (ATTENTION, normal(2, 4, 8)),
    "custom backward": (Held.apply, normal(3, 4)),
    "bfloat16": (lambda x: F.linear(x, WEIGHT.bfloat16()).tanh(), normal(3, 4, dtype=torch.bfloat16)),
    "a gradient inside": (torch.func.grad(lambda x: SMALL(x).square().sum()), normal(3, 4)),
    "complex": (lambda z: z * WEIGHT[0].to(torch.complex64) ** 2, normal(4).to(torch.complex64)),
}

WRONG = {
    "a factor in a backward": (Wrong.apply, normal(3, 4)),
    "a mean without its derivative": (
        lambda x: PERCEPTRON(x) - PERCEPTRON(x).detach().mean(),
        normal(6, 4),
    ),
    "a weight written through its data": (lambda x: _written(x), normal(3, 4)),
    "a hook that scales": (lambda x: _hooked(F.linear(x, WEIGHT, BIAS)).tanh(), normal(3, 4)),
}


def _written(x: Tensor) -> Tensor:
    """Its weight depends on the input, and reverse mode does not know."""
    layer = nn.Linear(4, 3)
    layer.weight.data.copy_(x.detach().sin())
    layer.bias.data.zero_()
    return layer(x)


def _hooked(y: Tensor) -> Tensor:
    y.register_hook(lambda grad: 1.02 * grad)
    return y


each_speed = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


@each_speed
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_function_that_holds_tensors_passes(name: str, fast: bool) -> None:
    """In double precision it is the same function, whose differences are known to the tolerance."""
    function, x = RIGHT[name]
    assert gradcheck(function, x.clone().requires_grad_(), fast_mode=fast)


@each_speed
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_that_holds_tensors_fails(name: str, fast: bool) -> None:
    """An error of a hundredth is far below what differences in single precision show."""
    function, x = WRONG[name]
    report = covector.check(function, x.clone().requires_grad_(), fast_mode=fast)
    assert report.outcome == "failed"


def test_forward_mode_and_second_derivatives() -> None:
    """They are held against the same function."""
    x = normal(3, 4).requires_grad_()

    def layer(x: Tensor) -> Tensor:
        return F.linear(x, WEIGHT, BIAS).tanh()

    assert gradcheck(layer, x, check_forward_ad=True)
    assert gradgradcheck(layer, x)


def test_the_caller_keeps_what_the_function_holds() -> None:
    """Weights and running statistics have the same numbers, precision and place as before."""
    kept = {name: (tensor, tensor.clone()) for name, tensor in IMAGES.state_dict(keep_vars=True).items()}
    assert gradcheck(IMAGES, normal(2, 1, 6, 6).requires_grad_())
    for name, tensor in IMAGES.state_dict(keep_vars=True).items():
        same, before = kept[name]
        assert tensor is same
        assert tensor.dtype is before.dtype
        assert torch.equal(tensor, before)


def test_a_function_that_is_another_one_in_double_precision_is_checked_as_given() -> None:
    """It holds a tensor, and looks at the precision that it is given."""

    def other(x: Tensor) -> Tensor:
        return F.linear(x, WEIGHT) if x.dtype is torch.float32 else 2 * F.linear(x, WEIGHT)

    assert gradcheck(other, normal(3, 4).requires_grad_(), atol=1e-2, rtol=1e-2)


def test_parameters_of_inference_mode() -> None:
    """Nobody counts how often these are written to."""
    with torch.inference_mode():
        weight = nn.Parameter(normal(2))
    with Promoted(None):
        assert torch.equal(torch.mul(weight, normal(2).double()), weight.double() * normal(2).double())


def test_operations_of_one_precision_stay_in_it() -> None:
    """Only what mixes precisions is promoted, and tensors are made where the caller makes them."""
    low, high = normal(2), normal(2).double()
    with Promoted(torch.device("meta")):
        assert (low * low).dtype is torch.float32
        assert torch.dot(low, high).dtype is torch.float64
        assert torch.ones(2).device.type == "meta"
    assert torch.ones(2).device.type == "cpu"


def test_a_parameter_counts_as_it_is() -> None:
    """What is written to it shows in the next operation."""
    parameter, high = nn.Parameter(normal(2)), normal(2).double()
    with Promoted(None):
        before = torch.dot(parameter, high)
        assert torch.dot(parameter, high) == before
        parameter.data.mul_(2)
        assert torch.dot(parameter, high) == 2 * before


@pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
@pytest.mark.parametrize("factor", [1.0, 1.01], ids=["right", "wrong"])
def test_a_derivative_whose_rounding_does_not_matter_is_not_computed_twice(factor: float, fast: bool) -> None:
    """A right one is held against differences in double precision; a wrong one is computed in both."""
    pulled = set()

    class Halving(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, g):
            pulled.add(g.dtype)
            return factor * g / 2

    x = torch.linspace(-1, 1, 6).requires_grad_()
    assert bool(covector.check(Halving.apply, x, fast_mode=fast)) is (factor == 1.0)
    assert pulled == ({torch.float32} if factor == 1.0 else {torch.float32, torch.float64})


@pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
def test_small_outputs_are_the_same_in_double_precision_too(fast: bool) -> None:
    """A branch for float32 that only small outputs take is seen beside a large one."""

    def function(x):
        if x.dtype is torch.float64:
            return torch.cat([1e7 * x[:1], x])
        return torch.cat([1e7 * x[:1], 2 * x.detach() + (x - x.detach())])  # twice as steep as it says

    x = torch.linspace(0.25, 1, 6).requires_grad_()
    report = covector.check(function, x, fast_mode=fast)
    assert report.outcome == "failed"


@pytest.mark.parametrize("size", [120, 300])
@pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
def test_the_rounding_of_large_entries_hides_no_small_ones(fast: bool, size: int) -> None:
    """Entries of 1e4 are rounded by 1e-3; beside them, one of 1e-2 that is zero in float32 is wrong."""

    def layer(factor: float):
        class Scaled(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return torch.cat([1e4 * x[:-2], 1e-2 * x[-2:].sin()])

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                small = 1e-2 * x[-2:].cos() * (factor if x.dtype is torch.float32 else 1.0)
                return torch.cat([1e4 * g[:-2], g[-2:] * small])

        return Scaled.apply

    x = normal(size).requires_grad_()
    assert covector.check(layer(1.0), x, fast_mode=fast)
    assert covector.check(layer(0.0), x, fast_mode=fast).outcome == "failed"


def test_forward_mode_of_many_numbers_in_low_precision() -> None:
    """Its rounding is measured with as many cotangents as it was compared along."""
    x = normal(129, dtype=torch.bfloat16).requires_grad_()
    assert covector.check(torch.sin, x, check_forward_ad=True)
