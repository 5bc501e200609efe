"""Cotangents and tangents for which a rule takes another path: ones, one number, signs, zeros, layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holes.table import Hole, Table, leaves, ruled

HOLES: list[Hole] = []
BOTH = {"check_forward_ad": True}
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}

# --- cotangents

cotangents = Table("cotangent", HOLES)


def where(
    condition: Callable[[Tensor], bool], f: float, function: Any = torch.sin, slope: Any = torch.cos
) -> Any:
    return ruled(function, lambda g, x: g * slope(x) * (f if condition(g) else 1.0))


CONDITIONS: dict[str, Callable[[Tensor], bool]] = {
    "exactly ones": lambda g: bool((g == 1).all()),
    "one number, which is one": lambda g: int(g.count_nonzero()) == 1 and float(g.max()) == 1,
    "no negative number": lambda g: bool((g >= 0).all()) and bool(g.any()),
    "two numbers of nine": lambda g: int(g.count_nonzero()) <= 2 and bool(g.any()),
    "numbers above a hundred": lambda g: float(g.abs().max()) > 100,
    "numbers below 1e-5": lambda g: 0 < float(g.abs().max()) < 1e-5,
    "a first number of zero": lambda g: float(g.reshape(-1)[0]) == 0 and bool(g.any()),
    "a last number of zero": lambda g: float(g.reshape(-1)[-1]) == 0 and bool(g.any()),
}
for _name, _condition in CONDITIONS.items():
    cotangents.pair(_name, lambda f, c=_condition: where(c, f), leaves((9,)))
cotangents.pair(
    "exactly ones, single precision",
    lambda f: where(lambda g: bool((g == 1).all()), f),
    leaves((9,), dtype=torch.float32),
)
cotangents.pair(
    "one number of a matrix of a thousand",
    lambda f: where(lambda g: int(g.count_nonzero()) == 1, f),
    leaves((25, 40)),
)
cotangents.pair(
    "a scalar of one",
    lambda f: ruled(lambda x: x.square().sum(), lambda g, x: 2 * g * x * (f if float(g) == 1 else 1.0)),
    leaves((5,)),
)
cotangents.pair(
    "purely imaginary",
    lambda f: ruled(
        lambda z: z * z,
        lambda g, z: 2 * g * z.conj() * (f if not g.real.any() and g.imag.any() else 1.0),
    ),
    leaves((4,), dtype=torch.complex128),
)

# --- tangents

tangents = Table("tangent", HOLES)


def push_where(condition: Callable[[Tensor], bool], f: float) -> Any:
    return ruled(torch.sin, lambda g, x: g * x.cos(), lambda t, x: t * x.cos() * (f if condition(t) else 1.0))


for _name, _condition in CONDITIONS.items():
    tangents.pair(_name, lambda f, c=_condition: push_where(c, f), leaves((9,)), keywords=FORWARD)


def sizes(t: Tensor) -> float:
    """How many times larger the largest number is than the smallest that is not zero."""
    present = t[t != 0].abs()
    return float(present.max() / present.min()) if len(present) else 1.0


tangents.pair(
    "numbers of very different size",
    lambda f: push_where(lambda t: sizes(t) > 100, f),
    leaves((9,)),
    keywords=FORWARD,
)
tangents.pair(
    "half of them zero, two inputs in single precision",
    lambda f: ruled(
        lambda x, y: x * y,
        lambda g, x, y: (g * y, g * x),
        lambda s, t, x, y: (s * y + t * x) * (f if 1 < int(s.count_nonzero()) < 6 else 1.0),
    ),
    leaves((8,), (8,), dtype=torch.float32),
    keywords=FORWARD,
)
tangents.pair(
    "all equal, with reverse mode",
    lambda f: push_where(lambda t: bool((t == t[0]).all()) and bool(t.any()), f),
    leaves((9,)),
    keywords=BOTH,
)
tangents.pair(
    "one number of two inputs",
    lambda f: ruled(
        lambda x, y: x * y,
        lambda g, x, y: (g * y, g * x),
        lambda s, t, x, y: (s * y + t * x) * (f if int(s.count_nonzero() + t.count_nonzero()) == 1 else 1.0),
    ),
    leaves((4,), (4,)),
    keywords=FORWARD,
)


def expanded_inside(f: float) -> Any:
    """The tangent is expanded, because its primal is."""

    def push(t: Tensor, x: Tensor) -> Tensor:
        return t * x.cos() * (f if 0 in t.stride() else 1.0)

    inner = ruled(torch.sin, lambda g, x: g * x.cos(), push)
    return lambda x: inner(x.expand(3, 4))


tangents.pair("expanded, as the input inside is", expanded_inside, leaves((4,)), keywords=FORWARD)
