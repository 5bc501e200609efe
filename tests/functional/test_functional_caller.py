"""The caller's world: modes, captures, evaluation counts, and nothing changed."""

import pytest
import torch
from torch import nn

import covector
from covector import functional
from covector.errors import ArgumentValueError, InferenceModeError
from functional_table import LIBRARIES
from watched import Counted

x = torch.linspace(0.5, 1.5, 3, dtype=torch.float64)


def cubes(x):
    return (x**3).sum()


OUTER = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}

CALLS = [
    ("vjp", lambda f, x: f.vjp(torch.sin, x, x)),
    ("jvp", lambda f, x: f.jvp(torch.sin, x, x)),
    ("jvp through the pullback", lambda f, x: f.jvp(lambda x: 2 * x.sin(), x, x)),
    ("jacobian", lambda f, x: f.jacobian(torch.sin, x)),
    ("jacobian by columns", lambda f, x: f.jacobian(torch.sin, x, vectorize=True, strategy="forward-mode")),
    ("hessian", lambda f, x: f.hessian(cubes, x)),
    ("hessian by columns", lambda f, x: f.hessian(cubes, x, **OUTER)),
    ("hvp", lambda f, x: f.hvp(cubes, x, x)),
    ("vhp", lambda f, x: f.vhp(cubes, x, x)),
]  # fmt: skip
calls = pytest.mark.parametrize(("name", "act"), CALLS, ids=[row[0] for row in CALLS])


@calls
def test_inference_mode(name, act):
    """The right answer, for ordinary tensors and for those made inside; the original gives zeros."""
    expected = act(functional, x)
    with torch.inference_mode():
        torch.testing.assert_close(act(functional, x), expected)
        torch.testing.assert_close(act(functional, x.clone()), expected)
        made_inside = x.clone()
        assert torch.is_inference_mode_enabled()
    torch.testing.assert_close(act(functional, made_inside), expected)


def test_inference_mode_with_a_graph():
    """A graph is made inside too, if it is asked for."""
    with torch.inference_mode():
        result = functional.jacobian(torch.sin, x, create_graph=True)
        assert result.requires_grad
        product = functional.hvp(cubes, x.clone(), x.clone(), create_graph=True)[1]
        torch.testing.assert_close(product.detach(), 6 * x * x)


def test_captured_inference_tensor():
    """A tensor that keeps no graph cannot take part: said in so many words."""
    with torch.inference_mode():
        weight = torch.ones(3, dtype=torch.float64)
    with pytest.raises(InferenceModeError, match=r"made under torch\.inference_mode"):
        functional.jacobian(lambda x: x * weight, x)


@calls
def test_no_grad_outside_is_not_obeyed(name, act):
    """As in the original, grad mode outside does not matter; it is restored."""
    expected = act(functional, x)
    with torch.no_grad():
        torch.testing.assert_close(act(functional, x), expected)
        torch.testing.assert_close(act(LIBRARIES[0], x), act(functional, x))
        assert not torch.is_grad_enabled()
    with torch.no_grad():
        assert functional.jacobian(torch.sin, x, create_graph=True).requires_grad


COUNTS = [
    ("vjp", lambda f: functional.vjp(f, x, x), 1),
    ("jvp", lambda f: functional.jvp(f, x, x), 1),
    ("jvp with a graph", lambda f: functional.jvp(f, x, x, create_graph=True), 1),
    ("jvp, strict", lambda f: functional.jvp(f, x, x, strict=True), 1),
    ("jacobian", lambda f: functional.jacobian(f, x), 1),
    ("jacobian, strict", lambda f: functional.jacobian(f, x, strict=True), 1),
    ("jacobian with a graph", lambda f: functional.jacobian(f, x, create_graph=True), 1),
    ("jacobian by columns", lambda f: functional.jacobian(f, x, vectorize=True, strategy="forward-mode"), 1),
]  # fmt: skip
NUMBER_COUNTS = [
    ("hessian", lambda f: functional.hessian(f, x), 1),
    ("hessian by columns", lambda f: functional.hessian(f, x, **OUTER), 1),
    ("hvp", lambda f: functional.hvp(f, x, x), 1),
    ("vhp", lambda f: functional.vhp(f, x, x), 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "act", "runs"), COUNTS, ids=[row[0] for row in COUNTS])
def test_runs(name, act, runs):
    """How often the function runs is part of the contract."""
    counted = Counted(lambda x: x.sin() * x)
    act(counted)
    assert counted.runs == runs


@pytest.mark.parametrize(("name", "act", "runs"), NUMBER_COUNTS, ids=[row[0] for row in NUMBER_COUNTS])
def test_runs_of_a_number(name, act, runs):
    """How often a scalar function runs."""
    counted = Counted(cubes)
    act(counted)
    assert counted.runs == runs


def test_runs_where_forward_mode_is_not_the_way():
    """The first call tries forward mode and throws it away; later ones do not try."""
    counted = Counted(lambda x: x.sin() if x.requires_grad else x)
    runs = []
    for _ in range(3):
        functional.jvp(counted, x, x)
        runs.append(counted.runs)
    assert runs == [2, 3, 4]


