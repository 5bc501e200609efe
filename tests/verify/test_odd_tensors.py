"""Tensors and surroundings that are not the usual ones, and the right verdict all the same."""

import threading
import warnings

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import covector
from covector._chart import Chart
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


mkldnn = torch.ones(2, 3).to_mkldnn().requires_grad_()
# name: function, input, keywords, what the text must hold.
REFUSED = {
    "mkldnn output": (
        lambda x: x.to_mkldnn(),
        torch.ones(2, 3, requires_grad=True),
        {},
        "an output is an mkldnn tensor, for which torch has no arithmetic; return its .to_dense().",
    ),
    "mkldnn input, forward": (
        lambda x: x.to_dense(),
        mkldnn,
        {"check_forward_ad": True, "check_backward_ad": False},
        "x is an mkldnn tensor, which takes no tangent; pass it as a strided one, or leave check_forward_ad",
    ),
}


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(("function", "x", "keywords", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_mkldnn_where_it_is_refused(function, x, keywords, text, asked, fast):
    """A ValueError in both, whether an exception was asked for or not."""
    for library in (torch.autograd, covector):
        with pytest.raises(ValueError, match=r"(?i)mkldnn") as caught:
            library.gradcheck(function, x, raise_exception=asked, fast_mode=fast, **keywords)
    assert text in str(caught.value)


def test_mkldnn_forward_over_reverse_is_refused():
    """By the keyword that asked for it."""
    with pytest.raises(ValueError, match="or leave check_fwd_over_rev out"):
        covector.gradgradcheck(lambda x: x.to_dense(), mkldnn, check_fwd_over_rev=True)


same = torch.ones(1, dtype=torch.float64).expand(3)
OVERLAPPING = {
    "strided": same,
    "coo": torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]]), same, (3,)),
    "csr": torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2]), same, (3, 3)),
}


@pytest.mark.parametrize("tensor", OVERLAPPING.values(), ids=OVERLAPPING.keys())
def test_numbers_that_share_memory_are_refused(tensor):
    """Those of a sparse tensor too; a RuntimeError in both."""
    for library in (torch.autograd, covector):
        with pytest.raises(RuntimeError, match="stride"):
            library.gradcheck(lambda x: x.to_dense() * 2, tensor.detach().requires_grad_(), masked=True)


def twice_in_place(x):
    return x.mul_(2)


def twice_in_data(x):
    x.data.mul_(2)
    return x * 3


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("function", [twice_in_place, twice_in_data])
def test_a_function_that_changes_an_input_that_is_no_leaf(function, fast):
    """In torch it may; the verdict is an answer, and the caller's tensor is as before."""
    leaf = torch.tensor([0.5, -1.5], dtype=torch.float64, requires_grad=True)
    for library in (torch.autograd, covector):
        x = leaf * 1
        assert library.gradcheck(function, x, raise_exception=False, fast_mode=fast) is False
    assert torch.equal(x, leaf)
    assert covector.gradgradcheck(function, x, raise_exception=False, fast_mode=fast) is False
    assert torch.equal(x, leaf)
    assert "changes its input x in place" in str(covector.check(function, x))


def test_a_function_that_works_in_place_on_a_copy():
    """Whether the input is a leaf or not."""
    leaf = torch.tensor([0.5, -1.5], dtype=torch.float64, requires_grad=True)
    assert covector.gradcheck(lambda x: x.clone().mul_(2), leaf)
    assert covector.gradcheck(lambda x: x.clone().mul_(2), leaf * 1)


def test_a_leaf_cannot_be_changed_in_place():
    """What the function raises at the point reaches the caller, as in torch."""
    leaf = torch.ones(2, dtype=torch.float64, requires_grad=True)
    for library in (torch.autograd, covector):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            library.gradcheck(twice_in_place, leaf, raise_exception=False)


def test_strides_that_are_too_short_are_refused() -> None:
    """Where torch finds a derivative wrong, since one number cannot be moved alone."""
    x = torch.arange(6, dtype=torch.float64).as_strided((4, 3), (1, 1)).requires_grad_()
    with pytest.raises(covector.errors.ArgumentValueError, match=r"share memory .* Pass its .contiguous\(\)"):
        covector.gradcheck(torch.sin, x)


def test_strides_that_cross_without_meeting() -> None:
    """No two elements of this one share memory, though neither stride is longer than the other axis."""
    x = torch.arange(12, dtype=torch.float64).as_strided((2, 3), (3, 2)).requires_grad_()
    assert covector.gradcheck(torch.sin, x)


def test_parameters_without_a_shape_are_named() -> None:
    """A lazy module is told apart before anything is made of its parameters."""
    module, x = torch.nn.LazyLinear(3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    with pytest.raises(covector.errors.ArgumentValueError, match="parameter weight has no shape yet"):
        covector.check(module, x)
    module(x)
    assert covector.check(module, x)


class AnswersEverything:
    """A function that has every attribute."""

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x

    def __getattr__(self, name: str) -> object:
        return lambda *operands: None


@each_mode
def test_a_function_may_have_every_attribute(fast_mode: bool) -> None:
    assert covector.gradcheck(AnswersEverything(), point(3), fast_mode=fast_mode)


def test_a_checkpoint_that_is_reentrant_is_unsupported() -> None:
    """Its derivative is right, and torch gives it to `backward` alone."""
    report = covector.check(lambda x: checkpoint(torch.sin, x, use_reentrant=True), point(3))
    assert report.outcome is Outcome.UNSUPPORTED
    assert "pass use_reentrant=False" in str(report)
