"""Kernels that were written after the limits were chosen, and first checked all at once.

The same kinds of mistakes as in `kernel_table.py`, in other families. `benchmarks/kernels.py` prints this
table by itself; `docs/how-to/kernels.md` says what the first run showed, and what was mended then.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F

from kernel_families import kernel, wide
from kernel_table import BF16, F16, F32, Entry, randn

# Rotary embedding: neighbouring pairs of numbers are turned by an angle that grows with the position.


def _angles(x):
    rows, size = x.shape[-2:]
    rates = torch.exp(torch.arange(0, size, 2, dtype=x.dtype) * (-math.log(100.0) / size))
    return torch.arange(rows, dtype=x.dtype)[:, None] * rates


def _turned(x, angles):
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def rope_reference(x):
    return _turned(x, _angles(x.double()).to(x.dtype)) if x.dtype == torch.float64 else _rope_low(x)


def _rope_low(x):
    # Angles are exact in every precision: only their cosines are rounded.
    angles = _angles(x.double())
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def rope(bug=None):
    def forward(ctx, x):
        ctx.angles = _angles(x.double())
        if bug == "angles in single precision":
            ctx.angles = ctx.angles.float()
        angles = ctx.angles.clone()
        if bug == "positions of the second block start anew":
            angles[16:] = _angles(x.double())[: angles.shape[0] - 16]
        return _turned(wide(x), angles).to(x.dtype)

    def backward(ctx, g):
        angles = ctx.angles
        if bug == "turned the wrong way in the last rows":
            angles = angles.clone()
            angles[-4:] = -angles[-4:]
        return _turned(wide(g), -angles).to(g.dtype)

    return kernel(forward, backward)


# Group norm, without weights.


def group_norm_reference(x):
    return F.group_norm(x, 4)


def group_norm(bug=None):
    workspace = {}

    def forward(ctx, x):
        w = wide(x).reshape(x.shape[0], 4, -1)
        mean = w.mean(-1, keepdim=True)
        var = w.var(-1, keepdim=True, unbiased=bug == "unbiased variance")
        if bug == "mean of the group before, in the last":
            mean = mean.clone()
            mean[:, 3] = mean[:, 2]
        scale = (var + 1e-5).rsqrt()
        hat = (w - mean) * scale
        workspace["scale"] = scale
        ctx.save_for_backward(hat, scale)
        ctx.dtype = x.dtype
        return hat.reshape(x.shape).to(x.dtype)

    def backward(ctx, g):
        hat, scale = ctx.saved_tensors
        if bug == "scale in a workspace":
            scale = workspace["scale"]
        p = wide(g).reshape(hat.shape)
        first = p.mean(-1, keepdim=True)
        second = (p * hat).mean(-1, keepdim=True)
        return ((p - first - hat * second) * scale).reshape(g.shape).to(ctx.dtype)

    return kernel(forward, backward)


def group_norm_overflowing(x):
    """Squares of numbers at the edge of float16 are infinite."""
    w = x.reshape(x.shape[0], 4, -1)
    centred = w - w.mean(-1, keepdim=True)
    return (centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()).reshape(x.shape)


def group_norm_unfused(x):
    w = x.reshape(x.shape[0], 4, -1)
    centred = w - w.mean(-1, keepdim=True)
    variance = wide(centred).square().mean(-1, keepdim=True) + 1e-5
    return (centred * variance.rsqrt().to(x.dtype)).reshape(x.shape)


# Logarithm of a sum of exponentials.


def logsumexp_reference(x):
    return torch.logsumexp(x, -1)


def logsumexp(bug=None):
    def forward(ctx, x):
        w = wide(x)
        top = (
            w[..., :32].amax(-1, keepdim=True)
            if bug == "maximum of the first block"
            else w.amax(-1, keepdim=True)
        )
        e = torch.exp(w - top)
        if bug == "low-precision sum":
            total = torch.zeros_like(x[..., :1])
            for part in e.to(x.dtype).split(1, -1):
                total = total + part
            total = wide(total)
        else:
            total = e.sum(-1, keepdim=True)
        ctx.save_for_backward(e / total)
        ctx.dtype = x.dtype
        return (top + total.log()).squeeze(-1).to(x.dtype)

    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        if bug == "cotangent read in order":
            g = g.as_strided(g.shape, torch.empty(g.shape).stride(), g.storage_offset())
        return (p * wide(g)[..., None]).to(ctx.dtype)

    return kernel(forward, backward)


def logsumexp_unfused(x):
    top = x.amax(-1, keepdim=True).detach()
    return (x - top).exp().sum(-1).log() + top.squeeze(-1)


# Rows of length one.


def normalize_reference(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-12).sqrt()


def normalize(bug=None):
    def forward(ctx, x):
        w = wide(x)
        inverse = (w.square().sum(-1, keepdim=True) + 1e-12).rsqrt()
        y = (w * inverse).to(x.dtype)
        ctx.save_for_backward(y, inverse)
        return y

    def backward(ctx, g):
        y, inverse = ctx.saved_tensors
        along = (wide(g) * wide(y)).sum(-1, keepdim=True)
        if bug == "projection left out in every eighth row":
            along = along.clone()
            along[::8] = 0
        found = ((wide(g) - wide(y) * along) * inverse).to(g.dtype)
        if bug == "backward writes into its output":
            with torch.no_grad():
                y.mul_(2)
        return found

    return kernel(forward, backward)


def normalize_unfused(x):
    return x * (1 / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-12))


# Huber loss of single numbers.


def huber_reference(x, y):
    return F.huber_loss(x, y, reduction="none", delta=1.0)


def huber(bug=None):
    def forward(ctx, x, y):
        d = wide(x) - wide(y)
        ctx.save_for_backward(d)
        ctx.dtype = x.dtype
        return torch.where(d.abs() <= 1, 0.5 * d * d, d.abs() - 0.5).to(x.dtype)

    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        limit = 1.05 if bug == "threshold of the backward is another" else 1.0
        slope = torch.where(d.abs() <= limit, d, d.sign())
        if bug == "second gradient only with the first" and not ctx.needs_input_grad[0]:
            return None, torch.zeros_like(d).to(ctx.dtype)
        found = (wide(g) * slope).to(ctx.dtype)
        return found, -found

    return kernel(forward, backward)


# Depthwise convolution along the last axis, three taps, zeros beyond the border.


def conv_reference(x, weight):
    return F.conv1d(x, weight[:, None], padding=1, groups=x.shape[1])


def _taps(w, v):
    left, right = F.pad(w, (1, 0))[..., :-1], F.pad(w, (0, 1))[..., 1:]
    return left * v[:, 0:1] + w * v[:, 1:2] + right * v[:, 2:3]


def conv(bug=None):
    def forward(ctx, x, weight):
        w, v = wide(x), wide(weight)
        ctx.save_for_backward(w, v)
        ctx.dtype = x.dtype
        y = _taps(w, v)
        if bug == "border taken from the other end":
            y = y.clone()
            y[..., -1] = y[..., -1] + w[..., 0] * v[:, 2]
        return y.to(x.dtype)

    def backward(ctx, g):
        w, v = ctx.saved_tensors
        p = wide(g)
        dx = _taps(p, v.flip(-1) if bug != "taps not reversed" else v)
        left, right = F.pad(w, (1, 0))[..., :-1], F.pad(w, (0, 1))[..., 1:]
        some = p[:-1] if bug == "last sample left out of the weight gradient" else p
        count = some.shape[0]
        dv = torch.stack([(some * t[:count]).sum((0, 2)) for t in (left, w, right)], -1)
        return dx.to(ctx.dtype), dv.to(ctx.dtype)

    return kernel(forward, backward)


def conv_unfused(x, weight):
    padded = F.pad(x, (1, 1))
    parts = [padded[..., i : i + x.shape[-1]] * weight[:, i : i + 1] for i in range(3)]
    return parts[0] + parts[1] + parts[2]


# Means of pairs.


def pool_reference(x):
    return F.avg_pool1d(x, 2, ceil_mode=True, count_include_pad=False)


def pool(bug=None):
    def forward(ctx, x):
        size = x.shape[-1]
        ctx.size, ctx.dtype = size, x.dtype
        w = wide(x)
        even, odd = w[..., 0::2], w[..., 1::2]
        if size % 2:
            last = even[..., -1:]
            if bug == "odd end halved":
                last = last / 2
            y = torch.cat([(even[..., :-1] + odd) / 2, last], -1)
        else:
            y = (even + odd) / 2
        return y.to(x.dtype)

    def backward(ctx, g):
        half = wide(g) / 2
        found = half.repeat_interleave(2, -1)[..., : ctx.size].clone()
        if ctx.size % 2 and bug != "odd end halved":
            found[..., -1] = wide(g)[..., -1]
        return found.to(ctx.dtype)

    return kernel(forward, backward)


# Rows of a table, picked by an index with repetitions.


def _picked(weight):
    return (torch.arange(40) * 5) % (weight.shape[0] - 2)


def embedding_reference(weight):
    return weight[_picked(weight)]


def embedding(bug=None):
    def forward(ctx, weight):
        ctx.shape = weight.shape
        return weight[_picked(weight)].clone()

    def backward(ctx, g):
        found = torch.zeros(ctx.shape, dtype=wide(g).dtype)
        index = _picked(found)
        if bug == "repetitions overwrite each other":
            found[index] = wide(g)
        else:
            found.index_add_(0, index, wide(g))
        return found.to(g.dtype)

    return kernel(forward, backward)


# Scaled exponential linear unit.

_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805


def selu_reference(x):
    # The gradient of what is left out is 0 times infinity, for large x: the reference has none there.
    return torch.where(x > 0, _SCALE * x, _SCALE * _ALPHA * torch.expm1(x))


def selu(bug=None):
    alpha = 1.671875 if bug == "a constant with few digits" else _ALPHA

    class Selu(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            w = wide(x)
            return torch.where(w > 0, _SCALE * w, _SCALE * alpha * torch.expm1(w)).to(x.dtype)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def _slope(x):
            w = wide(x)
            return torch.where(w > 0, _SCALE + 0 * w, _SCALE * alpha * torch.exp(w))

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            slope = Selu._slope(x.detach() if bug == "second derivative of the slope missing" else x)
            return (wide(g) * slope).to(g.dtype)

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            slope = Selu._slope(x)
            if bug == "jvp without the scale":
                slope = slope / _SCALE
            return (wide(t) * slope).to(t.dtype)

    return Selu.apply


def selu_by_exp(x):
    """Its digits are lost where numbers are small."""
    return _SCALE * (x.clamp_min(0) + _ALPHA * (x.clamp_max(0).exp() - 1))


# Dropout with a mask that is given, and a bias.


def dropout_reference(x, bias, keep):
    return (x + bias) * keep / 0.75


def dropout(bug=None):
    def forward(ctx, x, bias, keep):
        ctx.save_for_backward(keep)
        if bug == "output is the input's memory":
            with torch.no_grad():
                return x.add_(bias).mul_(keep / 0.75)
        return ((wide(x) + wide(bias)) * keep / 0.75).to(x.dtype)

    def backward(ctx, g):
        (keep,) = ctx.saved_tensors
        p = wide(g) * keep
        found = p if bug == "scale missing in the backward" else p / 0.75
        rows = found[: found.shape[0] // 16 * 16] if bug == "bias gradient of whole blocks" else found
        return found.to(g.dtype), rows.sum(0).to(g.dtype), None

    return kernel(forward, backward)


def dropout_unfused(x, bias, keep):
    scale = keep / 0.75
    return x * scale + bias * scale


def masked(dtype):
    x, bias = randn((40, 36), (36,), dtype=dtype)
    keep = (torch.arange(40 * 36).reshape(40, 36) * 7 % 4 != 0).to(dtype)
    return x, bias, keep


def sized(dtype, size):
    return randn((6, 4, size), dtype=dtype)


# The activation mish, by exponentials; its second derivative has more noise than the reference's.


def mish_reference(x):
    return torch.nn.functional.mish(x)


def mish(bug=None):
    def run(x):
        w = wide(x)
        e = torch.exp(w if bug == "overflow" else w.clamp_max(20))
        n = e * (e + 2)
        value = w * n / (n + 2)
        return (value if bug == "overflow" else torch.where(w > 20, w, value)).to(x.dtype)

    return run


# Attention with a slope for each head, in the kernel's own dtype also under autocast.


def alibi_reference(q, k, v):
    places = torch.arange(q.shape[-2])
    apart = (places[:, None] - places).abs().to(q.dtype)
    slopes = torch.tensor([0.5, 0.25], dtype=q.dtype)[:, None, None]
    return (q @ k.transpose(-1, -2) / 4 - slopes * apart).softmax(-1) @ v


def alibi(bug=None):
    def run(q, k, v):
        places = torch.arange(q.shape[-2])
        apart = (places[:, None] - places).abs()
        heads = []
        for head in range(2):
            slope = 0.5 if head == 0 or bug == "slope of the first head" else 0.25
            scores = wide(q)[head] @ wide(k)[head].T / 4 - slope * apart
            heads.append(torch.softmax(scores, -1) @ wide(v)[head])
        return torch.stack(heads).to(q.dtype)

    return run


SHAPES = {
    "rope": ((3, 40, 16),),
    "group norm": ((12, 16, 10),),
    "logsumexp": ((40, 90),),
    "normalize": ((48, 30),),
    "huber": ((30, 50), (30, 50)),
    "conv": ((10, 6, 40), (6, 3)),
    "pool": ((8, 5, 31),),
    "embedding": ((24, 20),),
    "selu": ((30, 40),),
    "dropout": None,
    "mish": ((24, 30),),
    "alibi": ((2, 21, 16), (2, 21, 16), (2, 21, 16)),
}

MAKERS = {
    "rope": (rope, rope_reference),
    "group norm": (group_norm, group_norm_reference),
    "logsumexp": (logsumexp, logsumexp_reference),
    "normalize": (normalize, normalize_reference),
    "huber": (huber, huber_reference),
    "conv": (conv, conv_reference),
    "pool": (pool, pool_reference),
    "embedding": (embedding, embedding_reference),
    "selu": (selu, selu_reference),
    "dropout": (dropout, dropout_reference),
    "mish": (mish, mish_reference),
    "alibi": (alibi, alibi_reference),
}

OTHERS = {
    "group norm": group_norm_unfused,
    "logsumexp": logsumexp_unfused,
    "normalize": normalize_unfused,
    "conv": conv_unfused,
    "dropout": dropout_unfused,
}


def fresh(family, bug, dtype, lens="as given", inputs=None, made=None):
    make, reference = MAKERS[family]
    if inputs is None:
        shapes = SHAPES[family]
        inputs = masked(dtype) if shapes is None else randn(*shapes, dtype=dtype)
    return Entry(family, bug, made or make(bug), reference, inputs, dtype, lens, True)


FRESH_BUGS = [
    fresh("rope", "positions of the second block start anew", BF16),
    fresh("rope", "turned the wrong way in the last rows", F32),
    fresh("rope", "angles in single precision", F32),
    fresh("group norm", "unbiased variance", F32),
    fresh("group norm", "mean of the group before, in the last", BF16),
    fresh("group norm", "scale in a workspace", F32, "again"),
    fresh("group norm", "squares overflow", F16, "scale", made=group_norm_overflowing),
    fresh("logsumexp", "maximum of the first block", F32, "scale"),
    fresh("logsumexp", "low-precision sum", BF16, inputs=randn((24, 700), dtype=BF16)),
    fresh("logsumexp", "cotangent read in order", F32, "layout"),
    fresh("normalize", "projection left out in every eighth row", BF16),
    fresh("normalize", "backward writes into its output", F32, "in place"),
    fresh("huber", "threshold of the backward is another", F32),
    fresh("huber", "second gradient only with the first", F32, "requires grad"),
    fresh("conv", "border taken from the other end", BF16),
    fresh("conv", "taps not reversed", F16),
    fresh("conv", "last sample left out of the weight gradient", F32),
    fresh("pool", "odd end halved", F32, "sizes", partial(sized, F32)),
    fresh("embedding", "repetitions overwrite each other", F32),
    fresh("selu", "a constant with few digits", F32),
    fresh("selu", "exp(x) - 1", F32, "scale", made=selu_by_exp),
    fresh("selu", "second derivative of the slope missing", F32, "second order"),
    fresh("selu", "jvp without the scale", F32, "modes"),
    fresh("mish", "overflow", F32, "scale"),
    fresh("alibi", "slope of the first head", F16),
    fresh("dropout", "scale missing in the backward", BF16),
    fresh("dropout", "bias gradient of whole blocks", F16),
    fresh("dropout", "output is the input's memory", F32, "in place"),
]

FRESH_TWINS = [
    *(fresh(family, None, dtype) for family in MAKERS for dtype in (F32, BF16, F16)),
    *(
        fresh(family, None, dtype, made=other)
        for family, other in OTHERS.items()
        for dtype in (F32, BF16, F16)
    ),
    fresh("pool", None, F32, inputs=partial(sized, F32)),
]
