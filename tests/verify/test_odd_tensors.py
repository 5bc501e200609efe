"""Tensors and surroundings that are not the usual ones, and the right verdict all the same."""

import threading
import warnings

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector
from covector._chart import Chart
from covector.errors import PrecisionWarning
from covector.verify.finding import Outcome

each_mode = pytest.mark.parametrize("fast_mode", [False, True])


def point(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_()


class NegatedGradient(Function):
    """A gradient whose sign is a bit of the tensor, not of its numbers."""

    @staticmethod
    def forward(ctx, x):
        return -x

    @staticmethod
    def backward(ctx, cotangent):
        return torch.complex(cotangent, cotangent).conj().imag


@each_mode
@pytest.mark.parametrize("size", [3, 120])
def test_the_negative_bit(size, fast_mode):
    x = point(size)
    assert covector.gradcheck(NegatedGradient.apply, x, fast_mode=fast_mode)
    assert covector.gradcheck(lambda x: torch.complex(x, 2 * x).conj().imag, x, fast_mode=fast_mode)
    z = torch.complex(x.detach(), x.detach()).conj().imag.requires_grad_()
    assert z.is_neg()
    assert covector.gradcheck(lambda z: 2 * z, z, fast_mode=fast_mode, check_forward_ad=True)


@each_mode
@pytest.mark.parametrize("size", [5, 70, 300])
def test_an_empty_input_beside_others(size, fast_mode):
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    assert covector.gradcheck(lambda a, b: b.sin(), (empty, point(size)), fast_mode=fast_mode)
    assert covector.gradcheck(lambda a, b: (a.sum(), b.sin()), (empty, point(size)), fast_mode=fast_mode)


@each_mode
@pytest.mark.parametrize("size", [5, 125])
def test_an_empty_output_beside_others(size, fast_mode):
    function = lambda x: (x[:0].sin(), x.sin(), x[size:])
    assert covector.gradcheck(function, point(size), fast_mode=fast_mode)


@each_mode
@pytest.mark.parametrize("wrong", [False, True])
def test_a_backward_with_a_workspace(wrong, fast_mode):
    """It returns the same tensor every time, with other numbers in it."""
    workspace = torch.zeros(3, dtype=torch.float64)

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            cosine = ctx.saved_tensors[0].cos() + (0.1 if wrong else 0.0)
            return torch.mul(cotangent, cosine, out=workspace)

    verdict = covector.gradcheck(Sine.apply, point(3), fast_mode=fast_mode, raise_exception=False)
    assert verdict != wrong


@each_mode
@pytest.mark.parametrize("size", [29, 200])
def test_another_default_device(size, fast_mode):
    """New tensors of the caller's are made there, ours are not, and nothing of it is remembered."""
    devices = set()

    def function(x: Tensor) -> Tensor:
        devices.add(torch.empty(0).device.type)
        return x.sin()

    x = point(size)
    with torch.device("meta"):
        assert covector.gradcheck(function, x, fast_mode=fast_mode)
        assert covector.gradgradcheck(function, x, fast_mode=fast_mode)
        assert torch.get_default_device().type == "meta"
    assert devices == {"meta"}
    assert covector.gradcheck(torch.sin, x, fast_mode=fast_mode)


def test_threads_leave_the_warning_filters_alone():
    before = list(warnings.filters)
    verdicts = []

    def work(size: int) -> None:
        for _ in range(10):
            verdicts.append(covector.gradcheck(torch.sin, point(size)))

    threads = [threading.Thread(target=work, args=(size,)) for size in (3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 40
    assert list(warnings.filters) == before


@pytest.mark.parametrize("count", [1, 2])
def test_tensors_are_made_on_the_device_that_they_belong_to(count):
    """There is no second device with numbers here; the one without numbers shows where tensors go."""
    chart = Chart.of([torch.empty(2, 3, device="meta")] * count)
    tensors = chart.from_coords(torch.zeros(4, chart.size, dtype=torch.float64))
    assert [(t.device.type, t.dtype, tuple(t.shape)) for t in tensors] == [
        ("meta", torch.float32, (4, 2, 3))
    ] * count


def test_an_mkldnn_output_is_compared_as_any_other():
    x = torch.rand(2, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        report = covector.check(lambda x: x.to_mkldnn(), x)
    assert report.outcome is Outcome.PASSED
