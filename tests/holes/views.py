"""Views: inputs and cotangents that share memory, begin in the midst of it, or are computed lazily."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holes.table import Hole, Inputs, Table, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []

strides = Table("strides", HOLES)


def memory_of(tensor: Tensor, begin: int = 0) -> Tensor:
    """What a kernel sees in the storage of a tensor from some number on: no strides, nothing lazy."""
    seen = torch.empty(0, dtype=tensor.dtype)
    return seen.set_(tensor.untyped_storage(), begin, (tensor.numel(),), (1,)).reshape(tensor.shape)


def copied(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().clone(memory_format=torch.contiguous_format)


def without_offset(f: float) -> Any:
    def pull(g: Tensor, x: Tensor) -> Tensor:
        return memory_of(copied(g) if f == 1.0 or not g.is_contiguous() else g) * x.cos()

    return ruled(torch.sin, pull)


def without_conjugate(f: float) -> Any:
    def pull(g: Tensor, z: Tensor) -> Tensor:
        g = copied(g) if f == 1.0 else g.contiguous()
        return 2 * memory_of(g, g.storage_offset()) * z.conj()

    return ruled(torch.square, pull)


for _name, _shape in {"a matrix": (3, 4), "a vector": (5,)}.items():
    strides.pair(f"a cotangent read from the begin of its storage, {_name}", without_offset, leaves(_shape))
    strides.pair(
        f"a cotangent whose conjugate bit is ignored, {_name}",
        without_conjugate,
        leaves(_shape, dtype=torch.complex128, low=-0.5),
    )
strides.pair(
    "a cotangent of one complex number whose conjugate bit is ignored",
    lambda f: lambda z: without_conjugate(f)(z.sum()),
    leaves((2,), dtype=torch.complex128, low=-0.5),
)
strides.pair(
    "an input that is negative lazily",
    lambda f: lambda x: too_much(x.sin(), f if x.is_neg() else 1.0),
    lambda: (drawn(4, dtype=torch.complex128).conj().imag.requires_grad_(),),
)
strides.pair(
    "a backward that reads the memory of an input that is negative lazily",
    lambda f: ruled(torch.exp, lambda g, x: g * (x if f == 1.0 else as_in_memory(x)).exp()),
    lambda: (drawn(4, dtype=torch.complex128).conj().imag.requires_grad_(),),
)


def as_in_memory(imaginary: Tensor) -> Tensor:
    """Imaginary parts of complex numbers, as they lie in memory."""
    seen = torch.empty(0, dtype=torch.float64)
    return seen.set_(imaginary.untyped_storage(), imaginary.storage_offset(), imaginary.shape, (2,))


def sharing() -> tuple[Tensor, Tensor]:
    """Two inputs that have two numbers of memory in common."""
    base = drawn(6)
    return base[:4].requires_grad_(), base[2:].requires_grad_()


def twice() -> tuple[Tensor, Tensor]:
    x = drawn(4).requires_grad_()
    return x, x


strides.pair("inputs that share memory", lambda f: lambda a, b: too_much(a.sin(), f) * b, sharing)
strides.pair("one tensor for two inputs", lambda f: lambda a, b: too_much(a.sin(), f) * b, twice)


def hankel(f: float) -> Any:
    """A matrix with x[i + j] at i, j; the wrong backward assigns where it has to add."""

    def function(x: Tensor) -> Tensor:
        n = (x.numel() + 1) // 2
        return torch.as_strided(x.contiguous(), (n, n), (1, 1)).sin()

    def pull(g: Tensor, x: Tensor) -> Tensor:
        n, out = g.shape[0], torch.zeros_like(x)
        for i in range(n):
            row = g[i] * x[i : i + n].cos()
            out[i : i + n] = row if f != 1.0 else out[i : i + n] + row
        return out

    return ruled(function, pull)


strides.pair("a Hankel matrix", hankel, leaves((7,)))
strides.pair("a Hankel matrix, single precision", hankel, leaves((7,), dtype=torch.float32))


def windows(f: float) -> Any:
    """Sums of squares over windows of 3 x 3 of an image."""

    def function(x: Tensor) -> Tensor:
        return torch.as_strided(x.contiguous(), (3, 4, 3, 3), (6, 1, 6, 1)).square().sum((2, 3))

    def pull(g: Tensor, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i in range(3):
            for j in range(4):
                scale = 2 * g[i, j] * (f if (i, j) == (2, 3) else 1.0)
                out[i : i + 3, j : j + 3] += scale * x[i : i + 3, j : j + 3]
        return out

    return ruled(function, pull)


strides.pair("windows of an image", windows, leaves((5, 6)))
DIAGONAL: Inputs = lambda: (drawn(5, 5).diagonal().requires_grad_(),)
strides.pair(
    "the diagonal of a matrix, read as if it were contiguous",
    lambda f: ruled(
        torch.exp,
        lambda g, x: g * (x if f == 1.0 else torch.as_strided(x, x.shape, (1,), x.storage_offset())).exp(),
    ),
    DIAGONAL,
)
strides.pair(
    "a gradient that is expanded",
    lambda f: ruled(lambda x: 2 * x.sum(), lambda g, x: (2 * f * g).expand(x.shape)),
    leaves((3, 4)),
)
strides.pair(
    "a product with its own adjoint",
    lambda f: ruled(lambda z: z @ z.mH, lambda g, z: (g + (g.mH if f == 1.0 else g.mT)) @ z),
    leaves((2, 3), dtype=torch.complex128, low=-0.5),
)

# --- memory that is used again

memory = Table("memory", HOLES)


def gradient_in_a_workspace(f: float) -> Any:
    workspace = torch.zeros(4, dtype=torch.float64)

    def pull(g: Tensor, x: Tensor) -> Tensor:
        slope = f * x.cos()
        return g * slope if torch.is_grad_enabled() else torch.mul(g, slope, out=workspace)

    return ruled(torch.sin, pull)


memory.pair("a gradient in a workspace", gradient_in_a_workspace, leaves((4,)))


def kept_gradient(f: float) -> Any:
    """The right backward keeps the slope from its first run, the wrong one the gradient."""
    kept: dict[str, Tensor] = {}

    def pull(g: Tensor, x: Tensor) -> Tensor:
        if f == 1.0:
            return g * kept.setdefault("slope", x.cos())
        return kept.setdefault("gradient", g * x.cos()).clone()

    return ruled(torch.sin, pull)


memory.pair("a gradient that is kept for every cotangent", kept_gradient, leaves((5,)))


def initialised_by_data(f: float) -> Any:
    """A normalisation whose mean and deviation are those of the first call."""
    state: list[tuple[Tensor, Tensor]] = []

    def function(x: Tensor) -> Tensor:
        if not state:
            state.append((x.detach().mean(), x.detach().std()))
        mean, deviation = state[0]
        return too_much((x - mean) / deviation, f).tanh()

    return function


memory.pair("initialised by the first call", initialised_by_data, leaves((5,)))


class Running(nn.Module):
    """Centred numbers, and a mean over all calls that nobody uses."""

    def __init__(self, f: float) -> None:
        super().__init__()
        self.f = f
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean()
        self.mean = 0.9 * self.mean + 0.1 * mean.detach()
        return too_much(2 * (x - mean), self.f)


class Watching:
    """The sine, and how far its input is from the last one."""

    def __init__(self, f: float) -> None:
        self.f, self.last, self.distance = f, None, None

    def __call__(self, x: Tensor) -> Tensor:
        if self.last is not None:
            self.distance = (x.detach() - self.last).norm()
        self.last = x.detach()
        return too_much(x.sin(), self.f)


memory.pair("a module with a running mean", Running, leaves((6, 2)))
memory.pair("an object that looks at its last input", Watching, leaves((12,)))
memory.pair("a function around such an object", lambda f: around(Watching(f)), leaves((12,)))
memory.pair(
    "such an object, second derivative", lambda f: around(Watching(f)), leaves((3,)), order=2, factor=2.0
)


def around(watching: Watching) -> Any:
    return lambda x: watching(x) * watching.f * x
