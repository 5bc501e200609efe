"""The Taylor remainder: its order says whether a derivative is right, without a step."""

import json
from functools import partial

import pytest
import torch
from torch.autograd.function import once_differentiable

import covector
import drawn
from covector.verify.finding import Outcome

D = torch.float64
randn = partial(drawn.randn, dtype=D, seed=3)


def uniform(*shape, size=1.0, start=0.0):
    numbers = torch.rand(shape, dtype=D, generator=torch.Generator().manual_seed(3))
    return (start + size * numbers).requires_grad_()


def sine(factor=1.0, second=1.0):
    """A sine whose derivatives are multiplied by these numbers."""

    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return factor * x.cos()

        @staticmethod
        def backward(ctx, g):
            return -g * factor * second * ctx.saved_tensors[0].sin()

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * Slope.apply(ctx.saved_tensors[0])

    return Sine.apply


class Root(torch.autograd.Function):
    """A cube root by bisection to 1e-7: in steps, with the derivative of what it approximates."""

    @staticmethod
    def forward(ctx, x):
        low, high = torch.zeros_like(x), torch.full_like(x, 10.0)
        for _ in range(27):
            middle = (low + high) / 2
            low, high = torch.where(middle**3 < x, middle, low), torch.where(middle**3 < x, high, middle)
        ctx.save_for_backward(middle)
        return middle

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (3 * y * y)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def found(report):
    return next(finding for finding in report.findings if finding.check == "Taylor remainder")


RIGHT = {
    "sine": (torch.sin, randn(5)),
    "linear, all remainders are noise": (lambda x: 3 * x, randn(4)),
    "quadratic, the second remainder is noise": (lambda x: x * x, randn(4)),
    "at zero": (torch.cos, torch.zeros(4, dtype=D, requires_grad=True)),
    "zero at zero": (lambda x: x.clone(), torch.zeros(4, dtype=D, requires_grad=True)),
    "in steps elsewhere": (lambda x: torch.round(x, decimals=3), randn(20)),
    "a constant of single precision": (torch.nn.functional.hardsigmoid, randn(5)),
    "small numbers": (torch.log, uniform(5, size=1e-7)),
    "large numbers": (torch.sin, uniform(5, size=1e7)),
    "two scales": (lambda x, y: x.log() * y, (uniform(5, size=1e-6), uniform(5, size=1e3))),
    "kinks elsewhere": (lambda x: torch.relu(x) ** 2 + x.abs(), randn(40)),
    "complex": (
        lambda z: (z * z.conj()).real * z,
        torch.randn(4, dtype=torch.complex128, requires_grad=True),
    ),
    "by steps": (Root.apply, uniform(5, size=100, start=1)),
    "single precision alone": (lambda x: x.float().sin(), randn(50, dtype=torch.float32)),
    "bfloat16": (torch.sin, randn(9, dtype=torch.bfloat16)),
    "singular values": (torch.linalg.svdvals, randn(5, 4)),
    "no numbers": (torch.sin, randn(0)),
    "constant": (lambda x: 0 * x, randn(3)),
}


