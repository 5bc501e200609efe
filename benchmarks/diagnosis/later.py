"""Bugs of the same kinds, written later, by somebody who had not read the rules.

When they were first run, on other numbers, 35 of 41 were named and 6 left without a name: group
normalisation, division by the sum of magnitudes, the logarithm of a sum of exponentials over the wrong axis,
a convolution of images, and two activations. Rules were then made for the first four. On the numbers drawn
here, the wrong entries of one bug happen to lie at both ends of a line, which is said first.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.diagnosis.planted import Bug, bug, cut


def rms(x: Tensor) -> Tensor:
    return (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def batch_normed(x: Tensor) -> Tensor:
    return (x - x.mean((0, 2), keepdim=True)) / deviation(x)


def deviation(x: Tensor) -> Tensor:
    return (x.var((0, 2), unbiased=False, keepdim=True) + 1e-5).sqrt()


def batch_norm_without_mean(g, y, x):
    return (g - y * (g * y).mean((0, 2), keepdim=True)) / deviation(x)


def group_norm_without_variance(g, y, x):
    rows, grad = x.reshape(x.shape[0], 2, -1), g.reshape(x.shape[0], 2, -1)
    scale = (rows.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return ((grad - grad.mean(-1, keepdim=True)) / scale).reshape(x.shape)


def std_of_the_wrong_kind(g, y, x):
    centred = x - x.mean(-1, keepdim=True)
    return g[..., None] * centred / (x.std(-1, unbiased=False, keepdim=True) * x.shape[-1])


def pulled(function, g, *inputs):
    """What autograd makes of a function."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*leaves), leaves, g)


def gelu_of_another_constant(g, y, x):
    inner = math.sqrt(2 / math.pi)
    return pulled(lambda x: 0.5 * x * (1 + torch.tanh(inner * (x + 0.04 * x**3))), g, x)[0]


def hardswish_without_a_middle(g, y, x):
    twice = 2 * x
    inside = (2 * twice + 3) / 6 - 0.5 * (twice.abs() > 1)
    return 2 * g * torch.where(twice > 3, 1.0, torch.where(twice < -3, 0.0, inside))


def convolved(x: Tensor, w: Tensor) -> Tensor:
    return (F.conv2d if w.dim() == 4 else F.conv1d)(x, w, padding=1)


def convolution_without_flip(g, y, x, w):
    return convolved(g, w.transpose(0, 1)), pulled(lambda w: convolved(x, w), g, w)[0]


REPEATED = torch.tensor([0, 1, 1, 2, 2, 2])

NORMALISING = [
    bug(
        "normalisation",
        "rms norm without its scale",
        lambda x: x / rms(x),
        lambda g, y, x: g / rms(x),
        (4, 6),
    ),
    bug(
        "normalisation",
        "batch norm of series without the variance",
        batch_normed,
        lambda g, y, x: (g - g.mean((0, 2), keepdim=True)) / deviation(x),
        (3, 2, 4),
    ),
    bug(
        "normalisation",
        "batch norm of series without the mean",
        batch_normed,
        batch_norm_without_mean,
        (3, 2, 4),
    ),
    bug(
        "normalisation",
        "group norm without the variance",
        lambda x: F.group_norm(x, 2),
        group_norm_without_variance,
        (2, 4, 3),
    ),
    bug(
        "normalisation",
        "log softmax over rows without the sum",
        lambda x: x.log_softmax(0),
        lambda g, y, x: g.clone(),
        (5, 3),
    ),
    bug(
        "normalisation",
        "division by the sum of magnitudes",
        lambda x: x / x.abs().sum(-1, keepdim=True),
        lambda g, y, x: g / x.abs().sum(-1, keepdim=True),
        (3, 5),
    ),
    bug(
        "axis",
        "softmax, the sum over the other axis",
        lambda x: x.softmax(-1),
        lambda g, y, x: y * (g - (g * y).sum(0, keepdim=True)),
        (4, 5),
    ),
    bug(
        "axis",
        "centring over the other axis",
        lambda x: x - x.mean(1, keepdim=True),
        lambda g, y, x: g - g.mean(0, keepdim=True),
        (4, 5),
    ),
    bug(
        "axis",
        "logsumexp, its softmax over the other axis",
        lambda x: x.logsumexp(1),
        lambda g, y, x: g[:, None] * x.softmax(0),
        (4, 5),
    ),
    bug("unbiased", "std of the wrong kind", lambda x: x.std(-1), std_of_the_wrong_kind, (3, 6)),
    bug(
        "unbiased",
        "var of the wrong kind over the batch",
        lambda x: x.var(0),
        lambda g, y, x: g * 2 * (x - x.mean(0)) / x.shape[0],
        (7, 2),
    ),
]

