"""Reports: what people read, word for word, and what machines read."""

import json
import re

import pytest
import torch

import covector
from covector.errors import CovectorError
from covector.verify.report import Outcome

x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


class Cube(torch.autograd.Function):
    """x^3, with a backward for squares where x is negative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0, 3 * x**2, 2 * x)


def cube(x):
    return Cube.apply(x)


def drawn(x):
    return x * torch.rand(3, dtype=x.dtype)


def nudged(x):
    x.data.add_(1)
    return x**2


def powers(state):
    return {"square": state["a"] ** 2, "spun": state["z"] * 1j}


SNAPSHOTS = {
    "wrong": (
        lambda: covector.check(cube, x),
        """\
check(cube): FAILED
reverse mode: FAILED: reverse mode disagrees with central differences
  d output[1] / d x[1]   analytic -2   numeric 3 +- 3e-10   error 5.0e+00 > allowed 3.0e-03
  At least 1 of 9 entries differ.
  The analytic value is -0.667 x the numeric one there.
how: every one of 3 x 3 entries, step 1e-06; 51 calls of the function""",
    ),
    "right": (
        lambda: covector.check(torch.sin, x),
        """\
check(sin): PASSED
checks: reverse mode, gradient kind, determinism, linearity, undefined cotangents
how: every one of 3 x 3 entries, step 1e-06; 2 calls of the function""",
    ),
    "kink": (
        lambda: covector.check(torch.relu, torch.zeros(1, dtype=torch.float64, requires_grad=True)),
        """\
check(relu): FAILED
reverse mode: FAILED: the function is not differentiable at this point
  d output[0] / d arg0[0]   analytic 0   numeric 0.5 +- 2e-15   error 5.0e-01 > allowed 5.1e-04
  not differentiable here; the analytic value lies between the one-sided slopes 0 and 1.
  1 of 1 entries differ.
  Move the inputs away from the kink, or pass kinks="pass".
how: every one of 1 x 1 entries, step 1e-06; 27 calls of the function""",
    ),
    "random": (
        lambda: covector.check(drawn, x),
        """\
check(drawn): FAILED
purity: FAILED: the function draws random numbers: output[0] differs between two runs on the same
    input
  Draw the numbers outside and pass them in, or seed the generator inside the function.
""",
    ),
    "mutation": (
        lambda: covector.check(nudged, x),
        """\
check(nudged): FAILED
purity: FAILED: the function changes its input x in place
  A derivative is taken at a point; let the function work on a copy.
how: every one of 3 x 3 entries, step 1e-06; 1 call of the function""",
    ),
    "unsupported": (
        lambda: covector.check(lambda x: Cube.apply(x.abs()), x, check_forward_ad=True),
        """\
check(<lambda>): UNSUPPORTED
forward mode: UNSUPPORTED: Cube defines no jvp, which forward mode needs; define it, or leave
    check_forward_ad out
""",
    ),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_text(name):
    """The report as people see it; where the number of evaluations may vary, up to there."""
    act, expected = SNAPSHOTS[name]
    text = str(act())
    assert text.startswith(expected) if expected.endswith("\n") else text == expected


def test_lines_fit_a_terminal():
    """No line of these is wider than a hundred columns."""
    for name, (act, _) in SNAPSHOTS.items():
        assert max(map(len, str(act()).splitlines())) <= 100, name


def test_paths_at_both_ends():
    """Trees of inputs and outputs, complex parts and indices are written as Python has them."""
    state = {
        "a": torch.ones(2, 2, dtype=torch.float64, requires_grad=True),
        "z": torch.ones(1, dtype=torch.complex128, requires_grad=True),
    }
    report = covector.check(powers, (state,))
    assert report
    assert report.inputs == ("state['a']", "state['z']")
    assert report.outputs == ("output['square']", "output['spun']")
    wrong = covector.check(lambda state: Cube.apply(-state["a"]) + state["z"].real, (state,))
    assert wrong.worst.mismatches[0].entry.output == "output[0, 0]"
    assert wrong.worst.mismatches[0].entry.input == "state['a'][0, 0]"


def test_data():
    """A report is true or false, a dict, and JSON that another program can read."""
    report = covector.check(cube, x)
    assert not report
    assert report.outcome is Outcome.FAILED
    data = json.loads(report.to_json())
    assert data == json.loads(json.dumps(report.to_dict()))
    assert data["outcome"] == "failed"
    assert data["function"] == "cube"
    assert data["seed"] == 0
    assert data["evaluations"] == 51
    assert "cause" not in data
    assert data["seconds"] > 0
    (found,) = [f for f in data["findings"] if f["outcome"] == "failed"]
    mismatch = found["mismatches"][0]
    assert mismatch["entry"] == {"output": "output[1]", "input": "x[1]"}
    assert mismatch["analytic"] == -2.0
    assert mismatch["error"] == pytest.approx(5.0)
    nan = covector.check(torch.log, -x.detach().requires_grad_())
    assert "NaN" not in nan.to_json()


def test_the_error_carries_the_report():
    """`GradcheckError` is a RuntimeError, its text is the report's."""
    with pytest.raises(RuntimeError) as caught:
        covector.gradcheck(cube, x)
    assert isinstance(caught.value, covector.GradcheckError)
    assert str(caught.value.report) == str(caught.value)
    assert covector.gradcheck(cube, x, raise_exception=False) is False
    assert covector.gradcheck(torch.sin, x) is True


