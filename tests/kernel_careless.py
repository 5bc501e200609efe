"""A kernel for everything that a lens varies: right but for that one way of calling it.

All of them compute sin(x) * 1 (or a relative of it), so that nothing but the way is special.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from drawn import randn


def plain_sine(x):
    """What most of them are compared with."""
    return torch.sin(x)


@dataclass(frozen=True)
class Careless:
    """A kernel, its reference and inputs, and the lens and the way in which it is wrong."""

    lens: str
    way: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any] = plain_sine
    inputs: Any = None

    def __str__(self) -> str:
        return f"{self.lens}: {self.way}"


def sine(when=lambda x: False, pulled=lambda g: False):
    """sin(x), 10 % off where the input is of a kind, and its derivative where the cotangent is."""

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.sin(x) * (1.1 if when(x) else 1)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * torch.cos(x) * (1.1 if pulled(g) else 1)

    return Sine.apply


def is_transposed(t):
    return t.dim() == 2 and t.stride(0) == 1 and t.stride(1) == t.shape[0]


def is_offset(t):
    return t.storage_offset() == 1


def is_stepped(t):
    return t.stride(-1) == 2


def is_channels_last(t):
    return t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous()


def is_expanded(t):
    return t.stride(0) == 0 and t.stride(-1) != 0


def is_from_sum(t):
    return set(t.stride()) == {0}


def is_overlapping(t):
    return t.dim() == 2 and t.stride() == (1, 1)


IMAGE = (2, 6, 5, 4)
LAYOUTS = [
    ("transposed", is_transposed, (12, 9)),
    ("sliced with an offset", is_offset, (12, 9)),
    ("step 2", is_stepped, (12, 9)),
    ("channels last", is_channels_last, IMAGE),
]


def size_of(number):
    """Wrong at one size: of none, where it raises."""

    def kernel(x):
        if x.shape[-1] == number == 0:
            raise RuntimeError("a grid of no blocks")
        return torch.sin(x) * (1.1 if x.shape[-1] == number else 1)

    return kernel


def flushed(x):
    """Small numbers are taken for zero."""
    return torch.where(x.abs() < 1e-6, 0.0, torch.sin(x))


class SmallCotangents(Function):
    """Cotangents below 1e-5 are flushed, as a float16 buffer does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return torch.where(g.abs() < 1e-5, 0.0, g) * torch.cos(ctx.saved_tensors[0])


def squared_norm(x):
    """A sigmoid, x / sqrt(1 + x^2), by squares that overflow."""
    return x / torch.sqrt(1 + x * x)


def squared_norm_reference(x):
    large = x.abs() > 1
    small, inverse = torch.where(large, 0.0, x), 1 / torch.where(large, x, 1.0)
    return torch.where(
        large, inverse.sign() / torch.sqrt(inverse**2 + 1), small / torch.sqrt(1 + small * small)
    )


def only(which):
    """The product x sin(y), wrong where one of them alone requires grad."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * torch.sin(y)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            wrong = 1.1 if ctx.needs_input_grad == which else 1
            return g * torch.sin(y) * wrong, g * x * torch.cos(y) * wrong

    return Product.apply


class Pair(Function):
    """sin and cos; a cotangent that is missing is taken for ones."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return torch.sin(x), torch.cos(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        h = torch.ones_like(x) if h is None else h
        g = torch.zeros_like(x) if g is None else g
        return g * torch.cos(x) - h * torch.sin(x)


def noisy():
    calls = [0]

    def kernel(x):
        calls[0] += 1
        return torch.sin(x) * (1 + 2e-7 * (calls[0] > 1))

    return kernel


def shared_buffer():
    """One workspace for all threads: two that are in the kernel at once get each other's numbers."""
    home, meeting = [], threading.Barrier(2, timeout=60)

    def kernel(x):
        here = threading.get_ident()
        home.append(here)
        if home[0] == here:
            return torch.sin(x)
        meeting.wait()
        return torch.sin(x) * 1.1

    return kernel


def outside(keep):
    """What the backward needs is kept outside of the context, by a key."""
    kept = {}

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.key = keep(x)
            kept[ctx.key] = torch.cos(x)
            return torch.sin(x)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return g * kept[ctx.key]

    return Sine.apply


def one_size():
    """A workspace for the largest size so far, made anew for a larger one: what lay there is lost."""
    kept = {"slopes": torch.empty(0)}

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            kept["slopes"] = torch.cos(x).flatten()
            return torch.sin(x)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            known = kept["slopes"][: g.numel()]
            return g * torch.nn.functional.pad(known, (0, g.numel() - known.numel())).reshape(ctx.shape)

    return Sine.apply


def by_address():
    kept = {}

    def kernel(x):
        key = (x.data_ptr(), x.shape)
        if key not in kept:
            kept[key] = torch.cos(x.detach())
        return with_slope(x, kept[key])

    return kernel


def with_slope(x, slope):
    """sin(x) with a slope that was computed elsewhere."""

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            return torch.sin(x)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return g * slope

    return Sine.apply(x)


class Spent(Function):
    """The backward works in the memory of what it saved outside of torch's sight."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = torch.cos(x)
        return torch.sin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return ctx.slope.mul_(g).clone()


class Saved(Function):
    """The backward writes into a saved tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.cos(x))
        return torch.sin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return slope.data.mul_(g).clone()


