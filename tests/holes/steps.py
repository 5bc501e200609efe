"""Steps, domains and noise: what is narrower than a step, and what is only computed to a tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holes.table import Hole, Table, at, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []

# --- far from zero

far = Table("far from zero", HOLES)
FAR = at(1e7, 3e7 + 0.5, 2.2e6)

far.right("a wave", torch.sin, FAR)
far.wrong("a wave, with the sign of another", ruled(torch.sin, lambda g, x: -g * x.cos()), FAR)
far.wrong("a line with a wave on it that is forgotten", lambda x: x + x.detach().sin(), FAR)
far.right("a line with a wave on it", lambda x: x + x.sin(), FAR)
far.wrong("a wave at 1e9", ruled(torch.cos, lambda g, x: g * x.sin()), at(1e9, 2e9))
far.right("a wave at 1e9, right", torch.cos, at(1e9, 2e9))
far.pair("a square", lambda f: lambda x: too_much(x.square(), f), at(1e10, 3e8))
far.pair("a root", lambda f: lambda x: too_much(x.sqrt(), f), at(1e12, 2e7, 5.0))
far.pair(
    "seconds since an epoch",
    lambda f: lambda t: too_much(((t - 1.7e9) / 10).tanh(), f),
    at(1.7e9 + 3, 1.7e9 - 5),
)
far.pair(
    "two scales",
    lambda f: lambda x, y: too_much((x * 1e-2).sin(), f) + y.cos(),
    lambda: (torch.tensor([3e8], dtype=torch.float64, requires_grad=True), drawn(3).requires_grad_()),
)
far.pair("degrees", lambda f: lambda x: too_much((x * math.pi / 180).sin(), f), at(3.6e5 + 30, 7.2e6 + 45))
far.right("second derivative of a wave", torch.sin, at(1e7, 2e6), order=2)
far.wrong(
    "second derivative of a wave, without its sign",
    ruled(torch.sin, ruled(lambda g, x: g * x.cos(), lambda h, g, x: (h * x.cos(), h * g * x.sin()))),
    at(1e7, 2e6),
    order=2,
)

# --- domains

domains = Table("domain", HOLES)


def overflows(factor: float) -> Any:
    """`math.exp` raises where the exponential of torch is infinite."""

    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = torch.tensor([math.exp(v) for v in x.tolist()], dtype=x.dtype)
            ctx.save_for_backward(y * 1e-300)
            return y * 1e-300

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0] * factor

    return Exponential.apply


domains.pair("next to an overflow", overflows, at(709.78, 700.0))


def positive(factor: float) -> Any:
    def function(x: Tensor) -> Tensor:
        assert bool((x > 0).all()), "expected positive numbers"
        return too_much(x.log(), factor)

    return function


domains.pair("an assertion", positive, at(1e-5, 1.0, 2.0))
domains.pair("an assertion, close", positive, at(3e-8, 0.5))


def series(factor: float) -> Any:
    """A geometric series, which converges inside of the unit circle only."""

    def function(x: Tensor) -> Tensor:
        total, term = torch.zeros_like(x), torch.ones_like(x)
        for _ in range(20_000):
            total, term = total + term, term * x
            if bool((term.detach().abs() < 1e-17 * total.detach().abs()).all()):
                return too_much(total, factor)
        raise ArithmeticError("no convergence")

    return function


domains.pair("a series", series, at(0.9, -0.8))


def simplex(factor: float) -> Any:
    def function(p: Tensor) -> Tensor:
        if abs(float(p.detach().sum()) - 1) > 1e-5:
            raise ValueError("probabilities must sum to one")
        return too_much(-(p * p.log()), factor)

    return function


domains.pair("a distribution", simplex, at(0.2, 0.3, 0.5))


class Odd(Exception):
    """An exception of the function's own."""


def own_exception(factor: float) -> Any:
    def function(x: Tensor) -> Tensor:
        if float(x.detach().max()) > 1.0 + 1e-9:
            raise Odd("too large")
        return too_much(x.square(), factor)

    return function


