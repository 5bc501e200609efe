"""Numerical programs: solvers with a tolerance, tables, units, narrow domains, norms in low precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from holes.table import Hole, Table, at, drawn, leaves, too_much

HOLES: list[Hole] = []
BOTH = {"check_forward_ad": True}
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}

# --- steps

steps = Table("far from zero", HOLES)
steps.pair(
    "a saturation at 1e-12",
    lambda f: lambda x: too_much(x / (x + 1e-12), f),
    at(1e-12, 3e-12),
)
steps.pair(
    "a length in metres of an atom", lambda f: lambda x: too_much((x / 1e-10).sin(), f), at(1.3e-10, 2.1e-10)
)
steps.pair(
    "a wave in units of 1e15",
    lambda f: lambda x: too_much((x * 1e-15).sin(), f),
    at(1.3e15, 2.1e15),
    keywords={"atol": 1e-19},
)
steps.pair(
    "an energy at 300,000 with a ripple",
    lambda f: lambda x: x * 0.5 + too_much(x.sin(), f),
    at(3e5, 4e5),
)
steps.pair(
    "a steep sigmoid",
    lambda f: lambda x: too_much(torch.sigmoid(1e6 * (x - 1.0)), f),
    at(1.0 + 1e-7, 1.0 - 2e-6),
)

# --- domain

domain = Table("domain", HOLES)


def numpy_raises(f: float) -> Any:
    class Raises(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            with np.errstate(all="raise"):
                return torch.from_numpy(np.log(x.numpy()))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return f * g / ctx.saved_tensors[0]

    return Raises.apply


domain.pair("NumPy that raises next to zero", numpy_raises, at(3e-7, 0.5))


def generator_ends(f: float) -> Any:
    def function(x: Tensor) -> Tensor:
        if bool((x > 1.0 + 1e-8).any()):
            raise StopIteration
        return too_much(x.exp(), f)

    return function


domain.pair("StopIteration beyond one", generator_ends, at(0.3, 1.0 - 1e-8))
domain.pair(
    "NaN beyond one",
    lambda f: lambda x: too_much(torch.where(x > 1.0, torch.nan, x.square()), f),
    at(0.2, 1.0 - 1e-7),
)
domain.pair(
    "a rotation that is checked to 1e-7",
    lambda f: _rotation(f),
    lambda: (torch.linalg.qr(drawn(3, 3, low=-0.5))[0].requires_grad_(),),
)


def _rotation(f: float) -> Any:
    def function(r: Tensor) -> Tensor:
        if float((r.detach() @ r.detach().mT - torch.eye(3, dtype=r.dtype)).abs().max()) > 1e-7:
            raise ValueError("no rotation")
        return too_much(r @ torch.tensor([1.0, 2.0, 3.0], dtype=r.dtype), f)

    return function


# --- noise

noise = Table("noise", HOLES)


def implicit(solve: Callable[[np.ndarray], np.ndarray], slope: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def make(f: float) -> Any:
        class Implicit(Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                y = torch.from_numpy(np.asarray(solve(x.detach().numpy()), dtype=np.float64))
                ctx.save_for_backward(x, y)
                return y

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Tensor:
                return f * g * slope(*ctx.saved_tensors)

        return Implicit.apply

    return make


def kepler(x: np.ndarray) -> np.ndarray:
    e, anomaly = 0.3, x.copy()
    while abs(anomaly - e * np.sin(anomaly) - x).max() > 1e-9:
        anomaly = x + e * np.sin(anomaly)
    return anomaly


noise.pair(
    "Kepler's equation by iteration to 1e-9",
    implicit(kepler, lambda x, y: 1 / (1 - 0.3 * y.cos())),
    leaves((4,)),
)


def quadrature(x: np.ndarray) -> np.ndarray:
    from scipy.integrate import quad

    return np.array(
        [quad(lambda t, a=a: math.exp(-a * t * t), 0.0, 1.0, epsabs=1e-6, epsrel=1e-6)[0] for a in x]
    )


def quadrature_slope(x: Tensor, y: Tensor) -> Tensor:
    t = torch.linspace(0, 1, 4001, dtype=x.dtype)
    return torch.trapezoid(-(t**2) * (-x[:, None] * t**2).exp(), t)


noise.pair("adaptive quadrature", implicit(quadrature, quadrature_slope), leaves((2,)))


def printed(x: np.ndarray) -> np.ndarray:
    """A program that is run for its printed output."""
    return np.array([float(f"{math.sin(v):.10f}") for v in x])


noise.pair("a result that was printed with ten digits", implicit(printed, lambda x, y: x.cos()), leaves((3,)))


def table_lookup(x: np.ndarray) -> np.ndarray:
    grid = np.linspace(0.0, 2.0, 20001)
    return np.interp(x, grid, np.sin(grid))


noise.pair("a table with 20,000 nodes", implicit(table_lookup, lambda x, y: x.cos()), leaves((5,)))


def golden(x: np.ndarray) -> np.ndarray:
    """The minimum over y of (y - x)^2 + y^4 by golden section, whose answer is good to 1e-8 at best."""
    out = []
    for v in x:
        low, high, r = -2.0, 2.0, (math.sqrt(5) - 1) / 2
        value = lambda y, v=v: (y - v) ** 2 + y**4
        while high - low > 1e-7:
            a, b = high - r * (high - low), low + r * (high - low)
            low, high = (low, b) if value(a) < value(b) else (a, high)
        out.append((low + high) / 2)
    return np.array(out)


noise.pair(
    "a minimum by golden section",
    implicit(golden, lambda x, y: 2 / (2 + 12 * y**2)),
    leaves((2,)),
    factor=2.0,
)


def power_iteration(f: float) -> Any:
    """The largest eigenvalue of a symmetric matrix, to 1e-9."""

    class Largest(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            s = (a + a.mT) / 2
            v = torch.ones(a.shape[0], dtype=a.dtype) / math.sqrt(a.shape[0])
            old = torch.tensor(torch.inf, dtype=a.dtype)
            for _ in range(10000):
                w = s @ v
                value, v = v @ w, w / w.norm()
                if abs(float(value - old)) < 1e-9:
                    break
                old = value
            ctx.save_for_backward(v)
            return value

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (v,) = ctx.saved_tensors
            return f * g * torch.outer(v, v)

    return Largest.apply


noise.pair("the largest eigenvalue by power iteration", power_iteration, leaves((5, 5)))


def sinkhorn(f: float) -> Any:
    """Transport with entropy, to 1e-8; the derivative of its value by the cost is the plan."""

    class Transport(Function):
        @staticmethod
        def forward(ctx: Any, cost: Tensor) -> Tensor:
            kernel = (-cost / 0.3).exp()
            n, m = cost.shape
            u, v = torch.ones(n, dtype=cost.dtype), torch.ones(m, dtype=cost.dtype)
            for _ in range(5000):
                u = 1 / n / (kernel @ v)
                v = 1 / m / (kernel.mT @ u)
                if float((u * (kernel @ v) - 1 / n).abs().max()) < 1e-8:
                    break
            plan = u[:, None] * kernel * v
            ctx.save_for_backward(plan)
            return (plan * cost).sum() + 0.3 * (plan * (plan.log() - 1)).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return f * g * ctx.saved_tensors[0]

    return Transport.apply


noise.pair("transport by Sinkhorn's iteration to 1e-8", sinkhorn, leaves((3, 4)))
noise.pair(
    "a convolution by transforms in single precision",
    lambda f: (
        lambda x: too_much(
            torch.fft.irfft(
                torch.fft.rfft(x.float()) * torch.fft.rfft(drawn(8, seed=3).float()), n=8
            ).double(),
            f,
        )
    ),
    leaves((8,)),
)
noise.pair(
    "draws from a fixed seed",
    lambda f: (
        lambda x: too_much(
            (x + 0.1 * torch.randn(500, 3, dtype=x.dtype, generator=torch.Generator().manual_seed(1)))
            .exp()
            .mean(0),
            f,
        )
    ),
    leaves((3,)),
)


def descent(f: float) -> Any:
    """Ridge regression by gradient descent that stops at 1e-7, differentiated by the normal equations."""
    data = drawn(8, 3, seed=4, low=-0.5)
    matrix = data.mT @ data + torch.eye(3, dtype=torch.float64)

    class Fit(Function):
        @staticmethod
        def forward(ctx: Any, target: Tensor) -> Tensor:
            w = torch.zeros(3, dtype=target.dtype)
            for _ in range(100000):
                step = 0.1 * (matrix @ w - data.mT @ target)
                w = w - step
                if float(step.norm()) < 1e-7:
                    break
            return w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return f * data @ torch.linalg.solve(matrix, g)

    return Fit.apply


noise.pair("ridge regression by descent", descent, leaves((8,)))

# --- dtype

precision = Table("dtype", HOLES)


def rms_norm(f: float) -> Any:
    """Accumulates in single precision; the wrong one forgets the term of the mean."""

    class Norm(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
            scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
            ctx.save_for_backward(x, w, scale)
            return (wide * scale).to(x.dtype) * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w, scale = ctx.saved_tensors
            wide, gw = x.to(scale.dtype), (g * w).to(scale.dtype)
            normal = wide * scale
            inner = gw if f != 1.0 else gw - normal * (gw * normal).mean(-1, keepdim=True)
            return (inner * scale).to(x.dtype), (g * normal.to(g.dtype)).sum(0)

    return Norm.apply


for _name, _dtype in {"bfloat16": torch.bfloat16, "half": torch.float16, "single": torch.float32}.items():
    precision.pair(f"root mean square norm, {_name}", rms_norm, leaves((2, 6), (6,), dtype=_dtype))
precision.pair(
    "a sum of ten thousand, single precision",
    lambda f: lambda x: too_much(x.sin().repeat(2500).reshape(2500, -1).sum(0) / 2500, f),
    leaves((4,), dtype=torch.float32),
)
precision.pair(
    "a table of constants in single precision",
    lambda f: lambda x: too_much(x * torch.tensor([0.1, 0.7, 1.3], dtype=torch.float32), f),
    leaves((3,), dtype=torch.float32),
)
precision.pair(
    "complex64 rotations",
    lambda f: lambda z: too_much(z * torch.polar(torch.ones(4), torch.arange(4.0)), f).abs().square(),
    leaves((4,), dtype=torch.complex64),
)

# --- large beside small

beside = Table("large beside small", HOLES)
beside.pair(
    "a penalty of 1e8 beside a loss",
    lambda f: lambda x: torch.stack([1e8 * x.square().sum(), too_much(x.sin(), f).sum()]),
    leaves((5,)),
)
beside.pair(
    "inputs of 1e6 and 1e-3 in one product",
    lambda f: lambda a, b: too_much(a * 1e6, 1.0) * too_much(b * 1e-3, f),
    leaves((4,), (4,)),
)
