"""Products with a Hessian, its diagonal, and its diagonal blocks."""

import pytest
import torch
from torch.utils import _pytree as registry

import covector
from cases import CASES
from covector.errors import ArgumentTypeError, ArgumentValueError, OutputError, UnsupportedError
from watched import Counted

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
u = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
assert_close = torch.testing.assert_close
scalar_cases = pytest.mark.parametrize("case", [c for c in CASES if c.scalar and not c.complex], ids=str)


def cubic(x):
    return (x**3).sum() + x.prod()


def leaves_of(tree):
    return registry.tree_leaves(tree)


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@scalar_cases
def test_products_diagonal_and_blocks_agree_with_the_hessian(case):
    """On every scalar function of the table."""
    primals = case.primals()
    along = registry.tree_map(
        lambda p: torch.linspace(-1, 1, p.numel(), dtype=p.dtype).reshape(p.shape), primals
    )
    everything = tuple(range(len(primals)))
    hessian = leaves_of(covector.hessian(case.function, everything)(*primals))
    leaves, directions = leaves_of(primals), leaves_of(along)
    count = len(leaves)
    value, product = covector.hvp(case.function, primals, along)
    assert registry.tree_structure(product) == registry.tree_structure(primals)
    assert_close(value, case.function(*primals))
    for i, got in enumerate(leaves_of(product)):
        parts = [
            hessian[i * count + j].reshape(leaves[i].numel(), leaves[j].numel()) @ directions[j].reshape(-1)
            for j in range(count)
        ]
        assert_close(got.reshape(-1), sum(parts))
    assert_close(leaves_of(covector.vhp(case.function, primals, along)[1]), leaves_of(product))
    blocks = leaves_of(covector.hessian_blocks(case.function, everything)(*primals))
    assert_close(blocks, [hessian[i * count + i] for i in range(count)])
    for chunk_size in (None, 2):
        diagonal = covector.hessian_diagonal(case.function, everything, chunk_size=chunk_size)(*primals)
        for got, block, leaf in zip(leaves_of(diagonal), blocks, leaves, strict=True):
            assert_close(got, block.reshape(leaf.numel(), leaf.numel()).diagonal().reshape(leaf.shape))


def test_modules():
    """Blocks and products under the names of the parameters."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1)).double()
    fn, params = covector.as_function(model)
    loss = lambda params, x: fn(params, x).pow(2).sum()
    inputs = torch.randn(5, 3, dtype=torch.float64)
    whole = covector.hessian(loss)(params, inputs)
    blocks = covector.hessian_blocks(loss)(params, inputs)
    assert list(blocks) == list(params)
    for name in params:
        assert_close(blocks[name], whole[name][name])
    value, (product,) = covector.hvp(lambda p: loss(p, inputs), (params,), (params,))
    assert_close(value, loss(params, inputs))
    for name in params:
        expected = sum(
            (whole[name][other] * params[other]).flatten(params[name].ndim).sum(-1) for other in params
        )
        assert_close(product[name], expected)
    diagonal = covector.hessian_diagonal(loss)(params, inputs)
    assert {name: d.shape for name, d in diagonal.items()} == {name: p.shape for name, p in params.items()}


def test_the_function_runs_once():
    f = Counted(cubic)
    for act in (
        lambda: covector.hvp(f, (x,), (u,)),
        lambda: covector.vhp(f, (x,), (u,)),
        lambda: covector.hessian_blocks(f)(x),
        lambda: covector.hessian_diagonal(f, chunk_size=1)(x),
    ):
        f.runs = 0
        act()
        assert f.runs == 1


def test_compose():
    """Under vmap, differentiated again, and inside no_grad."""
    directions = torch.eye(3, dtype=torch.float64)
    hessian = torch.func.hessian(cubic)(x)
    assert_close(torch.vmap(lambda v: covector.hvp(cubic, (x,), (v,))[1][0])(directions), hessian)
    third = covector.jacrev(lambda x: covector.hvp(cubic, (x,), (u,))[1][0])(x)
    assert_close(third, torch.func.jacfwd(lambda x: torch.func.hessian(cubic)(x) @ u)(x))
    assert_close(torch.func.jacfwd(covector.hessian_diagonal(cubic))(x), (6 * torch.eye(3).double()))
    leaf = x.clone().requires_grad_()
    covector.hvp(cubic, (leaf,), (u,))[1][0].sum().backward()
    assert_close(leaf.grad, torch.func.grad(lambda x: (torch.func.hessian(cubic)(x) @ u).sum())(x))
    with torch.no_grad():
        assert_close(covector.hvp(cubic, (x,), (u,))[1][0], hessian @ u)
    points = torch.stack([x, u])
    assert_close(
        torch.vmap(covector.hessian_blocks(cubic))(points), torch.vmap(torch.func.hessian(cubic))(points)
    )


def test_aux():
    f = lambda x: (cubic(x), {"x": x, "tag": 1})
    value, product, aux = covector.hvp(f, (x,), (u,), has_aux=True)
    assert_close((value, product[0], aux["x"]), (cubic(x), torch.func.hessian(cubic)(x) @ u, x))
    diagonal, aux = covector.hessian_diagonal(f, has_aux=True)(x)
    assert_close((diagonal, aux["x"]), (6 * x, x))
    assert aux["tag"] == 1


class Once(torch.autograd.Function):
    """Its backward cannot be differentiated."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


