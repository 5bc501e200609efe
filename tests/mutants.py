"""Wrong derivatives: the one table that says what a gradient checker has to catch.

Every mutant is wrong in one known way, which its name says, and comes with a correct twin: the same
function, the same mechanism, the right derivative. Most are larger than what fast mode looks at entry by
entry, so that its random directions have to find them.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Inputs = Callable[[int], tuple[Any, ...]]

REVERSE, FORWARD, LINEARITY, PURITY = "reverse mode", "forward mode", "linearity", "purity"
UNDEFINED, FORWARD_ONLY = "undefined cotangents", {"check_forward_ad": True, "check_backward_ad": False}


@dataclass(frozen=True)
class Mutant:
    """A function whose derivative is wrong in one known way, and the same function with the right one."""

    name: str
    wrong: Callable[..., Any]
    correct: Callable[..., Any]
    inputs: Inputs
    caught_by: str = REVERSE
    keywords: dict[str, Any] = field(default_factory=dict)
    order: int = 1
    fast: bool = True
    entry: str = ""

    def draw(self, seed: int = 0) -> tuple[Any, ...]:
        """The inputs, fresh: the same ones for the same seed."""
        return self.inputs(zlib.crc32(self.name.encode()) + seed)


class Draw:
    """Random tensors that require grad."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(shape, dtype=self._dtype, generator=self._generator).requires_grad_()

    def away(self, *shape: int) -> Tensor:
        """Numbers of both signs, with magnitudes between 0.5 and 1.5."""
        size = 0.5 + torch.rand(shape, dtype=torch.float64, generator=self._generator)
        return (size * self.normal(*shape).detach().sign()).requires_grad_()


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Inputs:
    """Inputs of these shapes."""

    def draw(seed: int) -> tuple[Tensor, ...]:
        source = Draw(seed, dtype)
        return tuple(source.normal(*shape) for shape in shapes)

    return draw


def away(*shapes: tuple[int, ...]) -> Inputs:
    """Inputs of these shapes, away from zero."""

    def draw(seed: int) -> tuple[Tensor, ...]:
        source = Draw(seed)
        return tuple(source.away(*shape) for shape in shapes)

    return draw


def ruled(
    function: Callable[..., Any],
    pull: Callable[..., Any] | None = None,
    push: Callable[..., Any] | None = None,
    *,
    save: Callable[..., tuple[Tensor, ...]] = lambda inputs, output: inputs,
    materialize: bool = True,
) -> Callable[..., Any]:
    """The function with rules of its own: pull(*cotangents, *saved) and push(*tangents, *saved)."""

    class Rule(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Tensor) -> Any:
            return function(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            saved = save(inputs, output)
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved)
            ctx.set_materialize_grads(materialize)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            return pull(*cotangents, *ctx.saved_tensors)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Any:
            return push(*tangents, *ctx.saved_tensors)

    @functools.wraps(function)
    def apply(*inputs: Tensor) -> Any:
        return Rule.apply(*inputs)

    return apply


def only(index: Any, factor: float) -> Callable[[Tensor], Tensor]:
    """Multiplies one entry, or whatever else the index selects."""

    def change(gradient: Tensor) -> Tensor:
        mask = torch.ones(gradient.shape, dtype=gradient.dtype)
        mask[index] = factor
        return gradient * mask

    return change


# --- elementwise: y = x^3


def cube(x):
    return x * x * x


def cube_pull(g, x):
    return 3 * g * x * x


def cube_push(t, x):
    return 3 * t * x * x


CUBE = ruled(cube, cube_pull, cube_push)
VECTOR = (40,)


def wrong_cube(name: str, pull: Callable[..., Any], inputs: Inputs | None = None, **fields: Any) -> Mutant:
    """A mutant of the cube that is wrong in reverse mode."""
    return Mutant(name, ruled(cube, pull, cube_push), CUBE, inputs or away(VECTOR), **fields)


def scaled_cube(name: str, change: Callable[[Tensor], Tensor], *shape: int, entry: str = "") -> Mutant:
    """A mutant of the cube of which some entries of the gradient are changed."""
    return wrong_cube(name, lambda g, x: change(cube_pull(g, x)), away(shape), entry=entry)


