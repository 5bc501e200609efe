"""Random numbers of a check: none that a caller draws with the same seed."""

import pytest
import torch
from torch.autograd import Function

import covector
from covector._random import seeded


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63])
def test_the_same_seed_gives_other_numbers(draw, dtype, seed):
    """Of the global generator as of any other; and the same ones each time."""
    torch.manual_seed(seed)
    theirs = draw(100, dtype=dtype)
    ours, again = (draw(100, dtype=dtype, generator=seeded(seed)) for _ in range(2))
    assert not bool((ours == theirs).any())
    assert torch.equal(ours, again)


class Unit(Function):
    """x / |x|."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm()

    @staticmethod
    def backward(ctx, g):
        return Projected.apply(ctx.saved_tensors[0], g)


def projected(x, g):
    y = x / x.norm()
    return (g - y * (y @ g)) / x.norm()


class Projected(Function):
    """The derivative of x / |x|; its own lacks a term that is zero where the cotangent is along x."""

    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return projected(x, g)

    @staticmethod
    def backward(ctx, h):
        with torch.enable_grad():
            x, g = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            by_x, by_g = torch.autograd.grad(projected(x, g), (x, g), h)
        return by_x + x.detach() * (projected(x, g).detach() @ h) / x.norm().detach() ** 2, by_g


def test_a_second_derivative_is_not_asked_along_the_inputs():
    """The inputs are the first numbers after torch.manual_seed, as in most tests."""
    torch.manual_seed(0)
    x = torch.randn(24, dtype=torch.float64, requires_grad=True)
    assert covector.gradcheck(Unit.apply, (x,))
    assert not covector.gradgradcheck(Unit.apply, (x,), raise_exception=False)
