"""One planted bug for each rule of a diagnosis, and a near miss on which the rule has to keep silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import covector
from covector.report.report import Report
from mutants import (
    Draw,
    away,
    complex_square_pull,
    cube,
    cube_pull,
    linear,
    linear_pull,
    normal,
    only,
    pair,
    pair_pull,
    right_square,
    ruled,
    scaled_rows,
    stale_square,
    stencil,
    stencil_pull,
)

Inputs = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True)
class Planted:
    """A bug that a rule has to name, and one, or none at all, that it must not take for that."""

    wrong: Callable[..., Any]
    near: Callable[..., Any]
    inputs: Inputs
    near_inputs: Inputs | None = None
    keywords: dict[str, Any] = field(default_factory=dict)
    order: int = 1

    def report(self, function: Callable[..., Any], inputs: Inputs, **keywords: Any) -> Report | None:
        """What the check says about a function; None if it passes."""
        door = covector.gradcheck if self.order == 1 else covector.gradgradcheck
        try:
            door(function, inputs(0), **self.keywords, **keywords)
        except covector.GradcheckError as error:
            return error.report
        return None

    def wrong_report(self, **keywords: Any) -> Report:
        """What is said about the planted bug."""
        report = self.report(self.wrong, self.inputs, **keywords)
        assert report is not None
        return report

    def near_report(self, **keywords: Any) -> Report | None:
        """What is said about the near miss, which may be nothing."""
        return self.report(self.near, self.near_inputs or self.inputs, **keywords)


def cubed(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The cube, with a change to its gradient."""
    return ruled(cube, lambda g, x: change(cube_pull(g, x)))


def cubed_where(condition: Callable[[Tensor], Tensor], factor: float = 1.5) -> Callable[..., Any]:
    """The cube, with its gradient multiplied where the input satisfies a condition."""
    return ruled(cube, lambda g, x: cube_pull(g, x) * torch.where(condition(x), factor, 1.0))


def masked(*indices: Any) -> Callable[[Tensor], Tensor]:
    """Doubles what the indices select."""

    def change(gradient: Tensor) -> Tensor:
        mask = torch.ones(gradient.shape, dtype=gradient.dtype)
        for index in indices:
            mask[index] = 2.0
        return gradient * mask

    return change


def weighted(second: Callable[..., Tensor]) -> Callable[..., Any]:
    """Rows times a weight that is broadcast, with another gradient for the weight."""
    return ruled(scaled_rows, lambda g, x, w: (g * x.cos() * w, second(g, x, w)))


def weighted_softmax(first: Callable[..., Tensor]) -> Callable[..., Any]:
    """A softmax times a weight, with another gradient for what the softmax is of."""

    def pull(g, x, w):
        y = x.softmax(-1)
        return first(g, y, w), (g * y).sum(0)

    return ruled(lambda x, w: x.softmax(-1) * w, pull)


def product(pull: Callable[..., Any]) -> Callable[..., Any]:
    """The matrix product."""
    return ruled(linear, pull)


def softmax_pull(diagonal: float, beside: float) -> Callable[..., Any]:
    """The pullback of softmax, with factors on the diagonal of its Jacobian and beside it."""

    def pull(g, x):
        s = x.softmax(0)
        jacobian = torch.diag(s) - s[:, None] * s
        eye = torch.eye(x.numel(), dtype=x.dtype)
        return (jacobian * (diagonal * eye + beside * (1 - eye))) @ g

    return pull


def rounded(dtype: torch.dtype) -> Callable[..., Any]:
    """The cube, with a gradient that goes through another dtype."""
    return ruled(cube, lambda g, x: cube_pull(g, x).to(dtype).to(x.dtype))


def deaf(g: Tensor, x: Tensor) -> Tensor:
    """The gradient of the cube, except that small cotangents are taken for zero."""
    return cube_pull(torch.where(g.abs() < 1e-4, 0.0, g), x)


def spread_out(x: Tensor) -> Tensor:
    """Moved and scaled to lie between 0 and 1."""
    return (x - x.amin()) / (x.amax() - x.amin())


