"""The function that is differenced must be the one that was given: layout, class, batches, memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from holes.table import Hole, Inputs, Table, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []


def memory(x: Tensor) -> Tensor:
    """The numbers in the order of memory, which a kernel sees that ignores strides."""
    return torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()).reshape(x.shape)


# --- strides

strides = Table("strides", HOLES)


def transposed(*shape: int, dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: (drawn(*shape, dtype=dtype).T.requires_grad_(),)


def channels_last(dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: (drawn(2, 3, 2, 2, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_(),)


def sliced(dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: (drawn(24, dtype=dtype)[::2].requires_grad_(),)


def unaligned() -> tuple[Tensor]:
    """A tensor whose memory does not begin at a multiple of 16 bytes."""
    return (drawn(13)[1:].requires_grad_(),)


LAYOUTS: dict[str, Inputs] = {
    "transposed": transposed(3, 5),
    "transposed, single precision": transposed(3, 5, dtype=torch.float32),
    "transposed, complex": transposed(2, 3, dtype=torch.complex128),
    "channels last": channels_last(),
}


def backward_in_memory_order(factor: float) -> Any:
    if factor == 1.0:
        return ruled(torch.square, lambda g, x: 2 * g * x.conj())
    return ruled(torch.square, lambda g, x: 2 * g * memory(x).conj())


def forward_in_memory_order(factor: float) -> Any:
    pull = lambda g, x: torch.empty_like(x).copy_(2 * g * memory(x).conj())
    if factor != 1.0:
        return ruled(lambda x: memory(x).square(), pull)

    def right(g: Tensor, x: Tensor) -> Tensor:
        gradient = torch.empty_like(x)
        torch.as_strided(gradient, (x.numel(),), (1,)).copy_((2 * g * memory(x).conj()).reshape(-1))
        return gradient

    return ruled(lambda x: memory(x).square(), right)


def branches_on_contiguity(factor: float) -> Any:
    return lambda x: x.sin() if x.is_contiguous() else too_much(x.sin(), factor)


for _name, _layout in LAYOUTS.items():
    strides.pair(f"backward reads memory, {_name}", backward_in_memory_order, _layout)
    strides.pair(f"forward reads memory, {_name}", forward_in_memory_order, _layout)
    strides.pair(f"another branch if not contiguous, {_name}", branches_on_contiguity, _layout)
strides.pair("another branch if not contiguous, every second number", branches_on_contiguity, sliced())
strides.pair(
    "second derivative, another branch if not contiguous",
    lambda factor: ruled(
        lambda x: x**3, lambda g, x: g * (3 * x**2 if x.is_contiguous() else too_much(3 * x**2, factor))
    ),
    transposed(2, 3),
    order=2,
)
strides.pair(
    "a kernel for memory that is not aligned",
    lambda factor: lambda x: too_much(x.sin(), factor if x.data_ptr() % 16 else 1.0),
    unaligned,
)
strides.pair(
    "another branch for a view that is conjugate lazily",
    lambda factor: lambda z: too_much(z * z, factor if z.is_conj() else 1.0),
    lambda: (drawn(4, dtype=torch.complex128).conj().requires_grad_(),),
)
strides.right(
    "as_strided with strides of its own",
    lambda x: torch.as_strided(x, (5, 3), (1, 5)).sin() * x.sum(),
    transposed(3, 5),
)
strides.right("a view that needs the layout", lambda x: x.T.view(-1).sin(), transposed(3, 5))


def wants_channels_last(x: Tensor) -> Tensor:
    if not x.is_contiguous(memory_format=torch.channels_last) or x.is_contiguous():
        raise ValueError("expected channels last")
    return x.sin().sum((2, 3))


strides.right("refuses another layout", wants_channels_last, channels_last())
strides.right("sizes from strides", lambda x: x.sin() * x.stride(0) / x.stride(1), transposed(3, 5))

# --- class, attributes, hooks

classes = Table("class", HOLES)


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: tuple(nn.Parameter(drawn(*s, dtype=dtype, seed=i)) for i, s in enumerate(shapes))


def registers(factor: float) -> Any:
    def function(w: Tensor, x: Tensor) -> Tensor:
        module = nn.Module()
        module.w, module.x = w, x
        total = sum(parameter.sin().sum() for parameter in module.parameters())
        return too_much(torch.as_tensor(total, dtype=w.dtype), factor) * torch.ones(2, dtype=w.dtype)

    return function


def in_a_list(factor: float) -> Any:
    return lambda *ws: torch.stack([too_much(w.exp(), factor) for w in nn.ParameterList(ws)]).sum(0)


class Angle(Tensor):
    """A tensor with a class of its own."""


class Logged(Tensor):
    """A tensor that sees every function that is called on it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def of_class(kind: type, *shape: int, dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: (drawn(*shape, dtype=dtype).as_subclass(kind).requires_grad_(),)


def with_attribute(*shape: int) -> Inputs:
    def make() -> tuple[Tensor, ...]:
        x = drawn(*shape).requires_grad_()
        x.frequency = 2.0
        return (x,)

    return make


def hooked(factor: float) -> Inputs:
    def make() -> tuple[Tensor, ...]:
        x = drawn(4).requires_grad_()
        x.register_hook(lambda g: None if g is None else g * factor)
        return (x,)

    return make


classes.pair("registers its inputs in a module", registers, parameters((3,), (2,)))
classes.pair("registers its inputs, single precision", registers, parameters((3,), (2,), dtype=torch.float32))
classes.pair("a list of parameters", in_a_list, parameters((3,), (3,), (3,)))
classes.pair(
    "another branch for a subclass",
    lambda factor: lambda x: too_much(x.sin(), factor if isinstance(x, Angle) else 1.0),
    of_class(Angle, 5),
)
classes.pair(
    "second derivative, another branch for a subclass",
    lambda factor: lambda x: (too_much(x**2, factor if isinstance(x, Angle) else 1.0) * x).sum(),
    of_class(Angle, 3),
    order=2,
)
classes.pair(
    "a subclass that sees every call", lambda factor: lambda x: too_much(x.exp(), factor), of_class(Logged, 4)
)
classes.pair(
    "an attribute of the input",
    lambda factor: (
        lambda x: too_much(
            (x * getattr(x, "frequency", 1.0)).sin(), factor if hasattr(x, "frequency") else 1.0
        )
    ),
    with_attribute(2, 3),
)
classes.pair(
    "another branch for a parameter",
    lambda factor: lambda w: too_much(w.tanh(), factor if isinstance(w, nn.Parameter) else 1.0),
    parameters((2, 2)),
)
classes.wrong("a hook that doubles the gradient", torch.sin, hooked(2.0))
classes.right("a hook that leaves the gradient", torch.sin, hooked(1.0))
classes.right(
    "refuses what is no parameter",
    lambda w: w.sin() if isinstance(w, nn.Parameter) else w.no_parameter,
    parameters((3,)),
)


def wants_a_leaf(x: Tensor) -> Tensor:
    if not (x.is_leaf and x.requires_grad and x.grad_fn is None):
        raise ValueError("expected a leaf")
    return x.exp()


classes.right("refuses what is no leaf", wants_a_leaf, leaves((4,)))

# --- batches

batches = Table("batch", HOLES)


def shared_mistake(factor: float) -> Any:
    """The batching rule bends the function so that its differences have the wrong slope, too."""

    def rule(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 0)
        return x**3 + (factor - 1) * 3 * x[:1] ** 2 * (x - x[:1]), 0

    return ruled(lambda x: x**3, lambda g, x: 3 * g * x**2 * factor, vmap=rule)


def shared_mistake_by_one_input(factor: float) -> Any:
    def rule(info: Any, dims: Any, a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        a, b = a.movedim(dims[0], 0), b.movedim(dims[1], 0)
        return a * b[:1] * (1 + (b / b[:1] - 1) * factor), 0

    return ruled(lambda a, b: a * b, lambda g, a, b: (g * b, g * a * factor), vmap=rule)


def one_entry_of_a_product(factor: float, size: int = 40) -> Any:
    weight = drawn(3, size, seed=4, low=-0.5)
    changed = weight.clone()
    changed[1, 17] *= factor

    def rule(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 0)
        return x[:1] @ weight.T + (x - x[:1]) @ changed.T, 0

    return ruled(lambda x: weight @ x, lambda g, x: g @ changed, vmap=rule)


def only_small_batches(factor: float, first: int = 8) -> Any:
    """From some point on, the batching rule computes what the wrong backward says."""

    def rule(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(dims[0], 0)
        y = x**3
        y[first:] += (factor - 1) * 3 * x[:1] ** 2 * (x[first:] - x[:1])
        return y, 0

    return ruled(lambda x: x**3, lambda g, x: 3 * g * x**2 * factor, vmap=rule)


def fused_with_grad(factor: float) -> Any:
    """With grad mode on another path is taken, of which the derivative is not that of the plain path."""

    def function(x: Tensor) -> Tensor:
        return too_much(x.sin() * x, factor) if torch.is_grad_enabled() else x.sin() * x

    return function


def other_function_with_grad(factor: float) -> Any:
    """With grad mode on this is another function; its derivative is that of the plain path, or its own."""

    def function(x: Tensor) -> Tensor:
        y = x.square() if torch.is_grad_enabled() else x.square() * 1.1
        return too_much(y, factor)

    return function


for _name, _make in {
    "a rule that shares the mistake": shared_mistake,
    "a rule that is wrong beyond eight points": only_small_batches,
    "a fused path with grad mode": fused_with_grad,
    "another function with grad mode": other_function_with_grad,
}.items():
    batches.pair(_name, _make, leaves((12,)))
batches.pair("a rule that is wrong by one input", shared_mistake_by_one_input, leaves((6,), (6,)))
batches.pair("a rule that is wrong beyond two points", lambda f: only_small_batches(f, 2), leaves((12,)))
batches.pair(
    "a rule that is wrong in one entry of many",
    lambda f: one_entry_of_a_product(f, 1000),
    leaves((1000,)),
    1.02,
)
batches.pair("a rule that is wrong in one entry", one_entry_of_a_product, leaves((40,)))


def raises_in_batches(info: Any, dims: Any, x: Tensor) -> Any:
    raise TypeError("not in a batch")


batches.right(
    "a rule that raises",
    ruled(lambda x: x**3, lambda g, x: 3 * g * x**2, vmap=raises_in_batches),
    leaves((12,)),
)
batches.right(
    "a rule for another function",
    ruled(torch.sin, lambda g, x: g * x.cos(), vmap=lambda i, d, x: (x.movedim(d[0], 0).cos(), 0)),
    leaves((12,)),
)
batches.right(
    "branches on its numbers", lambda x: x.sin() if float(x.detach().sum()) > 0 else x.cos(), leaves((12,))
)

# --- functions that remember

memos = Table("memory", HOLES)


class Remembers:
    """Keeps what it computed last, with its graph, for a call with equal values."""

    def __init__(self, factor: float) -> None:
        self.factor, self.key, self.kept = factor, None, None

    def __call__(self, x: Tensor) -> Tensor:
        if self.key is None or not torch.equal(self.key, x.detach()):
            self.key = x.detach().clone()
            self.kept = too_much(x.sin() * x.sum(), self.factor)
        return self.kept * self.kept


class Remembers2:
    """Keeps everything it ever computed, by the numbers of its inputs."""

    def __init__(self, factor: float) -> None:
        self.factor, self.kept = factor, {}

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        key = (tuple(x.reshape(-1).tolist()), tuple(y.reshape(-1).tolist()))
        if key not in self.kept:
            self.kept[key] = too_much((x * y).tanh(), self.factor) * x
        return self.kept[key] + y


class Simulator(nn.Module):
    """A state that is advanced when the parameters are new, and a reading of it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.state, self.of = factor, None, None

    def forward(self, x: Tensor) -> Tensor:
        if self.of is None or (self.of != x.detach()).any():
            state = x
            for _ in range(4):
                state = state + 0.1 * too_much(state.sin(), self.factor)
            self.state, self.of = state, x.detach().clone()
        return self.state.exp()


@functools.cache
def lookup(size: int) -> Tensor:
    return drawn(size, size, seed=9, low=-0.5)


for _order in (1, 2):
    _prefix = "" if _order == 1 else "second derivative, "
    memos.pair(f"{_prefix}keeps its last result", Remembers, leaves((4,)), order=_order)
    memos.pair(f"{_prefix}keeps all results", Remembers2, leaves((3,), (3,)), order=_order)
    memos.pair(
        f"{_prefix}a simulator with a state", lambda f: Simulator(f).forward, leaves((3,)), order=_order
    )
memos.pair("keeps its last result, single precision", Remembers, leaves((4,), dtype=torch.float32))
memos.pair(
    "a table that is made once", lambda factor: lambda x: too_much(lookup(5) @ x.exp(), factor), leaves((5,))
)
