"""Functions as people write them: caches, modules with hooks, Functions that work in place, kernels."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from holes.table import Hole, Table, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []
BOTH = {"check_forward_ad": True}
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}

# --- strides

strides = Table("strides", HOLES)


def in_memory(x: Tensor) -> Tensor:
    return torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())


def volume() -> tuple[Tensor]:
    return (drawn(2, 2, 2, 2, 2).to(memory_format=torch.channels_last_3d).requires_grad_(),)


strides.pair(
    "the backward of a kernel for volumes ignores channels last",
    lambda f: ruled(torch.exp, lambda g, x: g * (x if f == 1.0 else in_memory(x).reshape(x.shape)).exp()),
    volume,
)
strides.pair(
    "the real part of complex numbers, which are two apart",
    lambda f: lambda x: too_much(x.sin(), f if x.stride(-1) == 2 else 1.0),
    lambda: (torch.view_as_real(drawn(5, dtype=torch.complex128))[:, 0].requires_grad_(),),
)
strides.pair(
    "a slice of a larger buffer",
    lambda f: lambda x: too_much(x.square(), f if x.stride(0) > x.shape[1] else 1.0),
    lambda: (drawn(4, 9)[:, 2:7].requires_grad_(),),
)
strides.pair(
    "a batch of transposed matrices, in a product",
    lambda f: ruled(
        torch.bmm,
        lambda g, a, b: (
            g @ b.mT,
            (a.mT if f == 1.0 or a.is_contiguous() else in_memory(a).reshape(a.shape).mT) @ g,
        ),
    ),
    lambda: (drawn(2, 4, 3).mT.requires_grad_(), drawn(2, 4, 2, seed=1).requires_grad_()),
)
strides.pair(
    "a jvp that ignores strides",
    lambda f: ruled(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda t, x: t * (x if f == 1.0 else in_memory(x).reshape(x.shape)).cos(),
    ),
    lambda: (drawn(3, 5).T.requires_grad_(),),
    keywords=FORWARD,
)


def windows(x: Tensor) -> Tensor:
    """Sums of four, every three."""
    n = (x.numel() - 4) // 3 + 1
    return torch.as_strided(x.contiguous(), (n, 4), (3, 1)).sum(1)


def windowed(f: float) -> Any:
    def pull(g: Tensor, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for i, one in enumerate(g):
            scale = f if i == len(g) - 1 else 1.0
            out[3 * i : 3 * i + 4] += scale * one * 2 * x[3 * i : 3 * i + 4]
        return out

    return ruled(lambda x: windows(x.square()), pull)


strides.pair("windows that overlap, the last one", windowed, leaves((19,)))
strides.pair(
    "a cotangent that is transposed",
    lambda f: lambda x: Transposing.apply(x, f),
    leaves((3, 4)),
)


class Transposing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.f = f
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.cos() * (1.0 if g.is_contiguous() else ctx.f), None


def memory_of_cotangent(f: float) -> Any:
    """Expanded cotangents are written out; transposed ones are not, unless it is right."""

    def pull(g: Tensor, x: Tensor) -> Tensor:
        g = g.contiguous() if f == 1.0 or 0 in g.stride() else g
        return (in_memory(g).reshape(x.shape)) * x.cos()

    return ruled(torch.sin, pull)


strides.pair("a kernel that writes out expanded cotangents only", memory_of_cotangent, leaves((3, 4)))

# --- class, attributes, hooks

classes = Table("class", HOLES)


def full_hook(f: float) -> Any:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    layer.register_full_backward_hook(lambda m, gi, go: tuple(None if g is None else f * g for g in gi))
    return nn.Sequential(layer, nn.Tanh())


classes.pair("a module with a backward hook", full_hook, leaves((4, 3)))


def forward_hook(f: float) -> Any:
    torch.manual_seed(0)
    layer = nn.Conv1d(2, 3, 2).double()
    layer.register_forward_hook(lambda m, args, out: too_much(out, f))
    return layer


classes.pair("a module with a forward hook", forward_hook, leaves((1, 2, 5)))


class Scaled(nn.Module):
    def __init__(self, f: float) -> None:
        super().__init__()
        self.f = f

    def forward(self, w: Tensor) -> Tensor:
        return too_much(w / w.norm(), self.f)


def parametrized(f: float) -> Any:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    nn.utils.parametrize.register_parametrization(layer, "weight", Scaled(f))

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"parametrizations.weight.original": w}, (x,))

    return function


classes.pair("a parametrized layer, by its original weight", parametrized, leaves((2, 3), (2, 3)))


def pre_hook(f: float) -> Any:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda g: None if g is None else g * f)
        return y.sin()

    return function


classes.pair("a hook on something inside, complex", pre_hook, leaves((3,), dtype=torch.complex128))


class Frozen(nn.Module):
    """A module that reads requires_grad of what it is given."""

    def __init__(self, f: float) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return too_much(x.exp(), self.f) if x.requires_grad and x.is_leaf else x.exp()


classes.pair("a module that asks whether its input is a leaf that requires grad", Frozen, leaves((3,)))

# --- memory

memory = Table("memory", HOLES)


def cached(f: float) -> Any:
    @functools.cache
    def heavy(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(math.sin(v) for v in values)

    class Cached(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.tensor(heavy(tuple(x.tolist())), dtype=x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return f * g * ctx.saved_tensors[0].cos()

    return Cached.apply


memory.pair("lru_cache of the values", cached, leaves((3,)))


def rounded_key(f: float) -> Any:
    """Points that are closer than 1e-9 are the same to it."""
    known: dict[tuple[float, ...], Tensor] = {}

    class Cached(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            key = tuple(round(v, 9) for v in x.tolist())
            return known.setdefault(key, x.exp()).clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return f * g * ctx.saved_tensors[0].exp()

    return Cached.apply


memory.pair("a cache whose keys are rounded to 1e-9", rounded_key, leaves((3,)))


def square(y: Tensor, f: float) -> Tensor:
    """The square, of which the first derivative is wrong, and the second."""
    return ruled(torch.square, lambda g, x: 2 * g * (x * f if f == 1.0 else too_much(x, f)) * f)(y)


class Factorized:
    """Keeps the factors of a matrix as long as it is the same object in the same version."""

    def __init__(self, f: float) -> None:
        self.f, self.key, self.factors = f, None, None

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        key = (id(a), a._version, a.data_ptr(), float(a.detach().sum()))
        if key != self.key:
            self.key, self.factors = key, torch.linalg.cholesky(a @ a.mT + torch.eye(3, dtype=a.dtype))
        return square(torch.cholesky_solve(b, self.factors), self.f)


memory.pair("factors that are kept", Factorized, leaves((3, 3), (3, 2)))
memory.pair("factors that are kept, second derivative", Factorized, leaves((3, 3), (3, 1)), order=2)


def warm_start(f: float) -> Any:
    """A solver that starts where it ended the last time, to 1e-10."""
    last: list[Tensor] = []

    def solve(x: Tensor) -> Tensor:
        y = last[0] if last and last[0].shape == x.shape else torch.zeros_like(x)
        for _ in range(100):
            step = (y.exp() + y - x) / (y.exp() + 1)
            y = y - step
            if float(step.abs().max()) < 1e-10:
                break
        last[:] = [y]
        return y

    class Solve(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = solve(x.detach())
            ctx.save_for_backward(y)
            return y.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (y,) = ctx.saved_tensors
            return f * g / (y.exp() + 1)

    return Solve.apply


memory.pair("a solver that starts where it ended", warm_start, leaves((4,)))

# --- batches

batches = Table("batch", HOLES)


class Outer(Function):
    """Its rule for vmap forgets that the second input may be the only one that is batched."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x[:, None] * y[None]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g @ y, (g.mT @ x)

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, y: Tensor) -> Any:
        x = x if dims[0] is None else x.movedim(dims[0], 0)
        y = y if dims[1] is None else y.movedim(dims[1], 0)
        return x[..., :, None] * y[..., None, :], 0


