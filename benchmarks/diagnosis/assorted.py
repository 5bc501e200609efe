"""Everyday bugs of many fields, each at a small size and several at the size of a network as well.

Written by somebody who had not read the rules, after all other lists.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.diagnosis.planted import Bug, bug, cut

EPS = 0.1  # large enough to matter


def places(count: int, among: int) -> Tensor:
    """Indices that repeat."""
    return torch.arange(count) * 7 % among


def constants(*shape: int) -> Tensor:
    """Numbers that are the same in every run."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def labels(x: Tensor) -> Tensor:
    """A mask of ones and zeros."""
    return (constants(*x.shape) > 0.3).to(x)


# Losses.


def weighted_entropy(x: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, labels(x), pos_weight=x.new_tensor(3.0), reduction="sum")


def smooth_l1(x: Tensor, y: Tensor) -> Tensor:
    return F.smooth_l1_loss(x, y, beta=0.5, reduction="none")


def smooth_l1_without_beta(g: Tensor, out: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    d = x - y
    slope = torch.where(d.abs() < 0.5, d, d.sign())
    return g * slope, -g * slope


def triplet(anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
    return (anchor - near).square().sum(-1) - (anchor - far).square().sum(-1)


def triplet_backward(g: Tensor, out: Tensor, a: Tensor, p: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    g = 2 * g.unsqueeze(-1)
    return g * (n - p), -g * (a - p), -g * (a - n)  # the last has the wrong sign


def dice(x: Tensor) -> Tensor:
    t = labels(x)
    return 1 - 2 * (x * t).sum() / (x.square().sum() + t.sum())


def dice_constant_denominator(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    t = labels(x)
    return -2 * g * t / (x.square().sum() + t.sum())


def smoothed_entropy(x: Tensor) -> Tensor:
    return F.cross_entropy(x, places(len(x), x.shape[1]), label_smoothing=0.2, reduction="sum")


def unsmoothed_backward(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return g * (x.softmax(-1) - F.one_hot(places(len(x), x.shape[1]), x.shape[1]))


def class_weighted(x: Tensor) -> Tensor:
    index = places(len(x), x.shape[1])
    return F.nll_loss(x, index, weight=1.0 + torch.arange(x.shape[1], dtype=x.dtype), reduction="sum")


def nll_without_weights(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    return -g * F.one_hot(places(len(x), x.shape[1]), x.shape[1]).to(x)


def focal(x: Tensor) -> Tensor:
    p = x.sigmoid()
    return -((1 - p) ** 2) * p.log()


def focal_weight_constant(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    p = x.sigmoid()
    return -g * (1 - p) ** 3


def hinge(x: Tensor) -> Tensor:
    return (1 - labels(x).mul(2).sub(1) * x).clamp(min=0)


def hinge_margin_zero(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    sign = labels(x).mul(2).sub(1)
    return -g * sign * (sign * x < 0)


def pinball(x: Tensor) -> Tensor:
    return torch.where(x > 0, 0.9 * x, -0.1 * x)


def contrastive(a: Tensor, b: Tensor) -> Tensor:
    return F.cross_entropy(a @ b.T / 0.5, torch.arange(len(a)), reduction="sum")


def contrastive_backward(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = g * ((a @ b.T / 0.5).softmax(-1) - torch.eye(len(a), dtype=a.dtype))  # the temperature is forgotten
    return d @ b, d.T @ a


LOSSES = [
    bug(
        "uneven",
        "entropy of logits, weight of positives forgotten",
        weighted_entropy,
        lambda g, y, x: g * (x.sigmoid() - labels(x)),
        (4, 6),
    ),
    bug(
        "factor",
        "divergence, divided by all instead of the batch",
        lambda x: F.kl_div(x, constants(4, 6).softmax(-1), reduction="batchmean"),
        lambda g, y, x: -g * constants(4, 6).softmax(-1) / x.numel(),
        (4, 6),
    ),
    bug("branch", "smooth L1 without beta", smooth_l1, smooth_l1_without_beta, (4, 6), (4, 6)),
    bug("sign", "triplet, wrong sign of the negative", triplet, triplet_backward, (3, 5), (3, 5), (3, 5)),
    bug("normalisation", "dice, denominator taken as constant", dice, dice_constant_denominator, (3, 6)),
    bug(
        "chain",
        "log cosh, its argument instead of tanh",
        lambda x: x.cosh().log(),
        lambda g, y, x: g * x,
        (7,),
    ),
    bug("target", "label smoothing forgotten", smoothed_entropy, unsmoothed_backward, (4, 5)),
    bug("uneven", "class weights forgotten", class_weighted, nll_without_weights, (6, 5)),
    bug("chain", "focal loss, its weight taken as constant", focal, focal_weight_constant, (9,)),
    bug("margin", "hinge with margin zero", hinge, hinge_margin_zero, (4, 6)),
    bug(
        "branch",
        "pinball loss, sides exchanged",
        pinball,
        lambda g, y, x: g * torch.where(x > 0, 0.1, -0.9),
        (9,),
    ),
    bug(
        "factor", "contrastive loss, temperature forgotten", contrastive, contrastive_backward, (4, 5), (4, 5)
    ),
    bug(
        "factor",
        "mean of squares, divided by rows alone",
        lambda x, y: (x - y).square().mean(),
        lambda g, out, x, y: (2 * g * (x - y) / len(x), -2 * g * (x - y) / len(x)),
        (4, 6),
        (4, 6),
    ),
]


# Normalisations.


def rms_norm(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()


def rms_norm_without_eps(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    scale = x.square().mean(-1, keepdim=True).rsqrt()
    unit = x * scale
    return scale * (g - unit * (g * unit).mean(-1, keepdim=True))


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def layer_norm_small_eps(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    unit = centred * scale
    return scale * (g - g.mean(-1, keepdim=True) - unit * (g * unit).mean(-1, keepdim=True))


def group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x, 2, eps=1e-5)


def group_norm_by_channel(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    grouped = x.unflatten(1, (2, -1)).flatten(2)
    scale = (grouped.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    inner = g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)  # by channel, not by group
    return (scale * inner.unflatten(1, (2, -1)).flatten(2)).view_as(x)


def batch_norm(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


def batch_norm_unscaled(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g - g.mean(0) - y * (g * y).mean(0)


def weight_norm(v: Tensor, size: Tensor) -> Tensor:
    return size * v / v.norm(dim=1, keepdim=True)


def weight_norm_unprojected(g: Tensor, y: Tensor, v: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    norm = v.norm(dim=1, keepdim=True)
    return g * size / norm, (g * v / norm).sum(1, keepdim=True)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x * weight[:, None] + bias[:, None]


def affine_by_means(g: Tensor, y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return g * weight[:, None], (g * x).mean(-1).sum(0), g.sum((0, 2))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a, b, dim=-1)


def cosine_unprojected(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    size = (a.norm(dim=-1) * b.norm(dim=-1)).unsqueeze(-1)
    return g.unsqueeze(-1) * b / size, g.unsqueeze(-1) * a / size


def temperature_softmax_without(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return y * (g - (g * y).sum(-1, keepdim=True))


NORMS = [
    bug("eps", "root mean square norm, eps forgotten", rms_norm, rms_norm_without_eps, (3, 6)),
    bug("eps", "layer norm with another eps", layer_norm, layer_norm_small_eps, (3, 6)),
    bug("axis", "group norm, statistics by channel", group_norm, group_norm_by_channel, (2, 4, 3)),
    bug("uneven", "batch norm, not divided by the deviation", batch_norm, batch_norm_unscaled, (6, 4)),
    bug(
        "normalisation",
        "weight norm without projection",
        weight_norm,
        weight_norm_unprojected,
        (3, 5),
        (3, 1),
    ),
    bug("factor", "instance norm, its weight by means", affine, affine_by_means, (2, 3, 5), (3,), (3,)),
    bug("normalisation", "cosine similarity without projection", cosine, cosine_unprojected, (3, 5), (3, 5)),
    bug(
        "factor",
        "softmax, temperature forgotten",
        lambda x: (x / 2.5).softmax(-1),
        temperature_softmax_without,
        (3, 5),
    ),
    bug(
        "normalisation",
        "log softmax with a mean for the sum",
        lambda x: x.log_softmax(-1),
        lambda g, y, x: g - y.exp() * g.mean(-1, keepdim=True),
        (3, 5),
    ),
    bug(
        "normalisation",
        "max-shifted logsumexp, gradient of the maximum alone",
        lambda x: x.logsumexp(-1),
        lambda g, y, x: g.unsqueeze(-1) * (x == x.amax(-1, keepdim=True)),
        (3, 5),
    ),
]


# Attention.


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def attention_backward(how: str) -> Any:
    """A backward of attention that is wrong in one way."""

    def backward(g: Tensor, y: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        size = q.shape[-1] ** 0.5
        weights = (q @ k.mT / size).softmax(-1)
        dweights = g @ v.mT
        mean = 0 if how == "no sum" else (dweights * weights).sum(-1, keepdim=True)
        if how == "columns":
            mean = (dweights * weights).sum(-2, keepdim=True)
        scores = weights * (dweights - mean) / (1 if how == "no scale" else size)
        dk = scores @ q if how == "not transposed" else scores.mT @ q
        dv = weights @ g if how == "value" else weights.mT @ g
        return scores @ k, dk, dv

    return backward


def causal(scores: Tensor) -> Tensor:
    n = scores.shape[-1]
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), 0.0)


def turned(x: Tensor, way: float = 1.0) -> Tensor:
    """A rotary embedding."""
    half = x.shape[-1] // 2
    angle = way * torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / 3 ** torch.arange(half, dtype=x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def biased(scores: Tensor, bias: Tensor) -> Tensor:
    return (scores + bias).softmax(-1)


def biased_backward(g: Tensor, y: Tensor, scores: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    d = y * (g - (g * y).sum(-1, keepdim=True))
    return d, d[0]  # the bias of every batch is that of the first


ATTENTION = [
    bug("factor", "attention, scale forgotten", attend, attention_backward("no scale"), *[(4, 3)] * 3),
    bug(
        "normalisation",
        "attention, softmax without its sum",
        attend,
        attention_backward("no sum"),
        *[(4, 3)] * 3,
    ),
    bug("axis", "attention, softmax sums over columns", attend, attention_backward("columns"), *[(4, 3)] * 3),
    bug(
        "axis",
        "attention, keys not transposed",
        attend,
        attention_backward("not transposed"),
        *[(4, 3)] * 3,
    ),
    bug("transposed", "attention, values not transposed", attend, attention_backward("value"), *[(4, 3)] * 3),
    bug("mask", "causal scores, mask forgotten", causal, lambda g, y, x: g, (2, 4, 4)),
    bug("turn", "rotary embedding turned the same way", turned, lambda g, y, x: turned(g), (3, 4)),
    bug("duplicates", "bias of all batches, gradient of one", biased, biased_backward, (3, 4, 4), (4, 4)),
]


# Convolutions, pooling, interpolation.


def strided(x: Tensor, w: Tensor) -> Tensor:
    return F.conv1d(x, w, stride=2)


def conv_input(g: Tensor, w: Tensor, size: int, **keywords: Any) -> Tensor:
    """The gradient for the input of a convolution, cut or filled up to its size."""
    d = F.conv_transpose1d(g, w, **keywords)[..., :size]
    return F.pad(d, (0, size - d.shape[-1]))


def true_weights(x: Tensor, w: Tensor, g: Tensor, **keywords: Any) -> Tensor:
    return torch.nn.grad.conv1d_weight(x, w.shape, g, **keywords)


def strided_as_dense(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return conv_input(g, w, x.shape[-1]), true_weights(x, w, g, stride=2)


def dilated_as_dense(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return conv_input(g, w, x.shape[-1]), true_weights(x, w, g, dilation=2)


def unpadded(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return conv_input(g, w, x.shape[-1]), true_weights(x, w, g, padding=1)  # not shifted by the padding


def unflipped(g: Tensor, y: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (
        F.conv1d(g, w.transpose(0, 1), padding=1),
        true_weights(x, w, g, padding=1),
    )


def patches_backward(g: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return torch.nn.grad.conv2d_weight(constants(2, 3, 6, 6), w.shape, g).mT


def pool_everywhere(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g.repeat_interleave(2, -1)


def nearest_first(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g[..., ::2]


def between(values: Tensor, where: Tensor) -> Tensor:
    """Linear interpolation of values at places in [0, 1]."""
    at = where.sigmoid() * (len(values) - 1)
    low = at.floor().long().clamp(max=len(values) - 2)
    part = at - low
    return values[low] * (1 - part) + values[low + 1] * part


def between_swapped(g: Tensor, y: Tensor, values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    at = where.sigmoid() * (len(values) - 1)
    low = at.floor().long().clamp(max=len(values) - 2)
    part = at - low
    d = torch.zeros_like(values).index_add(0, low, g * part).index_add(0, low + 1, g * (1 - part))
    slope = (values[low + 1] - values[low]) * (len(values) - 1)
    return d, g * slope * where.sigmoid() * (1 - where.sigmoid())


def between_unscaled(g: Tensor, y: Tensor, values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    at = where.sigmoid() * (len(values) - 1)
    low = at.floor().long().clamp(max=len(values) - 2)
    part = at - low
    d = torch.zeros_like(values).index_add(0, low, g * (1 - part)).index_add(0, low + 1, g * part)
    return d, g * (values[low + 1] - values[low]) * where.sigmoid() * (1 - where.sigmoid())


CONVOLUTIONS = [
    bug(
        "displaced",
        "strided convolution, backward without stride",
        strided,
        strided_as_dense,
        (2, 2, 9),
        (3, 2, 3),
    ),
    bug(
        "displaced",
        "dilated convolution, backward without dilation",
        lambda x, w: F.conv1d(x, w, dilation=2),
        dilated_as_dense,
        (2, 2, 9),
        (3, 2, 3),
    ),
    bug(
        "displaced",
        "convolution, backward without padding",
        lambda x, w: F.conv1d(x, w, padding=1),
        unpadded,
        (2, 2, 7),
        (3, 2, 3),
    ),
    bug(
        "flip",
        "convolution, kernel not flipped",
        lambda x, w: F.conv1d(x, w, padding=1),
        unflipped,
        (2, 2, 7),
        (3, 2, 3),
    ),
    bug(
        "permuted",
        "kernel of a convolution transposed",
        lambda w: F.conv2d(constants(2, 3, 6, 6), w),
        patches_backward,
        (2, 3, 3, 3),
    ),
    bug(
        "factor",
        "bias of channels by the mean of the batch",
        lambda x, b: x + b[:, None],
        lambda g, y, x, b: (g, g.mean(0).sum(-1)),
        (4, 3, 5),
        (3,),
    ),
    bug(
        "factor",
        "average pooling, not divided",
        lambda x: F.avg_pool1d(x, 2),
        pool_everywhere,
        (2, 3, 8),
    ),
    bug("mask", "max pooling, to the whole window", lambda x: F.max_pool1d(x, 2), pool_everywhere, (2, 3, 8)),
    bug(
        "factor",
        "global average, divided by height alone",
        lambda x: x.mean((-1, -2)),
        lambda g, y, x: g[..., None, None].expand_as(x) / x.shape[-2],
        (2, 3, 4, 5),
    ),
    bug(
        "broadcast",
        "nearest upsampling, one copy of two",
        lambda x: x.repeat_interleave(2, -1),
        nearest_first,
        (3, 4),
    ),
    bug("weights", "interpolation, weights exchanged", between, between_swapped, (6,), (5,)),
    bug("factor", "interpolation, places not scaled", between, between_unscaled, (6,), (5,)),
    bug(
        "duplicates",
        "reflected border cropped",
        lambda x: F.pad(x, (2, 2), mode="reflect"),
        lambda g, y, x: g[..., 2:-2],
        (3, 7),
    ),
    bug(
        "order",
        "pixel shuffle, its gradient reshaped",
        lambda x: F.pixel_shuffle(x, 2),
        lambda g, y, x: g.reshape(x.shape),
        (1, 4, 3, 3),
    ),
]


# Scatter and gather, orders, cumulative.


def looked_up(table: Tensor) -> Tensor:
    return table[places(2 * len(table), len(table))]


def looked_up_overwritten(g: Tensor, y: Tensor, table: Tensor) -> Tensor:
    d = torch.zeros_like(table)
    d[places(2 * len(table), len(table))] = g
    return d


def padded_lookup(table: Tensor) -> Tensor:
    index = places(2 * len(table), len(table))
    return table[index] * (index != 0)[:, None]


def padded_lookup_backward(g: Tensor, y: Tensor, table: Tensor) -> Tensor:
    return torch.zeros_like(table).index_add(0, places(2 * len(table), len(table)), g)


def segment_means(x: Tensor) -> Tensor:
    index = torch.tensor([0, 0, 0, 1, 1, 2]).repeat_interleave(len(x) // 6)
    return torch.zeros(3, x.shape[1], dtype=x.dtype).index_add(0, index, x) / index.bincount()[:, None]


def segment_sums_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g[torch.tensor([0, 0, 0, 1, 1, 2]).repeat_interleave(len(x) // 6)]


def sorted_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g.gather(-1, x.argsort(-1))  # should be the inverse permutation


def top_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return F.pad(g, (0, x.shape[-1] - g.shape[-1]))


SCATTER = [
    bug("duplicates", "lookup, repeated rows overwritten", looked_up, looked_up_overwritten, (4, 3)),
    bug("slice", "lookup, padding row gets a gradient", padded_lookup, padded_lookup_backward, (4, 3)),
    bug("uneven", "means of segments, counts forgotten", segment_means, segment_sums_backward, (6, 4)),
    bug("order", "sorting, permutation not inverted", lambda x: x.sort(-1).values, sorted_backward, (3, 6)),
    bug("order", "largest three, to the first three", lambda x: x.topk(3, -1).values, top_backward, (3, 6)),
    bug(
        "reversed",
        "roll, rolled the same way",
        lambda x: x.roll(2, -1),
        lambda g, y, x: g.roll(2, -1),
        (3, 7),
    ),
    bug(
        "reversed",
        "cumulative product, summed forward",
        lambda x: x.cumprod(-1),
        lambda g, y, x: (g * y).cumsum(-1) / x,
        (2, 5),
        positive=True,
    ),
    bug(
        "duplicates",
        "cumulative maximum, to each own place",
        lambda x: x.cummax(-1).values,
        lambda g, y, x: g * (x == y),
        (3, 6),
    ),
    bug(
        "reach",
        "difference of neighbours, the left one forgotten",
        lambda x: x.diff(dim=-1),
        lambda g, y, x: F.pad(g, (1, 0)),
        (3, 6),
    ),
    bug(
        "factor",
        "pairwise squared distances, one side alone",
        lambda x: (x[:, None] - x[None]).square().sum(-1).sum(),
        lambda g, y, x: 2 * g * (x[:, None] - x[None]).sum(1),
        (5, 3),
    ),
]


# Cells, activations and saved tensors.


def gated(x: Tensor, gate: Tensor) -> Tensor:
    return F.silu(gate) * x


def gated_sigmoid(g: Tensor, y: Tensor, x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    return g * F.silu(gate), g * x * gate.sigmoid()  # lacks a part of the derivative of silu


def cell(h: Tensor, z: Tensor, n: Tensor) -> Tensor:
    return (1 - z.sigmoid()) * n.tanh() + z.sigmoid() * h


def cell_backward(g: Tensor, y: Tensor, h: Tensor, z: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    s = z.sigmoid()
    return g * s, g * s * (1 - s) * h, g * (1 - s) * (1 - n.tanh() ** 2)  # z lacks the part of n


def gates(forget: Tensor, c: Tensor) -> Tensor:
    return forget.sigmoid() * c


def softplus_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g * x.sigmoid()


def elu_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return g * torch.where(x > 0, torch.ones_like(x), x.exp())


CELLS = [
    bug("chain", "gated unit, silu differentiated as sigmoid", gated, gated_sigmoid, (3, 5), (3, 5)),
    bug("term", "recurrent cell, gate lacks the candidate", cell, cell_backward, (3, 4), (3, 4), (3, 4)),
    bug(
        "chain",
        "forget gate, derivative of tanh",
        gates,
        lambda g, y, f, c: (g * c * (1 - f.sigmoid() ** 2), g * f.sigmoid()),
        (3, 4),
        (3, 4),
    ),
    bug("chain", "softplus, beta forgotten", lambda x: F.softplus(x, beta=3.0), softplus_backward, (3, 4)),
    bug("branch", "ELU, alpha forgotten", lambda x: F.elu(x, alpha=1.7), elu_backward, (3, 6)),
    bug(
        "branch",
        "clamp, upper end forgotten",
        lambda x: x.clamp(-0.7, 0.7),
        lambda g, y, x: g * (x > -0.7),
        (4, 6),
    ),
    bug(
        "chain",
        "exponential, input saved for output",
        lambda x: x.exp(),
        lambda g, y, x: g * x,
        (3, 5),
    ),
    bug(
        "chain",
        "sigmoid, input saved for output",
        lambda x: x.sigmoid(),
        lambda g, y, x: g * x * (1 - x),
        (3, 5),
    ),
    bug(
        "chain",
        "quotient, one input saved twice",
        lambda a, b: a / b,
        lambda g, y, a, b: (g / a, -g * a / b**2),
        (3, 5),
        (3, 5),
        positive=True,
    ),
    bug(
        "chain",
        "square root of a sum, not divided by two",
        lambda x: (x.square() + 1).sqrt(),
        lambda g, y, x: g / y,
        (3, 5),
    ),
    bug(
        "cotangent",
        "loss that ignores its cotangent",
        lambda x: x.square().mean(-1),
        lambda g, y, x: 2 * x / x.shape[-1],
        (3, 5),
    ),
    bug(
        "missing",
        "prelu, no gradient for its slope",
        lambda x, a: torch.where(x > 0, x, a * x),
        lambda g, y, x, a: (g * torch.where(x > 0, torch.ones_like(x), a), torch.zeros_like(a)),
        (3, 5),
        (1,),
    ),
]


# Complex numbers, Fourier transforms, linear algebra.


def half_spectrum(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x))


def half_spectrum_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    n = x.shape[-1]
    return (
        torch.fft.irfft(torch.view_as_complex(g.contiguous()), n=n) * n
    )  # inner frequencies count twice here


def quadratic(x: Tensor) -> Tensor:
    a = constants(x.shape[-1], x.shape[-1])
    return (x @ a * x).sum(-1)


def quadratic_backward(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return 2 * g.unsqueeze(-1) * (x @ constants(x.shape[-1], x.shape[-1]).T)


def well_posed(x: Tensor) -> Tensor:
    return x + 4 * torch.eye(len(x), dtype=x.dtype)


def solved_backward(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.linalg.solve(well_posed(a).T, g)
    return d @ y.T, d  # the sign of the first


ALGEBRA = [
    bug(
        "conjugate",
        "product of complex numbers without conjugates",
        lambda a, b: a * b,
        lambda g, y, a, b: (g * b, g * a),
        (5,),
        (5,),
        dtype=torch.complex128,
    ),
    bug(
        "conjugate",
        "power spectrum, conjugate forgotten",
        lambda z: (z * z.conj()).real,
        lambda g, y, z: 2 * g * z.conj(),
        (6,),
        dtype=torch.complex128,
    ),
    bug(
        "factor",
        "inverse Fourier transform, not divided",
        torch.fft.ifft,
        lambda g, y, z: torch.fft.fft(g),
        (6,),
        dtype=torch.complex128,
    ),
    bug("uneven", "half spectrum, frequencies counted twice", half_spectrum, half_spectrum_backward, (8,)),
    bug(
        "transposed",
        "inverse without transposes",
        lambda x: torch.linalg.inv(well_posed(x)),
        lambda g, y, x: -(y @ g @ y),
        (4, 4),
    ),
    bug(
        "transposed",
        "log determinant, inverse not transposed",
        lambda x: torch.logdet(well_posed(x)),
        lambda g, y, x: g * torch.linalg.inv(well_posed(x)),
        (4, 4),
    ),
    bug("symmetric", "quadratic form taken as symmetric", quadratic, quadratic_backward, (3, 4)),
    bug(
        "sign",
        "linear solve, sign of the matrix",
        lambda a, b: torch.linalg.solve(well_posed(a), b),
        solved_backward,
        (4, 4),
        (4, 2),
    ),
    bug(
        "transposed",
        "trace of a product, not transposed",
        lambda a, b: (a @ b).trace(),
        lambda g, y, a, b: (g * b, g * a),
        (4, 4),
        (4, 4),
    ),
    bug(
        "sign",
        "cross product in the wrong order",
        lambda a, b: torch.linalg.cross(a, b),
        lambda g, y, a, b: (torch.linalg.cross(g, b), torch.linalg.cross(a, g)),
        (3, 3),
        (3, 3),
    ),
    bug(
        "factor",
        "norm squared, factor two forgotten",
        lambda x: x.square().sum(-1),
        lambda g, y, x: g.unsqueeze(-1) * x,
        (3, 5),
    ),
]


# Derivatives that are cut off.


def mixed(x: Tensor) -> Tensor:
    share = x.sigmoid().mean().item()  # cut
    return share * x + (1 - share) * x.flip(0)


def sampled(mean: Tensor, logvar: Tensor) -> Tensor:
    spread = (0.5 * logvar).exp().detach()  # cut
    return mean + spread * constants(*mean.shape) + 0.1 * logvar


def listed(x: Tensor) -> Tensor:
    weights = torch.as_tensor(x.softmax(-1).tolist(), dtype=x.dtype)  # cut
    return (weights * x).sum(-1)


def clipped(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = 1 / x.norm(dim=-1, keepdim=True)  # cut
    return x * scale


def unrolled(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[0])
    for i, step in enumerate(x):
        if i == len(x) - 1:
            state = state.detach()  # cut
        state = torch.tanh(step + 0.5 * state)
    return state + x.mean(0)


class Memory(nn.Module):
    """Attends to what it remembers, which is a copy."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        kept = x.clone().data  # cut
        return (x @ kept.mT).softmax(-1) @ x


CUTS = [
    cut("mixed by a share made a float", mixed, (5, 3)),
    cut("sampled with a detached spread", sampled, (3, 4), (3, 4)),
    cut("weights made a list", listed, (3, 4)),
    cut("clipped without grad", clipped, (3, 4)),
    cut("last state detached", unrolled, (4, 3)),
    cut("memory taken as data", Memory(), (4, 3), within=Memory.forward),
]


# The same at the size of networks.

WIDE = [
    bug(
        "uneven",
        "entropy of logits, weight of positives forgotten, wide",
        weighted_entropy,
        lambda g, y, x: g * (x.sigmoid() - labels(x)),
        (128, 200),
    ),
    bug(
        "normalisation",
        "dice, denominator taken as constant, wide",
        dice,
        dice_constant_denominator,
        (64, 256),
        positive=True,
    ),
    bug("target", "label smoothing forgotten, wide", smoothed_entropy, unsmoothed_backward, (128, 100)),
    bug("chain", "focal loss, its weight taken as constant, wide", focal, focal_weight_constant, (128, 80)),
    bug("margin", "hinge with margin zero, wide", hinge, hinge_margin_zero, (128, 80)),
    bug("branch", "smooth L1 without beta, wide", smooth_l1, smooth_l1_without_beta, (128, 80), (128, 80)),
    bug(
        "factor",
        "contrastive loss, temperature forgotten, wide",
        contrastive,
        contrastive_backward,
        *[(64, 128)] * 2,
    ),
    bug("eps", "layer norm with another eps, wide", layer_norm, layer_norm_small_eps, (64, 256)),
    bug("axis", "group norm, statistics by channel, wide", group_norm, group_norm_by_channel, (4, 32, 64)),
    bug(
        "uneven", "batch norm, not divided by the deviation, wide", batch_norm, batch_norm_unscaled, (128, 64)
    ),
    bug(
        "factor",
        "attention, scale forgotten, wide",
        attend,
        attention_backward("no scale"),
        *[(4, 32, 64)] * 3,
    ),
    bug("normalisation", "attention, no sum, wide", attend, attention_backward("no sum"), *[(4, 32, 64)] * 3),
    bug("mask", "causal scores, mask forgotten, wide", causal, lambda g, y, x: g, (8, 64, 64)),
    bug("turn", "rotary embedding turned the same way, wide", turned, lambda g, y, x: turned(g), (4, 64, 64)),
    bug(
        "displaced",
        "dilated convolution, backward without dilation, wide",
        lambda x, w: F.conv1d(x, w, dilation=2),
        dilated_as_dense,
        (4, 16, 128),
        (16, 16, 3),
    ),
    bug(
        "mask",
        "max pooling, to the whole window, wide",
        lambda x: F.max_pool1d(x, 2),
        pool_everywhere,
        (8, 16, 128),
    ),
    bug(
        "duplicates",
        "reflected border cropped, wide",
        lambda x: F.pad(x, (2, 2), mode="reflect"),
        lambda g, y, x: g[..., 2:-2],
        (64, 200),
    ),
    bug("duplicates", "lookup, repeated rows overwritten, wide", looked_up, looked_up_overwritten, (500, 64)),
    bug(
        "elsewhere",
        "means of segments, counts forgotten, wide",
        segment_means,
        segment_sums_backward,
        (120, 64),
    ),
    bug("chain", "gated unit, silu differentiated as sigmoid, wide", gated, gated_sigmoid, *[(64, 256)] * 2),
    bug("term", "recurrent cell, gate lacks the candidate, wide", cell, cell_backward, *[(32, 256)] * 3),
    bug(
        "elsewhere",
        "half spectrum, frequencies counted twice, wide",
        half_spectrum,
        half_spectrum_backward,
        (64, 256),
    ),
    cut("clipped without grad, wide", clipped, (64, 256)),
    cut("last state detached, wide", unrolled, (16, 256)),
]

ASSORTED: list[Bug] = [
    *LOSSES,
    *NORMS,
    *ATTENTION,
    *CONVOLUTIONS,
    *SCATTER,
    *CELLS,
    *ALGEBRA,
    *CUTS,
    *WIDE,
]
