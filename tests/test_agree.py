"""`agree`: the derivatives of one function by several ways, against each other."""

import json

import pytest
import torch

import covector
from covector.agreement import MODES
from covector.errors import ArgumentTypeError, ArgumentValueError
from covector.verify.finding import Outcome
from drawn import randn

QUICK = ("eager", "reverse", "forward", "vmapped")


def status(report):
    return {row[0]: row[1] for row in report.tables[0].rows}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_mode_of_a_plain_function_agrees(dtype):
    """And every one of them was run."""
    report = covector.agree(lambda x: x.softmax(-1), randn(6, 20, dtype=dtype))
    assert report, report
    assert status(report) == dict.fromkeys(MODES, "passed")


RIGHT = {
    "a long sum, in another order": (lambda x, w: x @ w, (randn(9, 400), randn(400, 7, seed=1))),
    "a module, by its parameters": (torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU()), randn(3, 5)),
    "complex": (lambda z: (z * z).abs() + z.real, torch.randn(6, dtype=torch.complex64, requires_grad=True)),
    "several outputs, one of them a mask": (lambda x: {"y": x.sin(), "mask": x > 0}, randn(6)),
    "a convolution": (torch.nn.functional.conv2d, (randn(2, 3, 9, 9), randn(4, 3, 3, 3, seed=1))),
    "half precision": (lambda x: x.cumsum(0).sigmoid(), randn(30, dtype=torch.float16)),
    "singular values": (torch.linalg.svdvals, randn(6, 4)),
    "an integer beside it": (lambda x, n: x**n, (randn(5), 3)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_rounded_differently_agrees(name):
    """The noise is measured, not guessed."""
    report = covector.agree(*RIGHT[name], modes=QUICK)
    assert report, report
    assert "unsupported" not in status(report).values()


def sine(factor):
    """A sine whose jvp is multiplied by a factor."""

    class Sine(torch.autograd.Function):
        generate_vmap_rule = True

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
            return factor * t * ctx.saved_tensors[0].cos()

    return Sine.apply


def no_grad_inside(x):
    with torch.no_grad():
        scale = x * x
    return x * scale


class Straight(torch.autograd.Function):
    """Rounds, and passes the gradient through: a program without its backward has another derivative."""

    @staticmethod
    def forward(ctx, x):
        return x.round() + x.sin()

    @staticmethod
    def backward(ctx, g):
        return g


WRONG = {
    "a jvp that is off by a thousandth": (sine(1.001), "forward"),
    "no_grad, which forward mode does not see": (no_grad_inside, "forward"),
    "a backward that an exported program lacks": (Straight.apply, "exported"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mode_that_is_wrong_is_named(name):
    """The others agree, or are not supported."""
    function, mode = WRONG[name]
    report = covector.agree(function, randn(6), modes=("eager", "reverse", mode))
    assert {f.check for f in report.findings if f.outcome is Outcome.FAILED} == {mode}, report


def weighted(rule):
    """x^2 w, with a rule for vmap: it takes the Function, and both inputs with the batch in front."""

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(x, w):
            return x * x * w

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return 2 * g * x * w, g * x * x

        @staticmethod
        def vmap(info, in_dims, *inputs):
            front = [
                t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
                for t, d in zip(inputs, in_dims, strict=True)
            ]
            return rule(Weighted.apply, front, inputs, in_dims), 0

    return Weighted.apply


def in_front_assumed(apply, front, inputs, in_dims):
    return apply(*(t if d is not None else f for t, d, f in zip(inputs, in_dims, front, strict=True)))


def always_batched(apply, front, inputs, in_dims):
    return apply(front[0], front[1] if in_dims[1] is not None else front[1] + 1)


RULES = {
    "right": lambda apply, front, *_: apply(*front),
    "the values alone": lambda apply, front, *_: apply(front[0], front[1] * 1.01),
    "the first point for all": lambda apply, front, *_: apply(front[0], front[1][:1].expand_as(front[1])),
    "points in another order": lambda apply, front, *_: apply(front[0], front[1].flip(0)),
    "detached": lambda apply, front, *_: apply(front[0].detach(), front[1]),
    "another gradient": lambda apply, front, *_: front[0].detach() * front[0] * front[1],
    "in front assumed": in_front_assumed,
    "batched assumed": always_batched,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_for_vmap_is_asked_in_every_way(rule):
    """Values, the gradient of a batch, a batch of gradients; a batch in front, at the end, in one input."""
    function, inputs = weighted(RULES[rule]), (randn(2, 2), randn(2, 2, seed=1))
    report = covector.agree(function, inputs, modes=["vmapped"])
    assert (report.outcome is Outcome.PASSED) == (rule == "right"), report
    report = covector.check_kernel(function, lambda x, w: x * x * w, inputs, lenses=["modes"])
    seen = {row[1]: row[3] for row in report.tables[1].rows}
    assert seen["torch.vmap"] == ("passed" if rule == "right" else "failed"), report


def test_a_batch_that_a_rule_refuses_is_named():
    """Beside what it takes: a shape that fits only where the batch is in front."""
    inputs = (randn(3, 5), randn(3, 5, seed=1))
    report = covector.agree(weighted(in_front_assumed), inputs, modes=["vmapped"])
    refused = [row[3] for row in report.tables[0].rows if row[1] == "unsupported"]
    assert len(refused) == 1
    assert "must match the size" in refused[0]
    assert "x batched at the end" in str(report)


def test_what_is_not_supported_is_named_and_is_no_failure():
    """A branch on the data cannot be batched."""

    def branch(x):
        return x.sin() if x.sum() > 0 else x.cos()

    report = covector.agree(branch, randn(6), modes=QUICK)
    assert report, report
    assert status(report)["vmapped"] == "unsupported"
    assert "vmapped" in str(report)


def test_nothing_compared_is_not_passed():
    """If the only mode that was asked for cannot be run."""
    report = covector.agree(lambda x: x * x.sum().item(), randn(6), modes=["vmapped"])
    assert report.outcome is Outcome.INCONCLUSIVE


def test_a_random_function_is_not_passed():
    """Its noise is as large as its values."""
    report = covector.agree(lambda x: x * torch.rand_like(x), randn(6), modes=["eager", "reverse"])
    assert report.outcome is not Outcome.PASSED


def test_a_function_that_raises_is_reported():
    """As what it is: there is nothing to compare with."""

    def fails(x):
        raise ValueError("no such thing")

    report = covector.agree(fails, randn(3))
    assert report.outcome is Outcome.FAILED
    assert "no such thing" in str(report)


def test_the_caller_s_tensors_stay_as_they_are(tmp_path):
    """And the report is data and a page like every other."""
    x = randn(4)
    before, state = x.detach().clone(), torch.get_rng_state()
    report = covector.agree(torch.sin, x, modes=QUICK)
    assert torch.equal(x, before)
    assert x.grad is None
    assert torch.equal(state, torch.get_rng_state())
    assert json.loads(report.to_json())["tables"][0]["title"] == "modes"
    report.to_html(tmp_path / "page.html")
    assert "vmapped" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_bad_calls_say_what_is_wrong():
    """Before anything is run."""
    with pytest.raises(ArgumentValueError, match="there is no mode 'jit'"):
        covector.agree(torch.sin, randn(3), modes=["jit"])
    with pytest.raises(ArgumentTypeError, match="modes must be names of modes, got 3"):
        covector.agree(torch.sin, randn(3), modes=3)
    with pytest.raises(ArgumentValueError, match="modes is empty"):
        covector.agree(torch.sin, randn(3), modes=())
    with pytest.raises(ArgumentValueError, match="no input requires grad"):
        covector.agree(torch.sin, torch.ones(3))
    with pytest.raises(ArgumentTypeError, match="must be a function"):
        covector.agree(randn(3), randn(3))
