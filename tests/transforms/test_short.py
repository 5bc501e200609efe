"""Small functions: `vjp`, `grad` and `jacrev` run them once, whatever the recording leads to."""

import copy
import gc
import weakref

import pytest
import torch

import covector
from covector.errors import ArgumentValueError, OutputError
from watched import Counted

X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
V = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
WEIGHT = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64, requires_grad=True)


# A function, and a cotangent for what it returns.
PULLS = {
    "simple": (lambda x: x**2, V),
    "the input itself": (lambda x: x, V),
    "a constant": (lambda x: V * 2, V),
    "a tuple": (lambda x: (x**2, x.sum()), (V, torch.tensor(2.0, dtype=torch.float64))),
    "a dict": (lambda x: {"a": x.sin()}, {"a": V}),
    "a complex tensor": (lambda x: torch.complex(x, x**2), torch.complex(V, V)),
    "a captured tensor that requires grad": (lambda x: x**2 * WEIGHT, V),
    "a cotangent that requires grad": (lambda x: x**2, V.clone().requires_grad_()),
}


@pytest.mark.parametrize("use", PULLS.values(), ids=PULLS)
def test_vjp_runs_the_function_once(use):
    """However often it is pulled back; values, gradients and their graphs are those of torch.func."""
    function, cotangent = use
    counted = Counted(function)
    output, vjp_fn = covector.vjp(counted, X)
    expected, peer_fn = torch.func.vjp(function, X)
    for _ in range(2):
        (got,), (wanted,) = vjp_fn(cotangent), peer_fn(cotangent)
        assert torch.equal(got, wanted)
        assert got.requires_grad == wanted.requires_grad
    torch.testing.assert_close(output, expected)
    assert counted.runs == 1


def test_a_batch_of_cotangents():
    """`vjp_fn` under vmap, from a run outside of it."""
    counted = Counted(lambda x: x**3)
    _, vjp_fn = covector.vjp(counted, X)
    (rows,) = torch.vmap(vjp_fn)(torch.eye(3, dtype=torch.float64))
    assert torch.equal(rows, torch.diag(3 * X**2))
    assert counted.runs == 1


