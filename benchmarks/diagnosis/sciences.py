"""Everyday bugs of simulations, statistics and small layers, by somebody who had not read the rules."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.diagnosis.planted import Bug, bug, cut

SCALE = 0.01
COUNTS = 5


def counts(x: Tensor) -> Tensor:
    """Counts that were observed, the same in every run."""
    return (torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape) * 7) % COUNTS


# Physics and chemistry.


def lennard_jones(r: Tensor) -> Tensor:
    return 4 * (r.pow(-12) - r.pow(-6))


def attraction_without_exponent(g: Tensor, out: Tensor, r: Tensor) -> Tensor:
    return g * 4 * (-12 * r.pow(-13) + r.pow(-7))


def spring_energy(x: Tensor, k: Tensor) -> Tensor:
    return 0.5 * (k * x.square()).sum(-1)


def spring_force(g: Tensor, out: Tensor, x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    g = g.unsqueeze(-1)
    return -g * k * x, (0.5 * g * x.square()).sum(0)  # the force is the negative gradient


def heat_step(u: Tensor) -> Tensor:
    left, right = F.pad(u, (1, 0))[..., :-1], F.pad(u, (0, 1))[..., 1:]
    return u + 0.2 * (left - 2 * u + right)


def heat_step_of_a_ring(g: Tensor, out: Tensor, u: Tensor) -> Tensor:
    return g + 0.2 * (g.roll(1, -1) - 2 * g + g.roll(-1, -1))


def radiated(t: Tensor) -> Tensor:
    return 0.3 * t**4


def michaelis_menten(s: Tensor, k: Tensor) -> Tensor:
    return s / (k + s)


def quotient_without_second_term(g: Tensor, out: Tensor, s: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return g / (k + s), -g * s / (k + s) ** 2


def arrhenius(t: Tensor) -> Tensor:
    return 5.0 * torch.exp(-1.5 / t)


def height(r: Tensor, angle: Tensor) -> Tensor:
    return r * angle.sin()


def turned(points: Tensor, angle: Tensor) -> Tensor:
    c, s, (x, y) = angle.cos(), angle.sin(), points.unbind(-1)
    return torch.stack([c * x - s * y, s * x + c * y], -1)


def turned_backward(g: Tensor, out: Tensor, points: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    c, s, (x, y), (gx, gy) = angle.cos(), angle.sin(), points.unbind(-1), g.unbind(-1)
    back = torch.stack([c * gx + s * gy, -s * gx + c * gy], -1)
    return back, gx * (-s * x - c * y) + gy * (c * x + s * y)  # c x - s y


def phase_backward(g: Tensor, out: Tensor, angle: Tensor) -> Tensor:
    return (g * 1j * out).real  # the conjugate of 1j * out


def repulsion(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(x), len(x), 1)
    return (x[i] - x[j]).square().sum(-1).rsqrt()


def repulsion_of_the_first(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(x), len(x), 1)
    force = -(g * out**3).unsqueeze(-1) * (x[i] - x[j])
    return torch.zeros_like(x).index_add(0, i, force)  # nothing for j


# Statistics.


def poisson(x: Tensor) -> Tensor:
    return (x.exp() - counts(x) * x).sum()


def gaussian(mean: Tensor, variance: Tensor) -> Tensor:
    return 0.5 * (variance.log() + (1.0 - mean).square() / variance)


def gaussian_backward(g: Tensor, out: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    d = 1.0 - mean
    return -g * d / variance, 0.5 * g * (1 / variance - d.square() / variance)  # variance squared


def divergence(mean: Tensor, logvar: Tensor) -> Tensor:
    return -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum()


def divergence_backward(g: Tensor, out: Tensor, mean: Tensor, logvar: Tensor) -> tuple[Tensor, Tensor]:
    return g * mean, 0.5 * g * logvar.exp()  # less one


def ridge(weight: Tensor, x: Tensor) -> Tensor:
    return (x @ weight).square().sum() + 0.3 * weight.square().sum()


def ridge_backward(g: Tensor, out: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    residual = x @ weight
    return g * (2 * x.T @ residual + 0.3 * weight), g * 2 * torch.outer(residual, weight)


def logaddexp_backward(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return g * (b - out).exp(), g * (a - out).exp()


def logcumsumexp_forward(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return x.exp() * (g * (-out).exp()).cumsum(-1)


# Layers.


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias


def bias_along_features(
    g: Tensor, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    return g @ weight.T, x.T @ g, g.sum(1)


def bias_of_batches(g: Tensor, out: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return g, g.sum((1, 2, 3))


def soft_threshold_backward(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return g.clone()


def left_padded(x: Tensor) -> Tensor:
    return F.pad(x, (2, 0))


def repeated_backward(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return g.view(2, -1).sum(0)


def stacked_backward(g: Tensor, out: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return g.unbind(0)


def scaled_rows(x: Tensor, table: Tensor) -> Tensor:
    return x @ table * math.sqrt(table.shape[1])


def triangular(right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(LOWER.to(right), right, upper=False)


LOWER = torch.tensor([[2.0, 0, 0, 0], [0.5, 1.5, 0, 0], [-1, 0.3, 2.5, 0], [0.7, -0.4, 1.1, 3]])


class Accumulated(torch.autograd.Function):
    """What it saves, it changes afterwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The square."""
        ctx.kept = kept = x.clone()
        y = kept.square()
        kept.mul_(3.0)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Of what was kept, as it is by then."""
        return 2 * grad * ctx.kept


# Derivatives that are lost.


def erf_of_another_library(x: Tensor) -> Tensor:
    from scipy.special import erf

    return x * torch.as_tensor(erf(x.detach().numpy()))  # cut


