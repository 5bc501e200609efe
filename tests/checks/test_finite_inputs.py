"""Inputs that are not finite, and inputs or outputs that hold nothing: what the report says of them."""

import math

import pytest
import torch

import covector
from covector.verify.finding import NOTHING, Outcome


def point(*numbers):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


class Halved(torch.autograd.Function):
    """The square, with half of its derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


def halved(x):
    return Halved.apply(x)


def _caught(door, *arguments, **options):
    with pytest.raises(covector.GradcheckError) as caught:
        door(*arguments, **options)
    return caught.value.report


INSIDE = torch.tensor([math.nan, 1.0], dtype=torch.float64)

# The call, and the places that its report names.
NOT_FINITE = {
    "NaN": (lambda: covector.check(torch.sin, point(1.0, math.nan)), "arg0[1] is nan"),
    "forward mode": (
        lambda: covector.check(torch.exp, point(math.inf), check_forward_ad=True, check_backward_ad=False),
        "arg0[0] is inf",
    ),
    "infinity": (lambda: covector.check(torch.square, point(-math.inf, 1.0)), "arg0[0] is -inf"),
    "an input without grad": (lambda: covector.check(torch.mul, (point(1.0, 2.0), INSIDE)), "arg1[0] is nan"),
    "of a module": (
        lambda: covector.check(torch.nn.Linear(2, 1).double(), INSIDE[None]),
        "input[0, 0] is nan",
    ),
    "by name": (lambda: covector.check(torch.mul, (point(1.0, 2.0),), {"other": INSIDE}), "other[0] is nan"),
    "gradcheck": (lambda: _caught(covector.gradcheck, torch.sin, point(math.nan)), "arg0[0] is nan"),
    "fast": (
        lambda: _caught(covector.gradcheck, torch.sin, point(math.nan), fast_mode=True),
        "arg0[0] is nan",
    ),
    "second order": (lambda: _caught(covector.gradgradcheck, torch.sin, point(math.nan)), "arg0[0] is nan"),
    "complex": (
        lambda: covector.check(torch.sin, torch.tensor([complex(math.nan, 1)]).requires_grad_()),
        "arg0[0].real is nan",
    ),
    "sparse": (
        lambda: covector.check(
            torch.Tensor.to_dense, point(1.0, math.nan).detach().to_sparse().requires_grad_()
        ),
        "arg0[1] is nan",
    ),
    "many": (
        lambda: covector.check(torch.sin, point(*[math.nan] * 10)),
        ", ".join(f"arg0[{i}] is nan" for i in range(8)) + ", and 2 more",
    ),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_an_input_that_is_not_finite_is_the_first_thing_said(name):
    """In place of entries that only follow from it; a right function is not accused there."""
    call, places = NOT_FINITE[name]
    report = call()
    assert report.outcome is Outcome.INCONCLUSIVE
    assert report.findings[0].summary == f"not every input is finite: {places}"
    assert report.findings[0].advice.endswith("pass finite numbers there.")
    assert [f.check for f in report.findings if f.outcome is not Outcome.PASSED] == ["inputs"]


def test_what_is_wrong_beside_it_is_found():
    """Entries by the other numbers are judged as ever, and those by this one are not counted."""
    report = covector.check(halved, point(1.0, -math.inf, 2.0))
    assert [found.check for found in report.findings[:2]] == ["inputs", "reverse mode"]
    assert report.outcome is Outcome.FAILED
    found = report.findings[1]
    assert [str(m.entry) for m in found.mismatches] == ["d output[2] / d x[2]", "d output[0] / d x[0]"]
    assert found.count == 2


def masked(x, mask):
    return halved((x + mask).softmax(-1))


def test_a_mask_that_is_infinite_is_no_finding():
    """It is meant: what is wrong is said, and nothing of the mask; if nothing is wrong, nothing is said."""
    mask = torch.tensor([0.0, -math.inf, 0.0], dtype=torch.float64)
    report = covector.check(masked, (point(1.0, 2.0, 3.0), mask))
    assert report.outcome is Outcome.FAILED
    assert "inputs" not in [found.check for found in report.findings]
    assert covector.check(lambda x, mask: (x + mask).softmax(-1), (point(1.0, 2.0, 3.0), mask))


def test_a_function_that_takes_what_is_not_finite_passes():
    """As in torch."""
    x = point(1.0, math.nan)
    assert torch.autograd.gradcheck(torch.nan_to_num, x)
    assert covector.gradcheck(torch.nan_to_num, x)


# Checks of nothing; torch passes them all.
EMPTY = {
    "an empty input": (torch.sin, point()),
    "an empty sum": (torch.sum, point()),
    "an empty output": (lambda x: x[:0], point(1.0)),
    "integers": (lambda x: x.long(), point(1.5)),
    "no output": (lambda x: (), point(1.0)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_check_of_nothing_says_so(name):
    """It passes, as in torch, and the report says that nothing was compared: once."""
    function, x = EMPTY[name]
    assert torch.autograd.gradcheck(function, x)
    assert covector.gradcheck(function, x)
    report = covector.check(function, x, check_forward_ad=True)
    assert report
    assert str(report).replace("\n    ", " ").count(f"remark: {NOTHING}") == 1


def test_a_check_of_something_says_no_such_thing():
    """One output of two is empty."""
    assert NOTHING not in str(covector.check(lambda x: (x[:0], 2 * x), point(1.0)))


def test_a_stop_gradient_that_is_meant_names_the_call_that_takes_it():
    """The doors of torch have no keyword for it."""
    report = _caught(covector.gradcheck, lambda x: x - x.mean().detach(), point(1.0, 2.0))
    assert '`stop_gradients="constant"`' in str(report)