SCALED = [
    scaled_cube("sign", lambda d: -d, 40),
    scaled_cube("factor 2", lambda d: 2 * d, 40),
    scaled_cube("factor 0.5", lambda d: 0.5 * d, 40),
    scaled_cube("factor 1.01", lambda d: 1.01 * d, 40),
    scaled_cube("zero", lambda d: 0 * d, 40),
    scaled_cube("one entry of 2000 by a tenth", only(137, 1.1), 2000, entry="[137]"),
    scaled_cube("one entry of 2000 by a hundredth", only(1860, 1.01), 2000, entry="[1860]"),
    scaled_cube("one entry of 2000 with its sign flipped", only(733, -1.0), 2000, entry="[733]"),
    scaled_cube("one entry of 2000 missing", only(1024, 0.0), 2000, entry="[1024]"),
    scaled_cube("one row", only(3, 2.0), 6, 8),
    scaled_cube("one column", only((slice(None), 5), 2.0), 6, 8),
    scaled_cube("first element", only(0, 2.0), 40, entry="[0]"),
    scaled_cube("last element", only(-1, 2.0), 40, entry="[39]"),
    scaled_cube("last element of a matrix", only((-1, -1), 1.1), 6, 8, entry="[5, 7]"),
    scaled_cube("off by one", lambda d: d.roll(1), 40),
    scaled_cube("reversed", lambda d: d.flip(0), 40),
    scaled_cube("two entries that cancel in a sum", only([7, 8], -1.0), 40),
]


def ripple(x):
    return (1e5 * x).sin() / 1e5


def crests(seed: int) -> Tensor:
    """Numbers at which the ripple has a slope of at least one half."""
    phase = Draw(seed).away(40).detach() * 0.6
    return (1e-5 * (phase + 2 * torch.pi * torch.arange(40))).requires_grad_()


SHAPED = [
    wrong_cube(
        "wrong only for negative inputs",
        lambda g, x: torch.where(x < 0, 1.1, 1.0) * cube_pull(g, x),
    ),
    wrong_cube(
        "wrong only above a threshold",
        lambda g, x: torch.where(x > 1.4, 2.0, 1.0) * cube_pull(g, x),
        lambda seed: (torch.linspace(-1.5, 1.5, 60, dtype=torch.float64).requires_grad_(),),
    ),
    wrong_cube(
        "wrong only for a transposed input",
        lambda g, x: cube_pull(g, x) * (1.0 if x.is_contiguous() else 1.5),
        lambda seed: (Draw(seed).away(6, 8).detach().T.requires_grad_(),),
    ),
    wrong_cube(
        "wrong only for every second element of a storage",
        lambda g, x: cube_pull(g, x) * (1.0 if x.is_contiguous() else 1.5),
        lambda seed: (Draw(seed).away(80).detach()[::2].requires_grad_(),),
    ),
    wrong_cube("square instead of cube", lambda g, x: 2 * g * x),
    wrong_cube("transposed", lambda g, x: cube_pull(g, x).T, away((7, 7))),
    wrong_cube(
        "transposed, not square", lambda g, x: cube_pull(g, x).T.reshape(x.shape), away((5, 9))
    ),
    wrong_cube("size of the gradient", lambda g, x: cube_pull(g, x)[:-1]),
    wrong_cube("sparse gradient for a dense input", lambda g, x: cube_pull(g, x).to_sparse(),
               caught_by="gradient kind"),
    Mutant(
        "uses the output for the input",
        ruled(torch.sin, lambda g, y: g * y.cos(), save=lambda inputs, y: (y,)),
        ruled(torch.sin, lambda g, x: g * x.cos()),
        normal(VECTOR),
    ),
    Mutant(
        "off by 1e-3",
        ruled(lambda x: 0.2 * x.sin(), lambda g, x: 0.2 * g * x.cos() + 1e-3 * g),
        ruled(lambda x: 0.2 * x.sin(), lambda g, x: 0.2 * g * x.cos()),
        normal(VECTOR),
    ),
    Mutant(
        "off by 1e-3 in one entry",
        ruled(lambda x: 0.2 * x.sin(), lambda g, x: 0.2 * g * x.cos() + g * torch.eye(40)[11] * 1e-3),
        ruled(lambda x: 0.2 * x.sin(), lambda g, x: 0.2 * g * x.cos()),
        normal(VECTOR),
        entry="[11]",
    ),
    Mutant("one entry of a fast oscillation",
           ruled(ripple, lambda g, x: only(31, 1.1)(g * (1e5 * x).cos())),
           ruled(ripple, lambda g, x: g * (1e5 * x).cos()),
           lambda seed: (crests(seed),), entry="[31]"),
    Mutant("one entry of a fast oscillation by a hundredth",
           ruled(ripple, lambda g, x: only(8, 1.01)(g * (1e5 * x).cos())),
           ruled(ripple, lambda g, x: g * (1e5 * x).cos()),
           lambda seed: (crests(seed),), entry="[8]"),
    Mutant("detached branch", lambda x: x.sin() * x.detach().exp(), lambda x: x.sin() * x.exp(),
           normal(VECTOR)),
    Mutant(
        "detached at one entry",
        lambda x: torch.cat([x[:13], x[13:14].detach(), x[14:]]).exp(),
        lambda x: torch.cat([x[:13], x[13:14], x[14:]]).exp(),
        normal(VECTOR),
        entry="[13]",
    ),
    Mutant("detached for one of two inputs", lambda x, y: x.sin() * y.detach(), lambda x, y: x.sin() * y,
           normal((30,), (30,))),
]  # fmt: skip


