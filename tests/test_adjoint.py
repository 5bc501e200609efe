"""`check_adjoint`: adjoint pairs, and pairs that are not, in several precisions."""

import pytest
import torch

import covector
from covector.errors import ArgumentTypeError
from covector.verify.finding import Outcome


def randn(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_matrix_and_its_transpose(dtype):
    """And one entry of it wrong, where the precision can tell."""
    m = randn(30, 20, dtype=dtype)
    x, y = torch.ones(20, dtype=dtype), torch.ones(30, dtype=dtype)
    assert covector.check_adjoint(lambda x: m @ x, lambda y: m.T @ y, x, y)
    wrong = m.clone()
    wrong[3, 4] += 8
    report = covector.check_adjoint(lambda x: m @ x, lambda y: wrong.T @ y, x, y)
    assert (report.outcome is Outcome.FAILED) == (dtype is not torch.bfloat16)


def test_a_convolution_with_trees():
    """Vectors may be trees; the row of each pair is in the report."""
    w = randn(2, 3, 3, 3)

    def forward(tree):
        return torch.nn.functional.conv2d(tree["x"], w, padding=1)

    def adjoint(y):
        return {"x": torch.nn.functional.conv_transpose2d(y, w, padding=1)}

    report = covector.check_adjoint(forward, adjoint, {"x": randn(1, 3, 6, 5)}, randn(1, 2, 6, 5))
    assert report, report
    assert len(report.tables[0].rows) == 6


WRONG = {
    "factor": (lambda m: 2 * m.mH, "<A x, y> is 0.5 x <x, At y> in size."),
    "not conjugated": (lambda m: m.T, "At is the transpose, and should be conjugated too."),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name):
    """A factor, a conjugate."""
    make, text = WRONG[name]
    m = torch.complex(randn(6, 6), randn(6, 6).T.contiguous())
    m = m if name == "factor" else torch.complex(randn(6, 6), 2 * randn(6, 6).flip(0))
    x = torch.ones(6, dtype=torch.complex128)
    y = x if name == "factor" else x.clone()
    report = covector.check_adjoint(lambda x: m @ x, lambda y: make(m) @ y, x, y)
    assert report.outcome is Outcome.FAILED
    assert name != "factor" or report.findings[0].advice == text


def test_operators_that_are_not_linear():
    """A constant, which the identity alone may miss."""
    report = covector.check_adjoint(lambda x: x * x.abs(), lambda y: y * y.abs(), randn(5), randn(5))
    assert report.outcome is Outcome.FAILED


def test_shapes_and_zero():
    """A result of another size; an operator that is zero."""
    report = covector.check_adjoint(lambda x: x[:3], lambda y: y, randn(5), randn(5))
    assert report.findings[0].summary == "A(x) has [3] numbers, expected [5]"
    report = covector.check_adjoint(lambda x: 0 * x, lambda y: 0 * y, randn(5), randn(5))
    assert report.outcome is Outcome.INCONCLUSIVE


def test_calls_that_make_no_sense():
    """Are refused."""
    with pytest.raises(ArgumentTypeError, match="the adjoint must be a function"):
        covector.check_adjoint(torch.sin, None, randn(2), randn(2))
    with pytest.raises(ArgumentTypeError, match="x holds no floating-point tensor"):
        covector.check_adjoint(torch.sin, torch.sin, torch.arange(2), randn(2))


@pytest.mark.parametrize("size", [8, 256])
def test_a_factor_shows_in_low_precision(size):
    """Random vectors are nearly orthogonal; a vector and its image are not."""
    matrix = randn(size, size).to(torch.bfloat16)
    x, y = (randn(size).to(torch.bfloat16) for _ in range(2))
    assert covector.check_adjoint(lambda x: matrix @ x, lambda y: matrix.T @ y, x, y)
    assert not covector.check_adjoint(lambda x: matrix @ x, lambda y: 1.25 * (matrix.T @ y), x, y)