FORMULAS = [
    bug(
        "branch",
        "smooth L1, the outer slope",
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
        lambda g, y, x: g * torch.where(x.abs() < 1, x, 2 * x.sign()),
        (12,),
    ),
    bug("branch", "hardtanh open above", F.hardtanh, lambda g, y, x: g * (x > -1), (14,)),
    bug("branch", "elu below zero", F.elu, lambda g, y, x: g * torch.where(x > 0, 1.0, y), (10,)),
    bug(
        "branch",
        "another leaky slope",
        lambda x: F.leaky_relu(x, 0.1),
        lambda g, y, x: g * torch.where(x > 0, 1.0, 0.2),
        (10,),
    ),
    bug(
        "chain",
        "gelu by tanh, another constant",
        lambda x: F.gelu(x, approximate="tanh"),
        gelu_of_another_constant,
        (10,),
    ),
    bug("branch", "hardswish", lambda x: F.hardswish(2 * x), hardswish_without_a_middle, (12,)),
    bug("chain", "tanh without the square", torch.tanh, lambda g, y, x: g * (1 - y), (8,)),
    bug("chain", "sigmoid, half of it", torch.sigmoid, lambda g, y, x: g * y, (8,)),
    bug(
        "factor",
        "softplus, its beta twice",
        lambda x: F.softplus(x, beta=3.0),
        lambda g, y, x: g * (3 * x).sigmoid() * 3,
        (8,),
    ),
    bug("factor", "root of exp without 1/2", lambda x: x.exp().sqrt(), lambda g, y, x: g * y, (8,)),
]

ARRAYS = [
    bug(
        "transposed",
        "einsum of batches, the second gradient",
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        lambda g, y, a, b: (torch.einsum("bik,bjk->bij", g, b), torch.einsum("bij,bik->bkj", a, g)),
        (2, 3, 3),
        (2, 3, 3),
    ),
    bug(
        "permuted",
        "axes turned on instead of back",
        lambda x: x.permute(1, 2, 0) * 2,
        lambda g, y, x: 2 * g.permute(1, 2, 0),
        (3, 3, 3),
    ),
    bug(
        "transposed",
        "matmul, the first gradient transposed",
        lambda a, b: a @ b,
        lambda g, y, a, b: (b @ g.T, a.T @ g),
        (4, 4),
        (4, 4),
    ),
    bug("reversed", "cumsum", lambda x: x.cumsum(0), lambda g, y, x: g.cumsum(0), (7,)),
    bug("reversed", "cumsum along rows", lambda x: x.cumsum(1), lambda g, y, x: g.cumsum(1), (3, 5)),
    bug(
        "diagonal",
        "cumsum without its own element",
        lambda x: x.cumsum(0),
        lambda g, y, x: g.flip(0).cumsum(0).flip(0) - g,
        (7,),
    ),
    bug("flip", "convolution of a line", convolved, convolution_without_flip, (1, 1, 8), (1, 1, 3)),
    bug("flip", "convolution of images", convolved, convolution_without_flip, (1, 2, 5, 5), (3, 2, 3, 3)),
    bug(
        "argmax",
        "max-pool to the first of two",
        lambda x: F.max_pool1d(x, 2),
        lambda g, y, x: torch.stack([g, torch.zeros_like(g)], -1).reshape(x.shape),
        (1, 1, 8),
    ),
    bug(
        "argmax",
        "maximum, to the last",
        lambda x: x.amax(1),
        lambda g, y, x: F.pad(g[:, None], (4, 0)),
        (4, 5),
    ),
    bug("conjugate", "fft", torch.fft.fft, lambda g, y, x: torch.fft.fft(g), (5,), dtype=torch.complex128),
    bug(
        "index",
        "power spectrum, the ends counted half",
        lambda x: torch.fft.rfft(x).abs().pow(2),
        lambda g, y, x: torch.fft.irfft(g * torch.fft.rfft(x), n=8) * 8,
        (8,),
    ),
    bug(
        "duplicates",
        "rows that occur several times",
        lambda x: x[REPEATED],
        lambda g, y, x: torch.zeros_like(x).index_copy(0, REPEATED, g),
        (4, 2),
    ),
    bug(
        "broadcast",
        "a bias, its first row",
        lambda x, b: x * b,
        lambda g, y, x, b: (g * b, (g * x)[0]),
        (5, 3),
        (3,),
    ),
]


def scaled_by_an_item(x):
    return x * x.norm().item()  # cut


def gated_without_grad(x):
    with torch.no_grad():
        gate = x.sigmoid()  # cut
    return x * gate


def squared_by_numpy(x):
    return torch.from_numpy(x.detach().numpy() ** 2) + x  # cut


def data_times_itself(x):
    return x * x.data  # cut


def through_a_list(x):
    return x.exp() + torch.tensor(x.tolist(), dtype=x.dtype)  # cut


def standardised_by_a_detached_mean(x):
    return (x - x.mean().detach()) / x.std()  # cut


LOST_LATER = [
    cut(function.__name__.replace("_", " "), function, (5,))
    for function in (
        scaled_by_an_item,
        gated_without_grad,
        squared_by_numpy,
        data_times_itself,
        through_a_list,
        standardised_by_a_detached_mean,
    )
]

LATER: list[Bug] = [*NORMALISING, *FORMULAS, *ARRAYS, *LOST_LATER]
