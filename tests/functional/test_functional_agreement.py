"""Every verb, with every flag, gives what torch.autograd.functional gives.

Each sample meets every value of every flag, and every pair of values of two flags is met; the whole product
is left to the sweep.
"""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from cases import Draw
from covector.errors import OutputError, StrictError
from covering import paired
from functional_table import LIBRARIES, NUMBERS, VECTORS, assert_same, outcome, total

EITHER = (False, True)

vectors = pytest.mark.parametrize("sample", VECTORS, ids=repr)
numbers = pytest.mark.parametrize("sample", NUMBERS, ids=repr)


def with_flags(samples, *flags):
    """Samples with the values of flags."""
    return pytest.mark.parametrize(("sample", *flags), paired(samples, *[EITHER] * len(flags)), ids=repr)


three_flags = ("create_graph", "strict", "requires_grad")


def drawn_like(tensors, name):
    draw = Draw(name)
    if isinstance(tensors, Tensor):
        return draw(*tensors.shape, dtype=tensors.dtype)
    return tuple(draw(*x.shape, dtype=x.dtype) for x in tensors)


def value(sample):
    """What the function returns; the vector of a product from the left has to fit it."""
    inputs = sample.drawn(requires_grad=True)
    return sample.function(*(inputs if isinstance(inputs, tuple) else (inputs,)))


def both(sample, requires_grad, act):
    """What each library gives, on inputs of its own."""
    results = []
    for library in LIBRARIES:
        inputs = sample.drawn(requires_grad=requires_grad)
        results.append((outcome(lambda: act(library, inputs)), inputs))
    return results


def assert_agree(sample, requires_grad, act):
    """The results agree; and where torch's can be differentiated, so can ours, with the same gradient."""
    assert_both_agree(both(sample, requires_grad, act), requires_grad)


def assert_both_agree(results, requires_grad):
    (theirs, their_inputs), (ours, our_inputs) = results
    assert_same(ours, theirs)
    if isinstance(theirs, Exception) or not requires_grad or total(theirs) is None:
        return
    gradients = [
        torch.autograd.grad(total(result), inputs, allow_unused=True, materialize_grads=True)
        for result, inputs in ((ours, our_inputs), (theirs, their_inputs))
    ]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


def is_refused_for_emptiness(result):
    """The original cannot stack the rows of a tensor without elements; ours gives the matrix, empty."""
    return isinstance(result, RuntimeError) and "non-empty TensorList" in str(result)


def assert_matrices_agree(sample, requires_grad, act):
    """As `assert_agree`, with matrices that torch cannot make."""
    (theirs, _), (ours, _) = results = both(sample, requires_grad, act)
    if is_refused_for_emptiness(theirs):
        assert isinstance(ours, StrictError) or any(x.numel() == 0 for x in tree_leaves(ours))
    else:
        assert_both_agree(results, requires_grad)


def assert_batches_agree(sample, requires_grad, act):
    """As `assert_agree`, where torch can batch; its batches lose the graph of some custom Functions."""
    (theirs, _), (ours, _) = results = both(sample, requires_grad, act)
    assert not isinstance(ours, Exception)
    if isinstance(theirs, Exception):
        assert isinstance(theirs, RuntimeError | IndexError)
    elif any(
        a.requires_grad > b.requires_grad for a, b in zip(*map(tree_leaves, (ours, theirs)), strict=True)
    ):
        torch.testing.assert_close(ours, theirs)
        assert sample.name.startswith("case custom")
    else:
        assert_both_agree(results, requires_grad)


@with_flags(VECTORS, *three_flags)
def test_vjp(sample, create_graph, strict, requires_grad):
    """The value and the product from the left."""

    def act(library, inputs):
        v = drawn_like(value(sample), "v")
        return library.vjp(sample.function, inputs, v, create_graph=create_graph, strict=strict)

    assert_agree(sample, requires_grad, act)


@with_flags(VECTORS, *three_flags)
def test_jvp(sample, create_graph, strict, requires_grad):
    """The value and the product from the right."""

    def act(library, inputs):
        v = drawn_like(inputs, "v")
        return library.jvp(sample.function, inputs, v, create_graph=create_graph, strict=strict)

    if sample.name == "case logcumsumexp":
        # The original gives NaN: it starts from a cotangent of zeros, of which this backward takes the log.
        (theirs, _), (ours, inputs) = both(sample, requires_grad, act)
        assert theirs[1].isnan().all()
        expected = torch.func.jvp(sample.function, (inputs,), (drawn_like(inputs, "v"),))
        torch.testing.assert_close(ours, expected, check_stride=False)
    else:
        assert_agree(sample, requires_grad, act)


