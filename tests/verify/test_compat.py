"""The lower-level names of torch's checker give torch's numbers."""

import sys
import warnings

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


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_numerical_jacobian_of_a_function_that_differentiates():
    """Grad mode is the caller's, so that the function may use autograd itself."""

    def slope(inputs):
        return torch.autograd.grad((inputs[0] ** 3).sum(), inputs[0], create_graph=True)[0]

    got, expected = (library.get_numerical_jacobian(slope, (real,), eps=1e-6) for library in (compat, theirs))
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-7)


# Layouts

whole = torch.tensor([[1, 0, 2, 0], [0, 3, 0, 0], [0, 0, 4, 5], [6, 0, 0, 0]], dtype=torch.float64)
twice = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 2]]), torch.tensor([1.0, 2.0, 3.0]).double())
deep = torch.arange(1.0, 25.0, dtype=torch.float64).reshape(3, 4, 2)
LAYOUTS = {
    "coo": whole.to_sparse(),
    "coo, duplicates": twice,
    "coo, dense dimension": deep.to_sparse(1),
    "csr": whole.to_sparse_csr(),
    "csr, dense dimension": deep.to_sparse_csr(dense_dim=1),
    "csc": whole.to_sparse_csc(),
    "bsr": whole.to_sparse_bsr((2, 2)),
    "bsr, blocks of two by one": whole.to_sparse_bsr((2, 1)),
    "bsc": whole.to_sparse_bsc((2, 2)),
    "complex coo": (whole * (1 + 2j)).to_sparse(),
    "mkldnn": whole.float().to_mkldnn(),
}


def squared(x):
    dense = x.to_dense()  # once: torch does not add up compressed gradients
    return (dense * dense.conj()).real


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout(tensor):
    """Three names, torch's numbers and dtypes; a row that is not specified is zero."""
    x = tensor.clone().requires_grad_()
    eps, slack = (1e-3, 2e-2) if tensor.dtype is torch.float32 else (1e-6, 1e-6)
    before = x.detach().to_dense().clone()
    for call in (
        lambda library: library.get_numerical_jacobian(lambda inputs: squared(inputs[0]), (x,), eps=eps),
        lambda library: library.get_numerical_jacobian_wrt_specific_input(
            squared, 0, (x,), (squared(x),), eps
        ),
        lambda library: library.get_analytical_jacobian((x,), squared(x))[0],
    ):
        got, expected = call(compat), call(theirs)
        assert type(got) is type(expected) is tuple
        torch.testing.assert_close(got, expected, rtol=slack, atol=slack)
    assert torch.equal(x.detach().to_dense(), before)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_batch_of_compressed_matrices():
    """Which the original cannot index."""
    x = torch.stack([whole, 2 * whole]).to_sparse_csr().requires_grad_()
    with pytest.raises(IndexError):
        theirs.get_numerical_jacobian(lambda inputs: inputs[0].to_dense() ** 2, (x,), eps=1e-6)
    (got,) = compat.get_numerical_jacobian(lambda inputs: inputs[0].to_dense() ** 2, (x,), eps=1e-6)
    torch.testing.assert_close(got, torch.diag(2 * x.detach().to_dense().flatten()), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sparse_gradients():
    """Of an embedding, whose rows come back as a COO tensor."""
    table, places = torch.ones(4, 2, dtype=torch.float64, requires_grad=True), torch.tensor([0, 2, 2])
    output = torch.nn.functional.embedding(places, table, sparse=True)
    got, expected = (library.get_analytical_jacobian((table,), output) for library in (compat, theirs))
    torch.testing.assert_close(got[0], expected[0])
    assert got[1:] == expected[1:] == (True, True, True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("layout", ["to_mkldnn", "to_sparse"])
def test_outputs_of_other_layouts(layout):
    """Which the original refuses."""
    x = torch.ones(2, 3, requires_grad=True)
    output = getattr(2 * x, layout)()
    with pytest.raises(RuntimeError):
        theirs.get_analytical_jacobian((x,), output)
    assert torch.equal(compat.get_analytical_jacobian((x,), output)[0][0], 2 * torch.eye(6))


class Drifting(torch.autograd.Function):
    """A backward that is a little larger at every run."""

    runs = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        Drifting.runs += 1
        return g * (2 + 1e-8 * Drifting.runs)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("factor", "tolerance", "same"), [(1, 0.0, False), (1, 1e-3, True), (torch.nan, 0.0, True)]
)
def test_reentrant(factor, tolerance, same):
    """Whether the second Jacobian is the first, to the tolerance; NaN is as good as NaN."""
    output = real * factor if factor is torch.nan else Drifting.apply(real)
    for library in (compat, theirs):
        assert library.get_analytical_jacobian((real,), output, tolerance)[1] is same


# Outputs


def complex_of(x):
    return torch.complex(x, x * x)


integers = torch.tensor([1, 2, 3])
# name: function, input, keywords
SPECIFIC = {
    "real to complex, forward": (complex_of, real, {"is_forward_ad": True}),
    "complex to real": (torch.abs, number, {}),
    "float32 of float64": (lambda x: (x**2).float(), real, {}),
    "integers behind": (lambda x: (x**2, integers), real, {}),
    "integers alone": (lambda x: x.argmax(), real, {}),
    "no elements": (lambda x: x * 2, torch.zeros(0, dtype=torch.float64, requires_grad=True), {}),
}


@pytest.mark.parametrize(("function", "x", "keywords"), SPECIFIC.values(), ids=SPECIFIC.keys())
def test_outputs_of_all_kinds(function, x, keywords):
    """A tuple with torch's numbers and dtypes."""
    returned = function(x)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    got, expected = (
        library.get_numerical_jacobian_wrt_specific_input(function, 0, (x,), outputs, 1e-3, **keywords)
        for library in (compat, theirs)
    )
    assert type(got) is type(expected) is tuple
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_integers_in_front():
    """The original then gives the differences of the integers for those of the floats: zeros."""
    arguments = (lambda x: (integers, x**2), 0, (real,), (integers, real**2), 1e-6)
    (wrong,) = theirs.get_numerical_jacobian_wrt_specific_input(*arguments)
    (right,) = compat.get_numerical_jacobian_wrt_specific_input(*arguments)
    assert not wrong.any()
    torch.testing.assert_close(right, torch.diag(2 * real.detach()))


def changes_shape(x):
    return x.sum().expand(3 if x[0] <= 0.3 else 2)


def changes_dtype(x):
    return x * 2 if x[0] <= 0.3 else (x * 2).float()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (changes_shape, "returns torch.float64 of shape (2,) instead of torch.float64 of shape (3,)"),
        (changes_dtype, "returns torch.float32 of shape (3,) instead of torch.float64 of shape (3,)"),
    ],
)
def test_outputs_that_change_nearby(function, text):
    """The same class as torch's, and a text that says what changes, and where."""
    for library in (theirs, compat):
        with pytest.raises(AssertionError) as caught:
            library.get_numerical_jacobian(lambda inputs: function(inputs[0]), (real,))
    assert text in str(caught.value)
    assert "when element [0] of the input moves by 0.001" in str(caught.value)
    assert real[0].item() == 0.3


