"""What torch.func refuses or gets wrong, and covector does."""

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import covector
from covector.errors import (
    ArgumentTypeError,
    BatchingWarning,
    ForwardModeWarning,
    RandomnessError,
    UnsupportedError,
)
from watched import Counted

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
u = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
assert_close = torch.testing.assert_close


# 1. keyword arguments and argnames


def spring(x, *, stiffness, rest=0.0):
    return 0.5 * (stiffness * (x - rest) ** 2).sum()


def test_keyword_arguments():
    """Every transform of a function passes keywords on, tensors and trees among them."""
    assert_close(covector.grad(spring)(x, stiffness=u, rest=0.1), u * (x - 0.1))
    assert_close(covector.jacrev(spring)(x, stiffness=u), u * x)
    assert_close(covector.jacfwd(spring)(x, stiffness=u), u * x)
    assert_close(covector.hessian(spring)(x, stiffness=u), u.diag())


def test_argnames():
    """Differentiation by name: of a keyword, of a positional parameter, of several."""
    assert_close(covector.grad(spring, argnames="stiffness")(x, stiffness=u), 0.5 * x**2)
    assert_close(covector.grad(spring, argnames="x")(x, stiffness=u), u * x)
    by_k, by_x = covector.jacrev(spring, argnames=("stiffness", "x"))(x, stiffness=u)
    assert_close((by_k, by_x), (0.5 * x**2, u * x))
    by_x, by_k = covector.jacfwd(spring, argnums=(0,), argnames="stiffness")(x, stiffness=u)
    assert_close((by_k, by_x), (0.5 * x**2, u * x))
    blocks = covector.hessian(spring, argnames=("x", "stiffness"))(x, stiffness=u)
    assert_close(blocks, ((u.diag(), x.diag()), (x.diag(), torch.zeros(3, 3).double())))


# 2. the same keywords on jacrev, jacfwd and hessian

JACOBIANS = [covector.jacrev, covector.jacfwd, covector.hessian]
each_jacobian = pytest.mark.parametrize("transform", JACOBIANS, ids=lambda f: f.__name__)


@each_jacobian
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 100, None])
def test_chunk_size(transform, chunk_size):
    """Any chunk gives the same result."""

    def f(x, y):
        return {"a": x.sin() * y.sum(), "b": (x**2).sum()}

    expected = transform(f, argnums=(0, 1))(x, u)
    got = transform(f, argnums=(0, 1), chunk_size=chunk_size)(x, u)
    assert_close(got, expected)


@each_jacobian
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_has_aux(transform, chunk_size):
    """The auxiliary part comes back as the function returned it, tensors and other things alike."""

    def f(x):
        y = x.sin()
        return (y * x).sum(), {"y": y, "label": "sine", "count": torch.tensor(3)}

    result, aux = transform(f, has_aux=True, chunk_size=chunk_size)(x)
    assert_close(result, transform(lambda x: f(x)[0])(x))
    assert_close(aux["y"], x.sin())
    assert aux["label"] == "sine"
    assert aux["count"].item() == 3
    assert not aux["y"].requires_grad


@each_jacobian
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_randomness_same(transform, chunk_size):
    """With randomness="same" every direction sees one draw, whatever the chunk: a true Jacobian."""

    def f(x):
        noise = torch.rand(3, dtype=x.dtype)
        return (noise * x**2).sum()

    torch.manual_seed(5)
    noise = torch.rand(3, dtype=x.dtype)
    torch.manual_seed(5)
    result = transform(f, randomness="same", chunk_size=chunk_size)(x)
    assert_close(result, (2 * noise).diag() if transform is covector.hessian else 2 * noise * x)


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_randomness_error(chunk_size):
    """A draw inside a batch, or inside the loop that stands for it, is refused by default."""
    with pytest.raises(RandomnessError, match="draws random numbers"):
        covector.jacfwd(lambda x: x * torch.rand(3), chunk_size=chunk_size)(x)


@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_randomness_different(chunk_size):
    """With randomness="different" each column has its own draw."""
    diagonal = covector.jacfwd(lambda x: x * torch.rand(1), chunk_size=chunk_size, randomness="different")(
        torch.ones(8)
    ).diag()
    assert diagonal.unique().numel() == 8


# 3. legacy custom Functions


