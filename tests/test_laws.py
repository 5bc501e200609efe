"""Laws that hold for every function: what a derivative is, whatever it is the derivative of."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as registry

import covector
from cases import CASES, Case
from covector._chart import Chart
from covering import covered, examples
from watched import marks

pytestmark = [
    # Where torch has no forward-mode rule covector goes around, and says so; here only the law counts.
    pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:torch"),
]

FEW, MANY = examples(2), examples(12)

every_case = pytest.mark.parametrize("case", CASES, ids=str)
real_cases = pytest.mark.parametrize("case", [case for case in CASES if not case.complex], ids=str)
seeds = st.integers(0, 2**31)
factors = st.floats(-2, 2, allow_nan=False)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.complex64, torch.complex128])


# Vectors that are trees


def directions(tree: Any, seed: int) -> Any:
    """Normal numbers in the shape of a tree of tensors."""
    generator = torch.Generator().manual_seed(seed)
    return registry.tree_map(lambda x: torch.randn(x.shape, dtype=x.dtype, generator=generator), tree)


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def inner(left: Any, right: Any) -> float:
    """The real inner product of two trees."""
    pairs = zip(registry.tree_leaves(left), registry.tree_leaves(right), strict=True)
    return sum(float((as_real(a).double() * as_real(b).double()).sum()) for a, b in pairs)


def combined(a: float, left: Any, b: float, right: Any) -> Any:
    """The tree a * left + b * right."""
    return registry.tree_map(lambda x, y: a * x + b * y, left, right)


def digits_of(*trees: Any) -> float:
    single = (torch.float32, torch.complex64)
    return 1e-4 if any(leaf.dtype in single for leaf in registry.tree_leaves(trees)) else 1e-9


def assert_close(got: Any, expected: Any, digits: float) -> None:
    got_leaves, got_spec = registry.tree_flatten(got)
    leaves, spec = registry.tree_flatten(expected)
    assert got_spec == spec
    for mine, theirs in zip(got_leaves, leaves, strict=True):
        scale = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(mine, theirs, rtol=digits, atol=digits * max(1.0, scale))


# Of the table


@every_case
@FEW
@given(seed=seeds)
def test_forward_and_reverse_are_transposes(case: Case, seed: int) -> None:
    """<v, J u> = <J^T v, u>, for jvp and for linearize."""
    primals = case.primals()
    tangents = directions(primals, seed)
    outputs, pushed = covector.jvp(case.function, primals, tangents)
    _, pull = covector.vjp(case.function, *primals)
    _, push = covector.linearize(case.function, *primals)
    cotangents = directions(outputs, seed + 1)
    expected = inner(pull(cotangents), tangents)
    approximately = pytest.approx(expected, rel=digits_of(primals, outputs), abs=digits_of(primals, outputs))
    assert inner(cotangents, pushed) == approximately
    assert inner(cotangents, push(*tangents)) == approximately


@every_case
@FEW
@given(seed=seeds, a=factors, b=factors)
def test_jvp_is_linear_in_the_tangent(case: Case, seed: int, a: float, b: float) -> None:
    """J (a u + b w) = a J u + b J w."""
    primals = case.primals()
    u, w = directions(primals, seed), directions(primals, seed + 1)

    def push(tangents: Any) -> Any:
        return covector.jvp(case.function, primals, tangents)[1]

    expected = combined(a, push(u), b, push(w))
    assert_close(push(combined(a, u, b, w)), expected, digits_of(primals, expected))


@every_case
@FEW
@given(seed=seeds, a=factors, b=factors)
def test_vjp_is_linear_in_the_cotangent(case: Case, seed: int, a: float, b: float) -> None:
    """J^T (a v + b w) = a J^T v + b J^T w, with one pullback for all."""
    primals = case.primals()
    outputs, pull = covector.vjp(case.function, *primals)
    v, w = directions(outputs, seed), directions(outputs, seed + 1)
    expected = combined(a, pull(v), b, pull(w))
    assert_close(pull(combined(a, v, b, w)), expected, digits_of(primals, expected))


@real_cases
def test_both_modes_give_the_same_jacobian(case: Case) -> None:
    """Jacfwd = jacrev, by rows, by columns, and in chunks."""
    primals = case.primals()
    by_rows = covector.jacrev(case.function, argnums=case.argnums)(*primals)
    by_columns = covector.jacfwd(case.function, argnums=case.argnums)(*primals)
    in_chunks = covector.jacfwd(case.function, argnums=case.argnums, chunk_size=2)(*primals)
    digits = digits_of(primals, by_rows)
    # As in torch, rows have the dtype of the input and columns that of the output.
    by_rows, by_columns, in_chunks = registry.tree_map(Tensor.double, (by_rows, by_columns, in_chunks))
    assert_close(by_columns, by_rows, digits)
    assert_close(in_chunks, by_rows, digits)


def scalar(case: Case) -> Callable[..., Tensor]:
    """The case with the sum of all outputs as its value."""

    def function(*primals: Any) -> Tensor:
        return sum(as_real(output).sum() for output in registry.tree_leaves(case.function(*primals)))

    return function


VERBS: dict[str, Callable[[Case, Any], Any]] = {
    "grad": lambda case, x: covector.grad(scalar(case), argnums=case.argnums)(*x),
    "grad_and_value": lambda case, x: covector.grad_and_value(scalar(case), argnums=case.argnums)(*x),
    "vjp": lambda case, x: (lambda y, pull: pull(y))(*covector.vjp(case.function, *x)),
    "jvp": lambda case, x: covector.jvp(case.function, x, directions(x, 0)),
    "linearize": lambda case, x: covector.linearize(case.function, *x)[1](*directions(x, 0)),
    "jacrev": lambda case, x: covector.jacrev(scalar(case), argnums=case.argnums)(*x),
    "jacfwd": lambda case, x: covector.jacfwd(scalar(case), argnums=case.argnums)(*x),
    "hessian": lambda case, x: covector.hessian(scalar(case), argnums=case.argnums)(*x),
}
REAL_INPUTS = ("jacrev", "jacfwd", "hessian")


def is_fourth(case: Case, verb: str, tracked: bool) -> bool:
    """Every second case of a verb, of which every second one is tracked; the rest is left to the sweep."""
    half, odd = divmod(CASES.index(case) + list(VERBS).index(verb), 2)
    return not odd and tracked == (half % 2 == 0)


@pytest.mark.parametrize(
    ("case", "verb", "tracked"), covered(product(CASES, VERBS, [False, True]), is_fourth), ids=str
)
def test_inputs_are_bit_identical_afterwards(case: Case, verb: str, tracked: bool) -> None:
    """Values, version counter, requires_grad, grad and the inputs' own identity stay as they were."""
    primals = case.primals()
    leaves = registry.tree_leaves(primals)
    for leaf in leaves:
        leaf.requires_grad_(tracked)
        leaf.grad = torch.ones_like(leaf) if tracked else None
    before = marks(leaves)
    if verb in REAL_INPUTS and any(leaf.is_complex() for leaf in leaves):
        with pytest.raises(TypeError, match="is complex"):
            VERBS[verb](case, primals)
    else:
        VERBS[verb](case, primals)
    assert marks(leaves) == before
    assert all(a is b for a, b in zip(registry.tree_leaves(primals), leaves, strict=True))


