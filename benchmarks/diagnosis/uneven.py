"""Masks that one side forgets, and factors that differ by place: an edge, a triangle, every second index.

Four that readers had met (causal attention, padded pooling, the bins of a real Fourier transform, a dropout
mask drawn again), and 22 of the same kinds, written before the rules for them. With the rules that were
there, 3 of the 26 were named, 7 were told to have "a factor that depends on the output element alone"
without which or where, and 16 were left without a name.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.diagnosis.planted import Bug, bug

D = torch.float64


def tril(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


def attention_backward(g, q, k, v, allowed):
    scale = q.shape[-1] ** -0.5
    p = (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1)
    dp = g @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ g


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, tril(q.shape[-2]))


def causal_unmasked(g, y, q, k, v):
    return attention_backward(g, q, k, v, torch.ones_like(tril(q.shape[-2])))


def causal_off_by_one(g, y, q, k, v):
    size = q.shape[-2]
    shifted = torch.ones(size, size, dtype=torch.bool).tril(1)
    return attention_backward(g, q, k, v, shifted)


NEAREST = (torch.arange(9)[:, None] - torch.arange(9)).abs() <= 2
DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
SAME_DOCUMENT = DOCUMENTS[:, None] == DOCUMENTS


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, NEAREST)


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, SAME_DOCUMENT)


def unmasked(g, y, q, k, v):
    return attention_backward(g, q, k, v, torch.ones_like(NEAREST))


def causal_scores(s: Tensor) -> Tensor:
    return s.masked_fill(~tril(s.shape[-1]), -torch.inf).softmax(-1)


def softmax_of_all(g, y, s):
    p = s.softmax(-1)
    return p * (g - (g * p).sum(-1, keepdim=True))


def mixed(x: Tensor, w: Tensor) -> Tensor:
    """Tokens mixed by a matrix whose upper half is not used."""
    return w.tril() @ x


def pooled(x: Tensor) -> Tensor:
    return F.avg_pool2d(x[None], 3, 1, 1, count_include_pad=False)[0]


def pooled_with_padding(g, y, x):
    kernel = torch.full((1, 1, 3, 3), 1 / 9, dtype=g.dtype)
    return F.conv_transpose2d(g[:, None], kernel, padding=1)[:, 0]


def smoothed(x: Tensor) -> Tensor:
    return F.avg_pool1d(x[None], 3, 1, 1, count_include_pad=True)[0]


def smoothed_by_count(g, y, x):
    count = F.conv1d(torch.ones_like(g)[:, None], torch.ones(1, 1, 3, dtype=g.dtype), padding=1)[:, 0]
    return F.conv_transpose1d((g / count)[:, None], torch.ones(1, 1, 3, dtype=g.dtype), padding=1)[:, 0]


def real_fourier(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x))


def real_fourier_doubled(g, y, x):
    bins = torch.view_as_complex(g.contiguous()).clone()
    return torch.fft.irfft(bins, x.shape[-1]) * x.shape[-1]  # counts the bins inside twice


def simpson(x: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 4, 2, 4, 2, 4, 1], dtype=x.dtype) / 3
    return (x.exp() * weights).sum(-1)


def simpson_swapped(g, y, x):
    weights = torch.tensor([1.0, 2, 4, 2, 4, 2, 1], dtype=x.dtype) / 3
    return g[..., None] * x.exp() * weights


def trapezoid(x: Tensor) -> Tensor:
    return torch.trapezoid(x.sin(), dim=-1)


def symmetric(x: Tensor) -> Tensor:
    upper = x.triu()
    return torch.linalg.matrix_exp((upper + upper.triu(1).mT) / 4).sum(0)


def symmetric_once(g, y, x):
    with torch.enable_grad():
        full = x.detach().triu().requires_grad_()
        whole = full + full.triu(1).mT.detach()
        # The gradient of the whole matrix, of which the lower half is dropped.
        (inner,) = torch.autograd.grad(torch.linalg.matrix_exp(whole / 4).sum(0), whole, g)
    return inner.triu()


CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 4.0], dtype=D)
CLASSES = torch.tensor([0, 1, 2, 3, 1, 0, 2])


def weighted_nll(x: Tensor) -> Tensor:
    picked = x.log_softmax(-1)[torch.arange(len(x)), CLASSES]
    return -(picked * CLASS_WEIGHTS[CLASSES])


def unweighted_nll(g, y, x):
    return g[:, None] * (x.softmax(-1) - F.one_hot(CLASSES, 4))


SEGMENT = torch.tensor([0, 0, 0, 1, 2, 2, 2])


def segment_means(x: Tensor) -> Tensor:
    count = SEGMENT.bincount().to(x.dtype)[:, None]
    return torch.zeros(3, x.shape[1], dtype=x.dtype).index_add(0, SEGMENT, x) / count


def segment_sums(g, y, x):
    return g[SEGMENT]


LENGTHS = torch.tensor([6, 3, 2, 3])
VALID = torch.arange(6) < LENGTHS[:, None]


def mean_of_valid(x: Tensor) -> Tensor:
    return (x.tanh() * VALID).sum(1) / LENGTHS


def mean_of_padded(g, y, x):
    return g[:, None] * (1 - x.tanh() ** 2) * VALID / 6


def running_mean(x: Tensor) -> Tensor:
    return x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)


def running_sum_backward(g, y, x):
    return g.flip(-1).cumsum(-1).flip(-1)


def upsampled(x: Tensor) -> Tensor:
    return F.interpolate(x[None], size=8, mode="nearest")[0]


def downsampled_mean(g, y, x):
    place = torch.arange(8) * 5 // 8
    count = place.bincount().to(g.dtype)
    return torch.zeros_like(x).index_add(1, place, g) / count


GROUP_SCALES = torch.tensor([0.5, 0.5, 2.0, 2.0, 8.0, 8.0], dtype=D)


def dequantised(x: Tensor) -> Tensor:
    return x.sinh() * GROUP_SCALES


def dequantised_by_first(g, y, x):
    return g * x.cosh() * GROUP_SCALES[0]


def kept(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4


def dropout(x: Tensor) -> Tensor:
    return x.sin() * kept(x.shape, 1) / 0.6


def dropout_redrawn(g, y, x):
    return g * x.cos() * kept(x.shape, 2) / 0.6


def dropped_paths(x: Tensor) -> Tensor:
    """Whole samples are dropped."""
    return x.exp() * kept((x.shape[0], 1), 3) / 0.6


def dropped_paths_redrawn(g, y, x):
    return g * x.exp() * kept((x.shape[0], 1), 4) / 0.6


def dropped_weights(x: Tensor, w: Tensor) -> Tensor:
    return x @ (w * kept(w.shape, 5))


def dropped_weights_redrawn(g, y, x, w):
    mask = kept(w.shape, 6)
    return g @ (w * mask).T, (x.T @ g) * mask


def dropout_drawn_anew(g, y, x):
    return g * x.cos() * (torch.rand(x.shape) > 0.4) / 0.6


def scan(x: Tensor) -> Tensor:
    return (x**2).cumsum(-1)


CHANNEL_GAIN = torch.tensor([1.0, 3.0, 1.0, 3.0, 1.0, 3.0], dtype=D)

UNEVEN: list[Bug] = [
    # Met by readers.
    bug(
        "reach",
        "causal attention, the backward without its mask",
        causal,
        causal_unmasked,
        (5, 3),
        (5, 3),
        (5, 3),
    ),
    bug("uneven", "average pooling, padding counted in the backward", pooled, pooled_with_padding, (2, 5, 6)),
    bug(
        "uneven",
        "a real Fourier transform, its inner bins doubled",
        real_fourier,
        real_fourier_doubled,
        (2, 8),
    ),
    bug("redrawn", "dropout, its mask drawn again", dropout, dropout_redrawn, (4, 6)),
    # Of the same kinds.
    bug(
        "reach",
        "causal attention by heads, the backward without its mask",
        causal,
        causal_unmasked,
        (2, 4, 3),
        (2, 4, 3),
        (2, 4, 2),
    ),
    bug(
        "reach",
        "causal attention, the mask of the backward one further",
        causal,
        causal_off_by_one,
        (5, 3),
        (5, 3),
        (5, 3),
    ),
    bug("reach", "attention to near tokens, the backward to all", windowed, unmasked, (9, 2), (9, 2), (9, 2)),
    bug("reach", "packed documents, the backward across them", packed, unmasked, (9, 2), (9, 2), (9, 2)),
    bug("reach", "masked scores, softmax of all in the backward", causal_scores, softmax_of_all, (5, 5)),
    bug("reach", "a scan whose backward stays in place", scan, lambda g, y, x: 2 * x * g, (3, 5)),
    bug(
        "mask",
        "a triangular mixing, its upper half not masked",
        mixed,
        lambda g, y, x, w: (w.tril().T @ g, g @ x.T),
        (5, 3),
        (5, 5),
    ),
    bug(
        "reach",
        "a triangular mixing by the whole matrix",
        mixed,
        lambda g, y, x, w: (w.T @ g, (g @ x.T).tril()),
        (5, 3),
        (5, 5),
    ),
    bug("uneven", "a moving average, divided by the count at the ends", smoothed, smoothed_by_count, (2, 7)),
    bug("uneven", "Simpson's weights, four and two exchanged", simpson, simpson_swapped, (3, 7)),
    bug(
        "uneven",
        "the trapezoidal rule, whole weights at the ends",
        trapezoid,
        lambda g, y, x: g[:, None] * x.cos(),
        (3, 6),
    ),
    bug("uneven", "a symmetric matrix, its lower half forgotten", symmetric, symmetric_once, (4, 4)),
    bug("uneven", "a likelihood by class weights, left out", weighted_nll, unweighted_nll, (7, 4)),
    bug("uneven", "means of segments, taken for sums", segment_means, segment_sums, (7, 2)),
    bug("uneven", "means of padded rows, by the padded length", mean_of_valid, mean_of_padded, (4, 6)),
    bug("uneven", "a running mean, taken for a sum", running_mean, running_sum_backward, (3, 5)),
    bug("uneven", "upsampling, a mean where a sum belongs", upsampled, downsampled_mean, (3, 5)),
    bug("uneven", "scales of groups, the first for all", dequantised, dequantised_by_first, (4, 6)),
    bug("redrawn", "dropped paths, drawn again", dropped_paths, dropped_paths_redrawn, (8, 3)),
    bug("redrawn", "dropped weights, drawn again", dropped_weights, dropped_weights_redrawn, (3, 4), (4, 5)),
    bug("redrawn", "dropout, drawn anew at each call of the backward", dropout, dropout_drawn_anew, (4, 6)),
    bug(
        "uneven",
        "odd channels by a gain that is forgotten",
        lambda x: x.tanh() * CHANNEL_GAIN,
        lambda g, y, x: g * (1 - x.tanh() ** 2),
        (4, 6),
    ),
]


# Nobody makes these mistakes: no diagnosis is right.

SCATTERED = torch.tensor([[1.0, 3, 1, 1, 3], [3, 1, 1, 3, 1], [1, 1, 3, 1, 1], [3, 3, 1, 1, 3]], dtype=D)
SPOTS = kept((5, 5), 7) | torch.eye(5, dtype=torch.bool)
WEIGHTS = torch.rand(5, 5, generator=torch.Generator().manual_seed(8), dtype=D) + 0.5

UNEVEN_NEAR: list[Bug] = [
    bug("nothing", "two factors, scattered", torch.sin, lambda g, y, x: g * x.cos() * SCATTERED, (4, 5)),
    bug(
        "nothing",
        "a mask of no shape, forgotten",
        lambda x: (WEIGHTS * SPOTS) @ x,
        lambda g, y, x: WEIGHTS.T @ g,
        (5, 3),
    ),
    bug(
        "nothing",
        "three factors in a row of numbers",
        lambda x: x.exp(),
        lambda g, y, x: g * y * torch.tensor([2.0, 2, 3, 2, 4, 3, 2, 3, 3, 4]),
        (10,),
    ),
    bug(
        "nothing",
        "another mask, and other factors",
        dropout,
        lambda g, y, x: dropout_redrawn(g, y, x) * torch.linspace(0.5, 1.5, 24, dtype=D).reshape(4, 6),
        (4, 6),
    ),
]