@pytest.mark.filterwarnings("ignore::covector.errors.NoGraphWarning")
@with_flags(VECTORS, *three_flags)
def test_jacobian(sample, create_graph, strict, requires_grad):
    """The Jacobian, by default."""

    def act(library, inputs):
        return library.jacobian(sample.function, inputs, create_graph=create_graph, strict=strict)

    assert_matrices_agree(sample, requires_grad, act)


@with_flags(VECTORS, "create_graph", "requires_grad")
@pytest.mark.filterwarnings("ignore::covector.errors.NoGraphWarning")
def test_jacobian_vectorized(sample, create_graph, requires_grad):
    """The Jacobian with `vectorize`, where torch can."""

    def act(library, inputs):
        return library.jacobian(sample.function, inputs, create_graph=create_graph, vectorize=True)

    assert_batches_agree(sample, requires_grad, act)


@with_flags(NUMBERS, *three_flags)
@pytest.mark.parametrize("verb", ["hvp", "vhp"])
def test_hessian_products(verb, sample, create_graph, strict, requires_grad):
    """The value and the product with the Hessian, from either side."""

    def act(library, inputs):
        v = drawn_like(inputs, "v")
        return getattr(library, verb)(sample.function, inputs, v, create_graph=create_graph, strict=strict)

    assert_agree(sample, requires_grad, act)


@with_flags(NUMBERS, *three_flags)
def test_hessian(sample, create_graph, strict, requires_grad):
    """The Hessian, by default."""

    def act(library, inputs):
        return library.hessian(sample.function, inputs, create_graph=create_graph, strict=strict)

    assert_matrices_agree(sample, requires_grad, act)


@with_flags(NUMBERS, "create_graph", "requires_grad")
def test_hessian_vectorized(sample, create_graph, requires_grad):
    """The Hessian with `vectorize`, where torch can."""

    def act(library, inputs):
        return library.hessian(sample.function, inputs, create_graph=create_graph, vectorize=True)

    assert_batches_agree(sample, requires_grad, act)


# On a level of forward mode an input does not say that it requires grad outside.
SEES_ITS_INPUT = {"asks whether recorded"}


CURVED_BY_A_CAPTURE = {"captured weight, curved", "module"}


def in_tuples(result):
    """Torch's forward mode nests in lists, and its documentation in tuples."""
    return result if isinstance(result, Tensor) else tuple(map(in_tuples, result))


# What solves with a matrix goes through the pullback if its result may be differentiated again, and says so.
@pytest.mark.filterwarnings("ignore:.*forward-mode rule for linalg_.* that can be nested")
@pytest.mark.parametrize("requires_grad", [False, True])
@vectors
def test_jacobian_by_forward_mode(sample, requires_grad):
    """The Jacobian by columns, where torch can; connected to what of the caller's requires grad."""

    def act(library, inputs):
        return library.jacobian(sample.function, inputs, vectorize=True, strategy="forward-mode")

    (theirs, _), (ours, _) = both(sample, requires_grad, act)
    if isinstance(theirs, Exception) or sample.name in ("hook inside", "gradient inside"):
        assert not isinstance(ours, AssertionError)
    elif sample.name == "real of complex":
        assert isinstance(ours, OutputError)  # torch gives the derivative along the real axis, unasked
    elif sample.name in SEES_ITS_INPUT:
        torch.testing.assert_close(ours, act(LIBRARIES[1], sample.drawn(requires_grad=False)))
    elif sample.name == "case log_determinant" and requires_grad:
        assert ours.requires_grad  # torch takes the factors that it saved for constants
        assert_same(ours.detach(), in_tuples(theirs))
    else:
        assert_same(ours, in_tuples(theirs))