def test_names_of_a_custom_function():
    """`apply` is called by its class, and its inputs as `forward` has them."""
    report = covector.check(Cube.apply, x)
    assert str(report).startswith("check(Cube.apply): FAILED")
    assert report.inputs == ("x",)


def test_names_in_second_order():
    """A gradient is called grad_x, a cotangent grad_output."""

    class Saved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            square = x**2
            ctx.save_for_backward(square)
            return square * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved_tensors[0]

    def saved(x):
        return Saved.apply(x)

    assert covector.gradcheck(saved, x)
    with pytest.raises(covector.GradcheckError, match=r"gradgradcheck\(saved\): FAILED") as caught:
        covector.gradgradcheck(saved, x)
    assert str(caught.value.report.worst.mismatches[0].entry) == "d grad_x[2] / d x[2]"


def test_a_backward_that_raises_is_reported_once_with_its_cause():
    """One finding with the class of the exception, which stays reachable with its traceback."""

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise KeyError("lost")

    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradcheck(Raises.apply, x)
    assert str(caught.value).count("KeyError") == 1
    assert isinstance(caught.value.__cause__, KeyError)


def test_code_written_for_torch_catches_the_error():
    """Torch's own class of the same name."""
    from torch.autograd.gradcheck import GradcheckError

    with pytest.raises(GradcheckError):
        covector.gradcheck(cube, x)


MISUSE = [
    (lambda: covector.gradcheck(cube(x), x), TypeError, "Write gradcheck(f, x), not gradcheck(f(x), x)."),
    (lambda: covector.check(torch.mul, x, x), TypeError, "kwargs must be a dict, got a tensor of shape (3,)"),
    (lambda: covector.check(cube, x, eps=0), ValueError, "eps must be positive and finite, got 0"),
    (lambda: covector.check(cube, x, eps=float("nan")), ValueError, "eps must be positive and finite"),
    (lambda: covector.check(cube, x, eps="1e-3"), TypeError, "eps must be a number, got '1e-3' (str)"),
    (lambda: covector.gradcheck(cube, x, atol=-1), ValueError, "atol must be zero or positive, got -1"),
    (lambda: covector.gradcheck(cube, x, rtol=-1), ValueError, "rtol must be zero or positive, got -1"),
    (lambda: covector.check(cube, x, max_entries=0), ValueError, "max_entries must be a positive int, got 0"),
    (lambda: covector.check(cube, x, probes=0), ValueError, "probes must be a positive int, got 0"),
    (lambda: covector.check(cube, x, seed="a"), TypeError, "seed must be an int, got 'a'"),
    (lambda: covector.check(cube, x, kinks="ok"), ValueError, "kinks must be 'fail' or 'pass', got 'ok'"),
    (
        lambda: covector.gradcheck(lambda x: x.sum().item(), x),
        TypeError,
        "must return tensors, got 1.5",
    ),
    (lambda: covector.gradcheck(lambda x: None, x), TypeError, "must return tensors, got None"),
    (
        lambda: covector.check(lambda a, b: a * b, (x, torch.arange(3)), argnums=1),
        TypeError,
        "select holds no floating-point or complex tensor",
    ),
    (lambda: covector.gradcheck(torch.sin, x.detach()), ValueError, "arg0 is torch.float64 without grad"),
]


@pytest.mark.parametrize(("act", "kind", "text"), MISUSE, ids=[row[2] for row in MISUSE])
def test_misuse(act, kind, text):
    """A wrong call is an error of the call, never a verdict."""
    with pytest.raises(kind, match=re.escape(text)) as caught:
        act()
    assert isinstance(caught.value, CovectorError)
