"""Functions to differentiate: the one table that the test files share.

Every case draws its own small float64 inputs, the same ones each time. Where the Jacobian is short
enough to be written by hand, it is, with the arrangement that `jacrev(f, argnums=case.argnums)` gives.
"""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as registry

import covector

Doubles = torch.float64


class Draw:
    """Random tensors for one case; the name of the case decides which."""

    def __init__(self, name: str) -> None:
        self._generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def __call__(self, *shape: int, dtype: torch.dtype = Doubles) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, dtype=dtype, generator=self._generator)

    def positive(self, *shape: int) -> Tensor:
        """Numbers between 0.5 and 1.5."""
        return 0.5 + torch.rand(shape, dtype=Doubles, generator=self._generator)

    def away(self, *shape: int) -> Tensor:
        """Numbers of both signs, with magnitudes between 0.5 and 1.5: away from a kink at zero."""
        return self.positive(*shape) * self(*shape).sign()

    def spread(self, count: int) -> Tensor:
        """Numbers at least half apart from each other, in random order."""
        order = torch.randperm(count, generator=self._generator)
        return order.to(Doubles) - count / 2 + 0.5 * self.positive(count)

    def dominant(self, size: int) -> Tensor:
        """A square matrix that is far from singular, with well separated eigenvalues."""
        return 0.2 * self(size, size) + torch.diag(torch.arange(1, size + 1, dtype=Doubles))


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and what is known about it."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw], tuple[Any, ...]]
    jacobian: Callable[..., Any] | None = None  # by hand, as a function of the inputs
    scalar: bool = False  # the output is one real tensor of shape ()
    complex: bool = False  # an input or an output is complex

    def __repr__(self) -> str:
        return self.name

    def primals(self) -> tuple[Any, ...]:
        """The inputs, newly drawn."""
        return self.inputs(Draw(self.name))

    @property
    def argnums(self) -> int | tuple[int, ...]:
        """All arguments; for a function of one argument, without the tuple."""
        count = len(self.primals())
        return 0 if count == 1 else tuple(range(count))


# Structures


class Pair(NamedTuple):
    """A container that torch knows as a named tuple."""

    first: Any
    second: Any


@dataclass
class Body:
    """A container that torch knows because it is registered below."""

    mass: Tensor
    place: Tensor


registry.register_dataclass(Body)


def swap_pair(pair: Pair) -> Pair:
    return Pair(first=pair.second.sin() * pair.first.sum(), second=pair.first**2)


def momentum(body: Body) -> Body:
    return Body(mass=body.mass.log(), place=body.mass * body.place**2)


def deep(tree: dict[str, Any]) -> dict[str, Any]:
    first, (second,) = tree["a"]
    third = tree["b"].first
    return {"sum": [first.sum() + second, (third * second,)], "pair": Pair(first * third, third.exp())}


def ordered(parameters: OrderedDict[str, Tensor]) -> OrderedDict[str, Tensor]:
    return OrderedDict(
        (name, parameter.tanh() * parameters["z"].sum()) for name, parameter in parameters.items()
    )


# In-place operations on intermediates, and views


def inplace_chain(x: Tensor) -> Tensor:
    return x.clone().mul_(2).add_(x).sin_()


def inplace_slice(x: Tensor) -> Tensor:
    y = x * 1.5
    y[1:].mul_(x[:-1])
    return y


def inplace_columns(x: Tensor) -> Tensor:
    y = x.t().clone()
    y[0].mul_(2)
    y[:, 1] += 3 * y[:, 0]
    return y**2