domains.pair("an exception of its own", own_exception, at(1.0 - 1e-6, 0.3), factor=2.0)
domains.pair(
    "a lookup that ends",
    lambda f: lambda x: too_much(x.square(), f) * {0: 1.0, 1: 2.0}[math.floor(float(x.detach()[0]))],
    at(1.9999, 0.7),
)
domains.pair("a root next to zero", lambda f: lambda x: too_much(x.sqrt(), f), at(1e-7, 1.0))
domains.pair("an arc cosine next to one", lambda f: lambda x: too_much(x.acos(), f), at(1 - 1e-6, 0.5))

# --- noise

noise = Table("noise", HOLES)


class Solved(torch.autograd.Function):
    """y with F(y) = x, by a solver with a tolerance; the derivative is 1 / F'(y)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, solve: Callable[[Tensor], Tensor], slope: Any, factor: float) -> Tensor:
        y = solve(x)
        ctx.save_for_backward(y)
        ctx.slope, ctx.factor = slope, factor
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g / ctx.slope(ctx.saved_tensors[0]) * ctx.factor, None, None, None


def bisected(width: float) -> Callable[[Tensor], Tensor]:
    """The root of y^3 + y = x, to within a width."""

    def solve(x: Tensor) -> Tensor:
        low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
        while float((high - low).max()) > width:
            middle = (low + high) / 2
            above = middle**3 + middle > x
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2

    return solve


def newton(tolerance: float) -> Callable[[Tensor], Tensor]:
    def solve(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        while float((y**3 + y - x).abs().max()) > tolerance:
            y = y - (y**3 + y - x) / (3 * y**2 + 1)
        return y

    return solve


def iterated(tolerance: float) -> Callable[[Tensor], Tensor]:
    """A fixed point, y = (x - y^3 / 8) by slow steps."""

    def solve(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for _ in range(10_000):
            new = y + 0.3 * (x - y**3 - y)
            if float((new - y).abs().max()) < tolerance:
                return new
            y = new
        return y

    return solve


def cubic_slope(y: Tensor) -> Tensor:
    return 3 * y**2 + 1


def solved(solve: Callable[[Tensor], Tensor]) -> Callable[[float], Any]:
    return lambda factor: lambda x: Solved.apply(x, solve, cubic_slope, factor)


for _name, _solve in {
    "bisection to 1e-8": bisected(1e-8),
    "bisection to 1e-10": bisected(1e-10),
    "bisection to 1e-12": bisected(1e-12),
    "Newton's method to 1e-6": newton(1e-6),
    "Newton's method to 1e-10": newton(1e-10),
    "a fixed point to 1e-9": iterated(1e-9),
}.items():
    noise.pair(_name, solved(_solve), leaves((3,)))


def conjugate_gradients(factor: float, tolerance: float = 1e-7) -> Any:
    """Solves A y = x; the backward solves with the transpose, which is A."""
    half = drawn(6, 6, seed=5, low=-0.5)
    matrix = half @ half.T + torch.eye(6, dtype=torch.float64)

    def solve(b: Tensor) -> Tensor:
        y, r = torch.zeros_like(b), b.clone()
        p = r.clone()
        while float(r.norm()) > tolerance:
            step = (r @ r) / (p @ matrix @ p)
            y, new = y + step * p, r - step * (matrix @ p)
            p, r = new + (new @ new) / (r @ r) * p, new
        return y

    class Solve(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, b: Tensor) -> Tensor:
            return solve(b)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return factor * torch.linalg.solve(matrix, g)

    return Solve.apply


noise.pair("conjugate gradients to 1e-7", conjugate_gradients, leaves((6,)))
noise.pair("conjugate gradients to 1e-4", lambda f: conjugate_gradients(f, 1e-4), leaves((6,)))


def integrated(factor: float) -> Any:
    """Y' = -x y with SciPy's solver; y(1) = exp(-x)."""
    from scipy.integrate import solve_ivp

    class Decay(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            rates = x.numpy()
            ended = solve_ivp(lambda t, y: -rates * y, (0.0, 1.0), np.ones(len(rates)), rtol=1e-6, atol=1e-9)
            ctx.save_for_backward(x)
            return torch.from_numpy(ended.y[:, -1].copy())

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return -g * (-ctx.saved_tensors[0]).exp() * factor

    return Decay.apply


noise.pair("an integrator to 1e-6", integrated, leaves((2,)))


def ill_conditioned(factor: float) -> Any:
    """A system of condition 1e8."""
    left = torch.linalg.qr(drawn(5, 5, seed=6, low=-0.5))[0]
    right = torch.linalg.qr(drawn(5, 5, seed=7, low=-0.5))[0]
    matrix = left @ torch.diag(torch.logspace(0, -8, 5, dtype=torch.float64)) @ right
    return lambda x: too_much(torch.linalg.solve(matrix, x), factor)


noise.pair("a system of condition 1e8", ill_conditioned, leaves((5,)))
noise.pair(
    "single precision inside a product",
    lambda f: lambda x: too_much((x.float() @ x.float().T).double(), f),
    leaves((3, 3)),
)
noise.pair(
    "a cancellation", lambda f: lambda x: too_much((1e8 + x) - 1e8, f) + x.sin(), leaves((4,)), factor=1.5
)
noise.pair(
    "an average of many",
    lambda f: lambda x: too_much((x[:, None] * drawn(1000, seed=8)).sin().mean(1), f),
    leaves((3,)),
)


class Numpy(torch.autograd.Function):
    """NumPy in single precision, in a function that takes and gives double precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.from_numpy(np.sin(x.numpy().astype(np.float32)).astype(np.float64))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.saved_tensors[0].cos() * ctx.factor, None