class LegacySine(torch.autograd.Function):
    """A Function as they were written before `setup_context`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class LegacyBranch(LegacySine):
    """Its backward looks at values, so it cannot be batched."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() if g.sum().item() != 7 else g


def test_legacy_function():
    """A Function without `setup_context` works wherever plain autograd would do."""
    sine = LegacySine.apply
    assert_close(covector.grad(lambda x: sine(x).sum())(x), x.cos())
    assert_close(covector.vjp(sine, x)[1](u)[0], u * x.cos())
    assert_close(covector.jacrev(sine)(x), x.cos().diag())
    assert_close(covector.hessian(lambda x: sine(x).sum())(x), (-x.sin()).diag())
    assert_close(covector.linearize(sine, x)[1](u), u * x.cos())
    assert_close(covector.grad(lambda x: covector.grad(lambda x: sine(x).sum())(x).sum())(x), -x.sin())


def test_legacy_function_whose_backward_cannot_be_batched():
    """The rows are then computed in a loop, with one warning that says why."""
    with pytest.warns(BatchingWarning, match=r"jacrev\(LegacyBranch.apply\): .* one by one.*item"):
        assert_close(covector.jacrev(LegacyBranch.apply)(x), x.cos().diag())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(covector.jacrev(LegacyBranch.apply, chunk_size=1)(x), x.cos().diag())


# 4. no forward-mode rule


def attention(q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, 0.5 * q)


