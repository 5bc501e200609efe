"""The functions, flags and comparisons that the tests of the functional door share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.functional as peer
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cases import CASES, Draw
from covector import functional

LIBRARIES = (peer, functional)


@dataclass(frozen=True)
class Sample:
    """A function of tensors, and inputs for it as the door takes them."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw], Any]

    def __repr__(self) -> str:
        return self.name

    def drawn(self, *, requires_grad: bool) -> Any:
        """The inputs, new leaves each time."""
        inputs = self.inputs(Draw(self.name))
        if isinstance(inputs, Tensor):
            return inputs.requires_grad_(requires_grad)
        return tuple(x.requires_grad_(requires_grad) for x in inputs)


def _net(name: str, *layers: nn.Module) -> nn.Module:
    draw = Draw(name)
    module = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(draw(*parameter.shape) / 2)
    return module


NET = _net("net", nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
WEIGHT = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, requires_grad=True)


def with_no_grad(x):
    with torch.no_grad():
        scale = x.norm()
    return x.sin() * scale


def with_hook(x):
    y = x.sin()
    y.register_hook(lambda g: 2 * g)
    return y


def with_inner_gradient(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g * x


def asks_whether_recorded(x):
    return x.sin() if x.requires_grad else x.cos()


VECTORS = (
    Sample("sin", torch.sin, lambda d: d(3)),
    Sample("in a tuple of one", torch.sin, lambda d: (d(3),)),
    Sample("sum of two", lambda x, y: 2 * x.exp() + 3 * y, lambda d: (d(2), d(2))),
    Sample("tuple out", lambda x: (x.sin(), x.prod()), lambda d: d(3)),
    Sample("tuple of one out", lambda x: (x.sin() * x,), lambda d: d(3)),
    Sample("tuples", lambda x, y: (x.sin() * y.sum(), y**2, x.sum() * y.prod()), lambda d: (d(3), d(2))),
    Sample("matrix to vector", lambda x: x.exp().sum(dim=1), lambda d: d(2, 3)),
    Sample("number to number", lambda x: x.exp() * x, lambda d: d()),
    Sample("number to matrix", lambda t: torch.stack([t.cos(), t * t]).reshape(1, 2), lambda d: d()),
    Sample("one element", lambda x: x**3, lambda d: d(1, 1)),
    Sample("linear", lambda x: 2 * x, lambda d: d(3)),
    Sample("independent of one", lambda x, y: x.sin(), lambda d: (d(3), d(2))),
    Sample("constant", lambda x: torch.ones(2, dtype=x.dtype), lambda d: d(3)),
    Sample("constant beside", lambda x: (x.sin(), torch.ones(2, dtype=x.dtype)), lambda d: d(3)),
    Sample("captured constant", lambda x: WEIGHT * 2 + 0 * x.detach(), lambda d: d(3)),
    Sample("captured weight", lambda x: WEIGHT * x, lambda d: d(3)),
    Sample("identity", lambda x: x, lambda d: d(3)),
    Sample("views", lambda x: (x[1:], x.view(1, 3)), lambda d: d(3)),
    Sample("works in place", lambda x: x.clone().mul_(x).add_(1), lambda d: d(3)),
    Sample("module", NET, lambda d: d(5, 3)),
    Sample("no_grad inside", with_no_grad, lambda d: d(3)),
    Sample("hook inside", with_hook, lambda d: d(3)),
    Sample("gradient inside", with_inner_gradient, lambda d: d(3)),
    Sample("asks whether recorded", asks_whether_recorded, lambda d: d(3)),
    Sample("detaches a factor", lambda x: x.detach() * x.sin(), lambda d: d(3)),
    Sample("mixed dtypes", lambda x, y: (x * y.sum()).sin(), lambda d: (d(3), d(2, dtype=torch.float32))),
    Sample("named tuple out", lambda x: (x * 2.5).sin().sort(descending=True).values, lambda d: d.spread(4)),
    Sample("solve", torch.linalg.solve, lambda d: (d.dominant(3), d(3))),
    Sample("real of complex", lambda z: z.abs(), lambda d: d(3, dtype=torch.complex128)),
)

NUMBERS = (
    Sample("cubes", lambda x: (x**3).sum(), lambda d: d(3)),
    Sample("cubes in a tuple", lambda x: (x**3).sum(), lambda d: (d(3),)),
    Sample("product of two", lambda x, y: x.sin().sum() * (y**3).sum(), lambda d: (d(3), d(2))),
    Sample("separable", lambda x, y: x.sin().sum() + (y**3).sum(), lambda d: (d(3), d(2))),
    Sample("linear in one", lambda x, y: (x * y**2).sum(), lambda d: (d(2), d(2))),
    Sample("linear", lambda x: 3 * x.sum(), lambda d: d(3)),
    Sample("bilinear", lambda x, a, y: x @ a @ y, lambda d: (d(1), d(1, 2), d(2))),
    Sample("quadratic", lambda x: (x**2).sum(), lambda d: d(2, 2)),
    Sample("of shape (1, 1)", lambda x: (x**3).sum().reshape(1, 1), lambda d: d(2)),
    Sample("of a number", lambda x: x.exp() * x, lambda d: d()),
    Sample("of one element", lambda x: x.exp().sum() * x.sum(), lambda d: d(1, 1)),
    Sample("constant", lambda x: torch.ones((), dtype=x.dtype), lambda d: d(3)),
    Sample("independent of one", lambda x, y: x.sin().sum(), lambda d: (d(3), d(2))),
    Sample("captured weight", lambda x: (WEIGHT * x).sum(), lambda d: d(3)),
    Sample("captured weight, curved", lambda x: (WEIGHT * x**3).sum(), lambda d: d(3)),
    Sample("captured constant", lambda x: WEIGHT.sum() * 2, lambda d: d(3)),
    Sample("module", lambda x: NET(x).pow(2).mean(), lambda d: d(5, 3)),
    Sample("no_grad inside", lambda x: (with_no_grad(x) ** 2).sum(), lambda d: d(3)),
    Sample("hook inside", lambda x: (with_hook(x) ** 2).sum(), lambda d: d(3)),
    Sample("gradient inside", lambda x: with_inner_gradient(x).sum(), lambda d: d(3)),
    Sample("identity", lambda x: x, lambda d: d()),
    Sample("detaches a factor", lambda x: (x.detach() * x**3).sum(), lambda d: d(3)),
)


def _fits(case):
    """Whether a case of the shared table is a function of tensors that returns them."""
    primals = case.primals()
    if case.complex or not all(isinstance(x, Tensor) and x.is_floating_point() for x in primals):
        return False
    returned = case.function(*primals)
    return isinstance(returned, Tensor) or (
        isinstance(returned, tuple) and all(isinstance(y, Tensor) for y in returned)
    )


def _shared(case):
    def inputs(draw):
        primals = case.primals()
        return primals[0] if len(primals) == 1 else primals

    return Sample(f"case {case.name}", case.function, inputs)


FITTING = tuple(case for case in CASES if _fits(case))
VECTORS += tuple(map(_shared, FITTING))
NUMBERS += tuple(_shared(case) for case in FITTING if case.scalar)


def outcome(act: Callable[[], Any]) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return act()
    except Exception as error:
        return error


def assert_same(ours: Any, theirs: Any) -> None:
    """The same error class, or the same nesting, values, dtypes and connection to graphs."""
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs)), (ours, theirs)
        return
    assert not isinstance(ours, Exception), ours
    assert nesting(ours) == nesting(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for mine, other in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        assert mine.requires_grad == other.requires_grad
        assert mine.dtype == other.dtype


def nesting(result: Any) -> Any:
    """The shape of each tensor, in tuples as they were nested."""
    if isinstance(result, Tensor):
        return result.shape
    assert type(result) is tuple
    return tuple(map(nesting, result))


def total(result: Any) -> Any:
    """A number that depends on every entry of every tensor of a result that requires grad."""
    parts = [
        (leaf * torch.linspace(1, 2, leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape)).sum()
        for leaf in tree_leaves(result)
        if leaf.requires_grad
    ]
    return sum(parts).real if parts else None
