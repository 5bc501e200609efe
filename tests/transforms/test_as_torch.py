"""Behaviours of torch.func that programs rely on, beside torch.func itself."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import covector
from covector.errors import ForwardModeWarning, UnsupportedError

assert_close = torch.testing.assert_close
LIBRARIES = [torch.func, covector]
both = pytest.mark.parametrize("library", LIBRARIES, ids=["torch", "covector"])
x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
ones = torch.ones(3, dtype=torch.float64)


def cube(x):
    return x**3


# Results inside vmap belong to the batch


def double(a):
    return 2 * a


BATCHED = {
    "jacrev": lambda t: t.jacrev(double),
    "jacfwd": lambda t: t.jacfwd(double),
    "hessian": lambda t: t.hessian(lambda a: (a * a).sum()),
    "hessian, zero": lambda t: t.hessian(torch.sum),
    "jacrev, constant": lambda t: t.jacrev(lambda a: torch.ones(2, dtype=a.dtype)),
    "grad of grad": lambda t: t.grad(lambda a: t.grad(lambda b: (3 * b).sum())(a).sum()),
    "jacrev, two levels": lambda t: torch.vmap(
        lambda a: t.jacrev(lambda b: 2 * b * a.sum())(a), in_dims=-1, out_dims=-1
    ),
}


@pytest.mark.parametrize("out_dims", [0, 1, -1])
@pytest.mark.parametrize("name", BATCHED)
def test_a_derivative_that_does_not_depend_on_the_batch(name, out_dims):
    """It has the axis of the batch all the same, where out_dims says."""
    points = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(5, 3, 2)
    points = points if "levels" in name else points[..., 0]
    expected, got = (
        torch.vmap(BATCHED[name](library), in_dims=1, out_dims=out_dims)(points) for library in LIBRARIES
    )
    assert_close(got, expected)


# What torch returns without the axis, and then places it wrongly.
UNBATCHED_IN_TORCH = {
    "vjp": lambda a: covector.vjp(double, a)[1](torch.ones_like(ones))[0],
    "linearize": lambda a: covector.linearize(double, a)[1](torch.ones_like(ones)),
    "functional.jacobian": lambda a: covector.functional.jacobian(double, a)[0],
    "jacobian": lambda a: covector.jacobian(double)(a)[0],
    "jacfwd, constant": lambda a: covector.jacfwd(lambda b: ones[:2])(a)[0].clone(),
}


@pytest.mark.parametrize("name", UNBATCHED_IN_TORCH)
def test_every_result_belongs_to_the_batch(name):
    """Its axis can be placed, and it can be written to with something that belongs to the batch."""
    verb = UNBATCHED_IN_TORCH[name]
    points = torch.stack([x, -x], dim=1)
    assert torch.vmap(verb, in_dims=1, out_dims=-1)(points).shape == (3, 2)
    written = torch.vmap(lambda a: verb(a).add_(a), in_dims=1)(points)
    assert_close(written, torch.stack([verb(x) + x, verb(-x) - x]))


def test_a_derivative_by_what_is_not_batched():
    """Another argument, or a captured tensor, may be what makes it a batch."""
    other = torch.stack([x, -x], dim=1)
    for library in LIBRARIES:
        rows = torch.vmap(library.jacrev(lambda a, b: 2 * a + b), in_dims=(None, 1), out_dims=-1)(x, other)
        assert rows.shape == (3, 3, 2)
        captured = torch.vmap(lambda b: library.jacrev(lambda a: 2 * a + b)(x), in_dims=1, out_dims=-1)(other)
        assert_close(captured, rows)


# Pullbacks that outlive what was around them


@pytest.mark.parametrize(
    ("library", "verb"), [(torch.func, "vjp"), (covector, "vjp"), (covector, "linearize")]
)
def test_recorded_under_no_grad(library, verb):
    """The value has no graph; products that are asked for outside are connected to the input."""
    point = x.clone().requires_grad_()
    with torch.no_grad():
        value, apply = getattr(library, verb)(cube, point)
        assert not value.requires_grad
    product = apply(ones)
    product = product[0] if verb == "vjp" else product
    assert_close(torch.autograd.grad(product.sum(), point)[0], 6 * x)


@both
@pytest.mark.parametrize("capture", [False, True], ids=["input", "captured"])
def test_a_pullback_made_inside_a_gradient(library, capture):
    """It can be used when the gradient is there, and is connected to nothing."""
    kept = []

    def loss(a):
        value, pull = library.vjp(lambda b: a * b**2, ones) if capture else library.vjp(cube, a)
        kept.append(pull)
        return value.sum()

    library.grad(loss)(x)
    (pulled,) = kept[0](ones)
    assert not pulled.requires_grad
    assert_close(pulled, 2 * x if capture else 3 * x**2)


@both
@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode_through_a_pullback_made_before(library, requires_grad):
    """The result requires grad if the point does."""
    point = x.clone().requires_grad_(requires_grad)
    _, pull = library.vjp(cube, point)
    columns = library.jacfwd(pull)(ones)[0]
    assert columns.requires_grad == requires_grad
    assert_close(columns.detach(), (3 * x**2).diag())
    assert library.jvp(pull, (ones,), (x,))[1][0].requires_grad == requires_grad


@both
def test_keywords_of_a_pullback(library):
    """`retain_graph` and `create_graph`, also by position."""
    point = x.clone().requires_grad_()
    _, pull = library.vjp(cube, point)
    assert not pull(ones, True, False)[0].requires_grad
    with torch.no_grad():
        assert not pull(ones)[0].requires_grad
        assert pull(ones, create_graph=True)[0].requires_grad
    assert not pull(ones, retain_graph=False, create_graph=False)[0].requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        pull(ones)
    _, pull = library.vjp(cube, x)
    assert_close(pull(ones, retain_graph=False)[0], 3 * x**2)


@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("taken", [torch.float32, torch.float64, torch.complex128])
def test_vectors_of_another_dtype(given, taken):
    """They are converted to that of the tensor they belong to; a complex one does not fit a real one."""
    point, vector = x.to(taken), torch.tensor([1.0, 2.0, -1.0]).to(given)
    pairs = [
        (lambda v: covector.vjp(cube, point)[1](v)[0], vector),
        (lambda v: covector.jvp(cube, (point,), (v,))[1], vector),
        (lambda v: covector.linearize(cube, point)[1](v), vector),
    ]
    for apply, v in pairs:
        if given.is_complex and not taken.is_complex:
            with pytest.raises(ValueError, match="must be like it"):
                apply(v)
        else:
            assert_close(apply(v), apply(v.to(taken)))


# Keywords


def test_all_arguments():
    """`argnums=None` selects every positional argument; in torch, `jacfwd` alone takes it."""

    def product(a, b):
        return a * b

    expected = torch.func.jacfwd(product, argnums=None)(x, ones)
    for verb in (covector.jacfwd, covector.jacrev, covector.jacobian):
        assert_close(verb(product, argnums=None)(x, ones), expected)
    assert_close(covector.jacfwd(cube, argnums=None)(x), torch.func.jacfwd(cube, argnums=None)(x))
    assert_close(covector.grad(lambda a, b: (a * b).sum(), argnums=None)(x, ones), (ones, x))


@both
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_preallocate_and_copy(library, chunk_size):
    """A private keyword of `jacrev` that programs pass is taken."""
    rows = library.jacrev(cube, chunk_size=chunk_size, _preallocate_and_copy=True)(x)
    assert_close(rows, (3 * x**2).diag())


@both
@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalize_returns_a_captured_tensor(library, remove):
    """What was never an input comes back as it is, traced or not."""
    captured = torch.ones(3)

    def write(a):
        a.add_(1)
        return captured, a * 2

    pure = library.functionalize(write, remove=remove)
    assert pure(torch.zeros(3))[0] is captured
    traced = make_fx(pure)(torch.zeros(3))
    assert_close(traced(torch.ones(3)), (captured, torch.full((3,), 4.0)))


# Forward mode


def half_recorded(a):
    with torch.no_grad():
        square = a**2
    return a * square


@both
def test_forward_mode_does_not_obey_no_grad(library):
    """Neither do `jvp` and `jacfwd`, nor `linearize`; reverse mode does."""
    assert_close(library.jvp(half_recorded, (x,), (ones,))[1], 3 * x**2)
    assert_close(library.linearize(half_recorded, x)[1](ones), 3 * x**2)
    assert_close(library.jacfwd(half_recorded)(x), (3 * x**2).diag())
    assert_close(library.jacrev(half_recorded)(x), (x**2).diag())


class NoRule(torch.autograd.Function):
    """The identity, without a forward-mode rule."""

    @staticmethod
    def forward(value):
        return value.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_going_around_does_not_obey_no_grad_either():
    """Nor inside other transforms; where the pullback stands in for forward mode it gives the same."""
    with pytest.warns(ForwardModeWarning, match="NoRule"):
        assert_close(covector.jvp(lambda a: NoRule.apply(half_recorded(a)), (x,), (ones,))[1], 3 * x**2)
    points = torch.stack([x, -x])
    pushed = torch.vmap(lambda a: covector.linearize(half_recorded, a)[1](ones))(points)
    assert_close(pushed, 3 * points**2)
    assert_close(covector.functional.jvp(half_recorded, x, ones)[1], x**2)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_linearize_leaves_what_no_grad_protects(requires_grad):
    """A buffer or a weight that the function updates under `no_grad` gets no graph."""
    state = torch.zeros(3, dtype=torch.float64, requires_grad=requires_grad)

    def running_mean(a):
        with torch.no_grad():
            state.mul_(0.5).add_(a)
            state[0] = a[0]
            torch.mul(a, 1, out=state)
        return a**2

    value, push = covector.linearize(running_mean, x)
    assert_close(push(ones), 2 * x)
    assert state.is_leaf
    assert state.requires_grad == requires_grad
    assert_close(state.detach(), x)
    assert not value.requires_grad


@both
@pytest.mark.parametrize(
    "function",
    [lambda a: torch.heaviside(a, a), lambda a: torch.igamma(a.abs(), a.abs())],
    ids=["heaviside", "igamma"],
)
@pytest.mark.filterwarnings("ignore::covector.errors.ForwardModeWarning")
def test_an_operation_without_any_rule(library, function):
    """Neither forward mode nor a backward: as in torch, NotImplementedError."""
    with pytest.raises(NotImplementedError):
        library.jvp(function, (x,), (ones,))


def test_an_operation_without_a_forward_rule():
    """Torch raises; here its backward is differentiated, and a warning names the operation."""
    points = torch.tensor([[0.0, 0.5], [1.0, -1.0], [0.25, 2.0]], dtype=torch.float64)
    tangent = points.sin() + 1

    def distances(a):
        return torch.ops.aten._pdist_forward(a, 2.0)

    with pytest.raises(NotImplementedError):
        torch.func.jvp(distances, (points,), (tangent,))
    with pytest.warns(ForwardModeWarning, match="_pdist_forward"):
        value, pushed = covector.jvp(distances, (points,), (tangent,))
    assert_close(value, distances(points))
    step = 1e-6 * tangent
    assert_close(pushed, (distances(points + step) - distances(points - step)) / 2e-6, rtol=1e-7, atol=1e-7)


# cdist, whose batching rule is wrong in torch

POINTS = torch.tensor([[0.0, 0.5], [1.0, -1.0], [0.25, 2.0]], dtype=torch.float64)
CLOUDS = torch.linspace(-2, 2, 16, dtype=torch.float64).cos().reshape(2, 4, 2)


def distances(a):
    return torch.cdist(a, POINTS) + torch.cdist(POINTS[:1], a, p=1.5).mT


def jacobian_by_hand(a):
    """The Jacobian of a single cloud, one pullback at a time by plain autograd."""
    leaf = a.clone().requires_grad_()
    rows = [torch.autograd.grad(out, leaf, retain_graph=True)[0] for out in distances(leaf).flatten()]
    return torch.stack(rows).reshape(4, 3, 4, 2)


CDIST = {
    "jacrev": covector.jacrev(distances),
    "jacrev, chunks": covector.jacrev(distances, chunk_size=5),
    "jacfwd": covector.jacfwd(distances),
    "jacobian": covector.jacobian(distances),
    "jacobian, forward": covector.jacobian(distances, mode="forward"),
    "jacobian, within memory": covector.jacobian(distances, max_memory="10 MB"),
    "value_and_jacobian": lambda a: covector.value_and_jacobian(distances)(a)[1],
    "batch_dim": lambda a: covector.jacobian(distances, batch_dim=0)(a[None])[0],
    "functional": lambda a: covector.functional.jacobian(distances, a),
    "functional, vectorize": lambda a: covector.functional.jacobian(distances, a, vectorize=True),
    "functional, forward": lambda a: covector.functional.jacobian(
        distances, a, vectorize=True, strategy="forward-mode"
    ),
    "inside vmap": lambda a: torch.vmap(covector.jacrev(distances))(a[None])[0],
    "with aux": lambda a: covector.jacrev(lambda b: (distances(b), b), has_aux=True)(a)[0],
}


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@pytest.mark.parametrize("name", CDIST)
def test_cdist_is_right_at_every_door(name):
    """No door gives what a batch of cotangents would give."""
    assert_close(CDIST[name](CLOUDS[0]), jacobian_by_hand(CLOUDS[0]))


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@pytest.mark.parametrize("first", ["a check", "a gradient"])
def test_cdist_is_right_whatever_was_done_before(first):
    """What a node is like is remembered, for all who ask; each of them asks something else."""
    cloud = CLOUDS[1].clone().requires_grad_()
    if first == "a check":
        assert covector.gradcheck(distances, cloud)
    covector.grad(lambda a: distances(a).sum())(CLOUDS[1])
    assert covector.gradcheck(distances, cloud)
    assert_close(covector.jacrev(distances)(CLOUDS[1]), jacobian_by_hand(CLOUDS[1]))


def by_norms(a, p):
    return torch.linalg.vector_norm(a[:, None] - POINTS, p, dim=-1).square().sum() + pairs(a, p).sum()


def pairs(a, p):
    first, second = torch.triu_indices(len(a), len(a), 1)
    return torch.linalg.vector_norm(a[first] - a[second], p, dim=-1)


def by_kernels(a, p):
    return torch.cdist(a, POINTS, p).square().sum() + torch.pdist(a, p).sum()


OF_DISTANCES = {
    "hessian": lambda f, a, u: covector.hessian(f)(a),
    "hessian, reverse": lambda f, a, u: covector.hessian(f, mode="reverse")(a),
    "hessian, forward": lambda f, a, u: covector.hessian(f, mode="forward")(a),
    "hessian, in blocks": lambda f, a, u: covector.hessian(f, executor=ThreadPoolExecutor(1))(a),
    "hessian_blocks": lambda f, a, u: covector.hessian_blocks(f)(a),
    "hvp": lambda f, a, u: covector.hvp(f, (a,), (u,))[1][0],
    "vhp": lambda f, a, u: covector.vhp(f, (a,), (u,))[1][0],
    "hessian_diagonal": lambda f, a, u: covector.hessian_diagonal(f)(a),
    "functional.hessian": lambda f, a, u: covector.functional.hessian(f, a),
    "functional.hvp": lambda f, a, u: covector.functional.hvp(f, a, u)[1],
    "functional.vhp": lambda f, a, u: covector.functional.vhp(f, a, u)[1],
    "inside vmap": lambda f, a, u: torch.vmap(covector.hessian(f))(a[None])[0],
}


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("name", OF_DISTANCES)
def test_distances_have_second_derivatives(name, p):
    """Torch has none for their kernels; the norm of a difference has one."""
    derivative, a, u = OF_DISTANCES[name], CLOUDS[0], CLOUDS[1]
    got = derivative(lambda a: by_kernels(a, p), a, u)
    assert_close(got, derivative(lambda a: by_norms(a, p), a, u))
    assert got.abs().max() > 0.1


def has_second_derivative(function, x):
    try:
        return torch.autograd.gradgradcheck(function, x)
    except RuntimeError:
        return False


def test_a_second_derivative_that_torch_lacks_is_named():
    """Of a kernel that torch got a second derivative for since, it passes."""
    x = CLOUDS[0].clone().requires_grad_()
    if has_second_derivative(distances, x):
        assert covector.gradgradcheck(distances, x)
        return
    with pytest.raises(covector.GradcheckError) as raised:
        covector.gradgradcheck(distances, x)
    assert raised.value.report.outcome.name == "UNSUPPORTED"
    assert "a derivative of _cdist_backward" in str(raised.value)


def test_cdist_is_refused_where_it_would_be_wrong():
    """`vmap` of a pullback cannot go one by one; a batch of points can be pulled back."""
    _, pull = covector.vjp(distances, CLOUDS[0])
    with pytest.raises(UnsupportedError, match="CdistBackward0 gives wrong numbers"):
        torch.vmap(pull)(torch.ones(2, 4, 3, dtype=torch.float64))
    gradients = torch.vmap(covector.grad(lambda a: torch.cdist(a, POINTS).sum()))(CLOUDS)
    expected = torch.stack([covector.grad(lambda a: torch.cdist(a, POINTS).sum())(a) for a in CLOUDS])
    assert_close(gradients, expected)


LAYOUTS = {
    "sparse_coo": torch.Tensor.to_sparse,
    "sparse_csr": torch.Tensor.to_sparse_csr,
    "mkldnn": torch.Tensor.to_mkldnn,
}

DENSE = {
    "jacrev": lambda f, s: covector.jacrev(f)(s),
    "jacfwd": lambda f, s: covector.jacfwd(f)(s),
    "jacobian": lambda f, s: covector.jacobian(f)(s),
    "jacobian, of a dict": lambda f, s: covector.jacobian(lambda p: f(p["s"]))({"s": s}),
    "hessian": lambda f, s: covector.hessian(f)(s),
    "hessian_blocks": lambda f, s: covector.hessian_blocks(f)(s),
    "functional.jacobian": lambda f, s: covector.functional.jacobian(f, s),
    "functional.hessian": lambda f, s: covector.functional.hessian(f, (s,)),
    "functional, forward": lambda f, s: covector.functional.jacobian(
        f, s, vectorize=True, strategy="forward-mode"
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("verb", DENSE)
def test_a_jacobian_is_dense(verb, layout):
    """Torch refuses too, by whichever operation happens to fail; products are taken."""
    s = LAYOUTS[layout](torch.eye(3))

    def squares(a):
        return (a.to_dense() ** 2).sum()

    with pytest.raises(NotImplementedError, match=rf"a Jacobian is dense, and \S+ has the layout {layout}\."):
        DENSE[verb](squares, s)
    assert_close(covector.grad(squares)(s).to_dense(), 2 * torch.eye(3))


def test_a_jacobian_of_a_sparse_output():
    """It has every row; where forward mode has none, it is refused, as in torch."""
    x = torch.eye(2)
    assert_close(covector.functional.jacobian(lambda a: a.to_sparse(), x).reshape(4, 4), torch.eye(4))
    with pytest.raises(UnsupportedError, match="_to_sparse"):
        covector.functional.jacobian(lambda a: a.to_sparse(), x, strategy="forward-mode", vectorize=True)


absolute = lambda x: x.abs().sum()
SECOND = {
    "hessian": lambda x: covector.hessian(absolute)(x),
    "hessian_blocks": lambda x: covector.hessian_blocks(absolute)(x),
    "hvp": lambda x: covector.hvp(absolute, (x,), (x,))[1],
    "vhp": lambda x: covector.vhp(absolute, (x,), (x,))[1],
    "vjp": lambda x: covector.vjp(covector.grad(absolute), x)[1](x),
    "linearize": lambda x: covector.linearize(covector.grad(absolute), x)[1](x),
    "jvp": lambda x: covector.jvp(covector.grad(absolute), (x,), (x,))[1],
    "functional.hessian": lambda x: covector.functional.hessian(absolute, x),
    "functional.hvp": lambda x: covector.functional.hvp(absolute, x, x)[1],
    "functional.vhp": lambda x: covector.functional.vhp(absolute, x, x)[1],
}


@pytest.mark.parametrize("verb", SECOND)
def test_zeros_have_memory(verb):
    """The second derivative of an absolute value is, to torch, zeros that cannot be made an array."""
    (found,) = torch.utils._pytree.tree_leaves(SECOND[verb](torch.ones(3, dtype=torch.float64)))
    assert not found.numpy().any()
    assert not found._is_zerotensor()