class Gated(nn.Module):
    """Rows times their size."""

    def forward(self, x: Tensor) -> Tensor:
        """Of these rows."""
        with torch.set_grad_enabled(False):
            scale = x.square().mean(-1, keepdim=True)  # cut
        return x * scale.sqrt()


class Calibrated(nn.Module):
    """Rows, divided by a level."""

    def forward(self, x: Tensor) -> Tensor:
        """Of these rows."""
        level = x.abs().amax(-1, keepdim=True) + self.offset(x)
        return x / level

    def offset(self, x: Tensor) -> Tensor:
        """What the level is at least."""
        return x.logsumexp(-1, keepdim=True).clone().detach_()  # cut


def time_step(x: Tensor) -> Tensor:
    fastest = max(abs(v.item()) for v in x)  # cut
    return x - SCALE / fastest * x.cos()


def averaged(x: Tensor) -> Tensor:
    slow = nn.Parameter(x.mean(0).data)  # cut
    return (x - slow).square().sum(-1)


SCIENCES: list[Bug] = [
    bug(
        "term",
        "Lennard-Jones, the attraction without its exponent",
        lennard_jones,
        attraction_without_exponent,
        (9,),
        positive=True,
    ),
    bug(
        "sign",
        "springs, the force for the gradient",
        spring_energy,
        spring_force,
        (5, 3),
        (3,),
        positive=True,
    ),
    bug("index", "a step of heat, its ends joined to a ring", heat_step, heat_step_of_a_ring, (3, 7)),
    bug(
        "chain",
        "radiation, the power not decremented",
        radiated,
        lambda g, out, t: g * 4 * 0.3 * t**4,
        (8,),
        positive=True,
    ),
    bug(
        "chain",
        "a rate of saturation, the quotient without its second term",
        michaelis_menten,
        quotient_without_second_term,
        (6,),
        (6,),
        positive=True,
    ),
    bug(
        "chain",
        "Arrhenius, the inner derivative without the square",
        arrhenius,
        lambda g, out, t: g * out * 1.5 / t,
        (7,),
        positive=True,
    ),
    bug(
        "chain",
        "a height by its angle, without the radius",
        height,
        lambda g, out, r, angle: (g * angle.sin(), g * angle.cos()),
        (7,),
        (7,),
        positive=True,
    ),
    bug("slice", "points turned, one sign of the angle", turned, turned_backward, (5, 2), (5,)),
    bug(
        "conjugate",
        "a phase, its conjugate forgotten",
        lambda angle: torch.exp(1j * angle),
        phase_backward,
        (6,),
    ),
    bug("duplicates", "repulsion of pairs, the first alone", repulsion, repulsion_of_the_first, (5, 3)),
    bug("target", "counts, the observed ones left out", poisson, lambda g, out, x: g * x.exp(), (3, 4)),
    bug(
        "chain",
        "a likelihood, its variance not squared",
        gaussian,
        gaussian_backward,
        (6,),
        (6,),
        positive=True,
    ),
    bug(
        "target", "divergence of a code, less one forgotten", divergence, divergence_backward, (3, 4), (3, 4)
    ),
    bug("term", "ridge, its weight decay without the 2", ridge, ridge_backward, (4,), (6, 4)),
    bug(
        "swapped",
        "log of two exponentials, weights exchanged",
        torch.logaddexp,
        logaddexp_backward,
        (7,),
        (7,),
    ),
    bug(
        "reversed",
        "cumulative logsumexp, summed forward",
        lambda x: x.logcumsumexp(-1),
        logcumsumexp_forward,
        (3, 6),
    ),
    bug(
        "axis",
        "bias of a square batch, summed along the features",
        affine,
        bias_along_features,
        (4, 3),
        (3, 4),
        (4,),
    ),
    bug(
        "axis",
        "bias of channels, summed by the batch",
        lambda x, bias: x + bias[:, None, None],
        bias_of_batches,
        (3, 3, 2, 2),
        (3,),
    ),
    bug(
        "branch",
        "soft threshold that lets everything through",
        lambda x: F.softshrink(x, 0.5),
        soft_threshold_backward,
        (4, 6),
    ),
    bug(
        "reversed",
        "padding on the left, cropped on the right",
        left_padded,
        lambda g, out, x: g[..., :-2],
        (3, 6),
    ),
    bug(
        "order",
        "repeated in place, summed as a tiling",
        lambda x: x.repeat_interleave(2),
        repeated_backward,
        (7,),
    ),
    bug(
        "order",
        "stacked last, unbound first",
        lambda *xs: torch.stack(xs, -1),
        stacked_backward,
        (3,),
        (3,),
        (3,),
    ),
    bug(
        "factor",
        "rows of a table, their scale forgotten",
        scaled_rows,
        lambda g, out, x, table: (g @ table.T, x.T @ g),
        (3, 4),
        (4, 9),
    ),
    bug(
        "reversed",
        "a triangular system, solved forward again",
        triangular,
        lambda g, out, right: torch.linalg.solve_triangular(LOWER.to(g), g, upper=False),
        (4, 3),
    ),
    Bug("a tensor that is kept and changed", "factor", Accumulated.apply, ((4, 3),)),
    cut("an error function of SciPy", erf_of_another_library, (8,)),
    cut("a scale with grad switched off", Gated(), (3, 5), within=Gated.forward),
    cut("an offset detached in place", Calibrated(), (3, 5), within=Calibrated.offset),
    cut("a time step by its largest item", time_step, (6,)),
    cut("a slow average made a parameter", averaged, (4, 3)),
]
