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
    """And one entry of it wrong."""
    m = randn(30, 20, dtype=dtype)
    x, y = torch.ones(20, dtype=dtype), torch.ones(30, dtype=dtype)
    assert covector.check_adjoint(lambda x: m @ x, lambda y: m.T @ y, x, y)
    wrong = m.clone()
    wrong[3, 4] += 8
    report = covector.check_adjoint(lambda x: m @ x, lambda y: wrong.T @ y, x, y)
    assert report.outcome is Outcome.FAILED


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 8, 200])
def test_a_fifth_shows_in_low_precision(size, dtype):
    """Random vectors are nearly orthogonal; a vector and its image are not."""
    matrix = randn(size, size + 3, dtype=dtype)
    x, y = randn(size + 3, dtype=dtype), randn(size, dtype=dtype)
    assert covector.check_adjoint(lambda x: matrix @ x, lambda y: matrix.T @ y, x, y)
    assert not covector.check_adjoint(lambda x: matrix @ x, lambda y: 1.2 * (matrix.T @ y), x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_whose_norms_are_larger_than_its_inner_products(dtype):
    """A running sum amplifies some directions alone: the aligned pair is one of these."""
    x = randn(150, dtype=dtype)

    def back(y):
        return y.flip(0).cumsum(0).flip(0)

    assert covector.check_adjoint(lambda x: x.cumsum(0), back, x, x.clone())
    assert not covector.check_adjoint(lambda x: x.cumsum(0), lambda y: 1.2 * back(y), x, x.clone())


def conditioned(condition, seed):
    """A matrix of a condition, in float32."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, 24, 24, generator=generator, dtype=torch.float64)
    left, right = torch.linalg.qr(drawn).Q
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), 24, dtype=torch.float64)
    return (left * values @ right).float()


@pytest.mark.parametrize("seed", range(4))
def test_a_solve_has_the_noise_of_its_condition(seed):
    """Which no norm of a vector tells; twenty per cent, and the wrong matrix, are found all the same."""
    m, x = conditioned(1e3, seed), randn(24, dtype=torch.float32)

    def forward(x):
        return torch.linalg.solve(m, x)

    def adjoint(y):
        return torch.linalg.solve(m.T, y)

    assert covector.check_adjoint(forward, adjoint, x, x.clone())
    assert not covector.check_adjoint(forward, lambda y: 1.2 * adjoint(y), x, x.clone())
    assert not covector.check_adjoint(forward, forward, x, x.clone())


def test_noise_that_hides_the_values_decides_nothing():
    """A matrix that float32 takes for singular: solves with it are noise."""
    m, x = conditioned(1e8, 0), randn(24, dtype=torch.float32)
    report = covector.check_adjoint(
        lambda x: torch.linalg.solve(m, x), lambda y: torch.linalg.solve(m.T, y), x, x.clone()
    )
    assert report.outcome is Outcome.INCONCLUSIVE
    assert "wider dtype" in str(report)
