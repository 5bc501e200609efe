"""Bugs as people write them, gathered before the rules were read: normalisations and reductions."""

from __future__ import annotations

import torch.nn.functional as F

from benchmarks.diagnosis.planted import bug

EPS = 1e-5


# Normalisations ----------------------------------------------------------------------------------


def layer_norm(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()


def layer_norm_without_mean(g, y, x):
    deviation = (x.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()
    return (g - y * (g * y).mean(-1, keepdim=True)) / deviation


def layer_norm_without_variance(g, y, x):
    deviation = (x.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()
    return (g - g.mean(-1, keepdim=True)) / deviation


def layer_norm_without_either(g, y, x):
    return g / (x.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()


def layer_norm_wrong_axis(g, y, x):
    deviation = (x.var(-1, unbiased=False, keepdim=True) + EPS).sqrt()
    return (g - g.mean(0, keepdim=True) - y * (g * y).mean(0, keepdim=True)) / deviation


def batch_norm(x):
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + EPS).sqrt()


def batch_norm_without_variance(g, y, x):
    return (g - g.mean(0)) / (x.var(0, unbiased=False) + EPS).sqrt()


def batch_norm_unbiased(g, y, x):
    deviation = (x.var(0, unbiased=True) + EPS).sqrt()
    return (g - g.mean(0) - y * (g * y).mean(0)) / deviation


def batch_norm_images(x):
    axes = (0, 2)
    return (x - x.mean(axes, keepdim=True)) / (x.var(axes, unbiased=False, keepdim=True) + EPS).sqrt()


def batch_norm_images_without_mean(g, y, x):
    axes = (0, 2)
    deviation = (x.var(axes, unbiased=False, keepdim=True) + EPS).sqrt()
    return (g - y * (g * y).mean(axes, keepdim=True)) / deviation


def rms_norm_without_norm(g, y, x):
    return g / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def standardise(x):
    return (x - x.mean()) / x.std()


def standardise_biased(g, y, x):
    n = x.numel()
    return (g - g.mean() - y * (g * y).sum() / n) / x.std()


NORMALISATIONS = [
    bug(
        "normalisation", "layer norm lacks the term of the mean", layer_norm, layer_norm_without_mean, (3, 5)
    ),
    bug(
        "normalisation",
        "layer norm lacks the term of the variance",
        layer_norm,
        layer_norm_without_variance,
        (3, 5),
    ),
    bug("normalisation", "layer norm lacks both terms", layer_norm, layer_norm_without_either, (4, 3)),
    bug("axis", "layer norm averages the gradient over the batch", layer_norm, layer_norm_wrong_axis, (3, 4)),
    bug(
        "normalisation",
        "batch norm lacks the term of the variance",
        batch_norm,
        batch_norm_without_variance,
        (6, 3),
    ),
    bug("unbiased", "batch norm divides by the unbiased deviation", batch_norm, batch_norm_unbiased, (6, 3)),
    bug(
        "normalisation",
        "batch norm of images lacks the term of the mean",
        batch_norm_images,
        batch_norm_images_without_mean,
        (3, 2, 4),
    ),
    bug(
        "normalisation",
        "rms norm as a plain division",
        lambda x: x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt(),
        rms_norm_without_norm,
        (3, 4),
    ),
    bug(
        "normalisation",
        "l2 norm as a plain division",
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda g, y, x: g / x.norm(dim=-1, keepdim=True),
        (4, 3),
    ),
    bug("normalisation", "softmax without the sum", lambda x: x.softmax(-1), lambda g, y, x: g * y, (3, 4)),
    bug(
        "normalisation",
        "softmax with only the diagonal",
        lambda x: x.softmax(-1),
        lambda g, y, x: g * y * (1 - y),
        (3, 4),
    ),
    bug(
        "normalisation", "log-softmax without the sum", lambda x: x.log_softmax(-1), lambda g, y, x: g, (3, 4)
    ),
    bug(
        "normalisation",
        "normalised by the sum, as a plain division",
        lambda x: x / x.sum(-1, keepdim=True),
        lambda g, y, x: g / x.sum(-1, keepdim=True),
        (3, 4),
        positive=True,
    ),
    bug(
        "normalisation",
        "centred values, the mean forgotten",
        lambda x: x - x.mean(0),
        lambda g, y, x: g,
        (5, 2),
    ),
    bug("unbiased", "standardisation with n for n - 1", standardise, standardise_biased, (7,)),
]


# Reductions --------------------------------------------------------------------------------------

REDUCTIONS = [
    bug(
        "axis",
        "softmax summed over the batch",
        lambda x: x.softmax(-1),
        lambda g, y, x: y * (g - (g * y).sum(0, keepdim=True)),
        (3, 4),
    ),
    bug(
        "unbiased",
        "variance, biased against unbiased",
        lambda x: x.var(-1),
        lambda g, y, x: g[..., None] * 2 * (x - x.mean(-1, keepdim=True)) / x.shape[-1],
        (3, 5),
    ),
    bug(
        "factor", "mean without 1/n", lambda x: x.mean(-1), lambda g, y, x: g[..., None].expand_as(x), (3, 5)
    ),
    bug(
        "factor",
        "squared error without the 2",
        lambda x, t: (x - t).pow(2).mean(),
        lambda g, y, x, t: (g * (x - t) / x.numel(), -g * (x - t) / x.numel()),
        (4, 2),
        (4, 2),
    ),
    bug(
        "axis",
        "sum over rows, spread over columns",
        lambda x: x.sum(0),
        lambda g, y, x: g[:, None].expand(4, 4).clone(),
        (4, 4),
    ),
    bug(
        "axis",
        "mean over columns, spread over rows",
        lambda x: x.mean(1),
        lambda g, y, x: (g / 5).expand(5, 5).clone(),
        (5, 5),
    ),
    bug(
        "chain", "logsumexp as a sum", lambda x: x.logsumexp(-1), lambda g, y, x: g[:, None] * x.exp(), (3, 4)
    ),
    bug(
        "argmax",
        "max to the first element",
        lambda x: x.amax(-1),
        lambda g, y, x: F.pad(g[:, None], (0, x.shape[-1] - 1)),
        (4, 5),
    ),
    bug(
        "chain",
        "norm without the division by the norm",
        lambda x: x.norm(dim=-1),
        lambda g, y, x: g[:, None] * x,
        (3, 4),
    ),
    bug("reversed", "cumulative sum, not reversed", lambda x: x.cumsum(0), lambda g, y, x: g.cumsum(0), (6,)),
    bug(
        "reversed",
        "cumulative sum of rows, not reversed",
        lambda x: x.cumsum(-1),
        lambda g, y, x: g.cumsum(-1),
        (2, 5),
    ),
    bug(
        "chain",
        "product of a row without the other factors",
        lambda x: x.prod(-1),
        lambda g, y, x: (g * y)[:, None].expand_as(x).clone(),
        (3, 4),
    ),
]