def test_random_functions_draw_as_in_the_original():
    """With the same seed, the same numbers, also when a run was thrown away; and the same state after."""

    def noisy(x):
        return torch.atan2(2 * x, torch.rand_like(x)) * x.requires_grad

    results = []
    for library in LIBRARIES:
        torch.manual_seed(3)
        results.append((library.jvp(noisy, x, x), torch.rand(2)))
        results.append((library.jacobian(noisy, x), torch.rand(2)))
    torch.testing.assert_close(results[2:], results[:2])


def test_a_function_that_swallows_errors():
    """A run in forward mode that noticed something is not used, even if the function catches it."""

    def careful(x):
        try:
            with torch.no_grad():
                scale = x.norm()
        except Exception:
            scale = x.norm()
        return x.sin() * scale

    theirs, ours = (library.jvp(careful, x, x) for library in LIBRARIES)
    torch.testing.assert_close(ours, theirs)


@calls
def test_nothing_is_changed(name, act):
    """Inputs, their flags and gradients, the modes and the random state are as before."""
    inputs = x.clone().requires_grad_()
    inputs.grad = torch.full_like(x, 7.0)
    before, state = inputs.detach().clone(), torch.get_rng_state()
    act(functional, inputs)
    assert torch.equal(inputs.detach(), before)
    assert inputs.requires_grad
    assert inputs.is_leaf
    assert inputs.grad.eq(7).all()
    assert inputs._version == 0
    assert torch.equal(state, torch.get_rng_state())
    assert torch.is_grad_enabled()


class Boom(Exception):
    """What a function raises."""


@pytest.mark.parametrize("verb", ["vjp", "jvp", "jacobian", "hessian", "hvp", "vhp"])
def test_nothing_is_changed_when_the_function_raises(verb):
    """The error comes through as it is, and the modes are restored."""

    def raises(x):
        raise Boom

    inputs = x.clone()
    vectors = [inputs] if verb in ("jvp", "hvp", "vhp") else []
    with torch.no_grad(), pytest.raises(Boom):
        getattr(functional, verb)(raises, inputs, *vectors)
    assert torch.is_grad_enabled()
    assert not inputs.requires_grad
    torch.testing.assert_close(functional.jacobian(torch.sin, x), x.cos().diag())


def test_the_caller_can_write_on_the_results():
    """A result does not share memory with an input or with the vector."""
    inputs = x.clone()
    value, product = functional.jvp(lambda x: x.clone(), inputs, inputs)
    value.zero_()
    product.zero_()
    assert torch.equal(inputs, x)


@pytest.mark.parametrize("create_graph", [False, True])
def test_captured_input(create_graph):
    """An input that the function captures as well is a constant where it is captured, as in the original."""
    results = []
    for library in LIBRARIES:
        inputs = x.clone().requires_grad_()
        results.append(
            (
                library.jacobian(lambda a: a * inputs, inputs, create_graph=create_graph),
                library.hessian(lambda a: (a**2 * inputs).sum(), inputs, create_graph=create_graph),
                library.jvp(lambda a: a * inputs, inputs, x, create_graph=create_graph),
            )
        )
    torch.testing.assert_close(*results)
    torch.testing.assert_close(results[1][0].detach(), x.diag())


def test_captured_parameters_get_gradients():
    """With create_graph the result leads to the parameters of a captured module."""
    gradients = []
    for library in LIBRARIES:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        library.jacobian(module, x, create_graph=True).pow(2).sum().backward()
        gradients.append([parameter.grad for parameter in module.parameters()])
    torch.testing.assert_close(*gradients)


def test_the_same_tensor_twice():
    """Two inputs that are one tensor are two inputs."""
    theirs, ours = (library.jacobian(torch.mul, (x, x)) for library in LIBRARIES)
    torch.testing.assert_close(ours, theirs)


def test_inside_vmap():
    """Each slice has its own Jacobian; the original refuses."""
    points = torch.stack([x, 2 * x])
    with pytest.raises(RuntimeError, match="functorch"):
        torch.vmap(lambda p: LIBRARIES[0].jacobian(torch.sin, p))(points)
    got = torch.vmap(lambda p: functional.jacobian(torch.sin, p))(points)
    torch.testing.assert_close(got, torch.stack([p.cos().diag() for p in points]))
    got = torch.vmap(lambda p: functional.hvp(cubes, p, p)[1])(points)
    torch.testing.assert_close(got, 6 * points**2)
    got = torch.vmap(lambda p: functional.jvp(torch.sin, p, p)[1])(points)
    torch.testing.assert_close(got, points.cos() * points)


@pytest.mark.parametrize("grad", [torch.func.grad, covector.grad])
def test_inside_a_gradient(grad):
    """With create_graph the outer derivative goes through."""
    got = grad(lambda p: functional.jacobian(torch.sin, p, create_graph=True).sum())(x)
    torch.testing.assert_close(got, -x.sin())
    got = grad(lambda p: functional.hvp(cubes, p, x, create_graph=True)[1].sum())(x)
    torch.testing.assert_close(got, 6 * x)


