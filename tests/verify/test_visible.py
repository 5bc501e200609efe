"""What a passing report says of small errors and of kinks that it accepted."""

import re

import pytest
import torch

import covector
from mutants import ruled


def _off_in_one(error: float):
    def pulled(g, x):
        slope = x.exp()
        slope[0] += error
        return g * slope

    return ruled(torch.exp, pulled)


@pytest.mark.parametrize("error", [1e-6, 8e-6, 9.9e-4])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("size", [3, 40, 400])
def test_an_error_that_passed_is_no_larger_than_the_bound_in_the_report(size, fast, error):
    """Also of a single column that was found by halving, and judged by the entry rule."""
    x = torch.linspace(0, 1, size, dtype=torch.float64, requires_grad=True)
    report = covector.check(_off_in_one(error), x, fast_mode=fast)
    assert report
    (visible,) = map(float, re.findall(r"; none is off by more than ([^\s;,]+)", report.how))
    assert error <= 1.06 * visible  # which has two digits


def test_a_kink_that_passes_is_said():
    """Of it an error may be as large as the gap of the slopes."""
    x = torch.tensor([1.0, 0.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    report = covector.check(torch.relu, x, kinks="pass")
    assert report
    assert report.findings[0].summary == (
        "d output[1] / d arg0[1]: not differentiable here; the analytic value lies between the one-sided "
        "slopes 0 and 1; kinks='pass' accepts that, here and at other entries"
    )
    assert "remark: d output[1] / d arg0[1]: not" in " ".join(str(report).split())
    assert "; no other is off by more than " in report.how