def test_attention_forward():
    """Forward mode through the fused attention kernel, with one warning that names it."""
    q, t = torch.randn(2, 1, 2, 4, 8, dtype=torch.float64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = torch.func.jvp(attention, (q,), (t,))
        jacobian = torch.func.jacrev(attention)(q)
        hessian = torch.func.hessian(lambda q: attention(q).pow(2).sum())(q[..., :2, :])
    name = "_scaled_dot_product_flash_attention_for_cpu"
    with pytest.warns(ForwardModeWarning, match=rf"jvp\(attention\).*{name}") as caught:
        assert_close(covector.jvp(attention, (q,), (t,)), expected)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(ForwardModeWarning, match=rf"jacfwd\(attention\).*{name}") as caught:
        assert_close(covector.jacfwd(attention)(q), jacobian)
    assert len(caught) == 1
    assert_close(covector.linearize(attention, q)[1](t), expected[1])
    assert_close(covector.hessian(lambda q: attention(q).pow(2).sum())(q[..., :2, :]), hessian)


def test_custom_function_without_jvp():
    """A Function that defines no `jvp` is named by its class."""
    with pytest.warns(ForwardModeWarning, match="no forward-mode rule for LegacySine;"):
        assert_close(covector.jvp(LegacySine.apply, (x,), (u,))[1], u * x.cos())
    with pytest.warns((ForwardModeWarning, BatchingWarning)):
        assert_close(covector.jacfwd(LegacySine.apply)(x), x.cos().diag())


# 5. linearize


def test_linearize_runs_the_function_once():
    """One run, any number of applications, and branches on values are fine."""

    @Counted
    def f(x):
        return {"a": x.sin() if x[0].item() > 0 else x.cos(), "b": (x**2).sum(), "c": torch.ones(2)}

    value, jvp_fn = covector.linearize(f, x)
    assert_close(value["a"], x.sin())
    for _ in range(3):
        pushed = jvp_fn(u)
        assert_close(pushed["a"], x.cos() * u)
        assert_close(pushed["b"], (2 * x * u).sum())
        assert_close(pushed["c"], torch.zeros(2))
    batch = torch.vmap(jvp_fn)(torch.eye(3, dtype=x.dtype))
    assert_close(batch["a"], x.cos().diag())
    assert f.runs == 1


def test_linearize_where_the_pullback_has_no_derivative():
    """A backward that cannot be differentiated again is replaced by forward mode."""

    class OnlyOnce(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

        @staticmethod
        def jvp(ctx, t):
            return t * ctx.saved_tensors[0].cos()

    assert_close(covector.linearize(OnlyOnce.apply, x)[1](u), u * x.cos())


# second derivatives that torch would silently give as zero


class OnceCube(torch.autograd.Function):
    """x^3, with a backward that must not be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


def test_once_differentiable_is_refused_not_zero():
    """The first derivative works; asking for the second one raises, whichever way it is asked for."""
    cube = lambda x: OnceCube.apply(x).sum()
    assert_close(covector.grad(cube)(x), 3 * x**2)
    for second in (
        lambda: covector.hessian(cube)(x),
        lambda: covector.grad(lambda x: covector.grad(cube)(x).sum())(x),
        lambda: covector.jacrev(covector.grad(cube))(x),
    ):
        with pytest.raises(UnsupportedError, match="marked once_differentiable"):
            second()
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    first = covector.grad(lambda x: (weight * OnceCube.apply(x)).sum())(x)
    assert_close(first.detach(), 3 * x**2)


@pytest.mark.filterwarnings("ignore")
def test_hessian_of_a_compiled_function():
    """Compiled code has no second backward; the Hessian goes forward over reverse."""
    compiled = torch.compile(lambda x: (x.sin() ** 2).sum(), backend="aot_eager")
    assert_close(covector.hessian(compiled)(x), (2 * (2 * x).cos()).diag())
    assert_close(covector.hessian(lambda x: compiled(x) + (x**2).sum())(x), (2 * (2 * x).cos() + 2).diag())


SECOND_OF_COMPILED = {
    "hvp": lambda f: covector.hvp(f, (x,), (torch.ones_like(x),))[1][0],
    "jacrev of grad": lambda f: covector.jacrev(covector.grad(f))(x).sum(1),
    "grad of grad": lambda f: covector.grad(lambda x: covector.grad(f)(x).sum())(x),
    "functional.hessian": lambda f: covector.functional.hessian(f, x).sum(1),
}


# The backward of the first saves its input, that of the second its result.
COMPILED = {
    "sine": (lambda x: (x.sin() ** 2).sum(), 2 * (2 * x).cos()),
    "exponential": (lambda x: x.exp().sum(), x.exp()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", COMPILED)
@pytest.mark.parametrize("way", SECOND_OF_COMPILED)
def test_second_derivatives_of_a_compiled_function_are_right_or_refused(way, function):
    """A backward that was compiled may give gradients without a graph, which would make the next one zero."""
    torch.compiler.reset()
    eager, expected = COMPILED[function]
    compiled = torch.compile(eager, backend="aot_eager")
    try:
        got = SECOND_OF_COMPILED[way](compiled)
    except UnsupportedError as error:
        got = error
    if isinstance(got, UnsupportedError):
        assert "belongs to a compiled function" in str(got)
    else:
        assert_close(got, expected)


# 7. modules


def test_module_as_function():
    """Gradients and Hessians keyed by parameter name; parameters and buffers are left alone."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Tanh()).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = torch.randn(5, 3, dtype=torch.float64)
    fn, params = covector.as_function(model)

    def loss(params, data):
        return fn(params, data).pow(2).sum()

    gradient = covector.grad(loss)(params, data)
    assert list(gradient) == [name for name, _ in model.named_parameters()]
    hessian = covector.hessian(loss)(params, data)
    assert hessian["0.weight"]["1.bias"].shape == (2, 3, 2)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in model.parameters())

    model(data).pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        assert_close(gradient[name], parameter.grad)


def test_module_subset_of_parameters():
    """Names and patterns choose what is a variable; the rest stays in the module."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).double()
    assert list(covector.as_function(model, "0.*")[1]) == ["0.weight", "0.bias"]
    fn, params = covector.as_function(model, ["0.bias", "1.w*"])
    assert list(params) == ["0.bias", "1.weight"]
    for wrong in ({**params, "typo": x}, {"0.bias": params["0.bias"]}, x):
        with pytest.raises(ArgumentTypeError, match=r"as_function\(Sequential\): call fn\(params, ...\)"):
            fn(wrong, x)
    gradient = covector.grad(lambda p: fn(p, x).sum())(params)
    assert_close(gradient["0.bias"], model[1].weight[0].detach())


# 8. activation checkpointing


def test_checkpointing():
    """First-order reverse transforms at top level work through non-reentrant checkpoints."""

    def block(x):
        return x.sin() * x.exp()

    def f(x):
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    def plain(x):
        return block(block(x))

    assert_close(covector.grad(lambda x: f(x).sum())(x), torch.func.grad(lambda x: plain(x).sum())(x))
    assert_close(covector.vjp(f, x)[1](u), torch.func.vjp(plain, x)[1](u))
    assert_close(covector.jacrev(f)(x), torch.func.jacrev(plain)(x))
    assert_close(covector.jacrev(f, chunk_size=1)(x), torch.func.jacrev(plain)(x))


# 9. compilers


def product(x):
    return (x.sin() * x).sum()


@pytest.mark.sweep  # test_inside_compile.py has each of them
@pytest.mark.filterwarnings("ignore")
def test_torch_compile():
    """Compiled code that calls our transforms gives the same results as eager code."""
    made_before = covector.hessian(product)
    pulled_before = covector.vjp(torch.sin, x)[1]

    def everything(x):
        y = 2 * x
        return (
            covector.grad(product)(y) + 1,
            made_before(y),
            covector.jvp(torch.sin, (y,), (y,)),
            covector.vjp(torch.sin, y)[1](y),
            pulled_before(y),
            covector.jacfwd(torch.sin)(y).sum(0),
            covector.jacrev(torch.sin)(y) * 3,
            covector.linearize(torch.sin, y)[1](y),
        )

    compiled = torch.compile(everything, backend="aot_eager")
    assert_close(compiled(x), everything(x))
    assert_close(compiled(u), everything(u))


@pytest.mark.parametrize(
    "transformed",
    [
        covector.grad(product),
        covector.jacrev(torch.sin),
        covector.jacfwd(torch.sin),
        covector.hessian(product),
        lambda x: covector.vjp(torch.sin, x)[1](x)[0],
        lambda x: covector.jvp(torch.sin, (x,), (x,))[1],
        lambda x: covector.linearize(torch.sin, x)[1](x),
        covector.functionalize(lambda x: x.clone().add_(1)),
    ],
    ids=["grad", "jacrev", "jacfwd", "hessian", "vjp", "jvp", "linearize", "functionalize"],
)
def test_make_fx(transformed):
    """Tracing a transform gives a graph, which computes the transform at another point."""
    graph = make_fx(transformed)(x)
    assert any(node.op == "call_function" for node in graph.graph.nodes)
    assert_close(graph(u), transformed(u))


def test_functionalize_removes_mutations():
    """The traced graph has no in-place operation, and on request no view."""

    def f(x):
        y = x.clone()
        y.view(-1)[0].add_(1)
        x.mul_(2)
        return y * x

    for remove, views in (("mutations", True), ("mutations_and_views", False)):
        graph = make_fx(covector.functionalize(f, remove=remove))(x.clone())
        names = [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
        body = [name for name in names if not name.startswith("copy_")]  # the write to the caller's x
        assert not any(name.split(".")[0].endswith("_") for name in body), names
        assert any(name.startswith("view.") for name in names) == views, names
        mine, theirs = x.clone(), x.clone()
        assert_close(covector.functionalize(f, remove=remove)(mine), f(theirs))
        assert_close(mine, theirs)


SOLVING = {
    "solve": lambda x: torch.linalg.solve(4 * torch.eye(3, dtype=x.dtype) + x.outer(x), x),
    "det": lambda x: torch.linalg.det(4 * torch.eye(3, dtype=x.dtype) + x.outer(x)) * x,
    "slogdet": lambda x: torch.linalg.slogdet(4 * torch.eye(3, dtype=x.dtype) + x.outer(x))[1] * x,
}


@pytest.mark.parametrize("name", SOLVING)
def test_rows_through_a_factorization_in_a_batch(name):
    """Without grad mode, torch would solve with the factors of another sample."""
    solving, points = SOLVING[name], torch.stack([x, u, x - u])
    rows = torch.vmap(covector.jacrev(solving))
    expected = torch.stack([covector.jacrev(solving)(point) for point in points])
    assert_close(covector.compile(rows, backend="replay")(points), expected)
    with torch.no_grad():
        assert_close(rows(points), expected)


def test_a_sparse_output_has_no_tangent_and_is_looked_at_in_reverse_mode() -> None:
    """Torch cannot say whether such an output has a tangent, and raises; this one depends on both inputs."""
    x, y = torch.rand(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    for function, expected in (
        (lambda a, b: (a * b).to_sparse(), x.diag()),
        (lambda a, b: a.abs().to_sparse(), torch.zeros(3, 3, dtype=torch.float64)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = covector.jacfwd(function, argnums=1)(x, y).to_dense()
        torch.testing.assert_close(got, expected)
