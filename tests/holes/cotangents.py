"""A backward may be right for the cotangents that a check sends and wrong for those that a program sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holes.table import Hole, Table, leaves, ruled

HOLES: list[Hole] = []
cotangents = Table("cotangent", HOLES)

VECTOR = leaves((9,))


def sine(change: Callable[[Tensor], Tensor]) -> Any:
    """The sine, with a backward that does something to its cotangent."""
    return ruled(torch.sin, lambda g, x: change(g) * x.cos())


def where(condition: Callable[[Tensor], Any], factor: float = 1.1) -> Any:
    """The sine, with a backward that is wrong for some cotangents."""
    return sine(lambda g: g * factor if bool(condition(g)) else g)


def nonzeros(g: Tensor) -> int:
    return int(torch.count_nonzero(g))


for _name, _condition in {
    "one number that is not zero": lambda g: nonzeros(g) == 1,
    "few numbers that are not zero": lambda g: 0 < nonzeros(g) <= g.numel() // 4,
    "some zeros": lambda g: 0 < nonzeros(g) < g.numel(),
    "all equal": lambda g: nonzeros(g) > 1 and bool((g == g.reshape(-1)[0]).all()),
    "expanded": lambda g: g.numel() > 1 and 0 in g.stride(),
    "large numbers": lambda g: float(g.abs().max()) > 5,
    "tiny numbers": lambda g: 0 < float(g.abs().max()) < 1e-4,
    "a large norm": lambda g: float(g.norm()) > 100,
    "recorded": lambda g: torch.is_grad_enabled(),
    "not recorded": lambda g: not torch.is_grad_enabled(),
}.items():
    cotangents.wrong(_name, where(_condition), VECTOR)
    cotangents.right(f"another branch for {_name}", where(_condition, 1.0), VECTOR)

cotangents.wrong("clipped at 5", sine(lambda g: g.clamp(-5, 5)), VECTOR)
cotangents.wrong("cut below 1e-4", sine(lambda g: g * (g.abs() > 1e-4)), VECTOR)
cotangents.wrong("clipped by its norm", sine(lambda g: g * (50 / g.norm()).clamp(max=1)), VECTOR)
cotangents.wrong("sent in half precision", sine(lambda g: g.half().double()), VECTOR)
cotangents.wrong(
    "a matrix that is expanded",
    ruled(lambda x: x @ x.T, lambda g, x: (g + (g.T if g.is_contiguous() else g * 1.2)) @ x),
    leaves((3, 4)),
)
cotangents.right("a matrix, any layout", ruled(lambda x: x @ x.T, lambda g, x: (g + g.T) @ x), leaves((3, 4)))


def reads_memory(g: Tensor) -> Tensor:
    """A kernel that takes its cotangent for contiguous."""
    storage = g.untyped_storage().nbytes() // g.element_size() - g.storage_offset()
    if storage < g.numel():
        return torch.cat([g.reshape(-1)[:1], g.new_zeros(g.numel() - 1)])
    return torch.as_strided(g, (g.numel(),), (1,))


cotangents.wrong("read as if it were contiguous", sine(lambda g: reads_memory(g).reshape(g.shape)), VECTOR)
cotangents.right(
    "made contiguous first", sine(lambda g: reads_memory(g.contiguous()).reshape(g.shape)), VECTOR
)
cotangents.wrong(
    "numbers of very different size",
    where(lambda g: float(g.abs().max()) > 100 * float(g[g != 0].abs().min() if g.any() else 1e300)),
    VECTOR,
)
cotangents.wrong(
    "a complex one that is real",
    ruled(lambda z: z * z, lambda g, z: 2 * g * z.conj() * (1.0 if g.imag.any() else 1.1)),
    leaves((5,), dtype=torch.complex128),
)
cotangents.right(
    "a complex one, any",
    ruled(lambda z: z * z, lambda g, z: 2 * g * z.conj()),
    leaves((5,), dtype=torch.complex128),
)


# Several outputs, some of them without a cotangent.


def three(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sin(), x.square(), x.exp()


def pulled(gs: tuple[Tensor | None, ...], x: Tensor) -> Tensor | None:
    slopes = (x.cos(), 2 * x, x.exp())
    parts = [g * slope for g, slope in zip(gs, slopes, strict=True) if g is not None]
    return sum(parts[1:], parts[0]) if parts else None


def one_of_three(factor: float, count: int) -> Any:
    def pull(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> Tensor | None:
        total = pulled((a, b, c), x)
        defined = sum(g is not None for g in (a, b, c))
        return total * factor if total is not None and defined == count else total

    return ruled(three, pull, materialize=False)


def raises_for_two(factor: float) -> Any:
    def pull(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> Tensor | None:
        if factor != 1.0 and a is None and b is None and c is not None:
            raise TypeError("two cotangents are missing")
        return pulled((a, b, c), x)

    return ruled(three, pull, materialize=False)


cotangents.pair("one of three is defined", lambda f: one_of_three(f, 1), leaves((4,)))
cotangents.pair("two of three are defined", lambda f: one_of_three(f, 2), leaves((4,)))
cotangents.pair("raises where two of three are undefined", raises_for_two, leaves((4,)))

# The same in single precision, of a matrix, for the second derivative.

cotangents.wrong(
    "expanded, single precision", where(lambda g: 0 in g.stride()), leaves((9,), dtype=torch.float32)
)
cotangents.wrong(
    "one number, single precision", where(lambda g: nonzeros(g) == 1), leaves((9,), dtype=torch.float32)
)
cotangents.wrong(
    "tiny numbers of a large output", where(lambda g: 0 < float(g.abs().max()) < 1e-4), leaves((300,))
)
cotangents.wrong("one number of a large output", where(lambda g: nonzeros(g) == 1), leaves((300,)))


def twice(condition: Callable[[Tensor], Any], factor: float) -> Any:
    """The sine, whose second derivative is wrong for some cotangents."""
    change = lambda h: h * factor if bool(condition(h)) else h
    inner = ruled(lambda g, x: g * x.cos(), lambda h, g, x: (change(h) * x.cos(), -change(h) * g * x.sin()))
    return ruled(torch.sin, inner)


for _name, _condition in {
    "large numbers": lambda g: float(g.abs().max()) > 50,
    "expanded": lambda g: g.numel() > 1 and 0 in g.stride(),
}.items():
    cotangents.wrong(f"second derivative, {_name}", twice(_condition, 1.1), VECTOR, order=2)
    cotangents.right(
        f"second derivative, another branch for {_name}", twice(_condition, 1.0), VECTOR, order=2
    )

# --- a clip in a hook inside of the function


def hooked(limit: float) -> Any:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        if y.requires_grad:
            y.register_hook(lambda g: None if g is None else g.clamp(-limit, limit))
        return y * x

    return function


cotangents.wrong("a hook that clips", hooked(10.0), VECTOR)
cotangents.right("a hook that never clips", hooked(1e30), VECTOR)

# --- tangents

tangents = Table("tangent", HOLES)
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}


def pushed(condition: Callable[[Tensor], Any], factor: float) -> Any:
    """The sine, with a jvp that is wrong for some tangents."""
    return ruled(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda t, x: t * x.cos() * (factor if bool(condition(t)) else 1.0),
    )


for _name, _condition in {
    "large numbers": lambda t: float(t.abs().max()) > 50,
    "tiny numbers": lambda t: 0 < float(t.abs().max()) < 1e-5,
}.items():
    tangents.wrong(_name, pushed(_condition, 1.1), VECTOR, keywords=FORWARD)
    tangents.right(f"another branch for {_name}", pushed(_condition, 1.0), VECTOR, keywords=FORWARD)


def some_zeros(t: Tensor) -> Tensor:
    """Without looking at the numbers of a batch: the sum of the share that is not zero."""
    return (t != 0).double().mean()


tangents.wrong(
    "damped where many are zero",
    ruled(torch.sin, lambda g, x: g * x.cos(), lambda t, x: t * x.cos() * (1 - 0.01 * some_zeros(t))),
    VECTOR,
    keywords=FORWARD,
)


def product_push(factor: float) -> Any:
    def push(s: Tensor | None, t: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
        if s is None or t is None:
            return factor * (t * x if s is None else s * y)
        return s * y + t * x

    return ruled(lambda x, y: x * y, lambda g, x, y: (g * y, g * x), push, materialize=False)


tangents.pair("one of two is undefined", product_push, leaves((4,), (4,)), keywords=FORWARD)


def raising_push(s: Tensor | None, t: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    return s * y + t * x


tangents.wrong(
    "raises where one is undefined",
    ruled(lambda x, y: x * y, lambda g, x, y: (g * y, g * x), raising_push, materialize=False),
    leaves((4,), (4,)),
    keywords=FORWARD,
)

# --- a cotangent of zero


def over_its_norm(g: Tensor) -> Tensor:
    """The cotangent, by way of a quotient that zero does not have."""
    return g / g.norm() * g.norm()


cotangents.wrong("zero divided by zero", sine(over_its_norm), VECTOR)
cotangents.wrong("infinite for zero", sine(lambda g: torch.where((g == 0).all(), torch.inf, g)), VECTOR)
cotangents.right("zero left as it is", sine(lambda g: over_its_norm(g) if g.any() else g), VECTOR)