def inplace_assignment(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = x[1] * x[2]
    y[2] = x[0].sin()
    return y


def inplace_accumulate(x: Tensor) -> Tensor:
    y = x.sin()
    y.index_add_(0, torch.tensor([0, 0, 2]), x**2)
    return y


def fill_buffer(x: Tensor) -> Tensor:
    buffer = torch.zeros(4, dtype=x.dtype)
    buffer[1:] = x**2
    return buffer


def windows(x: Tensor) -> Tensor:
    return (x * 1).as_strided((3, 2), (1, 1)) ** 2


def windows_jacobian(x: Tensor) -> Tensor:
    jacobian = torch.zeros(3, 2, 4, dtype=x.dtype)
    for row in range(3):
        for column in range(2):
            jacobian[row, column, row + column] = 2 * x[row + column]
    return jacobian


def unbound(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.unbind()
    return first * second, first - second.exp()


# Control flow


def branch(x: Tensor) -> Tensor:
    return x**3 if x.sum() > 0 else x.sin()


def halve_until_small(x: Tensor) -> Tensor:
    while x.norm() > 0.5:
        x = x * x.norm().rsqrt() / 2
    return x


def horner(x: Tensor) -> Tensor:
    value = torch.zeros_like(x)
    for coefficient in (3.0, -2.0, 0.5, 1.0):
        value = value * x + coefficient
    return value


# Modules


@contextmanager
def _own_randomness() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def parameters_of(
    module: Callable[[], nn.Module], names: str = "*"
) -> tuple[Callable[..., Any], Callable[[], dict[str, Tensor]]]:
    """A module as a function of its parameters, and a source of copies of these."""
    with _own_randomness():
        function, parameters = covector.as_function(module().double().eval().requires_grad_(False), names)
    return function, lambda: {name: tensor.clone() for name, tensor in parameters.items()}


def frozen(module: Callable[[], nn.Module]) -> Callable[..., Any]:
    """A module as a function of its inputs only."""
    with _own_randomness():
        built = module().double().eval().requires_grad_(False)
    return lambda *args: torch.func.functional_call(built, {}, args)


def _batch_norm() -> nn.Module:
    layer = nn.BatchNorm1d(2)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean += torch.tensor([0.3, -0.2])
    layer.running_var *= 1.7
    return layer


MLP, mlp_parameters = parameters_of(lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)))
LINEAR, linear_parameters = parameters_of(lambda: nn.Linear(2, 2))
NORM, norm_parameters = parameters_of(lambda: nn.LayerNorm(3), "weight")
GATES, gates_parameters = parameters_of(lambda: nn.LSTMCell(2, 1), "weight_hh")
LOOKUP, lookup_parameters = parameters_of(lambda: nn.Embedding(3, 2))


def mlp_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return ((MLP(parameters, x) - y) ** 2).mean()


