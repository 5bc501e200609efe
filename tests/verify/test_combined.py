"""Functions that look elementwise to the first look, and what must not hide there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector

N = 150


def given(forward: Callable[..., Tensor], backward: Callable[..., Tensor | tuple[Tensor, ...]]):
    """A function with this forward and this backward, which gets the cotangent and the inputs."""

    class Given(Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return backward(cotangent, *ctx.saved_tensors)

    return Given.apply


def point(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def one_off(values: Tensor, by: float) -> Tensor:
    values = values.clone()
    values.view(-1)[values.numel() // 3] += by
    return values


WRONG = {
    "lacks a small entry beside large ones": (
        given(lambda x: 1e4 * x.sin() + 1e-3 * x.roll(1), lambda v, x: 1e4 * v * x.cos()),
        (N,),
    ),
    "has an entry too many": (
        given(torch.sin, lambda v, x: v * x.cos() + 1e-3 * v.roll(1)),
        (N,),
    ),
    "lacks one entry": (
        given(
            lambda x: torch.cat([x[:1].exp() + 1e-3 * x[-1:], x[1:].exp()]),
            lambda v, x: v * x.exp(),
        ),
        (N,),
    ),
    "is transposed": (
        given(lambda x: x.sin() + x.roll(1), lambda v, x: v * x.cos() + v.roll(1)),
        (N,),
    ),
    "one entry is off": (
        given(torch.sin, lambda v, x: v * one_off(x.cos(), 1e-3)),
        (N,),
    ),
    "two entries of a column cancel in their sum": (
        given(
            lambda x: x.expand(N, N).sin(),
            lambda v, x: (v * x.cos()).sum(0) + 1e-3 * (v[0] - v[1]),
        ),
        (N,),
    ),
}

WRONG_PAIRS = {
    "a broadcast input is off by one row": given(
        lambda x, y: x.exp() * y,
        lambda v, x, y: ((v * x.exp() * y).sum(1, keepdim=True), (one_off(v, 1e-2) * x.exp()).sum(0)),
    ),
    "the gradients are exchanged": given(
        lambda x, y: x.exp() * y.exp().sum(),
        lambda v, x, y: ((v * y.exp()).sum(1, keepdim=True), (v * x.exp() * y.exp()).sum(0)),
    ),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong(name, fast):
    function, shape = WRONG[name]
    assert not covector.gradcheck(function, point(*shape), fast_mode=fast, raise_exception=False)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", WRONG_PAIRS)
def test_wrong_with_broadcasting(name, fast):
    inputs = (point(N, 1), point(N))
    assert not covector.gradcheck(WRONG_PAIRS[name], inputs, fast_mode=fast, raise_exception=False)


@pytest.mark.parametrize("fast", [False, True])
def test_a_missing_conjugate(fast):
    z = point(N, dtype=torch.complex128)
    right = given(lambda z: z * z, lambda v, z: 2 * v * z.conj())
    wrong = given(lambda z: z * z, lambda v, z: 2 * v * z)
    assert covector.gradcheck(right, z, fast_mode=fast)
    assert not covector.gradcheck(wrong, z, fast_mode=fast, raise_exception=False)


RIGHT = {
    "elementwise": (torch.sin, [(N,)]),
    "steep": (torch.tan, [(20, 20)]),
    "complex output": (lambda x: torch.polar(x.exp(), x), [(N,)]),
    "broadcast": (torch.atan2, [(12, 1, 7), (9, 1)]),
    "two outputs": (lambda x: (x.sin(), (x.cos(), x.exp())), [(N,)]),
    "a scalar beside a tensor": (torch.mul, [(), (N,)]),
    "not elementwise at all": (lambda x: x.softmax(0), [(N,)]),
    "not everywhere elementwise": (lambda x: x + x.roll(1).sin(), [(N,)]),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right(name, fast):
    function, shapes = RIGHT[name]
    assert covector.gradcheck(function, tuple(point(*shape) for shape in shapes), fast_mode=fast)


def calls_of(function, *shapes):
    report = covector.check(function, tuple(point(*shape) for shape in shapes))
    assert report
    return report.evaluations


def test_an_elementwise_function_takes_two_calls():
    """One records the graph, one takes all differences in a batch."""
    assert calls_of(torch.sin, (5_000,)) == 2
    assert calls_of(torch.hypot, (100, 1), (70,)) == 2


def test_in_a_loop_it_takes_two_for_each_input():
    def unbatchable(x: Tensor, y: Tensor) -> Tensor:
        assert x.sum().item() < 1e9
        return x * y

    # The graph, a batch that fails, and two differences.
    assert calls_of(unbatchable, (500,), (500,)) == 6