def test_no_silent_zeros():
    """Where a backward has no derivative of its own, that is said."""
    f = lambda x: Once.apply(x).sum()
    for act in (
        lambda: covector.hvp(f, (x,), (u,)),
        lambda: covector.hessian_blocks(f)(x),
        lambda: covector.hessian_diagonal(f)(x),
        lambda: covector.hessian(f, mode="reverse")(x),
    ):
        with pytest.raises(UnsupportedError, match="no derivative of its own"):
            act()


def test_attention():
    """The fused kernel has no second derivative; another one is used."""
    keys = torch.randn(1, 2, 4, 3, dtype=torch.float64)
    f = lambda q: torch.nn.functional.scaled_dot_product_attention(q, keys, keys).pow(2).sum()
    q, v = torch.randn(2, 1, 2, 4, 3, dtype=torch.float64)
    hessian = covector.hessian(f)(q).reshape(24, 24)
    assert_close(covector.hvp(f, (q,), (v,))[1][0].reshape(-1), hessian @ v.reshape(-1))
    assert_close(covector.hessian_diagonal(f)(q).reshape(-1), hessian.diagonal())
    assert hessian.abs().max() > 0


def test_plan_of_a_hessian():
    hessian = covector.hessian(cubic)
    assert hessian.plan is None
    hessian(x)
    assert str(hessian.plan) == (
        "reverse mode: 3 rows of 3 x 3, 3 at once, because the function has no more than 4 outputs"
    )
    hessian = covector.hessian(lambda x: x.repeat(3) ** 3, chunk_size=2)
    hessian(x)
    assert (hessian.plan.mode, hessian.plan.outputs, hessian.plan.chunk) == ("forward", 27, 2)


MISTAKES = [
    (lambda: covector.hvp(3, (x,), (x,)), ArgumentTypeError, "hvp: the first argument must be a function"),
    (lambda: covector.hvp(cubic, x, (x,)), ArgumentTypeError, "hvp(cubic): primals must be a tuple"),
    (lambda: covector.hvp(cubic, (x,), (x[:2],)), ArgumentValueError, "the tangent for x must be like it"),
    (lambda: covector.vhp(cubic, (x,), (x, x)), ArgumentValueError, "vhp(cubic): the cotangents must have the structure"),
    (lambda: covector.hvp(torch.sin, (x,), (x,)), OutputError, "hvp(sin): the function must return a scalar"),
    (lambda: covector.hessian_diagonal(torch.sin)(x), OutputError, "hessian_diagonal(sin): the function must return a scalar"),
    (lambda: covector.hessian_blocks(cubic)(x + 0j), ArgumentTypeError, "hessian_blocks(cubic): x is complex"),
    (lambda: covector.hessian_blocks(cubic, chunk_size=0), ArgumentValueError, "hessian_blocks: chunk_size must be positive"),
    (lambda: covector.hvp(cubic, (torch.arange(3),), (x,)), ArgumentTypeError, "has dtype torch.int64"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "kind", "text"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistake_is_explained(act, kind, text):
    with pytest.raises(kind) as caught:
        act()
    assert text in str(caught.value)