def approximate(factor: float, error: float) -> Callable[..., Any]:
    """A multiple of the cube's gradient, with an error that changes from element to element."""
    return cubed(lambda d: factor * d * (1 + error * torch.arange(d.numel(), dtype=d.dtype).square().sin()))


def single_sine(factor: float) -> Callable[..., Any]:
    """A sine that is computed in single precision whatever it is given."""
    return lambda x: ruled(torch.sin, lambda g, x: factor * g * x.cos())(x.float()) + 1e3


def symmetric(seed: int) -> tuple[Tensor, Tensor]:
    draw = Draw(seed)
    weight = draw.normal(4, 4).detach()
    return draw.normal(4, 4), (weight + weight.T).requires_grad_()


def given(*values: float) -> Inputs:
    return lambda seed: (torch.tensor(values, dtype=torch.float64, requires_grad=True),)


def line(seed: int) -> tuple[Tensor]:
    return (torch.tensor([-1.25, 1.75, -0.5, 0.75, 1.5, -1.5, 0.25, 1.0]).double().requires_grad_(),)


def decayed(x: Tensor) -> Tensor:
    """A loss with a weight decay, whose gradient is cos x + 0.8 x."""
    return x.sin().sum() + 0.4 * x.square().sum()


def standardised(x: Tensor) -> Tensor:
    """Each row less its mean, over its deviation."""
    return (x - x.mean(1, keepdim=True)) / x.std(1, unbiased=False, keepdim=True)


def standardised_pull(g: Tensor, x: Tensor, mean: float = 1.0) -> Tensor:
    y = standardised(x)
    inner = g - mean * g.mean(1, keepdim=True) - y * (g * y).mean(1, keepdim=True)
    return inner / x.std(1, unbiased=False, keepdim=True)


def soft(x: Tensor) -> Tensor:
    return x.softmax(-1)


def slid(x: Tensor) -> Tensor:
    """A window that slides over a line."""
    return F.conv1d(x[None, None], KERNEL[None, None])[0, 0]


def slid_pull(g: Tensor, kernel: Tensor) -> Tensor:
    """Right for a kernel that is flipped."""
    return F.conv1d(F.pad(g, (2, 2))[None, None], kernel[None, None])[0, 0]


def causal(x: Tensor) -> Tensor:
    """Rows mixed with the rows before them."""
    return MIXING.tril() @ x


def pinball(x: Tensor) -> Tensor:
    """The loss of a quantile."""
    return torch.where(x > 0, 0.9 * x, -0.1 * x)


def blended(x: Tensor) -> Tensor:
    """Each number but the last with the one after it, by shares that differ."""
    return (1 - SHARES) * x[:-1] + SHARES * x[1:]


def waves(x: Tensor) -> Tensor:
    """The sines of the first two columns of a sparse matrix."""
    return x.to_dense()[:, :2].sin()


def waves_pull(g: Tensor, x: Tensor) -> Tensor:
    """Right for every element, of which those of the last column are zero."""
    return F.pad(g * x.to_dense()[:, :2].cos(), (0, 1))


def blended_pull(g: Tensor, shares: Tensor) -> Tensor:
    """Right for the shares of the number after each."""
    return F.pad((1 - shares) * g, (0, 1)) + F.pad(shares * g, (1, 0))


SHARES = torch.linspace(0.15, 0.4, 7, dtype=torch.float64)

# The inverse of this order is another one, and it is no shift.
ORDER = torch.tensor([2, 4, 3, 0, 1])
MIXING = torch.linspace(0.3, 1.8, 16, dtype=torch.float64).reshape(4, 4)
KEPT = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 0, 1, 1], [0, 1, 0, 1, 1]]).double()
KERNEL = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
REPEATED = torch.tensor([0, 2, 2, 1, 3])
RELU = torch.relu
STEEP = ruled(torch.relu, lambda g, x: 2 * g * torch.ones_like(x))
SQUARES, VECTOR, TABLE = normal((4, 4), (4, 4)), away((8,)), away((4, 5))

