"""Bugs as people write them, gathered before the rules were read: elements, arrays, windows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from benchmarks.diagnosis.normalising import NORMALISATIONS, REDUCTIONS
from benchmarks.diagnosis.planted import Bug, bug

# Functions by elements -----------------------------------------------------------------------------


def huber(x):
    return torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_backward(constant):
    def backward(g, y, x):
        inner = math.sqrt(2 / math.pi) * (x + constant * x**3)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * constant * x**2)
        return g * (0.5 * (1 + inner.tanh()) + 0.5 * x * (1 - inner.tanh() ** 2) * slope)

    return backward


POINTWISE = [
    bug(
        "branch",
        "Huber without the sign on the left",
        huber,
        lambda g, y, x: g * torch.where(x.abs() < 1, x, torch.ones_like(x)),
        (12,),
    ),
    bug(
        "branch",
        "Huber without abs in the test",
        huber,
        lambda g, y, x: g * torch.where(x < 1, x, x.sign()),
        (12,),
    ),
    bug(
        "branch",
        "clamp on both sides, one side let through",
        lambda x: x.clamp(-0.5, 0.5),
        lambda g, y, x: g * (x < 0.5),
        (12,),
    ),
    bug(
        "branch",
        "clamp that lets everything through",
        lambda x: x.clamp(-0.5, 0.5),
        lambda g, y, x: g.clone(),
        (12,),
    ),
    bug(
        "branch",
        "leaky relu with another slope",
        lambda x: F.leaky_relu(x, 0.1),
        lambda g, y, x: g * torch.where(x > 0, 1.0, 0.01),
        (3, 4),
    ),
    bug(
        "branch",
        "elu without the exponential",
        lambda x: F.elu(x),
        lambda g, y, x: g * torch.where(x > 0, 1.0, 0.0),
        (3, 4),
    ),
    bug(
        "branch",
        "relu that lets negative values through",
        lambda x: x.relu(),
        lambda g, y, x: g * (x != 0),
        (3, 4),
    ),
    bug("branch", "abs without the sign", lambda x: x.abs(), lambda g, y, x: g.clone(), (8,)),
    bug("chain", "gelu with another constant", gelu, gelu_backward(0.04), (8,)),
    bug("chain", "sigmoid without 1 - y", lambda x: x.sigmoid(), lambda g, y, x: g * y, (6,)),
    bug("chain", "sigmoid as y (1 + y)", lambda x: x.sigmoid(), lambda g, y, x: g * y * (1 + y), (6,)),
    bug("chain", "tanh with y for y squared", lambda x: x.tanh(), lambda g, y, x: g * (1 - y), (6,)),
    bug("chain", "exp with the input for the output", lambda x: x.exp(), lambda g, y, x: g * x, (6,)),
    bug(
        "chain",
        "sqrt that lacks the division",
        lambda x: x.sqrt(),
        lambda g, y, x: g * 0.5,
        (6,),
        positive=True,
    ),
    bug(
        "chain",
        "inner derivative of sin(x squared)",
        lambda x: (x * x).sin(),
        lambda g, y, x: g * (x * x).cos(),
        (6,),
    ),
    bug(
        "chain", "power without the exponent's decrement", lambda x: x**3, lambda g, y, x: g * 3 * x**3, (6,)
    ),
    bug("sign", "cosine without the minus", lambda x: x.cos(), lambda g, y, x: g * x.sin(), (6,)),
    bug("factor", "log10 as log", lambda x: x.log10(), lambda g, y, x: g / x, (6,), positive=True),
    bug(
        "factor",
        "degrees taken as radians",
        lambda x: torch.sin(x * math.pi / 180),
        lambda g, y, x: g * torch.cos(x * math.pi / 180),
        (6,),
    ),
    bug(
        "chain",
        "silu without the second term",
        lambda x: x * x.sigmoid(),
        lambda g, y, x: g * x.sigmoid(),
        (6,),
    ),
    bug(
        "chain",
        "softplus with a beta left out",
        lambda x: F.softplus(x, beta=2.0),
        lambda g, y, x: g * x.sigmoid(),
        (6,),
    ),
    bug("cotangent", "the incoming gradient ignored", lambda x: x.sin(), lambda g, y, x: x.cos(), (5,)),
]


# Matrices, axes, windows ---------------------------------------------------------------------------


def conv1d_unflipped(g, y, x, w):
    size = w.shape[-1]
    by_x = F.conv1d(F.pad(g, (size - 1, size - 1)), w.transpose(0, 1))  # the kernel should be flipped
    return by_x, torch.einsum("op,cps->ocs", g, x.unfold(-1, size, 1))


def max_pool_first(g, y, x):
    out = torch.zeros_like(x)
    out[..., ::2] = g
    return out


def average_pool_undivided(g, y, x):
    return g.repeat_interleave(2, -1)


def embedding_overwrite(g, y, table):
    index = torch.tensor([0, 2, 2, 1])
    out = torch.zeros_like(table)
    out[index] = g  # rows that occur twice should be added
    return out


def laplace(x):
    return F.pad(x, (1, 1))[2:] - 2 * x + F.pad(x, (1, 1))[:-2]


ARRAYS = [
    bug(
        "transposed",
        "matmul, the weight not transposed",
        lambda x, w: x @ w,
        lambda g, y, x, w: (g @ w, x.T @ g),
        (3, 4),
        (4, 4),
    ),
    bug(
        "permuted",
        "batched outer product with its axes swapped",
        lambda a, b: torch.einsum("bi,bj->bij", a, b),
        lambda g, y, a, b: (torch.einsum("bji,bj->bi", g, b), torch.einsum("bij,bi->bj", g, a)),
        (2, 3),
        (2, 3),
    ),
    bug(
        "permuted",
        "a permutation of axes undone the wrong way",
        lambda x: x.permute(1, 2, 0).contiguous(),
        lambda g, y, x: g.permute(1, 2, 0).contiguous(),
        (3, 3, 3),
    ),
    bug(
        "permuted",
        "a square transpose forgotten",
        lambda x: x.transpose(-1, -2).contiguous(),
        lambda g, y, x: g.clone(),
        (2, 3, 3),
    ),
    bug(
        "permuted",
        "reshape for a transpose",
        lambda x: x.transpose(0, 1).contiguous(),
        lambda g, y, x: g.reshape(x.shape),
        (3, 4),
    ),
    bug(
        "flip",
        "convolution without the flip",
        lambda x, w: F.conv1d(x, w),
        conv1d_unflipped,
        (2, 7),
        (2, 2, 3),
    ),
    bug(
        "argmax",
        "max-pool to the first of each window",
        lambda x: x.unflatten(-1, (-1, 2)).amax(-1),
        max_pool_first,
        (2, 8),
    ),
    bug(
        "factor",
        "average pool without the division",
        lambda x: x.unflatten(-1, (-1, 2)).mean(-1),
        average_pool_undivided,
        (2, 6),
    ),
    bug(
        "conjugate",
        "fft with fft for its adjoint",
        lambda z: torch.fft.fft(z),
        lambda g, y, z: torch.fft.fft(g),
        (5,),
        dtype=torch.complex128,
    ),
    bug(
        "conjugate",
        "complex product without conjugates",
        lambda a, b: a * b,
        lambda g, y, a, b: (g * b, g * a),
        (4,),
        (4,),
        dtype=torch.complex128,
    ),
    bug(
        "factor",
        "fft with the normalised inverse",
        lambda z: torch.fft.fft(z),
        lambda g, y, z: torch.fft.ifft(g),
        (5,),
        dtype=torch.complex128,
    ),
    bug(
        "duplicates",
        "embedding that overwrites repeated rows",
        lambda t: t[torch.tensor([0, 2, 2, 1])],
        embedding_overwrite,
        (4, 3),
    ),
    bug(
        "swapped",
        "gradients in the wrong order",
        lambda a, b: a * b.exp(),
        lambda g, y, a, b: (g * y, g * b.exp()),
        (4,),
        (4,),
    ),
    bug(
        "missing",
        "no gradient for the bias",
        lambda x, b: x.tanh() + b,
        lambda g, y, x, b: (g * (1 - x.tanh() ** 2), torch.zeros_like(b)),
        (3, 4),
        (4,),
    ),
    bug(
        "broadcast",
        "the bias gets one row instead of the sum",
        lambda x, b: x + b,
        lambda g, y, x, b: (g, g[0]),
        (3, 4),
        (4,),
    ),
    bug(
        "broadcast",
        "the bias gets the mean of the batch",
        lambda x, b: x + b,
        lambda g, y, x, b: (g, g.mean(0)),
        (3, 4),
        (4,),
    ),
    bug(
        "reversed",
        "roll undone in the same direction",
        lambda x: x.roll(1, -1),
        lambda g, y, x: g.roll(1, -1),
        (2, 5),
    ),
    bug(
        "sign",
        "difference with its ends swapped",
        lambda x: x[1:] - x[:-1],
        lambda g, y, x: F.pad(g, (0, 1)) - F.pad(g, (1, 0)),
        (6,),
    ),
    bug(
        "index",
        "the last element left out",
        lambda x: x * x,
        lambda g, y, x: torch.cat([2 * g[:-1] * x[:-1], g[-1:] * 0]),
        (7,),
    ),
    bug(
        "index",
        "the border of a stencil forgotten",
        laplace,
        lambda g, y, x: F.pad(laplace(g)[1:-1], (1, 1)),
        (7,),
    ),
    bug(
        "transposed",
        "inverse without its transposes",
        lambda a: torch.linalg.inv(a + 3 * torch.eye(3, dtype=a.dtype)),
        lambda g, y, a: -(y @ g @ y),
        (3, 3),
    ),
]

EVERYDAY: list[Bug] = [*NORMALISATIONS, *REDUCTIONS, *POINTWISE, *ARRAYS]
