"""The lower-level names of torch's checker give torch's numbers."""

import sys

import pytest
import torch

from covector import compat

theirs = sys.modules["torch.autograd.gradcheck"]  # the name in torch.autograd is the function

real = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
matrix = torch.tensor([[0.5, 0.2], [-0.1, 0.9]], dtype=torch.float64, requires_grad=True)
number = torch.tensor([0.3 + 0.4j, -0.7 + 0.1j], dtype=torch.complex128, requires_grad=True)

FUNCTIONS = [
    ("elementwise", lambda inputs: inputs[0] ** 2, (real,)),
    ("scalar", lambda inputs: inputs[0].prod(), (real,)),
    ("two inputs", lambda inputs: inputs[0] @ inputs[1], (matrix, matrix.detach().clone().requires_grad_())),
    ("complex to real", lambda inputs: inputs[0].abs(), (number,)),
    ("not holomorphic", lambda inputs: (inputs[0] * inputs[0].conj() * inputs[0]).real, (number,)),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "function", "inputs"), FUNCTIONS, ids=[row[0] for row in FUNCTIONS])
def test_numerical_jacobian(name, function, inputs):
    """Values, shapes and dtypes as torch has them, and the input untouched."""
    before = [tensor.detach().clone() for tensor in inputs]
    got = compat.get_numerical_jacobian(function, inputs, eps=1e-6)
    expected = theirs.get_numerical_jacobian(function, inputs, eps=1e-6)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "function", "inputs"), FUNCTIONS, ids=[row[0] for row in FUNCTIONS])
def test_analytical_jacobian(name, function, inputs):
    """The four parts of the answer."""
    got = compat.get_analytical_jacobian(inputs, function(inputs))
    expected = theirs.get_analytical_jacobian(inputs, function(inputs))
    for a, b in zip(got[0], expected[0], strict=True):
        torch.testing.assert_close(a, b)
    assert got[1:] == expected[1:] == (True, True, True)


def test_numerical_jacobian_of_one_input():
    """By one input, of all outputs; a function may close over the input."""
    other = matrix.detach().clone().requires_grad_()
    outputs = [matrix @ other]
    got = compat.get_numerical_jacobian_wrt_specific_input(torch.mm, 1, (matrix, other), outputs, 1e-6)
    expected = theirs.get_numerical_jacobian_wrt_specific_input(torch.mm, 1, (matrix, other), outputs, 1e-6)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-7, atol=1e-7)
    closed = compat.get_numerical_jacobian_wrt_specific_input(
        lambda *_: matrix @ other, 1, (matrix, other), outputs, 1e-6
    )
    torch.testing.assert_close(closed[0], got[0])


def test_wrong_calls():
    with pytest.raises(ValueError, match=r"grad_out must be 1.0, got 2.0"):
        compat.get_numerical_jacobian(FUNCTIONS[0][1], (real,), grad_out=2.0)
    with pytest.raises(ValueError, match=r"grad_out must be 1.0"):
        compat.get_analytical_jacobian((real,), real**2, grad_out=2.0)
    with pytest.raises(ValueError, match=r"pass output.real or output.imag"):
        compat.get_analytical_jacobian((number,), number**2)
    with pytest.raises(ValueError, match=r"return its .real or .imag"):
        compat.get_numerical_jacobian(lambda inputs: inputs[0] ** 2, (number,))
    with pytest.raises(ValueError, match="nothing to difference"):
        compat.get_numerical_jacobian(lambda _: None, (real,))