PLANTED = {
    "sign": Planted(cubed(lambda d: -d), cubed(lambda d: -2 * d), VECTOR),
    "without sign": Planted(
        ruled(lambda x, t: (x - t).abs(), lambda g, x, t: (g, -g * (x - t).sign())),
        ruled(lambda x, t: (x - t).abs(), lambda g, x, t: (g * (x - t), -g * (x - t).sign())),
        normal((8,), (8,)),
    ),
    "factor": Planted(cubed(lambda d: 2 * d), cubed_where(lambda x: x < 0, 2.0), VECTOR),
    "power": Planted(
        ruled(cube, lambda g, x: 2 * g * x), ruled(cube, lambda g, x: g * (2 * x + 0.1)), VECTOR
    ),
    "constant": Planted(
        cubed(lambda d: d + 0.1), ruled(cube, lambda g, x: cube_pull(g, x) + 0.1 * g * x), VECTOR
    ),
    "term": Planted(
        ruled(decayed, lambda g, x: g * (x.cos() + 0.3 * x)),
        ruled(decayed, lambda g, x: g * (x.cos() + 0.35678 * x)),
        VECTOR,
    ),
    "chain rule": Planted(
        ruled(torch.sigmoid, lambda g, x: g * x.sigmoid()),
        ruled(torch.sigmoid, lambda g, x: g * x.sigmoid() ** 1.5),
        VECTOR,
    ),
    "normalisation": Planted(
        ruled(standardised, lambda g, x: standardised_pull(g, x, mean=0.0)),
        ruled(standardised, lambda g, x: standardised_pull(g, x) * torch.linspace(1, 2, 4)),
        normal((3, 4)),
    ),
    "wrong axis": Planted(
        ruled(soft, lambda g, x: soft(x) * (g - (g * soft(x)).sum(0, keepdim=True))),
        ruled(soft, lambda g, x: 2 * soft(x) * (g - (g * soft(x)).sum(-1, keepdim=True))),
        normal((3, 4)),
    ),
    "zero": Planted(
        ruled(torch.mul, lambda g, x, y: (g * y, torch.zeros_like(y))),
        ruled(torch.mul, lambda g, x, y: (g * y, 0.5 * g * x)),
        normal((6,), (6,)),
    ),
    "stop-gradient": Planted(
        lambda x: x.sin() * x.mean().detach(),
        lambda x: ruled(cube, lambda g, x: 2 * cube_pull(g, x))(x) * (1 + 0 * x.mean().detach()),
        VECTOR,
    ),
    "swapped inputs": Planted(
        product(lambda g, x, w: linear_pull(g, x, w)[::-1]),
        product(lambda g, x, w: (x.T @ g, x.T @ g)),
        SQUARES,
    ),
    "another input": Planted(
        product(lambda g, x, w: (g @ w.T, g @ w.T)),
        product(lambda g, x, w: (g @ w.T, 2 * (g @ w.T))),
        SQUARES,
    ),
    "swapped outputs": Planted(
        ruled(pair, lambda g, h, x: pair_pull(h, g, x)),
        ruled(pair, lambda g, h, x: pair_pull(h, h, x)),
        VECTOR,
    ),
    "cotangent ignored": Planted(
        ruled(cube, lambda g, x: cube_pull(torch.ones_like(g), x)),
        ruled(cube, lambda g, x: cube_pull(g, x) + 0.5),
        VECTOR,
    ),
    "saved intermediate": Planted(
        ruled(cube, lambda g, x, s: g * s, save=lambda inputs, y: (inputs[0], 3 * inputs[0].detach() ** 2)),
        ruled(cube, lambda g, x: 3 * g * x * x.detach()),
        VECTOR,
        order=2,
    ),
    "transposed": Planted(
        product(lambda g, x, w: (g @ w, x.T @ g)),
        product(lambda g, x, w: (g @ w, x.T @ g)),
        SQUARES,
        symmetric,
    ),
    "displaced": Planted(cubed(lambda d: d.roll(1, 0)), cubed(lambda d: d[[1, 0, 3, 2, 5, 4, 7, 6]]), VECTOR),
    "wrong way": Planted(
        ruled(lambda x: x.cumsum(0), lambda g, x: g.cumsum(0)),
        ruled(lambda x: x.cumsum(0), lambda g, x: 2 * g.flip(0).cumsum(0).flip(0)),
        VECTOR,
    ),
    "flipped window": Planted(
        ruled(slid, lambda g, x: slid_pull(g, KERNEL)),
        ruled(slid, lambda g, x: slid_pull(g, KERNEL.roll(1))),
        VECTOR,
    ),
    "another element": Planted(
        ruled(lambda x: x.amax(1), lambda g, x: F.pad(g[:, None], (0, 4))),
        ruled(lambda x: x.amax(1), lambda g, x: g[:, None].expand(4, 5) / 5),
        TABLE,
    ),
    "order not undone": Planted(
        ruled(lambda x: x[ORDER].sin(), lambda g, x: (g * x[ORDER].cos())[ORDER]),
        ruled(
            lambda x: x[ORDER].sin(),
            lambda g, x: ((g * x[ORDER].cos())[ORDER] + (g * x[ORDER].cos())[ORDER.argsort()]) / 2,
        ),
        away((5, 3)),
    ),
    "exchanged": Planted(
        ruled(blended, lambda g, x: blended_pull(g, 1 - SHARES)),
        ruled(blended, lambda g, x: blended_pull(g, 0.9 - SHARES)),
        VECTOR,
    ),
    "unspecified": Planted(
        ruled(waves, lambda g, x: (waves_pull(g, x) * (x.to_dense() != 0)).to_sparse()),
        ruled(waves, lambda g, x: (waves_pull(g, x) * (1 + MIXING[:3, :3].cos())).to_sparse()),
        lambda seed: (
            torch.tensor([[0.4, 0, 1.3], [0, -0.7, 0], [0, 1.1, 0]]).double().to_sparse().requires_grad_(),
        ),
    ),
    "masked": Planted(
        ruled(lambda x: x.sin().tril(), lambda g, x: g * x.cos()),
        ruled(lambda x: x.sin().tril(), lambda g, x: g.tril() * x.cos() + 0.01 * x * g.tril()),
        away((4, 4)),
    ),
    "inverted mask": Planted(
        ruled(lambda x: x.clamp(min=0.2), lambda g, x: g * (x < 0.2)),
        ruled(lambda x: x.clamp(min=0.2), lambda g, x: g * (x < -0.9)),
        VECTOR,
    ),
    "another mask": Planted(
        ruled(lambda x: x.sin() * KEPT, lambda g, x: g * x.cos() * KEPT.roll(1, 1)),
        ruled(lambda x: x.sin() * KEPT, lambda g, x: g * x.cos() * (2 * KEPT.roll(1, 1))),
        TABLE,
    ),
    "drawn again": Planted(
        ruled(lambda x: x.sin() * KEPT, lambda g, x: g * x.cos() * (torch.rand_like(x) < 0.6)),
        ruled(lambda x: x.sin() * KEPT, lambda g, x: g * x.cos() * torch.rand_like(x)),
        TABLE,
    ),
    "reach": Planted(
        ruled(causal, lambda g, x: MIXING.T @ g),
        ruled(causal, lambda g, x: (MIXING.tril() * torch.linspace(1, 2, 4)).T @ g),
        TABLE,
    ),
    "factors by place": Planted(
        ruled(torch.sin, lambda g, x: g * x.cos() * torch.tensor([1.0, 2, 1, 2, 1])),
        ruled(torch.sin, lambda g, x: g * x.cos() * torch.linspace(1, 2, 20).reshape(4, 5)),
        TABLE,
    ),
    "wrong side": Planted(
        weighted_softmax(lambda g, y, w: w * (y * (g - (g * y).sum(-1, keepdim=True)))),
        weighted_softmax(lambda g, y, w: g * w * y),
        normal((3, 4), (4,)),
    ),
    "overwritten": Planted(
        ruled(lambda x: x[REPEATED], lambda g, x: torch.zeros_like(x).index_copy(0, REPEATED, g)),
        ruled(lambda x: x[REPEATED], lambda g, x: torch.zeros_like(x).index_add(0, REPEATED, 2 * g)),
        TABLE,
    ),
    "broadcast": Planted(
        weighted(lambda g, x, w: (g * x.sin()).mean(0)),
        ruled(cube, lambda g, x: cube_pull(g, x) / 6),
        normal((6, 3), (3,)),
        away((6, 3)),
    ),
    "conjugate": Planted(
        ruled(torch.square, lambda g, z: 2 * g * z),
        ruled(torch.square, lambda g, z: -complex_square_pull(g, z)),
        normal((5,), dtype=torch.complex128),
    ),
    "real part": Planted(
        ruled(torch.square, lambda g, z: complex_square_pull(g, z).real + 0j),
        ruled(torch.square, lambda g, z: complex_square_pull(g, z).real * 0.5 + 0j),
        normal((5,), dtype=torch.complex128),
    ),
    "few elements": Planted(cubed(only(3, 1.1)), cubed(masked([0, 1, 3, 4, 6])), VECTOR),
    "extremes": Planted(
        ruled(spread_out, lambda g, x: g / (x.amax() - x.amin())),
        ruled(lambda x: x * x[3], lambda g, x: g * x[3]),
        given(0.5, -1.0, 2.0, 0.3, 1.1, -0.4, 1.7, 0.9),
    ),
    "not finite": Planted(
        lambda x: torch.where(x > 0, x.sqrt(), torch.zeros_like(x)),
        lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), x.detach()),
        given(0.5, -1.0, 2.0),
    ),
    "one slice": Planted(cubed(masked(2)), cubed(masked((2, [0, 1, 2]), (1, [3, 4]))), TABLE),
    "diagonal": Planted(
        cubed(lambda d: d + d.diagonal().diag()),
        cubed(lambda d: d + d.diagonal().diag() + d * torch.eye(4).roll(1, 0)),
        away((4, 4)),
    ),
    "diagonal of the Jacobian": Planted(
        ruled(lambda x: x.softmax(0), softmax_pull(2.0, 1.0)),
        ruled(lambda x: x.softmax(0), softmax_pull(1.0, 2.0)),
        normal((4,)),
    ),
    "boundary": Planted(
        ruled(stencil, lambda g, x: stencil_pull(g, x, edge=0.5)),
        ruled(stencil, lambda g, x: only(-1, 0.5)(stencil_pull(g, x))),
        VECTOR,
    ),
    "negative inputs": Planted(cubed_where(lambda x: x < 0), cubed_where(lambda x: x.abs() > 1), line),
    "threshold": Planted(cubed_where(lambda x: x > 0.9), cubed_where(lambda x: x.abs() > 1.1), line),
    "both sides": Planted(
        cubed_where(lambda x: x.abs() > 0.9),
        cubed_where(lambda x: (x < -1.3) | ((x > 0.5) & (x < 1.2))),
        line,
    ),
    "two slopes": Planted(
        ruled(pinball, lambda g, x: g * torch.where(x > 0, 0.1, -0.9)),
        ruled(pinball, lambda g, x: g * (torch.where(x > 0, 0.1, -0.9) + 0.01 * x)),
        VECTOR,
    ),
    "stale value": Planted(
        stale_square(),
        lambda x: ruled(torch.square, lambda g, x: 3 * g * x)(x) * right_square()(x),
        VECTOR,
    ),
    "cotangent changed": Planted(
        ruled(lambda x: 2 * x, lambda g, x: g.mul_(2)),
        ruled(lambda x: 2 * x, lambda g, x: g.clone().mul_(3)),
        away((11,)),
    ),
    "rounded": Planted(rounded(torch.float16), ruled(cube, deaf), VECTOR),
    "precision": Planted(
        rounded(torch.float32), cubed(lambda d: 1.0001 * d), VECTOR, keywords={"atol": 0.0, "rtol": 1e-9}
    ),
    "kink": Planted(RELU, STEEP, given(0.0, 1.0)),
    "jump": Planted(torch.round, RELU, given(0.5, 1.2), given(0.0, 1.0)),
    "domain": Planted(torch.log, ruled(torch.log, lambda g, x: 2 * g / x), given(0.0, 1.0), given(0.5, 1.0)),
    "noise": Planted(single_sine(1.0), single_sine(3.0), given(0.5)),
    "factor, nearly": Planted(approximate(2.0, 1e-4), approximate(2.0, 0.2), away((23,))),
}