@numbers
def test_hessian_by_forward_mode(sample):
    """The Hessian by columns, where torch can."""

    def act(library, inputs):
        return library.hessian(
            sample.function, inputs, vectorize=True, outer_jacobian_strategy="forward-mode"
        )

    (theirs, _), (ours, _) = both(sample, False, act)
    if isinstance(theirs, Exception):
        assert not isinstance(ours, AssertionError)
    else:
        # The original's has a graph always, ours where the function captures what requires grad.
        assert_same(*(tree_map(Tensor.detach, in_tuples(result)) for result in (ours, theirs)))
        assert any(y.requires_grad for y in tree_leaves(ours)) == (sample.name in CURVED_BY_A_CAPTURE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precisions(dtype):
    """Low precision in, low precision out."""
    x = torch.linspace(0.5, 1.5, 4).to(dtype)
    for library in LIBRARIES:
        assert library.jacobian(torch.sin, x).dtype is dtype
    for verb in ("hessian", "jacobian"):
        theirs, ours = (getattr(library, verb)(lambda x: (x**3).sum(), x) for library in LIBRARIES)
        torch.testing.assert_close(ours, theirs)
    for verb in ("vjp", "jvp"):
        theirs, ours = (getattr(library, verb)(torch.sin, x, x) for library in LIBRARIES)
        torch.testing.assert_close(ours, theirs)


def test_vector_of_another_dtype():
    """A vector in another real dtype is converted, as torch's engine does."""
    x, v = torch.linspace(0.5, 1.5, 3), torch.tensor([1, 2, 3])
    for vector in (v, v.double()):
        for verb, function in (
            ("vjp", torch.sin),
            ("jvp", torch.sin),
            ("hvp", lambda x: (x**3).sum()),
            ("vhp", lambda x: (x**3).sum()),
        ):
            theirs, ours = (getattr(library, verb)(function, x, vector) for library in LIBRARIES)
            torch.testing.assert_close(ours, theirs)


def test_vector_left_out():
    """One element needs no vector."""
    x = torch.tensor([[0.7]], dtype=torch.float64)
    for verb in ("vjp", "jvp", "hvp", "vhp"):
        theirs, ours = (getattr(library, verb)(lambda x: x**3, x) for library in LIBRARIES)
        torch.testing.assert_close(ours, theirs)


def test_vector_can_be_differentiated():
    """With create_graph the products depend on the vector."""
    x = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)
    for verb, function in (
        ("vjp", torch.sin),
        ("jvp", torch.sin),
        ("hvp", lambda x: (x**3).sum()),
        ("vhp", lambda x: (x**3).sum()),
    ):
        gradients = []
        for library in LIBRARIES:
            v = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
            product = getattr(library, verb)(function, x, v, create_graph=True)[1]
            gradients += torch.autograd.grad((product**2).sum(), v)
        torch.testing.assert_close(*gradients)


def test_integer_outputs_have_no_derivative():
    """An output of integers counts as constant."""
    x = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    theirs, ours = (library.jacobian(lambda x: tuple(x.sort()), x) for library in LIBRARIES)
    assert_same(ours, theirs)
    assert_same(*(library.jacobian(torch.argsort, x, vectorize=True) for library in reversed(LIBRARIES)))
    value, product = LIBRARIES[1].jvp(lambda x: tuple(x.sort()), x, x)  # torch refuses this one
    assert [p.dtype for p in product] == [torch.float64, torch.int64]
    assert product[1].eq(0).all()
    assert torch.equal(product[0], value[0])


SPARSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]], dtype=torch.float64).to_sparse()
ALONG = torch.tensor([[1.0, 5.0, 2.0], [0.0, -3.0, 0.0]], dtype=torch.float64).to_sparse()
SPARSE_FUNCTIONS = {
    "dense": lambda a: a.to_dense() * 2,
    "product": lambda a: torch.sparse.mm(a, SPARSE.to_dense().T),
    "sum": torch.sparse.sum,
    "square": lambda a: (a * a).to_dense(),
    "values": lambda a: a.coalesce().values() ** 2,
    "sparse out": lambda a: a * 2,
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", SPARSE_FUNCTIONS)
def test_jvp_of_a_sparse_input(name, create_graph):
    """The product with a sparse vector is the original's."""
    expected, got = (
        library.jvp(SPARSE_FUNCTIONS[name], SPARSE, ALONG, create_graph=create_graph) for library in LIBRARIES
    )
    for a, b in zip(got, expected, strict=True):
        assert a.layout == b.layout
        torch.testing.assert_close(a.to_dense(), b.to_dense(), rtol=1e-12, atol=0)