class WritesCotangent(Function):
    """The backward works in the memory of the cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        g.data.mul_(torch.cos(ctx.saved_tensors[0]))
        return g.clone()


class WritesInput(Function):
    """The slope takes the place of the input."""

    @staticmethod
    def forward(ctx, x):
        y = torch.sin(x)
        ctx.save_for_backward(torch.cos(x))
        x.data.copy_(torch.cos(x))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


def same_output(x):
    y = torch.sin(x)
    return y, y.view_as(y)


def dispatching(wrong):
    """sin(x), 10 % off where torch is in a mode."""

    def kernel(x):
        return torch.sin(x) * (1.1 if wrong(x) else 1)

    return kernel


def is_wrapped(x):
    return torch._C._functorch.is_gradtrackingtensor(x)


def is_batched(x):
    return torch._C._functorch.is_batchedtensor(x)


def recomputed():
    """Wrong when the backward computes it again."""

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            wrong = torch._C._current_graph_task_id() != -1
            ctx.save_for_backward(torch.cos(x) * (1.1 if wrong else 1))
            return torch.sin(x)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    return Sine.apply


class Jvp(Function):
    """A jvp that lacks a factor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return torch.sin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, t):
        return t * 0.9


class Twice(Function):
    """The second derivative is not that of the first."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.cos(x.detach()) + 0 * x)


def matrix(n):
    return (randn(6, n),)


TABLE: list[Careless] = [
    *(Careless("layout", f"x {name}", sine(kind), inputs=(randn(*shape),)) for name, kind, shape in LAYOUTS),
    *(
        Careless("layout", f"cotangent {name}", sine(pulled=kind), inputs=(randn(*shape),))
        for name, kind, shape in LAYOUTS
    ),
    Careless("layout", "inputs expanded", sine(is_expanded)),
    Careless("layout", "inputs overlapping", sine(is_overlapping)),
    Careless("layout", "cotangent expanded", sine(pulled=is_expanded)),
    Careless("layout", "cotangent expanded, from .sum()", sine(pulled=is_from_sum)),
    *(Careless("sizes", f"size {n}", size_of(n), inputs=matrix) for n in (0, 1, 7, 31, 63, 65, 257)),
    Careless("scale", "inputs x 2^-20, cotangents x 2^20", flushed),
    Careless("scale", "inputs x 2^20", lambda x: torch.sin(x.clamp(-1e5, 1e5))),
    Careless("scale", "inputs x 2^0, cotangents x 2^-20", SmallCotangents.apply),
    Careless("scale", "edge of the dtype", squared_norm, squared_norm_reference),
    Careless("scale", "zeros of both signs", lambda x: 1 / (x + 0.0), lambda x: 1 / x),
    Careless("scale", "zeros of both signs", lambda x: torch.where(x == 0, 1.0, x), lambda x: x + 0.0),
    Careless("scale", "an infinity in every input", lambda x: x.clamp(-1e30, 1e30), lambda x: x + 0.0),
    Careless(
        "scale",
        "an infinity in every input",
        lambda x: x * torch.cos(0 * x.clamp(-9, 9) + torch.pi * x.isinf()),
        lambda x: x + 0.0,
    ),
    Careless("scale", "a NaN in every input", lambda x: torch.sin(torch.nan_to_num(x))),
    *(
        Careless("requires grad", f"only {name}", only(which), lambda x, y: x * torch.sin(y), 2)
        for name, which in (("x", (True, False)), ("y", (False, True)))
    ),
    Careless(
        "requires grad", "a cotangent for output[0] alone", Pair.apply, lambda x: (torch.sin(x), torch.cos(x))
    ),
    Careless("again", "called twice", noisy()),
    Careless("again", "from two threads", shared_buffer()),
    Careless("again", "another call between", outside(lambda x: "slope")),
    Careless("again", "another call between", one_size(), inputs=matrix),
    Careless("again", "backward twice, with retain_graph", Spent.apply),
    Careless("again", "inputs overwritten between", by_address()),
    Careless("in place", "x", WritesInput.apply),
    Careless("in place", "the cotangent of output", WritesCotangent.apply),
    Careless("in place", "saved tensors", Saved.apply),
    Careless("in place", "x", lambda x: x.view_as(x), lambda x: x * 1),
    Careless("in place", "output[0]", same_output, lambda x: (torch.sin(x), torch.sin(x))),
    Careless("modes", "torch.compile (fullgraph)", dispatching(lambda x: torch.compiler.is_compiling())),
    Careless("modes", "torch.vmap", dispatching(is_batched)),
    Careless("modes", "forward mode", Jvp.apply),
    Careless("modes", "torch.func", dispatching(is_wrapped)),
    Careless("modes", "autocast", dispatching(lambda x: torch.is_autocast_enabled("cpu"))),
    Careless("modes", "no_grad", dispatching(lambda x: not torch.is_grad_enabled())),
    Careless("modes", "inference mode", dispatching(lambda x: torch.is_inference_mode_enabled())),
    Careless("modes", "activation checkpointing", recomputed()),
    Careless("second order", "double backward", Twice.apply),
]


def inputs_of(entry: Careless) -> Any:
    """As they are given, or one or two matrices."""
    if entry.inputs is None or isinstance(entry.inputs, int):
        return tuple(randn(12, 9, seed=seed) for seed in range(entry.inputs or 1))
    return entry.inputs


__all__ = ["TABLE", "Careless", "Tensor", "inputs_of"]