def test_an_input_that_is_not_used_has_zeros():
    """Beside one that is."""
    _, vjp_fn = covector.vjp(lambda x, y: x * 2, X, V)
    x_gradient, y_gradient = vjp_fn(V)
    assert torch.equal(x_gradient, 2 * V)
    assert torch.equal(y_gradient, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(covector.grad(lambda x, y: y.sum())(X, V), torch.zeros(3, dtype=torch.float64))


def test_grad_by_one_of_several():
    """The others are constants, and the function sees them as such."""

    def energy(x, y):
        assert y.requires_grad
        assert not x.requires_grad
        return (x * y**2).sum()

    counted = Counted(energy)
    assert torch.equal(covector.grad(counted, argnums=1)(X, V), 2 * X * V)
    assert counted.runs == 1


def test_grad_stays_connected_to_what_the_function_captures():
    """d/dw of d/dx sum(w x^2) is 2 x."""
    gradient = covector.grad(lambda x: (WEIGHT * x**2).sum())(X)
    assert torch.equal(torch.autograd.grad(gradient.sum(), WEIGHT)[0], 2 * X)


def test_a_long_graph_is_walked_once_per_node():
    """Sixty squarings make 2^60 ways through the graph; what stands at their end is still seen."""

    def tower(x):
        for _ in range(60):
            x = x * x
        return (x * (WEIGHT / WEIGHT)).sum()

    ones = torch.ones_like(X)
    gradient = covector.grad(tower)(ones)
    assert torch.equal(gradient, 2.0**60 * ones)
    assert gradient.requires_grad
    value, vjp_fn = covector.vjp(tower, ones)
    assert value.requires_grad
    assert torch.equal(vjp_fn(torch.ones_like(value))[0], 2.0**60 * ones)


def test_a_pullback_made_without_grad_mode_is_connected_where_there_is_one():
    """The value is not; d/dw of v . d/dx w x^2 is 2 x v."""
    with torch.no_grad():
        value, vjp_fn = covector.vjp(lambda x: WEIGHT * x**2, X)
        assert not vjp_fn(V)[0].requires_grad
    assert not value.requires_grad
    assert torch.equal(torch.autograd.grad(vjp_fn(V)[0].sum(), WEIGHT)[0], 2 * X * V)


def test_a_pullback_can_be_held_as_a_function_can():
    """Named, copied, referred to weakly, given attributes."""
    _, vjp_fn = covector.vjp(torch.sin, X)
    assert vjp_fn.__name__ == "vjp_fn"
    assert copy.deepcopy(vjp_fn) is vjp_fn
    assert weakref.ref(vjp_fn)() is vjp_fn
    vjp_fn.note = "mine"
    assert torch.equal(vjp_fn(V)[0], V * X.cos())


def test_a_pullback_that_is_dropped_is_gone_at_once():
    """Its graph does not wait for the garbage collector, also where the output is a tree."""
    gc.disable()
    try:
        _, vjp_fn = covector.vjp(lambda x: {"a": x.sin()}, X)
        gone = weakref.ref(vjp_fn)
        del vjp_fn
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("verb", ["grad", "jacrev", "jacfwd", "jacobian", "hessian", "hessian_blocks"])
def test_a_derivative_that_is_dropped_is_gone_at_once(verb):
    """What it captures does not wait for the garbage collector, though it knows its plan."""
    gc.disable()
    try:
        derivative = getattr(covector, verb)(lambda x: (WEIGHT.detach() * x**3).sum())
        derivative(X)
        gone = weakref.ref(derivative)
        del derivative
        assert gone() is None
    finally:
        gc.enable()


def test_a_gradient_inside_sees_the_leaf_of_the_outer_one():
    """d/dx of d/dy (x y) at a y that is a constant: the inner function captures the outer leaf."""
    outer = covector.grad(lambda x: covector.grad(lambda y: (x**2 * y).sum())(V).sum())
    assert torch.equal(outer(X), 2 * X)


@pytest.mark.parametrize("enabled", [True, False])
def test_grad_mode_is_the_callers_again(enabled):
    """Also when the function raises."""

    def fails(x):
        assert torch.is_grad_enabled()
        raise KeyError("of the user")

    with torch.set_grad_enabled(enabled):
        for call in (lambda: covector.vjp(fails, X), lambda: covector.grad(fails)(X)):
            with pytest.raises(KeyError, match="of the user"):
                call()
            assert torch.is_grad_enabled() is enabled


class Doubled(torch.autograd.Function):
    """Twice the input, with a backward that cannot be batched."""

    @staticmethod
    def forward(ctx, x):
        """Twice the input."""
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        """Twice the cotangent, by way of NumPy."""
        return torch.from_numpy(2 * cotangent.numpy())


# Functions of which a recording gives the Jacobian by one batch, and others of which there is more to ask.
JACOBIANS = {
    "one batch": (lambda x: x**2, torch.diag(2 * X)),
    "a matrix": (lambda x: torch.outer(x, V), torch.einsum("ik,j->ijk", torch.eye(3, dtype=X.dtype), V)),
    "a single number": (lambda x: x[:1] * 2, torch.tensor([[2.0, 0.0, 0.0]], dtype=X.dtype)),
    "nothing": (lambda x: x[:0], torch.zeros(0, 3, dtype=X.dtype)),
    "a constant": (lambda x: V * 2, torch.zeros(3, 3, dtype=X.dtype)),
    "the input itself": (lambda x: x, torch.eye(3, dtype=X.dtype)),
    "a captured tensor that requires grad": (lambda x: x * WEIGHT, torch.diag(WEIGHT.detach())),
    "another captured tensor alone": (lambda x: V * WEIGHT, torch.zeros(3, 3, dtype=X.dtype)),
    "a tuple of one": (lambda x: (x**2,), (torch.diag(2 * X),)),
}


@pytest.mark.parametrize("verb", [covector.jacrev, covector.jacobian, covector.jacfwd])
@pytest.mark.parametrize("use", JACOBIANS.values(), ids=JACOBIANS)
def test_jacobians(use, verb):
    """The function is run once by reverse mode; without an outer derivative the result has no graph."""
    function, expected = use
    counted = Counted(function)
    got = verb(counted)(X)
    torch.testing.assert_close(got, expected)
    assert covector.jacfwd is verb or counted.runs == 1
    with torch.no_grad():
        torch.testing.assert_close(verb(function)(X), expected)


def test_a_jacobian_stays_connected_to_what_the_function_captures():
    """d/dw of the sum of d/dx w x is one for each element."""
    rows = covector.jacrev(lambda x: WEIGHT * x)(X)
    assert torch.equal(torch.autograd.grad(rows.sum(), WEIGHT)[0], torch.ones_like(WEIGHT))


def test_a_jacobian_whose_rows_cannot_be_batched():
    """It is made row by row, from the same run, and says so."""
    counted = Counted(Doubled.apply)
    with pytest.warns(covector.errors.BatchingWarning, match="one by one"):
        rows = covector.jacrev(counted)(X)
    assert torch.equal(rows, 2 * torch.eye(3, dtype=X.dtype))
    assert counted.runs == 1


def test_errors_name_the_function_and_the_output():
    """A cotangent of another shape, an output that is no scalar."""
    _, vjp_fn = covector.vjp(torch.sin, X)
    with pytest.raises(ArgumentValueError, match=r"vjp\(sin\): the cotangent for output must be like it"):
        vjp_fn(V[:2])
    with pytest.raises(OutputError, match=r"grad\(sin\): the function must return a scalar"):
        covector.grad(torch.sin)(X)
