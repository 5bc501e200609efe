"""What lies next to the point: jumps, kinks, cuts, poles; and rules that raise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holes.table import Hole, Table, at, leaves, ruled, too_much

HOLES: list[Hole] = []
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}

# --- jumps and kinks

nearby = Table("next to the point", HOLES)


def jump(f: float, where: float) -> Any:
    return lambda x: too_much(x.sin(), f) + 3.0 * (x.detach() > where)


def drop(f: float, where: float) -> Any:
    """On a straight line."""
    return lambda x: too_much(x, f) - 0.5 * (x.detach() > where)


def kink(f: float, where: float) -> Any:
    return lambda x: too_much(torch.maximum(x.sin(), 3 * (x - where) + math.sin(where)), f)


for _distance in (1e-5, -1e-6, 1e-7, 1e-8, -1e-9):
    nearby.pair(f"a jump, {_distance:g} away", lambda f, w=0.7 + _distance: jump(f, w), at(0.7, 0.2))
    nearby.pair(f"a drop, {_distance:g} away", lambda f, w=0.7 + _distance: drop(f, w), at(0.7, 0.2, 1.3))
for _distance in (1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
    nearby.pair(f"a kink, {_distance:g} away", lambda f, w=0.7 + _distance: kink(f, w), at(0.7, 0.2))
for _distance in (1e-9, 1e-12):
    nearby.pair(
        f"a mistake elsewhere, a kink {_distance:g} away",
        lambda f: lambda x: torch.cat([x[:1].relu(), too_much(x[1:], f)]),
        at(_distance, 0.13, -1.37, 0.21),
        factor=1.003,
    )
nearby.pair(
    "an angle next to its cut",
    lambda f: lambda x: 2 * too_much(torch.atan2(x.sin(), x.cos()), f),
    at(math.pi - 1e-7, 1.0),
)
nearby.pair(
    "a complex logarithm next to its cut",
    lambda f: lambda z: too_much(z.log(), f),
    lambda: (torch.tensor([-1 + 1e-7j, 2 + 1j], dtype=torch.complex128, requires_grad=True),),
)
nearby.pair(
    "the larger of two that are nearly equal", lambda f: lambda x: too_much(x.max(), f), at(1.0, 1.0 - 3e-8)
)
nearby.pair(
    "sorted numbers that are nearly equal",
    lambda f: lambda x: too_much(x.sort().values * torch.tensor([1.0, 2.0, 3.0]), f),
    at(0.5, 0.5 + 4e-8, 0.1),
)
nearby.pair("a tangent next to a pole", lambda f: lambda x: too_much(x.tan(), f), at(math.pi / 2 - 1e-5))
nearby.pair(
    "an inverse hyperbolic cosine next to one", lambda f: lambda x: too_much(x.acosh(), f), at(1 + 1e-9, 1.5)
)
nearby.pair("an arc cosine next to one", lambda f: lambda x: too_much(x.acos(), f), at(1 - 1e-6, 0.3))


def interpolated(f: float) -> Any:
    """A table, linear in between."""
    table = torch.tensor([0.0, 1.0, 4.0, 9.0, 16.0], dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        below = x.detach().floor().long().clamp(0, 3)
        share = x - below
        return too_much((1 - share) * table[below] + share * table[below + 1], f)

    return function


nearby.pair("a table next to a node", interpolated, at(1.0 + 2e-8, 2.5))
nearby.pair("a fast wave", lambda f: lambda x: too_much((3e6 * x).sin(), f), at(0.3, 1.1))

# --- what raises

domains = Table("domain", HOLES)


class Mute(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Arguments(Exception):
    """An error that is not made from a text."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)


def recursion() -> Exception:
    def call(depth: int) -> int:
        return call(depth + 1) + 1

    try:
        call(0)
    except RecursionError as error:
        return error
    raise AssertionError


RAISED: dict[str, Callable[[], Exception]] = {
    "without a text": Mute,
    "with arguments": lambda: Arguments(3, 2),
    "of a recursion": recursion,
    "of a group": lambda: ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
}


def raises_beyond_one(f: float, error: Callable[[], Exception]) -> Any:
    def function(x: Tensor) -> Tensor:
        if bool((x.detach() > 1.0 + 1e-9).any()):
            raise error()
        return too_much(x.exp(), f)

    return function


for _name, _error in RAISED.items():
    domains.pair(
        f"an error {_name} beyond one", lambda f, e=_error: raises_beyond_one(f, e), at(1.0 - 1e-6, 0.3)
    )

functions = Table("function", HOLES)


def raising(error: Exception) -> Callable[..., Any]:
    def rule(*tensors: Tensor) -> Any:
        raise error

    return rule


def cosine(g: Tensor, x: Tensor) -> Tensor:
    return g * x.cos()


BACKWARDS: dict[str, Callable[..., Any]] = {
    "raises a KeyError": raising(KeyError("name")),
    "raises what cannot be printed": raising(Mute()),
    "returns too many gradients": lambda g, x: (g * x.cos(), g),
    "returns a number": lambda g, x: 1.0,
    "returns another shape": lambda g, x: (g * x.cos())[:2],
}
for _name, _pull in BACKWARDS.items():
    functions.wrong(f"a backward that {_name}", ruled(torch.sin, _pull), leaves((3,)))
TANGENTS: dict[str, Callable[..., Any]] = {
    "raises a KeyError": raising(KeyError("name")),
    "raises what cannot be printed": raising(Mute()),
    "returns a number": lambda t, x: 1.0,
    "returns another shape": lambda t, x: (t * x.cos())[:2],
}
for _name, _push in TANGENTS.items():
    functions.wrong(f"a jvp that {_name}", ruled(torch.sin, cosine, _push), leaves((3,)), keywords=FORWARD)


def refuses(f: float, when: Callable[[Tensor], bool]) -> Any:
    """A backward that raises for some cotangents, which it may, with an error that cannot be printed."""

    def pull(g: Tensor, x: Tensor) -> Tensor:
        if when(g):
            raise Mute
        return f * g.contiguous() * x.cos()

    return ruled(torch.sin, pull)


functions.pair(
    "a backward that refuses create_graph",
    lambda f: refuses(f, lambda g: torch.is_grad_enabled()),
    leaves((4,)),
)
functions.pair(
    "a backward that refuses transposed cotangents",
    lambda f: refuses(f, lambda g: not g.is_contiguous() and 0 not in g.stride()),
    leaves((4, 3)),
)
functions.right(
    "a rule for vmap that raises what cannot be printed",
    ruled(torch.sin, cosine, vmap=raising(Mute())),
    leaves((20,)),
)
functions.wrong(
    "a gradient of NaN where the function is zero",
    lambda x: torch.where(x > 0, x.sqrt(), torch.zeros_like(x)),
    at(-0.5, 2.0),
)
functions.right(
    "the same with numbers above zero",
    lambda x: torch.where(x > 0, x.sqrt(), torch.zeros_like(x)),
    at(0.5, 2.0),
)