@pytest.mark.filterwarnings("ignore::covector.errors.PrecisionWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_derivative_falls_with_order_two_and_three(name):
    """Also for functions that are noisy, large, small, complex, of few digits, or linear."""
    report = covector.check(*RIGHT[name], taylor=True)
    assert report.outcome is Outcome.PASSED, report
    assert "second derivative" in found(report).summary


@pytest.mark.parametrize("factor", [-1.0, 1.1, 1 + 1e-4, 1 + 1e-6])
def test_a_wrong_derivative_falls_with_order_one(factor):
    """Down to errors that the tolerance of a difference lets pass."""
    report = covector.check(sine(factor), randn(5), taylor=True)
    assert found(report).outcome is Outcome.FAILED
    table = report.tables[0]
    assert table.rows[-1][0] == "order"
    assert abs(table.rows[-1][1] - 1) < 0.1


def test_one_wrong_entry_among_many_shows():
    """In a random direction every entry has a share."""

    class Almost(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            out = g * ctx.saved_tensors[0].exp()
            out[137] *= 1.01
            return out

    assert found(covector.check(Almost.apply, randn(2000), taylor=True)).outcome is Outcome.FAILED


def test_a_wrong_second_derivative_falls_with_order_two():
    """The first derivative is right, so nothing else sees it."""
    report = covector.check(sine(second=0.5), randn(5), taylor=True)
    assert {f.check for f in report.findings if f.outcome is Outcome.FAILED} == {"Taylor remainder"}
    assert abs(report.tables[0].rows[-1][2] - 2) < 0.1


def test_a_backward_that_can_be_run_once_has_no_second_derivative():
    """That is said, and is no failure."""
    report = covector.check(Once.apply, randn(5), taylor=True)
    assert report, report
    assert "once_differentiable" in found(report).summary


def test_at_a_kink_no_derivative_is_right():
    """Which is said as that; kinks="pass" takes what lies between the slopes."""
    x = torch.zeros(1, dtype=D, requires_grad=True)
    report = covector.check(torch.relu, x, taylor=True)
    assert found(report).outcome is Outcome.FAILED
    assert "not differentiable" in found(report).summary
    assert covector.check(torch.relu, x, taylor=True, kinks="pass")


@pytest.mark.parametrize(("power", "order"), [(1.5, 1), (2.5, 2)])
def test_a_function_that_is_not_smooth_enough_is_not_accused(power, order):
    """Its derivative is right, but the remainder falls with an order between those of right and wrong."""
    x = torch.zeros(4, dtype=D, requires_grad=True)
    report = covector.check(lambda x: x.abs() ** power, x, taylor=True)
    assert found(report).outcome is Outcome.INCONCLUSIVE, report
    assert abs(report.tables[0].rows[-1][order] - power) < 0.1


def test_forward_mode_is_measured_where_it_is_checked():
    """A jvp that is wrong, beside a backward that is right."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

        @staticmethod
        def jvp(ctx, t):
            return 1.5 * t * ctx.saved_tensors[0].cos()

    report = covector.check(Sine.apply, randn(5), taylor=True, check_forward_ad=True)
    outcomes = {f.check: f.outcome for f in report.findings}
    assert outcomes["Taylor remainder"] is Outcome.PASSED
    assert outcomes["Taylor remainder, forward mode"] is Outcome.FAILED


def test_it_is_in_text_data_and_page(tmp_path):
    """The ladder, the order and the noise floor; and the Jacobians are still on the page."""
    report = covector.check(torch.sin, randn(5), taylor=True)
    assert "falls with order 2.0" in str(report)
    assert "noise floor" in str(report)
    assert json.loads(report.to_json())["tables"][0]["title"] == "Taylor remainder"
    report.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Taylor remainder" in page
    assert "Jacobians" in page
    failed = covector.check(sine(2.0), randn(5), taylor=True)
    assert "taylor=True" in failed.reproduce


def test_a_function_that_raises_away_from_the_point_has_a_shorter_ladder():
    """Steps outside of the domain are left out."""
    x = randn(3)
    there = x.detach().clone()

    def only_here(x):
        if not torch.allclose(x.detach(), there, rtol=0, atol=3e-6):
            raise ValueError("outside")
        return x.sin()

    report = covector.check(only_here, x, taylor=True)
    assert found(report).outcome is Outcome.PASSED, report


def test_a_function_that_is_all_noise_is_not_passed():
    """The derivative is right, and nobody could see it."""
    noise = 10 * torch.randn(4096, dtype=D, generator=torch.Generator().manual_seed(5))

    def rough(x):
        index = (x.detach() * 1e13).long().remainder(4096)
        return x + noise[index]

    assert found(covector.check(rough, randn(3), taylor=True)).outcome is not Outcome.PASSED


@pytest.mark.parametrize("value", [0.0, 1e4, 1e6])
def test_a_kink_at_the_point_of_a_large_function(value):
    """Noise ends the ladder early, and what is left of it shows two slopes."""
    x = torch.tensor([0.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert covector.check(lambda x: x.abs() + value, x, kinks="pass", taylor=True)
    assert covector.check(lambda x: x.abs() + value, x, taylor=True).outcome == "failed"


NEAR_KINKS = torch.cat([torch.linspace(1e-9, 1e-6, 50), torch.linspace(-2, 2, 450)]).double()


@pytest.mark.parametrize(
    ("function", "point"),
    [
        (lambda x: torch.cat([(x[:1] * 1e9).sin(), x[1:].sin()]), torch.tensor([3e-10, 1.0, 2.0]).double()),
        (torch.relu, NEAR_KINKS),
    ],
    ids=["a short wave", "many kinks beside the point"],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_lies_within_the_steps_is_no_mistake(function, point, seed):
    """Differences find the derivative right with shorter steps, so a low order says nothing about it."""
    report = covector.check(function, point.clone().requires_grad_(), taylor=True, seed=seed)
    assert report.outcome in ("passed", "inconclusive")