# Of random functions and shapes

SMOOTH: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    lambda x: x**2 / 2,
    lambda x: x.exp() / 4,
    lambda x: x.cumsum(0) if x.dim() else x,
    lambda x: x.flip(0) * x if x.dim() else x * x,
    lambda x: x - x.sum() / 3,
    lambda x: torch.cat([x.reshape(-1), x.reshape(-1).cos()]),
    lambda x: x.reshape(-1)[1:] * 2 if x.numel() > 1 else x,
)
pipelines = st.lists(st.sampled_from(SMOOTH), min_size=1, max_size=3)


def composed(functions: list[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def pipeline(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return pipeline


def point(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@MANY
@given(first=pipelines, second=pipelines, shape=shapes, seed=seeds)
def test_chain_rule(first: Any, second: Any, shape: tuple[int, ...], seed: int) -> None:
    """The derivative of g(f(x)) is that of g at f(x) after that of f at x, in both modes and whole."""
    f, g = composed(first), composed(second)
    x = point(shape, seed)
    u = point(shape, seed + 1)
    y, pushed = covector.jvp(f, (x,), (u,))
    z, expected = covector.jvp(g, (y,), (pushed,))
    whole, got = covector.jvp(lambda x: g(f(x)), (x,), (u,))
    assert_close((whole, got), (z, expected), 1e-10)

    v = directions(z, seed + 2)
    through = covector.vjp(f, x)[1](covector.vjp(g, y)[1](v)[0])
    assert_close(covector.vjp(lambda x: g(f(x)), x)[1](v), through, 1e-10)

    product = torch.tensordot(covector.jacrev(g)(y), covector.jacfwd(f)(x), dims=y.dim())
    assert_close(covector.jacrev(lambda x: g(f(x)))(x), product, 1e-10)
    assert_close(covector.jacfwd(lambda x: g(f(x)))(x), product, 1e-10)


@MANY
@given(functions=pipelines, shape=shapes, seed=seeds, chunk=st.sampled_from([None, 1, 2, 5]))
def test_jacobians_are_made_of_products(
    functions: Any, shape: tuple[int, ...], seed: int, chunk: int | None
) -> None:
    """The Jacobian, contracted with a direction on either side, is jvp and vjp; its chunks do not matter."""
    f = composed(functions)
    x = point(shape, seed)
    u = point(shape, seed + 1)
    y, pushed = covector.jvp(f, (x,), (u,))
    v = directions(y, seed + 2)
    (pulled,) = covector.vjp(f, x)[1](v)
    for verb in (covector.jacrev, covector.jacfwd):
        jacobian = verb(f, chunk_size=chunk)(x)
        assert jacobian.shape == y.shape + x.shape
        assert_close(torch.tensordot(jacobian, u, dims=x.dim()), pushed, 1e-10)
        assert_close(torch.tensordot(v, jacobian, dims=y.dim()), pulled, 1e-10)


@MANY
@given(functions=pipelines, shape=shapes, seed=seeds)
def test_hessians_are_symmetric(functions: Any, shape: tuple[int, ...], seed: int) -> None:
    """The Hessian of a scalar function is symmetric, and the Jacobian of its gradient in either mode."""
    f = composed([*functions, lambda x: x.square().sum()])
    x = point(shape, seed)
    hessian = covector.hessian(f)(x).reshape(x.numel(), x.numel())
    assert_close(hessian, hessian.T, 1e-9)
    for verb in (covector.jacrev, covector.jacfwd):
        assert_close(verb(covector.grad(f))(x).reshape(hessian.shape), hessian, 1e-9)


# Charts


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[Tensor]:
    """Up to four tensors of any shape (scalars, empty ones, size one) and differentiable dtype."""
    kinds = draw(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(seeds))
    return [torch.randn(shape, dtype=dtype, generator=generator) for shape, dtype in kinds]


def assert_equal(got: list[Tensor], expected: list[Tensor]) -> None:
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert torch.equal(mine, theirs)


@MANY
@given(tensors=tensor_lists())
def test_chart_round_trip_from_tensors(tensors: list[Tensor]) -> None:
    """Tensors -> coordinates -> tensors is the identity, bit for bit, mixed dtypes included."""
    chart = Chart.of(tensors)
    coordinates = chart.to_coords(tensors)
    assert coordinates.shape == (chart.size,)
    assert not coordinates.is_complex()
    assert_equal(chart.from_coords(coordinates), tensors)


@MANY
@given(tensors=tensor_lists(), seed=seeds, lead=shapes)
def test_chart_round_trip_from_coordinates(tensors: list[Tensor], seed: int, lead: tuple[int, ...]) -> None:
    """Coordinates -> tensors -> coordinates is the identity, with leading axes in front of each tensor."""
    tensors = [tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) for tensor in tensors]
    chart = Chart.of(tensors)
    coordinates = point((*lead, chart.size), seed)
    made = chart.from_coords(coordinates)
    assert [part.shape for part in made] == [(*lead, *tensor.shape) for tensor in tensors]
    for index in torch.cartesian_prod(*(torch.arange(size) for size in (*lead, 1))).reshape(
        -1, len(lead) + 1
    ):
        at = tuple(index[:-1].tolist())
        assert torch.equal(chart.to_coords([part[at] for part in made]), coordinates[at])


@MANY
@given(tensors=tensor_lists(), data=st.data())
def test_chart_basis_is_the_identity(tensors: list[Tensor], data: st.DataObject) -> None:
    """Basis vector k has coordinate k equal to one and the others zero, whichever slice is asked for."""
    chart = Chart.of(tensors)
    start = data.draw(st.integers(0, chart.size))
    stop = data.draw(st.integers(start, chart.size))
    stacks = chart.basis(start, stop)
    assert [stack.dtype for stack in stacks] == [tensor.dtype for tensor in tensors]
    assert [stack.shape for stack in stacks] == [(stop - start, *tensor.shape) for tensor in tensors]
    for row, position in enumerate(range(start, stop)):
        expected = torch.zeros(chart.size, dtype=torch.float64)
        expected[position] = 1
        assert torch.equal(chart.to_coords([stack[row] for stack in stacks]).double(), expected)


@MANY
@given(tensors=tensor_lists(), seed=seeds)
def test_chart_keeps_the_real_inner_product(tensors: list[Tensor], seed: int) -> None:
    """The inner product of coordinates is the real inner product of the tensors."""
    others = directions(tensors, seed)
    chart = Chart.of(tensors)
    got = float(chart.to_coords(tensors).double() @ chart.to_coords(others).double())
    assert got == pytest.approx(inner(tensors, others), rel=1e-9, abs=1e-9)