def test_inside_a_gradient_without_a_graph():
    """On a level of torch.func a result that is cut off would count as zero: refused, as torch does."""
    for library in LIBRARIES:
        with pytest.raises(RuntimeError):
            torch.func.grad(lambda p: library.jacobian(torch.sin, p).sum())(x)
    with pytest.raises(ArgumentValueError, match="create_graph=True"):
        torch.func.grad(lambda p: functional.jacobian(torch.sin, p).sum())(x)


@pytest.mark.parametrize("create_graph", [False, True])
def test_inside_forward_mode(create_graph):
    """An outer forward mode sees the derivative of the Jacobian."""
    for jvp in (torch.func.jvp, covector.jvp):
        _, got = jvp(lambda p: functional.jacobian(torch.sin, p, create_graph=create_graph), (x,), (x,))
        torch.testing.assert_close(got, (-x.sin() * x).diag())


def test_attention():
    """Fused attention has no second derivative: another way is taken, where the original raises."""
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64)

    def loss(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).pow(2).sum()

    got = functional.hvp(loss, q, q)[1]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.testing.assert_close(got, LIBRARIES[0].hvp(loss, q, q)[1])


def test_complex_products():
    """Complex vectors, in torch's convention."""
    z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
    for verb, function in (
        ("vjp", torch.sin),
        ("jvp", torch.sin),
        ("jvp", lambda z: 2 * z.conj()),
        ("hvp", lambda z: z.abs().pow(3).sum()),
        ("vhp", lambda z: z.abs().pow(3).sum()),
    ):
        theirs, ours = (getattr(library, verb)(function, z, z * 1j) for library in LIBRARIES)
        torch.testing.assert_close(ours, theirs)


def test_complex_jacobian_by_columns():
    """Holomorphic functions have a complex Jacobian; for others there is none, and that is said."""
    z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
    keywords = {"vectorize": True, "strategy": "forward-mode"}
    torch.testing.assert_close(functional.jacobian(torch.sin, z, **keywords), z.cos().diag())
    with pytest.raises(TypeError, match="not holomorphic"):
        functional.jacobian(lambda z: z.conj() * z, z, **keywords)


class Legacy(torch.autograd.Function):
    """A square with a numpy backward, in the old style: nothing of it can be batched."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(2 * x.detach().numpy() * g.detach().numpy())


@pytest.mark.parametrize("vectorize", [False, True])
def test_legacy_functions(vectorize):
    """Where a batch fails the rows are made one by one."""
    torch.testing.assert_close(functional.jacobian(Legacy.apply, x, vectorize=vectorize), (2 * x).diag())
    torch.testing.assert_close(functional.jvp(Legacy.apply, x, x)[1], 2 * x * x)


class Picky(torch.autograd.Function):
    """A double whose backward raises anything but a RuntimeError in a batch."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        try:
            g.tolist()
        except Exception:
            raise KeyError from None
        return 2 * g


def test_a_backward_that_cannot_be_batched_in_its_own_way():
    """Any error in a batch leads to the loop."""
    torch.testing.assert_close(functional.jacobian(Picky.apply, x), torch.eye(3, dtype=x.dtype) * 2)


def test_many_rows_go_in_chunks(monkeypatch):
    """Rows are made in batches of limited size, and put together."""
    from covector.functional import _matrix

    monkeypatch.setattr(_matrix, "_NUMBERS", 20)
    point = torch.linspace(0, 1, 7, dtype=torch.float64)
    torch.testing.assert_close(functional.jacobian(torch.sin, point), point.cos().diag())
    torch.testing.assert_close(functional.hessian(cubes, point), (6 * point).diag())


@pytest.mark.parametrize("vectorize", [False, True])
def test_an_operation_with_a_wrong_batching_rule(vectorize):
    """The Jacobian of `cdist` by a loop is right, so ours is."""
    points = torch.linspace(0, 1, 12, dtype=torch.float64).sin().reshape(4, 3)
    inputs = torch.linspace(-1, 2, 12, dtype=torch.float64).cos().reshape(4, 3)
    expected = LIBRARIES[0].jacobian(lambda a: torch.cdist(a, points), inputs)
    got = functional.jacobian(lambda a: torch.cdist(a, points), inputs, vectorize=vectorize)
    torch.testing.assert_close(got, expected)


def test_an_infinite_slope_of_one_output_stays_there():
    """The rows of one output are not touched by another that is not differentiable at the point."""

    def function(a):
        return a.sqrt(), a.sin()

    point = torch.tensor([0.0, 1.0], dtype=torch.float64)
    theirs, ours = (library.jacobian(function, point) for library in LIBRARIES)
    assert ours[1].isfinite().all()
    torch.testing.assert_close(ours, theirs, equal_nan=True)