# --- the cotangent


def multiplied(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The cube's pullback of a function of the cotangent."""
    return lambda g, x: cube_pull(function(g), x)


def pair(x):
    return x.sin(), x * x


def pair_pull(g, h, x):
    return g * x.cos() + 2 * h * x


PAIR = ruled(pair, pair_pull)

COTANGENT = [
    wrong_cube("ignores the cotangent", multiplied(torch.ones_like), caught_by=LINEARITY),
    wrong_cube("adds a constant", lambda g, x: cube_pull(g, x) + 0.1, caught_by=LINEARITY),
    wrong_cube("|cotangent|", multiplied(torch.abs), caught_by=LINEARITY),
    wrong_cube("cotangent squared", multiplied(torch.square), caught_by=LINEARITY),
    wrong_cube("cotangent times its size", multiplied(lambda g: g * g.abs()), caught_by=LINEARITY),
    wrong_cube("cotangent clamped to 1", multiplied(lambda g: g.clamp(-1, 1)), caught_by=LINEARITY),
    wrong_cube("only positive cotangents", multiplied(torch.relu), caught_by=LINEARITY),
    wrong_cube("cotangent normalized", multiplied(lambda g: g / g.norm().clamp(min=1e-12)),
               caught_by=LINEARITY),
    wrong_cube("cotangents of neighbours multiplied", multiplied(lambda g: g + g * g.roll(1)),
               caught_by=LINEARITY),
    Mutant(
        "cotangents of two outputs multiplied",
        ruled(pair, lambda g, h, x: pair_pull(g, h, x) + g * h),
        PAIR,
        normal((30,)),
        LINEARITY,
    ),
    Mutant("one of two outputs", ruled(pair, lambda g, h, x: pair_pull(g, 1.5 * h, x)), PAIR, away((30,))),
    Mutant("cotangents of two outputs swapped", ruled(pair, lambda g, h, x: pair_pull(h, g, x)), PAIR,
           normal((30,))),
]  # fmt: skip


def pair_or_zero(g, h, x):
    g = torch.zeros_like(x) if g is None else g
    h = torch.zeros_like(x) if h is None else h
    return pair_pull(g, h, x)


def pair_or_ones(g, h, x):
    g = torch.ones_like(x) if g is None else g
    h = torch.ones_like(x) if h is None else h
    return pair_pull(g, h, x)


def pair_or_error(g, h, x):
    if g is None or h is None:
        raise RuntimeError("a cotangent is missing")
    return pair_pull(g, h, x)


def pair_or_nothing(g, h, x):
    return None if g is None or h is None else pair_pull(g, h, x)


UNDEFINED_PAIR = ruled(pair, pair_or_zero, materialize=False)


def wrong_undefined(name: str, pull: Callable[..., Any]) -> Mutant:
    """A mutant that is wrong only if one of two cotangents is undefined."""
    return Mutant(name, ruled(pair, pull, materialize=False), UNDEFINED_PAIR, normal((30,)), UNDEFINED)


UNDEFINED_COTANGENTS = [
    wrong_undefined("undefined cotangent: raises", pair_or_error),
    wrong_undefined("undefined cotangent: multiplied all the same", pair_pull),
    wrong_undefined("undefined cotangent: taken as ones", pair_or_ones),
    wrong_undefined("undefined cotangent: no gradient at all", pair_or_nothing),
]


# --- several inputs, sums, products


def scaled_rows(x, w):
    return x.sin() * w


def scaled_rows_pull(g, x, w):
    return g * x.cos() * w, (g * x.sin()).sum(0)


def linear(x, w):
    return x @ w


def linear_pull(g, x, w):
    return g @ w.T, x.T @ g


def quotient(x, y):
    return x / y


def quotient_pull(g, x, y):
    return g / y, -g * x / y**2


def stencil(x):
    return torch.cat([x[:1], x[2:] - 2 * x[1:-1] + x[:-2], x[-1:]]) * x


def stencil_pull(g, x, edge=1.0):
    h = g * x
    inner = h[1:-1]
    zero = inner.new_zeros(1)
    zeros = inner.new_zeros(2)
    gradient = torch.cat([inner, zeros]) - 2 * torch.cat([zero, inner, zero]) + torch.cat([zeros, inner])
    gradient = gradient + torch.cat([h[:1], torch.zeros_like(inner), h[-1:]])
    factor = torch.ones_like(x)
    factor[[0, -1]] = edge
    return (gradient + g * stencil(x) / x) * factor


def cumulative(x):
    return x.cumsum(0).tanh()


def cumulative_pull(g, x):
    h = g * (1 - x.cumsum(0).tanh() ** 2)
    return h.flip(0).cumsum(0).flip(0)


SQUARE = normal((6, 6), (6, 6))
ROWS = normal((6, 7), (7,))
MATRICES = normal((5, 7), (7, 6))
LINEAR, SCALED_ROWS = ruled(linear, linear_pull), ruled(scaled_rows, scaled_rows_pull)
QUOTIENT = ruled(quotient, quotient_pull)


def wrong_linear(name: str, pull: Callable[..., Any], inputs: Inputs = MATRICES, entry: str = "") -> Mutant:
    """A mutant of the matrix product."""
    return Mutant(name, ruled(linear, pull), LINEAR, inputs, entry=entry)


def wrong_rows(name: str, second: Callable[..., Any], inputs: Inputs = ROWS) -> Mutant:
    """A mutant of the broadcast product that is wrong in the input that is broadcast."""
    wrong = ruled(scaled_rows, lambda g, x, w: (g * x.cos() * w, second(g, x, w)))
    return Mutant(name, wrong, SCALED_ROWS, inputs)


SEVERAL = [
    wrong_rows("broadcast: mean for sum", lambda g, x, w: (g * x.sin()).mean(0)),
    wrong_rows("broadcast: first row only", lambda g, x, w: (g * x.sin())[0]),
    wrong_rows("broadcast: last row left out", lambda g, x, w: (g * x.sin())[:-1].sum(0)),
    wrong_rows("broadcast: sum over the wrong dimension", lambda g, x, w: (g * x.sin()).sum(1),
               normal((7, 7), (7,))),
    wrong_rows("broadcast: spread instead of summed", lambda g, x, w: (g * x.sin()).sum().expand(7)),
    wrong_linear("product: weight not transposed", lambda g, x, w: (g @ w, x.T @ g), SQUARE),
    wrong_linear("product: order of factors", lambda g, x, w: (g @ w.T, g.T @ x), SQUARE),
    wrong_linear("product: reshaped for transposed",
                 lambda g, x, w: (g @ w.reshape(6, 7), x.T @ g)),
    wrong_linear("product: one entry by a hundredth",
                 lambda g, x, w: (g @ w.T, only((2, 3), 1.01)(x.T @ g))),
    wrong_linear("product: one entry of the weight",
                 lambda g, x, w: (g @ (w + 0.01 * torch.eye(7, 6).double()[2] * torch.eye(7)[4, :, None]).T,
                                  x.T @ g)),
    wrong_linear("gradients of two inputs swapped", lambda g, x, w: linear_pull(g, x, w)[::-1], SQUARE),
    wrong_linear("no gradient for one of two inputs", lambda g, x, w: (g @ w.T, None)),
    wrong_linear("zero gradient for one of two inputs", lambda g, x, w: (g @ w.T, torch.zeros_like(w))),
    Mutant("sign of one of two inputs", ruled(quotient, lambda g, x, y: (g / y, g * x / y**2)), QUOTIENT,
           away((30,), (30,))),
    Mutant("power of the denominator", ruled(quotient, lambda g, x, y: (g / y, -g * x / y)), QUOTIENT,
           away((30,), (30,))),
    Mutant("boundary entries", ruled(stencil, functools.partial(stencil_pull, edge=0.5)),
           ruled(stencil, stencil_pull), away(VECTOR)),
    Mutant("one boundary entry", ruled(stencil, lambda g, x: only(-1, 1.1)(stencil_pull(g, x))),
           ruled(stencil, stencil_pull), away(VECTOR), entry="[39]"),
    Mutant("sum run forwards instead of backwards",
           ruled(cumulative, lambda g, x: (g * (1 - x.cumsum(0).tanh() ** 2)).cumsum(0)),
           ruled(cumulative, cumulative_pull), normal(VECTOR)),
]  # fmt: skip


# --- couplings: an entry of the Jacobian that the derivative lacks, or has too many


def coupled(scale: float, coupling: float) -> Callable[[Tensor], Tensor]:
    """The function y = scale x^3, where y[3] also has coupling * x[17]."""

    def f(x):
        y = scale * cube(x)
        return torch.cat([y[:3], y[3:4] + coupling * x[17:18], y[4:]])

    return f


def coupled_pull(scale: float, coupling: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Its pullback."""

    def pull(g, x):
        mine = scale * cube_pull(g, x)
        return torch.cat([mine[:17], mine[17:18] + coupling * g[3:4], mine[18:]])

    return pull


def wrong_coupling(name: str, scale: float, true: float, claimed: float, size: int) -> Mutant:
    """A mutant whose only mistake is the entry d y[3] / d x[17]."""
    function = coupled(scale, true)
    return Mutant(
        name,
        ruled(function, coupled_pull(scale, claimed)),
        ruled(function, coupled_pull(scale, true)),
        away((size,)),
        entry="[17]",
    )


COUPLINGS = [
    wrong_coupling("missing coupling", 1.0, 0.5, 0.0, 40),
    wrong_coupling("missing coupling in 600 elements", 1.0, 0.5, 0.0, 600),
    wrong_coupling("spurious coupling", 1.0, 0.0, 0.5, 40),
    wrong_coupling("spurious coupling in 600 elements", 1.0, 0.0, 0.5, 600),
    wrong_coupling("small missing coupling beside large entries", 1e4, 0.5, 0.0, 40),
    wrong_coupling("small missing coupling beside large entries, 600 elements", 1e4, 0.5, 0.0, 600),
    wrong_coupling("small spurious coupling beside large entries, 600 elements", 1e4, 0.0, 0.5, 600),
]


# --- complex numbers


def times(a, b):
    return a * b


def times_pull(g, a, b):
    return g * b.conj(), g * a.conj()


def modulus_squared(z):
    return z.real**2 + z.imag**2


def rotate(x):
    return torch.complex(x.cos(), x.sin())


def complex_square_pull(g, z):
    return g * (2 * z).conj()


COMPLEX = torch.complex128
TIMES = ruled(times, times_pull)
COMPLEX_SQUARE = ruled(torch.square, complex_square_pull)
FACTORS, COMPLEX_VECTOR = normal((14,), (14,), dtype=COMPLEX), normal((24,), dtype=COMPLEX)


def wrong_complex(name: str, pull: Callable[..., Any], entry: str = "") -> Mutant:
    """A mutant of z^2 for complex z."""
    return Mutant(name, ruled(torch.square, pull), COMPLEX_SQUARE, COMPLEX_VECTOR, entry=entry)


def conjugate_missing_at(index: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The pullback of z^2 without the conjugate at one entry."""
    here = torch.zeros(24, dtype=torch.bool)
    here[index] = True
    return lambda g, z: torch.where(here, g * 2 * z, complex_square_pull(g, z))


COMPLEX_NUMBERS = [
    Mutant("missing conjugate", ruled(times, lambda g, a, b: (g * b, g * a)), TIMES, FACTORS),
    Mutant("missing conjugate for one of two inputs", ruled(times, lambda g, a, b: (g * b.conj(), g * a)),
           TIMES, FACTORS),
    wrong_complex("missing conjugate at one entry", conjugate_missing_at(5), entry="[5]"),
    wrong_complex("one of 24 complex entries", lambda g, z: only(19, 1.1)(complex_square_pull(g, z)), "[19]"),
    wrong_complex("turned by a right angle at one entry",
                  lambda g, z: g * (2 * z).conj() * torch.where(torch.arange(24) == 7, 1j, 1), "[7]"),
    wrong_complex("real part only", lambda g, z: complex_square_pull(g, z).real + 0j),
    wrong_complex("imaginary part of the cotangent dropped",
                  lambda g, z: complex_square_pull(g.real + 0j, z)),
    wrong_complex("conjugate of the whole", lambda g, z: complex_square_pull(g, z).conj()),
    Mutant(
        "conjugate of the cotangent",
        ruled(torch.square, lambda g, z: complex_square_pull(g.conj(), z)),
        COMPLEX_SQUARE,
        COMPLEX_VECTOR,
    ),
    Mutant("half of a real function of complex numbers", ruled(modulus_squared, lambda g, z: g * z),
           ruled(modulus_squared, lambda g, z: 2 * g * z), COMPLEX_VECTOR),
    Mutant("conjugate of a real function of complex numbers",
           ruled(modulus_squared, lambda g, z: 2 * g * z.conj()),
           ruled(modulus_squared, lambda g, z: 2 * g * z), COMPLEX_VECTOR),
    Mutant("imaginary part dropped, real input", ruled(rotate, lambda g, x: -g.real * x.sin()),
           ruled(rotate, lambda g, x: g.imag * x.cos() - g.real * x.sin()), normal((34,))),
    Mutant("missing conjugate, real input", ruled(rotate, lambda g, x: (g * 1j * rotate(x)).real),
           ruled(rotate, lambda g, x: (g * (1j * rotate(x)).conj()).real), normal((34,))),
]  # fmt: skip


# --- forward mode


def tilted(x, y):
    return x.sin() * y


def tilted_pull(g, x, y):
    return g * x.cos() * y, g * x.sin()


def tilted_push(s, t, x, y):
    return s * x.cos() * y + t * x.sin()


TILTED = ruled(tilted, tilted_pull, tilted_push)
BOTH = {"check_forward_ad": True}


def wrong_push(name: str, push: Callable[..., Any], **fields: Any) -> Mutant:
    """A mutant of the cube that is right in reverse mode and wrong in forward mode."""
    wrong = ruled(cube, cube_pull, push)
    return Mutant(name, wrong, CUBE, away(VECTOR), fields.pop("caught_by", FORWARD), BOTH, **fields)


MIXER = torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SWAPPED = [*range(10), 11, 10, *range(12, 40)]


def mix(x):
    return MIXER @ x


MIXED = ruled(mix, lambda g, x: MIXER.T @ g, lambda t, x: MIXER @ t)


def wrong_tilted(name: str, push: Callable[..., Any]) -> Mutant:
    """A mutant of a function of two inputs that is wrong in forward mode."""
    return Mutant(name, ruled(tilted, tilted_pull, push), TILTED, away((30,), (30,)), FORWARD, BOTH)


FORWARD_MODE = [
    wrong_push("forward: sign", lambda t, x: -cube_push(t, x)),
    wrong_push("forward: factor 1.01", lambda t, x: 1.01 * cube_push(t, x)),
    wrong_push("forward: one entry", lambda t, x: only(23, 1.1)(cube_push(t, x)), entry="[23]"),
    wrong_push("forward: off by one", lambda t, x: cube_push(t.roll(1), x)),
    wrong_push("forward: adds a constant", lambda t, x: cube_push(t, x) + 0.1),
    wrong_push("forward: |tangent|", lambda t, x: cube_push(t.abs(), x), caught_by=LINEARITY),
    wrong_push("forward: tangents of neighbours multiplied", lambda t, x: cube_push(t + t * t.roll(1), x),
               caught_by=LINEARITY),
    Mutant("forward: two of 40 tangents swapped",
           ruled(mix, lambda g, x: MIXER.T @ g, lambda t, x: MIXER @ t[SWAPPED]), MIXED, normal(VECTOR),
           FORWARD, BOTH),
    Mutant("two of 40 gradients swapped", ruled(mix, lambda g, x: (MIXER.T @ g)[SWAPPED]), MIXED,
           normal(VECTOR)),
    wrong_tilted("forward: ignores one of two tangents", lambda s, t, x, y: s * x.cos() * y),
    wrong_tilted("forward: tangents swapped", lambda s, t, x, y: tilted_push(t, s, x, y)),
    Mutant(
        "forward: wrong where reverse is not asked for",
        ruled(cube, cube_pull, lambda t, x: 2 * t * x * x),
        CUBE,
        away(VECTOR),
        FORWARD,
        FORWARD_ONLY,
    ),
    Mutant(
        "reverse wrong, forward right",
        ruled(cube, lambda g, x: 2 * g * x * x, cube_push),
        CUBE,
        away(VECTOR),
        REVERSE,
        BOTH,
    ),
    Mutant(
        "forward: missing conjugate",
        ruled(torch.square, complex_square_pull, lambda t, z: 2 * t * z.conj()),
        ruled(torch.square, complex_square_pull, lambda t, z: 2 * t * z),
        COMPLEX_VECTOR,
        FORWARD,
        BOTH,
    ),
]  # fmt: skip


# --- batches: a rule for vmap that is wrong


def batched_identity(factor: float) -> Callable[[Tensor], Tensor]:
    """The identity, with a rule for vmap that multiplies."""

    class Identity(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return t.clone()

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
            return factor * x, in_dims[0]

    return Identity.apply


def batched_cube(factor: float, slope: float) -> Callable[[Tensor], Tensor]:
    """The cube, multiplied by a factor under vmap, and with its derivative multiplied by a slope."""

    class Cube(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return cube(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return slope * cube_pull(g, *ctx.saved_tensors)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int | None]:
            return factor * cube(x), in_dims[0]

    return lambda x: Cube.apply(x)


def batched_pull(factor: float) -> Callable[..., Any]:
    """The cube's pullback, multiplied under vmap."""
    identity = batched_identity(factor)
    return lambda g, x: cube_pull(identity(g), x)


def batched_push(factor: float) -> Callable[..., Any]:
    """The cube's push, multiplied under vmap."""
    identity = batched_identity(factor)
    return lambda t, x: cube_push(identity(t), x)


BATCHES = [
    Mutant("batch rule of the backward", ruled(cube, batched_pull(2.0)), ruled(cube, batched_pull(1.0)),
           away(VECTOR), "batched gradients", {"check_batched_grad": True}),
    Mutant("batch rule of the backward, by a hundredth", ruled(cube, batched_pull(1.01)),
           ruled(cube, batched_pull(1.0)), away(VECTOR), "batched gradients", {"check_batched_grad": True}),
    Mutant("batch rule of the forward rule", ruled(cube, cube_pull, batched_push(2.0)),
           ruled(cube, cube_pull, batched_push(1.0)), away(VECTOR), "batched forward gradients",
           {"check_forward_ad": True, "check_batched_forward_grad": True}),
    Mutant("wrong backward that a wrong batch rule confirms", batched_cube(2.0, 2.0), batched_cube(2.0, 1.0),
           away(VECTOR)),
]  # fmt: skip


# --- state and chance


def counting_function() -> Callable[[Tensor], Tensor]:
    """A function with another value at each call."""
    calls = itertools.count(1)
    return lambda x: x.sin() * next(calls)


def counting_pull() -> Callable[..., Any]:
    """The cube's pullback, larger at each call."""
    calls = itertools.count()
    return lambda g, x: cube_pull(g, x) * (1 + 0.1 * next(calls))


def trembling_cube(size: float, generator: Callable[[], torch.Generator]) -> Callable[[Tensor], Tensor]:
    """The cube, with a pullback that adds noise of some size."""

    def pull(g, x):
        noise = torch.rand(x.shape, generator=generator(), dtype=x.dtype)
        return cube_pull(g, x) * (1 + size * noise)

    return ruled(cube, pull)


def trembling(name: str, size: float) -> Mutant:
    """A mutant whose backward draws random numbers; its twin draws the same ones each time."""
    source = torch.Generator().manual_seed(0)
    wrong = trembling_cube(size, lambda: source)
    correct = trembling_cube(1e-9, lambda: torch.Generator().manual_seed(0))
    return Mutant(name, wrong, correct, away(VECTOR), "determinism")


class Cell:
    """What a function keeps outside of its graph."""

    def __init__(self) -> None:
        self.value: Tensor | None = None


def stale_square() -> Callable[[Tensor], Tensor]:
    """Two squares that keep their input in the same place, so that the second overwrites the first's."""
    cell = Cell()

    def keep(inputs, output):
        cell.value = inputs[0].detach()
        return inputs

    square = ruled(torch.square, lambda g, x: 2 * g * cell.value, save=keep)
    return lambda x: square(x) * square(x.sin() + 2)


def right_square() -> Callable[[Tensor], Tensor]:
    """The same, each with its own."""
    square = ruled(torch.square, lambda g, x: 2 * g * x)
    return lambda x: square(x) * square(x.sin() + 2)


def changes_input(x):
    y = 3 * x
    x.data.add_(0.1)
    return y


def changes_buffer(x, buffer):
    buffer.mul_(1.5)
    return x.sin() * buffer.clone()


def with_buffer(seed: int) -> tuple[Tensor, Tensor]:
    draw = Draw(seed)
    return draw.normal(40), draw.normal(40).detach()


def dropout(x):
    return x.sin() * (torch.rand(x.shape) < 0.5)


def fixed_dropout(x):
    return x.sin() * (torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.5)


STATE = [
    wrong_cube("backward counts its calls", counting_pull(), caught_by="determinism"),
    trembling("backward draws random numbers", 0.1),
    trembling("backward draws random numbers, by 1e-6", 1e-6),
    Mutant("stale saved tensor", stale_square(), right_square(), normal(VECTOR)),
    Mutant("draws random numbers", dropout, fixed_dropout, normal(VECTOR), PURITY),
    Mutant("adds random numbers", lambda x: x.sin() + torch.rand(40), lambda x: x.sin() + 0.5,
           normal(VECTOR), PURITY),
    Mutant("changes its input", changes_input, lambda x: 3 * x, normal(VECTOR), PURITY),
    Mutant("changes a buffer", changes_buffer, lambda x, buffer: x.sin() * buffer * 1.5, with_buffer, PURITY),
    Mutant("counts its calls", counting_function(), torch.sin, normal(VECTOR), PURITY),
    Mutant("detached result", lambda x: cube(x).detach(), cube, away(VECTOR), "no derivative"),
    Mutant("result through numbers", lambda x: torch.tensor(cube(x).tolist(), dtype=x.dtype), cube,
           away(VECTOR), "no derivative"),
]  # fmt: skip


# --- second derivatives


SINE_TWICE = ruled(lambda g, x: g * x.cos(), lambda h, g, x: (h * x.cos(), -h * g * x.sin()))


def sine_twice(pull: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """The sine, with a rule of its own for the derivative of its backward."""
    return ruled(torch.sin, ruled(lambda g, x: g * x.cos(), pull))


def wrong_twice(name: str, pull: Callable[..., Any], **fields: Any) -> Mutant:
    """A mutant of the sine whose second derivative is wrong."""
    return Mutant(name, sine_twice(pull), ruled(torch.sin, SINE_TWICE), normal((34,)), order=2, **fields)


def saved_slope(inputs, output):
    return inputs[0], 3 * inputs[0].detach() ** 2


SECOND_ORDER = [
    Mutant("second order: saved intermediate", ruled(cube, lambda g, x, s: g * s, save=saved_slope), CUBE,
           away((34,)), order=2),
    Mutant("second order: input detached", ruled(cube, lambda g, x: cube_pull(g, x.detach())), CUBE,
           away((34,)), order=2),
    Mutant("second order: cotangent detached", ruled(cube, lambda g, x: cube_pull(g.detach(), x)), CUBE,
           away((34,)), order=2),
    Mutant("second order: half detached", ruled(cube, lambda g, x: 3 * g * x * x.detach()), CUBE,
           away((34,)), order=2),
    Mutant("second order: coupling of two inputs detached",
           ruled(times, lambda g, a, b: (g * b.detach(), g * a)),
           ruled(times, lambda g, a, b: (g * b, g * a)),
           normal((20,), (20,)), order=2),
    wrong_twice("second order: sign", lambda h, g, x: (h * x.cos(), h * g * x.sin())),
    wrong_twice("second order: factor 1.01", lambda h, g, x: (h * x.cos(), -1.01 * h * g * x.sin())),
    wrong_twice("second order: by the cotangent", lambda h, g, x: (2 * h * x.cos(), -h * g * x.sin())),
    wrong_twice("second order: one entry",
                lambda h, g, x: (h * x.cos(), only(21, 1.5)(-h * g * x.sin())), entry="[21]"),
    wrong_twice("second order: ignores the cotangent", lambda h, g, x: (x.cos(), -g * x.sin()),
                caught_by=LINEARITY),
]  # fmt: skip


MUTANTS = [
    *SCALED,
    *SHAPED,
    *COTANGENT,
    *UNDEFINED_COTANGENTS,
    *SEVERAL,
    *COUPLINGS,
    *COMPLEX_NUMBERS,
    *FORWARD_MODE,
    *BATCHES,
    *STATE,
    *SECOND_ORDER,
]
