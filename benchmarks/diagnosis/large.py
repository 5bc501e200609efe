"""Everyday bugs at the sizes of networks, where no Jacobian is looked at whole.

They were written before the rules were read. When first run, of 69 bugs 28 were named, 29 were left without a
name and 12 misled (fast mode: 28, 28 and 13), most of these as "wrong at one element only", or as zero. (A
70th was no bug: what is cast to an integer is constant.) The kinds of three were corrected afterwards:
channels of a kernel that are exchanged are a transposed matrix, the counts of segments are a factor of each
output, and keys that are not transposed are a sum over another axis.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.diagnosis.planted import Bug, bug, cut


def drawn(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole_numbers(below: int, *shape: int, seed: int = 7) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


EPS = 1e-5
LABELS = whole_numbers(1000, 128)
TOKENS = whole_numbers(300, 8, 48)  # of a vocabulary of 1000, so that some stand there more than once
PICKED = whole_numbers(128, 64, 96)
SEGMENTS = whole_numbers(40, 256)
KEPT = drawn(64, 512) > -1
KERNEL = drawn(16, 16, 3, 3) / 12
FILTER = torch.complex(drawn(64, 256), drawn(64, 256, seed=8))
ANGLES = torch.arange(64.0, dtype=torch.float64)[:, None] * 100.0 ** (
    -torch.arange(32.0, dtype=torch.float64) / 32
)
SMOOTHING, DELTA = 0.1, 1.0


def rows_normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


def row_scale(x: Tensor) -> Tensor:
    return (x.var(-1, unbiased=False, keepdim=True) + EPS).rsqrt()


def rows_normed_without_mean(g, y, x):
    return row_scale(x) * (g - y * (g * y).mean(-1, keepdim=True))


def rows_normed_without_variance(g, y, x):
    return row_scale(x) * (g - g.mean(-1, keepdim=True))


def affine_normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return rows_normed(x) * w + b


def affine_normed_back(g, x, w):
    normed, gw = rows_normed(x), g * w
    inner = gw - gw.mean(-1, keepdim=True) - normed * (gw * normed).mean(-1, keepdim=True)
    return row_scale(x) * inner, (g * normed).sum(0), g.sum(0)


def affine_normed_weight_averaged(g, y, x, w, b):
    gx, gw, gb = affine_normed_back(g, x, w)
    return gx, gw / len(x), gb


def affine_normed_weight_outside(g, y, x, w, b):
    normed = rows_normed(x)
    inner = g - g.mean(-1, keepdim=True) - normed * (g * normed).mean(-1, keepdim=True)
    return row_scale(x) * inner * w, (g * normed).sum(0), g.sum(0)


def batch_normed(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def batch_normed_by_constants(g, y, x):
    return g * (x.var((0, 2, 3), unbiased=False, keepdim=True) + EPS).rsqrt()


def batch_normed_over_the_batch_only(g, y, x):
    scale = (x.var((0, 2, 3), unbiased=False, keepdim=True) + EPS).rsqrt()
    return scale * (g - g.mean(0, keepdim=True) - y * (g * y).mean(0, keepdim=True))


def groups_normed(x: Tensor) -> Tensor:
    return F.group_norm(x, 8)


def groups_normed_without_variance(g, y, x):
    rows, grad = (t.reshape(t.shape[0], 8, -1) for t in (x, g))
    scale = (rows.var(-1, unbiased=False, keepdim=True) + EPS).rsqrt()
    return (scale * (grad - grad.mean(-1, keepdim=True))).reshape(x.shape)


def rms_normed(x: Tensor, w: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * w


def rms_normed_by_a_constant(g, y, x, w):
    root = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return g * w * root, (g * x * root).sum(0)


def unit_rows(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def standardised_biased(g, y, x):
    return (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def attention_back(g, q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    gw = g @ v.mT
    return weights, weights * (gw - (gw * weights).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])


def attention_without_scale(g, y, q, k, v):
    weights, gs = attention_back(g, q, k, v)
    gs = gs * math.sqrt(q.shape[-1])
    return gs @ k, gs.mT @ q, weights.mT @ g


def attention_keys_not_transposed(g, y, q, k, v):
    weights, gs = attention_back(g, q, k, v)
    return gs @ k, gs @ q, weights.mT @ g


def attention_values_not_transposed(g, y, q, k, v):
    weights, gs = attention_back(g, q, k, v)
    return gs @ k, gs.mT @ q, weights @ g


def attention_without_softmax_sum(g, y, q, k, v):
    weights, _ = attention_back(g, q, k, v)
    gs = weights * (g @ v.mT) / math.sqrt(q.shape[-1])
    return gs @ k, gs.mT @ q, weights.mT @ g


def convolved(x: Tensor) -> Tensor:
    return F.conv2d(x, KERNEL, padding=1)


def convolved_with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b, padding=1)


def convolved_bias_averaged(g, y, x, w, b):
    gx = F.conv_transpose2d(g, w, padding=1)
    gw = torch.nn.grad.conv2d_weight(x, w.shape, g, padding=1)
    return gx, gw, g.mean((0, 2, 3))


def first_of_each_window(g, y, x):
    spread = torch.zeros_like(x)
    spread[..., ::2, ::2] = g
    return spread


def cross_entropy(x: Tensor) -> Tensor:
    return F.cross_entropy(x, LABELS)


def smoothed_cross_entropy(x: Tensor) -> Tensor:
    return F.cross_entropy(x, LABELS, label_smoothing=SMOOTHING)


def row_losses(x: Tensor) -> Tensor:
    return F.cross_entropy(x, LABELS, reduction="none")


def hot(x: Tensor) -> Tensor:
    return F.one_hot(LABELS, x.shape[-1]).to(x.dtype)


def embedded(table: Tensor) -> Tensor:
    return F.embedding(TOKENS, table)


def embedded_overwriting(g, y, table):
    grad = torch.zeros_like(table)
    grad[TOKENS.flatten()] = g.flatten(0, 1)
    return grad


def gathered(x: Tensor) -> Tensor:
    return x.gather(1, PICKED)


def gathered_overwriting(g, y, x):
    return torch.zeros_like(x).scatter(1, PICKED, g)


def segment_means(x: Tensor) -> Tensor:
    sums = torch.zeros(40, x.shape[1], dtype=x.dtype).index_add(0, SEGMENTS, x)
    return sums / torch.bincount(SEGMENTS, minlength=40).clamp(min=1)[:, None]


def huber(x: Tensor) -> Tensor:
    return F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=DELTA)


def gated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def gated_by_sigmoid(g, y, x):
    a, b = x.chunk(2, -1)
    return torch.cat([g * b * a.sigmoid(), g * F.silu(a)], -1)


def gated_halves_exchanged(g, y, x):
    a, b = x.chunk(2, -1)
    s = a.sigmoid()
    return torch.cat([g * F.silu(a), g * b * s * (1 + a * (1 - s))], -1)


def turned(x: Tensor, sign: float = 1.0) -> Tensor:
    """Rotary embedding: pairs of numbers turned by an angle that depends on their place."""
    a, b = x.chunk(2, -1)
    cos, sin = ANGLES.cos().to(x.dtype), sign * ANGLES.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def layer(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w / 16).tanh()


def layer_with_a_wrong_slope(g, y, x, w):
    inner = g * (1 - y) / 16
    return inner @ w.mT, x.mT @ inner


def layer_weight_not_transposed(g, y, x, w):
    inner = g * (1 - y * y) / 16
    return inner @ w, x.mT @ inner


def layer_without_weight(g, y, x, w):
    inner = g * (1 - y * y) / 16
    return inner @ w.mT, torch.zeros_like(w)


def last_column_lost(g, y, x):
    grad = g * (1 - y * y)
    grad[:, -1] = 0
    return grad


def pairs_of_batches(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("bij,bjk->bik", a, b)


def softened(x: Tensor) -> Tensor:
    return x.softmax(-1)


FUNCTIONS: list[Bug] = [
    bug("normalisation", "layer norm without the mean", rows_normed, rows_normed_without_mean, (64, 512)),
    bug(
        "normalisation",
        "layer norm without the variance",
        rows_normed,
        rows_normed_without_variance,
        (64, 512),
    ),
    bug(
        "normalisation",
        "layer norm without the mean, float32",
        rows_normed,
        rows_normed_without_mean,
        (32, 256),
        dtype=torch.float32,
    ),
    bug(
        "factor",
        "layer norm, its weight's gradient averaged",
        affine_normed,
        affine_normed_weight_averaged,
        (64, 512),
        (512,),
        (512,),
    ),
    bug(
        "weight",
        "layer norm, its weight outside the means",
        affine_normed,
        affine_normed_weight_outside,
        (64, 512),
        (512,),
        (512,),
    ),
    bug("normalisation", "batch norm by constants", batch_normed, batch_normed_by_constants, (8, 16, 16, 16)),
    bug(
        "axis",
        "batch norm, its means over the batch only",
        batch_normed,
        batch_normed_over_the_batch_only,
        (8, 16, 16, 16),
    ),
    bug(
        "normalisation",
        "group norm without the variance",
        groups_normed,
        groups_normed_without_variance,
        (16, 32, 8, 8),
    ),
    bug("normalisation", "rms norm by a constant", rms_normed, rms_normed_by_a_constant, (64, 512), (512,)),
    bug(
        "normalisation",
        "rms norm by a constant, float32",
        rms_normed,
        rms_normed_by_a_constant,
        (32, 256),
        (256,),
        dtype=torch.float32,
    ),
    bug(
        "normalisation",
        "unit rows without the projection",
        unit_rows,
        lambda g, y, x: g / x.norm(dim=-1, keepdim=True),
        (64, 512),
    ),
    bug("unbiased", "standardised, the variance biased", standardised, standardised_biased, (64, 128)),
    bug(
        "unbiased",
        "variance divided by n",
        lambda x: x.var(-1),
        lambda g, y, x: 2 * g[:, None] * (x - x.mean(-1, keepdim=True)) / x.shape[-1],
        (64, 256),
    ),
    bug("diagonal", "softmax, its diagonal only", softened, lambda g, y, x: g * y * (1 - y), (8, 64, 64)),
    bug(
        "axis",
        "softmax summed over the queries",
        softened,
        lambda g, y, x: y * (g - (g * y).sum(-2, keepdim=True)),
        (8, 64, 64),
    ),
    bug("normalisation", "softmax without its sum", softened, lambda g, y, x: g * y, (128, 256)),
    bug(
        "diagonal",
        "log softmax, its diagonal only",
        lambda x: x.log_softmax(-1),
        lambda g, y, x: g * (1 - y.exp()),
        (128, 1000),
    ),
    bug(
        "factor",
        "cross entropy, its mean forgotten",
        cross_entropy,
        lambda g, y, x: g * (x.softmax(-1) - hot(x)),
        (128, 1000),
    ),
    bug(
        "target",
        "cross entropy of rows, the label forgotten",
        row_losses,
        lambda g, y, x: g[:, None] * x.softmax(-1),
        (128, 1000),
    ),
    bug(
        "target",
        "cross entropy, the smoothing forgotten",
        smoothed_cross_entropy,
        lambda g, y, x: g * (x.softmax(-1) - hot(x)) / len(x),
        (128, 100 * 10),
    ),
    bug("factor", "attention without its scale", attended, attention_without_scale, *[(8, 64, 64)] * 3),
    bug(
        "axis",
        "attention, keys not transposed",
        attended,
        attention_keys_not_transposed,
        *[(8, 64, 64)] * 3,
    ),
    bug(
        "transposed",
        "attention, values not transposed",
        attended,
        attention_values_not_transposed,
        *[(8, 64, 64)] * 3,
    ),
    bug(
        "normalisation",
        "attention, softmax without its sum",
        attended,
        attention_without_softmax_sum,
        *[(8, 64, 64)] * 3,
    ),
    bug(
        "flip",
        "convolution without its flip",
        convolved,
        lambda g, y, x: F.conv2d(g, KERNEL.transpose(0, 1), padding=1),
        (4, 16, 16, 16),
    ),
    bug(
        "transposed",
        "convolution, its channels exchanged",
        convolved,
        lambda g, y, x: F.conv2d(g, KERNEL.flip(2, 3), padding=1),
        (4, 16, 16, 16),
    ),
    bug(
        "factor",
        "convolution, its bias averaged",
        convolved_with_bias,
        convolved_bias_averaged,
        (4, 16, 16, 16),
        (16, 16, 3, 3),
        (16,),
    ),
    bug(
        "argmax",
        "max pool to the first of each window",
        lambda x: F.max_pool2d(x, 2),
        first_of_each_window,
        (4, 16, 16, 16),
    ),
    bug(
        "factor",
        "average pool without its quarter",
        lambda x: F.avg_pool2d(x, 2),
        lambda g, y, x: g.repeat_interleave(2, -1).repeat_interleave(2, -2),
        (4, 16, 16, 16),
    ),
    bug(
        "duplicates",
        "nearest upsampling by the corner",
        lambda x: F.interpolate(x, scale_factor=2),
        lambda g, y, x: g[..., ::2, ::2],
        (4, 8, 16, 16),
    ),
    bug("duplicates", "embedding overwritten", embedded, embedded_overwriting, (1000, 64)),
    bug("duplicates", "gather overwritten", gathered, gathered_overwriting, (64, 128)),
    bug("uneven", "segment means without the count", segment_means, lambda g, y, x: g[SEGMENTS], (256, 64)),
    bug(
        "transposed",
        "batched product, second not transposed",
        pairs_of_batches,
        lambda g, y, a, b: (g @ b, a.mT @ g),
        (8, 32, 32),
        (8, 32, 32),
    ),
    bug(
        "reversed",
        "cumulative sum not reversed",
        lambda x: x.cumsum(-1),
        lambda g, y, x: g.cumsum(-1),
        (32, 1024),
    ),
    bug(
        "reversed",
        "shift the same way",
        lambda x: x.roll(3, -1) * 2,
        lambda g, y, x: g.roll(3, -1) * 2,
        (64, 512),
    ),
    bug(
        "sign",
        "differences with the other sign",
        lambda x: x.diff(dim=-1),
        lambda g, y, x: F.pad(g, (0, 1)) - F.pad(g, (1, 0)),
        (64, 512),
    ),
    bug("branch", "huber without its linear part", huber, lambda g, y, x: g * x, (64, 256)),
    bug(
        "branch",
        "huber without the sign beyond delta",
        huber,
        lambda g, y, x: g * torch.where(x.abs() < DELTA, x, DELTA),
        (64, 256),
    ),
    bug(
        "branch",
        "clamp, one side forgotten",
        lambda x: x.clamp(-1, 1),
        lambda g, y, x: g * (x < 1),
        (64, 512),
    ),
    bug(
        "branch",
        "leaky relu, another slope",
        lambda x: F.leaky_relu(x, 0.01),
        lambda g, y, x: torch.where(x > 0, g, 0.1 * g),
        (64, 512),
    ),
    bug("chain", "gate by the sigmoid alone", gated, gated_by_sigmoid, (64, 512)),
    bug("halves", "gate, its halves exchanged", gated, gated_halves_exchanged, (64, 512)),
    bug("turn", "rotary embedding turned again", turned, lambda g, y, x: turned(g), (8, 64, 64)),
    bug(
        "turn",
        "rotary embedding turned again, float32",
        turned,
        lambda g, y, x: turned(g),
        (8, 64, 64),
        dtype=torch.float32,
    ),
    bug(
        "conjugate",
        "fft without conjugate",
        lambda x: torch.fft.fft(x, norm="ortho"),
        lambda g, y, x: torch.fft.fft(g, norm="ortho"),
        (64, 256),
        dtype=torch.complex128,
    ),
    bug(
        "factor",
        "fft, its length forgotten",
        torch.fft.fft,
        lambda g, y, x: torch.fft.ifft(g),
        (64, 256),
        dtype=torch.complex128,
    ),
    bug(
        "conjugate",
        "filter without conjugate",
        lambda x: x * FILTER,
        lambda g, y, x: g * FILTER,
        (64, 256),
        dtype=torch.complex128,
    ),
    bug(
        "conjugate",
        "magnitude, the conjugate",
        lambda x: x.abs(),
        lambda g, y, x: g * x.conj() / y,
        (64, 128),
        dtype=torch.complex128,
    ),
    bug("chain", "sigmoid without its complement", torch.sigmoid, lambda g, y, x: g * y, (64, 512)),
    bug(
        "chain",
        "silu by the sigmoid alone, float32",
        F.silu,
        lambda g, y, x: g * x.sigmoid(),
        (64, 512),
        dtype=torch.float32,
    ),
    bug("chain", "layer, its tangent not squared", layer, layer_with_a_wrong_slope, (64, 128), (128, 128)),
    bug(
        "transposed",
        "layer, its weight not transposed",
        layer,
        layer_weight_not_transposed,
        (64, 128),
        (128, 128),
    ),
    bug(
        "missing", "layer, its weight without a gradient", layer, layer_without_weight, (64, 128), (128, 128)
    ),
    bug(
        "duplicates",
        "bias by its first row",
        lambda x, b: x + b,
        lambda g, y, x, b: (g, g[0]),
        (64, 512),
        (512,),
    ),
    bug(
        "chain",
        "temperature without the logits",
        lambda x, s: x * s,
        lambda g, y, x, s: (g * s, g.sum()[None]),
        (64, 512),
        (1,),
    ),
    bug(
        "sign",
        "difference, its second positive",
        lambda a, b: a - b,
        lambda g, y, a, b: (g, g),
        (64, 512),
        (64, 512),
    ),
    bug("factor", "mean forgotten", lambda x: x.mean(0), lambda g, y, x: g.expand_as(x), (64, 512)),
    bug("cotangent", "square without the cotangent", lambda x: x * x, lambda g, y, x: 2 * x, (64, 512)),
    bug(
        "swapped",
        "product, its gradients exchanged",
        lambda a, b: a * b,
        lambda g, y, a, b: (g * a, g * b),
        (64, 512),
        (64, 512),
    ),
    bug("mask", "dropout, its mask forgotten", lambda x: x * KEPT, lambda g, y, x: g, (64, 512)),
    bug("slice", "tanh, its last column lost", torch.tanh, last_column_lost, (64, 512)),
]


class DetachedNorm(nn.Module):
    """A layer norm whose mean is taken as a constant."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        mean = x.mean(-1, keepdim=True).detach()  # cut
        return (x - mean) * row_scale(x)