@pytest.mark.parametrize(
    ("function", "x", "keywords", "text"),
    [
        (torch.square, number, {}, "return its .real or .imag."),
        (torch.square, number, {"is_forward_ad": True}, "return its .real or .imag."),
        (complex_of, real, {}, "or pass is_forward_ad=True"),
        (torch.square, real.detach(), {}, "the input does not require grad"),
    ],
)
def test_what_the_original_asserts(function, x, keywords, text):
    """An AssertionError in both."""
    for library in (theirs, compat):
        with pytest.raises(AssertionError) as caught:
            library.get_numerical_jacobian_wrt_specific_input(
                function, 0, (x,), (function(x),), 1e-3, **keywords
            )
    assert text in str(caught.value)


def test_deprecated():
    """The names that are deprecated in torch warn at the caller's line, in our words."""
    for library in (theirs, compat):
        with pytest.warns(FutureWarning, match="get_numerical_jacobian") as first:
            library.get_numerical_jacobian(lambda inputs: inputs[0] ** 2, (real,))
        with pytest.warns(FutureWarning, match="get_analytical_jacobian") as second:
            library.get_analytical_jacobian((real,), real**2)
    assert [first[0].filename, second[0].filename] == [__file__, __file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compat.get_numerical_jacobian_wrt_specific_input(torch.square, 0, (real,), (real**2,), 1e-3)


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
    with pytest.raises(IndexError, match="nothing to difference"):
        compat.get_numerical_jacobian(lambda inputs: inputs[0].argmax(), (real,))
    with pytest.raises(RuntimeError, match="the output has no graph"):
        compat.get_analytical_jacobian((real,), real.detach())