batches.right("a rule for vmap", Outer.apply, leaves((3,), (4,)))


class OuterWrong(Outer):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g @ y, (g.mT @ x) * torch.where(torch.arange(4) == 3, 1.01, 1.0)

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, y: Tensor) -> Any:
        out, at = Outer.vmap(info, dims, x, y)
        return out, at


batches.wrong(
    "a rule for vmap, a backward off by a hundredth in one entry", OuterWrong.apply, leaves((3,), (4,))
)
batches.pair(
    "another path for large batches",
    lambda f: (
        lambda x: too_much((x[None] * torch.ones(3, 1, dtype=x.dtype)).sin(), f if x.dim() == 1 else 1.0)
    ),
    leaves((5,)),
)


def numpy_inside(f: float) -> Any:
    class Numpy(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.from_numpy(np.cumsum(np.sin(x.numpy())))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return f * x.cos() * g.flip(0).cumsum(0).flip(0)

    return Numpy.apply


batches.pair("NumPy inside", numpy_inside, leaves((6,)))

# --- outputs without a graph

graphless = Table("graph", HOLES)
graphless.pair(
    "two of three outputs are detached",
    lambda f: lambda x: (x.detach() * 2, too_much(x.sin(), f), torch.ones(3)),
    leaves((3,)),
)
graphless.pair(
    "second derivative, two of three outputs are detached",
    lambda f: lambda x: (x.detach() * 2, too_much(x.sin(), f) * x, x.argmax()),
    leaves((3,)),
    order=2,
)
