"""Functions that look at their own graph: they have to be recorded also where only values are asked for."""

import pytest
import torch
from torch import Tensor

import covector

X = torch.tensor([0.3, -0.7, 1.2, 0.5], dtype=torch.float64, requires_grad=True)


def gradient(x: Tensor) -> Tensor:
    return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]


def half_a_gradient(x: Tensor) -> Tensor:
    """Without the graph of the gradient, its own derivative is missing."""
    return torch.autograd.grad((x**3).sum(), x)[0] * x


def hooked(x: Tensor) -> Tensor:
    y = 2 * x
    y.retain_grad()
    y.register_hook(lambda cotangent: cotangent)
    return y.sin()


def wrongly_hooked(x: Tensor) -> Tensor:
    y = 2 * x
    y.register_hook(lambda cotangent: 1.1 * cotangent)
    return y.sin()


def insists(x: Tensor) -> Tensor:
    assert x.requires_grad
    return x.exp()


def other_without_a_graph(x: Tensor) -> Tensor:
    return x.sin() if x.requires_grad else x.cos()


def other_without_grad_mode(x: Tensor) -> Tensor:
    return x.sin() if torch.is_grad_enabled() else x.cos()


RIGHT = (gradient, hooked, insists, other_without_a_graph, other_without_grad_mode)
WRONG = (half_a_gradient, wrongly_hooked)


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("function", RIGHT + WRONG, ids=lambda f: f.__name__)
def test_the_verdict_is_torchs(function, fast_mode):
    expected = torch.autograd.gradcheck(function, X, raise_exception=False)
    assert expected == (function in RIGHT)
    assert covector.gradcheck(function, X, fast_mode=fast_mode, raise_exception=False) == expected
    assert bool(covector.check(function, X, fast_mode=fast_mode)) == expected


def test_second_derivatives():
    assert covector.gradgradcheck(gradient, X)


def test_an_error_of_the_functions_own_is_raised():
    def refuses(x: Tensor) -> Tensor:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        covector.gradcheck(refuses, X)


def test_a_backward_may_return_tensors_with_a_graph():
    """As one does that recomputes under `enable_grad`; a wrong one is pulled back row by row."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, factor):
            ctx.save_for_backward(x, y)
            ctx.factor = factor
            return x * y

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                x, y = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
                return grad * y, ctx.factor * grad * x, None

    y = X.detach().flip(0).requires_grad_()
    assert covector.check(lambda x, y: Product.apply(x, y, 1.0), (X, y))
    report = covector.check(lambda x, y: Product.apply(x, y, 2.0), (X, y))
    assert report.worst.diagnoses[0].rule == "factor"