def lstm_step(parameters: dict[str, Tensor], x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
    return GATES(parameters, x, state)


def norm_by_hand(x: Tensor, weight: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred * (centred.square().mean() + 1e-5).rsqrt() * weight


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.softmax(-1) @ value


# Custom Functions


class Cube(torch.autograd.Function):
    """x**3, with every rule that torch knows; the batching rule is generated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The value."""
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Keep x."""
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        """3 x**2 v."""
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        """3 x**2 u."""
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


class Scale(torch.autograd.Function):
    """x * factor, with a batching rule written by hand."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        """The value."""
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Keep the factor."""
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        """The factor times v, by this very Function."""
        return Scale.apply(cotangent, ctx.factor), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        """The factor times u."""
        return tangent * ctx.factor

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, factor: float) -> tuple[Tensor, Any]:
        """Elementwise: the batch stays where it is."""
        return Scale.apply(x, factor), in_dims[0]


class ReverseOnly(torch.autograd.Function):
    """sin x without a forward-mode rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The value."""
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Keep x."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        """The cosine of x times v."""
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


# Out of the world


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def rosenbrock_gradient(x: Tensor) -> Tensor:
    gradient = torch.zeros_like(x)
    gradient[:-1] += -400 * x[:-1] * (x[1:] - x[:-1] ** 2) - 2 * (1 - x[:-1])
    gradient[1:] += 200 * (x[1:] - x[:-1] ** 2)
    return gradient


def lotka_volterra(state: Tensor) -> Tensor:
    prey, predator = state.unbind()
    return torch.stack([1.1 * prey - 0.4 * prey * predator, 0.1 * prey * predator - 0.4 * predator])


def lotka_volterra_jacobian(state: Tensor) -> Tensor:
    prey, predator = state.tolist()
    return torch.tensor(
        [[1.1 - 0.4 * predator, -0.4 * prey], [0.1 * predator, 0.1 * prey - 0.4]], dtype=Doubles
    )


def rk4_step(state: Tensor) -> Tensor:
    step = 0.1
    k1 = lotka_volterra(state)
    k2 = lotka_volterra(state + step / 2 * k1)
    k3 = lotka_volterra(state + step / 2 * k2)
    k4 = lotka_volterra(state + step * k3)
    return state + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def lorenz(state: Tensor) -> Tensor:
    x, y, z = state.unbind()
    return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def lorenz_jacobian(state: Tensor) -> Tensor:
    x, y, z = state.tolist()
    return torch.tensor([[-10.0, 10.0, 0.0], [28 - z, -1.0, -x], [y, x, -8 / 3]], dtype=Doubles)


def kepler_energy(place: Tensor, velocity: Tensor) -> Tensor:
    return 0.5 * (velocity**2).sum() - 1 / (place**2).sum().sqrt()


def kepler_gradient(place: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
    return place / place.norm() ** 3, velocity


def gaussian_process_likelihood(scales: Tensor, y: Tensor) -> Tensor:
    x = torch.linspace(0, 1, 4, dtype=y.dtype)
    distance = (x[:, None] - x[None, :]) / scales[0]
    covariance = scales[1] ** 2 * torch.exp(-0.5 * distance**2) + scales[2] ** 2 * torch.eye(4, dtype=y.dtype)
    factor = torch.linalg.cholesky(covariance)
    weights = torch.cholesky_solve(y[:, None], factor)[:, 0]
    return -0.5 * y @ weights - factor.diagonal().log().sum() - 2 * math.log(2 * math.pi)


def black_scholes(spot: Tensor, strike: Tensor, volatility: Tensor) -> Tensor:
    normal = torch.special.ndtr
    upper = ((spot / strike).log() + (0.03 + volatility**2 / 2) * 2) / (volatility * math.sqrt(2))
    lower = upper - volatility * math.sqrt(2)
    return spot * normal(upper) - strike * math.exp(-0.06) * normal(lower)


def kinematics(angles: Tensor) -> Tensor:
    heading = angles.cumsum(0)
    return torch.stack([heading.cos().sum(), heading.sin().sum()])


def kinematics_jacobian(angles: Tensor) -> Tensor:
    heading = angles.cumsum(0)
    from_the_end = lambda x: x.flip(0).cumsum(0).flip(0)
    return torch.stack([from_the_end(-heading.sin()), from_the_end(heading.cos())])


def heat_step(u: Tensor) -> Tensor:
    return u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])


def heat_jacobian(u: Tensor) -> Tensor:
    rows = [torch.tensor([0.1, 0.8, 0.1], dtype=u.dtype)] * (len(u) - 2)
    return torch.stack([F.pad(row, (i, len(u) - 3 - i)) for i, row in enumerate(rows)])


def logistic_loss(weights: Tensor, x: Tensor) -> Tensor:
    return F.softplus(-(x @ weights)).sum()


def logistic_gradient(weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    slope = -torch.sigmoid(-(x @ weights))
    return slope @ x, torch.outer(slope, weights)


def lennard_jones(places: Tensor) -> Tensor:
    distances = (places[[0, 0, 1]] - places[[1, 2, 2]]).pow(2).sum(-1)
    return (4 * (distances**-6 - distances**-3)).sum()


def spherical(point: Tensor) -> Tensor:
    radius, polar, azimuth = point.unbind()
    return radius * torch.stack([polar.sin() * azimuth.cos(), polar.sin() * azimuth.sin(), polar.cos()])


def spherical_jacobian(point: Tensor) -> Tensor:
    r, p, a = point.tolist()
    sp, cp, sa, ca = math.sin(p), math.cos(p), math.sin(a), math.cos(a)
    return torch.tensor(
        [[sp * ca, r * cp * ca, -r * sp * sa], [sp * sa, r * cp * sa, r * sp * ca], [cp, -r * sp, 0.0]],
        dtype=Doubles,
    )


def kullback_leibler(mean: Tensor, spread: Tensor) -> Tensor:
    return 0.5 * (spread**2 + mean**2 - 1 - 2 * spread.log()).sum()


# Jacobians by hand that need a name


def softmax_jacobian(x: Tensor) -> Tensor:
    share = x.softmax(0)
    return share.diag() - torch.outer(share, share)


def matmul_jacobian(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = torch.eye(a.shape[0], dtype=a.dtype), torch.eye(b.shape[1], dtype=b.dtype)
    return torch.einsum("ik,lj->ijkl", rows, b), torch.einsum("ik,jl->ijkl", a, columns)


def solve_jacobian(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    inverse = torch.linalg.inv(a)
    return -torch.einsum("ij,k->ijk", inverse, inverse @ b), inverse


def two_outputs_jacobian(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.cos().diag(), 2 * x


CASES: tuple[Case, ...] = (
    # Scalars, empties, size one
    Case("square", lambda x: x**2, lambda d: (d(),), jacobian=lambda x: 2 * x, scalar=True),
    Case(
        "circle",
        lambda t: torch.stack([t.cos(), t.sin()]),
        lambda d: (d(),),
        jacobian=lambda t: torch.stack([-t.sin(), t.cos()]),
    ),
    Case("sum_of_squares", lambda x: (x**2).sum(), lambda d: (d(4),), jacobian=lambda x: 2 * x, scalar=True),
    Case("exp_of_one", lambda x: x.exp(), lambda d: (d(1),), jacobian=lambda x: x.exp()[:, None]),
    Case("cube_of_one_by_one", lambda x: x**3, lambda d: (d(1, 1),)),
    Case(
        "empty_to_empty",
        lambda x: 2 * x,
        lambda d: (d(0),),
        jacobian=lambda x: torch.zeros(0, 0, dtype=Doubles),
    ),
    Case("empty_to_scalar", lambda x: (x**2).sum(), lambda d: (d(0, 3),), scalar=True),
    Case("empty_beside_full", lambda x, y: y**2 + x.sum(), lambda d: (d(0, 2), d(3))),
    Case("full_to_empty", lambda x: x[:0] ** 2, lambda d: (d(3),)),
    # Several inputs and outputs
    Case("product", lambda x, y: x * y, lambda d: (d(3), d(3)), jacobian=lambda x, y: (y.diag(), x.diag())),
    Case("two_outputs", lambda x: (x.sin(), (x**2).sum()), lambda d: (d(3),), jacobian=two_outputs_jacobian),
    Case("outer", torch.outer, lambda d: (d(3), d(2))),
    Case("bilinear", lambda x, a, y: x @ a @ y, lambda d: (d(1), d(1, 2), d(2)), scalar=True),
    Case("three_to_three", lambda x, y, z: (x * y, y.sum() * z, [z.exp()]), lambda d: (d(2), d(2), d())),
    # Nested structures
    Case("dict", lambda p, x: {"y": p["w"] * x + p["b"]}, lambda d: ({"w": d(2), "b": d()}, d(2))),
    Case("list", lambda xs: [xs[0] * xs[1], xs[1] ** 2], lambda d: ([d(2), d(2)],)),
    Case("named_tuple", swap_pair, lambda d: (Pair(d(2), d(3)),)),
    Case("ordered_dict", ordered, lambda d: (OrderedDict(z=d(2), a=d(1)),)),
    Case("dataclass", momentum, lambda d: (Body(d.positive(), d(3)),)),
    Case("deep", deep, lambda d: ({"a": [d(2), (d(),)], "b": Pair(d(2), [])},)),
    Case("tuple_of_one", lambda x: (x.sin(),), lambda d: (d(2),), jacobian=lambda x: (x.cos().diag(),)),
    # In-place operations on intermediates
    Case("inplace_chain", inplace_chain, lambda d: (d(3),), jacobian=lambda x: (3 * (3 * x).cos()).diag()),
    Case("inplace_slice", inplace_slice, lambda d: (d(4),)),
    Case("inplace_columns", inplace_columns, lambda d: (d(2, 2),)),
    Case("inplace_assignment", inplace_assignment, lambda d: (d(3),)),
    Case("inplace_accumulate", inplace_accumulate, lambda d: (d(3),)),
    Case("fill_buffer", fill_buffer, lambda d: (d(3),)),
    # Views
    Case("differences", lambda x: (x[1:] - x[:-1]) ** 2, lambda d: (d(4),)),
    Case("gram", lambda x: x.T @ x, lambda d: (d(2, 3),)),
    Case("as_strided", windows, lambda d: (d(4),), jacobian=windows_jacobian),
    Case("unbind", unbound, lambda d: (d(2, 2),)),
    Case("reshape_permute", lambda x: x.permute(1, 0).reshape(-1).flip(0).sin(), lambda d: (d(2, 3),)),
    Case("expand_chunk", lambda x: [c**2 for c in x.expand(3, 2).chunk(2, -1)], lambda d: (d(2),)),
    Case("diagonal", lambda x: x.diagonal() * x.roll(1, 0).diagonal(), lambda d: (d(2, 3),)),
    # Python control flow
    Case("branch", branch, lambda d: (d.positive(3),), jacobian=lambda x: (3 * x**2).diag()),
    Case("while_loop", halve_until_small, lambda d: (d.positive(3),)),
    Case("horner", horner, lambda d: (d(3),), jacobian=lambda x: (9 * x**2 - 4 * x + 0.5).diag()),
    # Modules
    Case("mlp", MLP, lambda d: (mlp_parameters(), d(2))),
    Case("mlp_loss", mlp_loss, lambda d: (mlp_parameters(), d(1, 2), d(1, 1)), scalar=True),
    Case(
        "linear_layer",
        lambda x: LINEAR(linear_parameters(), x),
        lambda d: (d(2),),
        jacobian=lambda x: linear_parameters()["weight"],
    ),
    Case("conv1d", frozen(lambda: nn.Conv1d(1, 2, 2)), lambda d: (d(1, 4),)),
    Case("conv2d", lambda x, w: F.conv2d(x, w), lambda d: (d(1, 1, 1, 3), d(1, 1, 1, 2))),
    Case("lstm_cell", lstm_step, lambda d: (gates_parameters(), d(2), (d(1), d(1)))),
    Case("gru_cell", frozen(lambda: nn.GRUCell(2, 2)), lambda d: (d(2), d(2))),
    Case("layer_norm", NORM, lambda d: (norm_parameters(), d(3))),
    Case("layer_norm_by_hand", norm_by_hand, lambda d: (d(3), d(3))),
    Case("batch_norm_eval", frozen(_batch_norm), lambda d: (d(2, 2),)),
    Case("group_norm", lambda x: F.group_norm(x, 1), lambda d: (d(1, 2, 2),)),
    Case("embedding", lambda p: LOOKUP(p, torch.tensor([0, 2, 0])), lambda d: (lookup_parameters(),)),
    Case("attention", attention, lambda d: (d(1, 2), d(2, 2), d(2, 1))),
    Case("average_pool", lambda x: F.avg_pool1d(x**2, 2), lambda d: (d(1, 4),)),
    Case("max_pool", lambda x: F.max_pool1d(x**2, 2), lambda d: (d.spread(4)[None],)),
    # Indexing and ordering
    Case("fancy_index", lambda x: x[torch.tensor([0, 2, 2])] ** 2, lambda d: (d(3),)),
    Case("gather", lambda x: x.gather(1, torch.tensor([[0, 0], [1, 0]])).exp(), lambda d: (d(2, 2),)),
    Case("scatter", lambda x, y: x.scatter(0, torch.tensor([2, 0]), y**2).sin(), lambda d: (d(3), d(2))),
    Case(
        "scatter_add",
        lambda x: torch.zeros(3, dtype=x.dtype).scatter_add(0, torch.tensor([0, 2, 0, 1]), x**2),
        lambda d: (d(4),),
    ),
    Case("index_select", lambda x: x.index_select(1, torch.tensor([1, 1])) ** 2, lambda d: (d(2, 2),)),
    Case(
        "cumsum",
        lambda x: x.cumsum(0),
        lambda d: (d(4),),
        jacobian=lambda x: torch.ones(4, 4, dtype=x.dtype).tril(),
    ),
    Case("cumprod", lambda x: x.cumprod(0), lambda d: (d.away(3),)),
    Case("logcumsumexp", lambda x: x.logcumsumexp(0), lambda d: (d(3),)),
    Case("sort", lambda x: x.sort().values ** 2, lambda d: (d.spread(4),)),
    Case("topk", lambda x: x.topk(2).values.exp(), lambda d: (d.spread(4),)),
    Case("masked_fill", lambda x: x.masked_fill(torch.tensor([True, False]), 0.5) ** 2, lambda d: (d(2),)),
    Case("triangle", lambda x: x.tril() @ x.triu(), lambda d: (d(2, 2),)),
    # Linear algebra
    Case("matmul", torch.matmul, lambda d: (d(1, 2), d(2, 3)), jacobian=matmul_jacobian),
    Case("einsum", lambda a, b: torch.einsum("bij,bj->i", a, b), lambda d: (d(1, 2, 2), d(1, 2))),
    Case("solve", torch.linalg.solve, lambda d: (d.dominant(2), d(2)), jacobian=solve_jacobian),
    Case("inverse", torch.linalg.inv, lambda d: (d.dominant(2),)),
    Case(
        "determinant",
        torch.linalg.det,
        lambda d: (d.dominant(2),),
        jacobian=lambda a: torch.linalg.det(a) * torch.linalg.inv(a).T,
        scalar=True,
    ),
    Case(
        "log_determinant",
        lambda a: torch.linalg.slogdet(a).logabsdet,
        lambda d: (d.dominant(2),),
        jacobian=lambda a: torch.linalg.inv(a).T,
        scalar=True,
    ),
    Case(
        "cholesky",
        lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(2, dtype=a.dtype)),
        lambda d: (d(2, 2),),
    ),
    Case("singular_values", torch.linalg.svdvals, lambda d: (d.dominant(2),)),
    Case("eigenvalues", lambda a: torch.linalg.eigh(a + a.mT).eigenvalues, lambda d: (d.dominant(2),)),
    Case("matrix_exponential", torch.linalg.matrix_exp, lambda d: (d(2, 2),)),
    Case(
        "triangular_solve",
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        lambda d: (d.dominant(2), d(2, 1)),
    ),
    Case("cross", lambda a, b: torch.linalg.cross(a, b), lambda d: (d(3), d(3))),
    # Reductions and broadcasting
    Case(
        "mean",
        torch.mean,
        lambda d: (d(2, 3),),
        jacobian=lambda x: torch.full_like(x, 1 / 6),
        scalar=True,
    ),
    Case("variance", lambda x: x.var(0), lambda d: (d(3, 2),)),
    Case("deviation", lambda x: x.std(), lambda d: (d(4),), scalar=True),
    Case("prod", torch.prod, lambda d: (d.away(3),), scalar=True),
    Case("norm", torch.linalg.norm, lambda d: (d(3),), jacobian=lambda x: x / (x @ x).sqrt(), scalar=True),
    Case("largest", lambda x: x.amax(0) * x.min(), lambda d: (d.spread(4).reshape(2, 2),)),
    Case(
        "logsumexp",
        lambda x: x.logsumexp(0),
        lambda d: (d(3),),
        jacobian=lambda x: x.softmax(0),
        scalar=True,
    ),
    Case("softmax", lambda x: x.softmax(0), lambda d: (d(3),), jacobian=softmax_jacobian),
    Case("log_softmax", lambda x: x.log_softmax(-1), lambda d: (d(2, 2),)),
    Case("broadcast", lambda x, y, z: (x + y) * z.sin(), lambda d: (d(2, 1), d(1, 3), d())),
    # Nonsmooth, away from the kinks
    Case("relu", torch.relu, lambda d: (d.away(4),), jacobian=lambda x: (x > 0).to(x.dtype).diag()),
    Case("absolute", lambda x: x.abs() * x, lambda d: (d.away(3),)),
    Case("where", lambda x, y: torch.where(x > 0, x * y, y.sin()), lambda d: (d.away(3), d(3))),
    Case("clamp", lambda x: (x * x).clamp(0.2, 1.7), lambda d: (d.away(4),)),
    Case("maximum", lambda x, y: torch.maximum(x, 2 * y) ** 2, lambda d: (d.spread(3), d.spread(3) + 0.3)),
    Case(
        "huber",
        lambda x: F.huber_loss(x, torch.zeros_like(x), delta=0.3),
        lambda d: (d.away(3),),
        scalar=True,
    ),
    Case("flat", lambda x: x.floor() + x.sign(), lambda d: (d.away(3),)),
    # Activations and special functions
    Case("gelu_silu", lambda x: F.gelu(x) * F.silu(x), lambda d: (d(3),)),
    Case("erf_lgamma", lambda x: torch.erf(x) + torch.lgamma(x), lambda d: (d.positive(3),)),
    Case("atan2", torch.atan2, lambda d: (d.away(2), d.away(2))),
    Case("power", torch.pow, lambda d: (d.positive(2), d(2))),
    # Dtypes
    Case("mixed_dtypes", lambda x, y: x * y.exp(), lambda d: (d(2), d(2, dtype=torch.float32))),
    Case(
        "singles_out",
        lambda x, y: (x.float() ** 2, y.double().sin()),
        lambda d: (d(2), d(2, dtype=torch.float32)),
    ),
    # Independence
    Case(
        "constant",
        lambda x: torch.ones(2, dtype=x.dtype),
        lambda d: (d(3),),
        jacobian=lambda x: torch.zeros(2, 3, dtype=x.dtype),
    ),
    Case("partly_constant", lambda x: (x**2, torch.ones(2, dtype=x.dtype)), lambda d: (d(2),)),
    Case("identity", lambda x: x, lambda d: (d(3),), jacobian=lambda x: torch.eye(3, dtype=x.dtype)),
    Case(
        "unused_input",
        lambda x, y: x**2,
        lambda d: (d(2), d(3)),
        jacobian=lambda x, y: ((2 * x).diag(), torch.zeros(2, 3, dtype=x.dtype)),
    ),
    Case("detached", lambda x: x.detach() * x, lambda d: (d(3),), jacobian=lambda x: x.diag()),
    Case("same_twice", lambda x: (x.sin(),) * 2, lambda d: (d(2),)),
    # Custom Functions
    Case("custom_cube", Cube.apply, lambda d: (d(3),), jacobian=lambda x: (3 * x**2).diag()),
    Case("custom_scale", lambda x: Scale.apply(x, 2.5) ** 2, lambda d: (d(3),)),
    Case("custom_reverse_only", ReverseOnly.apply, lambda d: (d(3),), jacobian=lambda x: x.cos().diag()),
    # Complex
    Case("complex_square", lambda z: z * z, lambda d: (d(2, dtype=torch.complex128),), complex=True),
    Case(
        "complex_energy",
        lambda z: (z * z.conj()).real.sum(),
        lambda d: (d(3, dtype=torch.complex128),),
        scalar=True,
        complex=True,
    ),
    Case(
        "complex_and_real",
        lambda z, x: (z.exp() * x, z.abs()),
        lambda d: (d(2, dtype=torch.complex128), d(2)),
        complex=True,
    ),
    Case("fourier", lambda x: torch.fft.fft(x) ** 2, lambda d: (d(3),), complex=True),
    Case("fourier_power", lambda x: torch.fft.rfft(x).abs().square(), lambda d: (d.positive(3),)),
    Case("polar", lambda r, t: torch.polar(r, t).conj(), lambda d: (d.positive(2), d(2)), complex=True),
    Case(
        "complex_matmul",
        lambda a, b: a @ b.mH,
        lambda d: (d(2, 2, dtype=torch.complex128), d(1, 2, dtype=torch.complex128)),
        complex=True,
    ),
    # Out of the world
    Case("rosenbrock", rosenbrock, lambda d: (d(4),), jacobian=rosenbrock_gradient, scalar=True),
    Case("lotka_volterra", lotka_volterra, lambda d: (d.positive(2),), jacobian=lotka_volterra_jacobian),
    Case("rk4_step", rk4_step, lambda d: (d.positive(2),)),
    Case("lorenz", lorenz, lambda d: (d(3),), jacobian=lorenz_jacobian),
    Case(
        "kepler_energy",
        kepler_energy,
        lambda d: (d.away(2), d(2)),
        jacobian=kepler_gradient,
        scalar=True,
    ),
    Case("gp_likelihood", gaussian_process_likelihood, lambda d: (d.positive(3), d(4)), scalar=True),
    Case(
        "black_scholes",
        black_scholes,
        lambda d: (d.positive(2), d.positive(2), d.positive()),
    ),
    Case("kinematics", kinematics, lambda d: (d(3),), jacobian=kinematics_jacobian),
    Case("heat_step", heat_step, lambda d: (d(5),), jacobian=heat_jacobian),
    Case("logistic_loss", logistic_loss, lambda d: (d(2), d(2, 2)), jacobian=logistic_gradient, scalar=True),
    Case("lennard_jones", lennard_jones, lambda d: (d.spread(3)[:, None] + 0.2 * d(3, 2),), scalar=True),
    Case("spherical", spherical, lambda d: (d.positive(3),), jacobian=spherical_jacobian),
    Case(
        "cross_entropy",
        lambda x: F.cross_entropy(x, torch.tensor([1, 0])),
        lambda d: (d(2, 3),),
        jacobian=lambda x: (x.softmax(1) - F.one_hot(torch.tensor([1, 0]), 3)) / 2,
        scalar=True,
    ),
    Case(
        "kullback_leibler",
        kullback_leibler,
        lambda d: (d(2), d.positive(2)),
        jacobian=lambda m, s: (m, s - 1 / s),
        scalar=True,
    ),
)

BY_NAME = {case.name: case for case in CASES}