noise.pair("NumPy in single precision", lambda f: lambda x: Numpy.apply(x, f), leaves((4,)))

# --- large beside small

beside = Table("large beside small", HOLES)
MATRIX = torch.diag(torch.full((6,), 1e7, dtype=torch.float64))
COUPLED = MATRIX.clone()
COUPLED[1, 4] = 5e-4


def coupled(missing: bool) -> Any:
    pulled = MATRIX if missing else COUPLED
    return ruled(lambda x: COUPLED @ x, lambda g, x: g @ pulled)


beside.right("a coupling of 5e-4 beside 1e7", coupled(missing=False), leaves((6,)))
beside.wrong("a coupling of 5e-4 beside 1e7", coupled(missing=True), leaves((6,)))
beside.wrong("two hundredths of a slope beside 1e12", lambda x: 1e12 + too_much(x.sin(), 1.02), leaves((5,)))
beside.wrong(
    "a tangent beside 1e12",
    ruled(
        lambda x: torch.cat([1e12 * x[:1], x[1:].sin()]),
        lambda g, x: torch.cat([1e12 * g[:1], g[1:] * x[1:].cos()]),
        lambda t, x: torch.cat([1e12 * t[:1], 1.02 * t[1:] * x[1:].cos()]),
    ),
    leaves((5,)),
    keywords={"check_forward_ad": True},
)
beside.wrong(
    "a small output beside a large one",
    lambda x: (1e9 * x.sum(), too_much(1e-3 * x.sin(), 1.3)),
    leaves((5,)),
)
beside.right("small beside large, right", lambda x: (1e9 * x.sum(), 1e-3 * x.sin()), leaves((5,)))
beside.right("a diagonal of 1e7", lambda x: MATRIX @ x, leaves((6,)))

# --- a column whose step is tried on others

neighbours = Table("another column's step", HOLES)


def lost_beside(function: Callable[[Tensor], Tensor], lost: bool) -> Callable[[Tensor], Tensor]:
    """A function that needs short steps, and one in single precision, of which the derivative may be lost."""
    return lambda x: torch.stack([function(x[0]), (x[1].detach() if lost else x[1]).float().double()])


for _name, _function, _near in (
    ("a kink", torch.abs, 2e-8),
    ("a root", torch.sqrt, 1e-10),
    ("a logarithm", torch.log, 1e-8),
    ("a pole", torch.reciprocal, 1e-6),
):
    neighbours.wrong(f"lost beside {_name}", lost_beside(_function, lost=True), at(_near, 0.7))
    neighbours.right(
        f"beside {_name}", lost_beside(_function, lost=False), at(_near, 0.7), undecided="steps of 6e-8"
    )
neighbours.right("flat beside kinks", torch.relu, at(-2e-8, 3e-8, -1e-7, 2e-7, -3e-7, 0.5))