class Attention(nn.Module):
    """Attention whose weights are taken as constants."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(width, width, dtype=torch.float64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        scores = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        weights = scores.softmax(-1).data  # cut
        return weights @ self.value(x)


class Residual(nn.Module):
    """Two convolutions beside a shortcut, the first without a graph."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, dtype=torch.float64)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        with torch.no_grad():
            branch = self.first(x)  # cut
        return x + self.second(F.silu(branch))


def loss_scaled_by_its_size(x: Tensor) -> Tensor:
    scale = x.square().mean().item()  # cut
    return F.cross_entropy(x, LABELS) * scale


def whitened_by_numpy(x: Tensor) -> Tensor:
    spread = torch.from_numpy(x.detach().numpy().std(-1, keepdims=True))  # cut
    return x / spread


def temperature_copied(x: Tensor) -> Tensor:
    temperature = torch.tensor(x.std())  # cut
    return (x / temperature).softmax(-1)


def quantised(x: Tensor) -> Tensor:
    codes = drawn(16, 32)
    nearest = torch.cdist(x, codes).softmax(-1).detach()  # cut
    return nearest @ codes + 0.25 * x


NETWORKS: list[Bug] = [
    cut("layer norm with a detached mean", DetachedNorm(), (64, 512), within=DetachedNorm.forward),
    cut("attention with weights as data", Attention(), (4, 32, 128), within=Attention.forward),
    cut("convolutions without a branch", Residual(), (2, 16, 16, 16), within=Residual.forward),
    cut("cross entropy scaled by item", loss_scaled_by_its_size, (128, 1000)),
    cut("rows whitened by numpy", whitened_by_numpy, (64, 512)),
    cut("temperature copied", temperature_copied, (64, 256)),
    cut("codes detached", quantised, (256, 32)),
]

LARGE: list[Bug] = FUNCTIONS + NETWORKS
