"""Reports: what people read, word for word, and what machines read."""

import json

import pytest
import torch

import covector
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
  1 of 9 entries differ.
  The analytic value is -0.667 x the numeric one there.
how: every one of 3 x 3 entries, step 1e-06; 51 evaluations""",
    ),
    "right": (
        lambda: covector.check(torch.sin, x),
        """\
check(sin): PASSED
checks: reverse mode, gradient kind, determinism, linearity, undefined cotangents
how: every one of 3 x 3 entries, step 1e-06; 2 evaluations""",
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
how: every one of 1 x 1 entries, step 1e-06; 49 evaluations""",
    ),
    "random": (
        lambda: covector.check(drawn, x),
        """\
check(drawn): FAILED
purity: FAILED: the function draws random numbers: output[0] differs between two runs on the same input
  Draw the numbers outside and pass them in, or seed the generator inside the function.
""",
    ),
    "mutation": (
        lambda: covector.check(nudged, x),
        """\
check(nudged): FAILED
purity: FAILED: the function changes its input x in place
  A derivative is taken at a point; let the function work on a copy.
how: every one of 3 x 3 entries, step 1e-06; 1 evaluations""",
    ),
    "unsupported": (
        lambda: covector.check(lambda x: Cube.apply(x.abs()), x, check_forward_ad=True),
        """\
check(<lambda>): UNSUPPORTED
forward mode: UNSUPPORTED: torch has no forward-mode rule for Cube
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
    """No line of these is wider than a hundred columns or so."""
    for name, (act, _) in SNAPSHOTS.items():
        assert max(map(len, str(act()).splitlines())) <= 105, name


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
    assert data["evaluations"]["evaluations"] > 0
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
