"""Kernels of a third table, written when all limits stood: families, with right kernels in another order.

Bugs are planted into the outputs, into the gradients, or into the way a kernel is called.
"""

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from kernel_table import BF16, F16, randn


def wide(value):
    return value.float() if value.dtype in (BF16, F16) else value


def fused(function, spoil=None, called=None):
    """Computes in float32 and rounds once. `spoil(gradients, g, inputs)` plants a bug into the backward.

    `called` is what the backward differentiates, if it is another function.
    """

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return function(*(wide(x) for x in inputs)).to(inputs[0].dtype)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            inputs = [wide(x).detach() for x in ctx.saved_tensors]
            by = [x.requires_grad_() for x in inputs if x.is_floating_point()]
            with torch.enable_grad():
                found = list(torch.autograd.grad((called or function)(*inputs), by, wide(g)))
            if spoil is not None:
                found = spoil(found, wide(g), [x.detach() for x in inputs])
            given = iter(found)
            return tuple(
                next(given).to(x.dtype) if x.is_floating_point() else None for x in ctx.saved_tensors
            )

    return Fused.apply


def times(place, where, factor):
    """One gradient is off by a factor in a part of it."""

    def spoil(found, g, inputs):
        found[place] = found[place].clone()
        found[place][where] *= factor
        return found

    return spoil


# Rotary embedding, of halves.


def rotated(x):
    half = x.shape[-1] // 2
    rates = 50.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotated_as_complex(x):
    half = x.shape[-1] // 2
    rates = 50.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    w = wide(x)
    turned = torch.complex(w[..., :half], w[..., half:]) * torch.polar(torch.ones_like(angles), angles).to(
        torch.complex128 if x.dtype is torch.float64 else torch.complex64
    )
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def rotated_by_a_stale_table(x):
    return torch.cat([rotated(x[..., :24, :]), rotated(x[..., 24:, :])], -2)


def rotated_with_a_wrong_row(x):
    y, half = rotated(x), x.shape[-1] // 2
    last = y[..., -1:, half:] - 0.02 * x[..., -1:, :half]
    return torch.cat([y[..., :-1, :], torch.cat([y[..., -1:, :half], last], -1)], -2)


# A gated unit of a packed input.


def gated(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def gated_unfused(x):
    half = x.shape[-1] // 2
    return x[..., :half] / (1 + (-x[..., :half]).exp()) * x[..., half:]


def halves_exchanged(found, g, inputs):
    half = found[0].shape[-1] // 2
    rows = found[0].clone()
    rows[-2:] = torch.cat([rows[-2:, half:], rows[-2:, :half]], -1)
    return [rows]


# Group norm with weights of channels.


def grouped(x, w):
    return F.group_norm(x, 4, w, eps=1e-3)


def _grouped(x, w, eps_inside=True, group_of=lambda c: c):
    parts = wide(x).reshape(len(x), 4, -1)
    centred = parts - parts.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    scale = (variance + 1e-3).rsqrt() if eps_inside else 1 / (variance.sqrt() + 1e-3)
    weights = wide(w)[torch.tensor([group_of(i) for i in range(x.shape[1])])]
    return ((centred * scale).reshape(x.shape) * weights[:, None]).to(x.dtype)


def grouped_in_two_passes(x, w):
    return _grouped(x, w)


def without_the_last_sample(found, g, inputs):
    weight = inputs[1].requires_grad_()
    with torch.enable_grad():
        (rest,) = torch.autograd.grad(grouped(inputs[0][:-1], weight), weight, g[:-1])
    return [found[0], rest]


# Root mean square norm.


def rms(x, w):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w


def rms_by_blocks(x, w):
    total = sum(wide(part).square().sum(-1, keepdim=True) for part in x.split(32, -1))
    return (wide(x) * (total / x.shape[-1] + 1e-6).rsqrt()).to(x.dtype) * w


def rms_with_a_running_sum_in_the_dtype(x, w):
    total = torch.zeros_like(x[..., :1])
    for part in x.split(4, -1):
        total = total + part.square().sum(-1, keepdim=True)
    return x * (total / x.shape[-1] + 1e-6).rsqrt() * w


def rms_without_the_tail(x, w):
    size = max(1, x.shape[-1] // 8 * 8)
    return wide(x).mul((wide(x)[..., :size].square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype) * w


# Cross entropy with an index that is ignored.


def entropy(x, target):
    return F.cross_entropy(x, target, ignore_index=-1)


def entropy_by_hand(x, target):
    kept = target >= 0
    top = x.detach().amax(-1, keepdim=True)
    w = wide(x - top)
    losses = w.exp().sum(-1).log() - w.gather(-1, target.clamp_min(0)[:, None])[:, 0]
    return (torch.where(kept, losses, 0.0).sum() / kept.sum()).to(x.dtype)


def ignored_rows_are_the_last_class(found, g, inputs):
    target = inputs[1]
    rows = found[0].clone()
    rows[target < 0, -1] = -g / (target >= 0).sum()
    return [rows]


def mean_of_all_rows(found, g, inputs):
    return [found[0] * ((inputs[1] >= 0).sum() / len(inputs[1]))]


TARGET = torch.randint(-1, 30, (40,), generator=torch.Generator().manual_seed(5))

# Means of bags of rows of a table.

BAGS = torch.randint(0, 20, (30, 5), generator=torch.Generator().manual_seed(6))


def bags(table):
    return table[BAGS].mean(1)


def bags_from_the_end(table):
    total = wide(table)[BAGS[:, -1]]
    for place in (3, 2, 1, 0):
        total = total + wide(table)[BAGS[:, place]]
    return (total / 5).to(table.dtype)


def once_for_each_row(found, g, inputs):
    grad = torch.zeros_like(found[0])
    for place in range(BAGS.shape[1]):
        seen = torch.zeros_like(grad)
        seen[BAGS[:, place]] = g / 5  # the last one wins
        grad = grad + seen
    return [grad]


# A causal depthwise convolution.


def depthwise(x, w):
    return F.conv1d(F.pad(x, (3, 0)), w[:, None], groups=x.shape[1])


def depthwise_by_taps(x, w):
    padded = F.pad(wide(x), (3, 0))
    size = x.shape[-1]
    return sum(padded[..., t : t + size] * wide(w)[:, t, None] for t in range(4)).to(x.dtype)


def depthwise_without_padding_in_the_last_block(x, w):
    y = depthwise_by_taps(x, w).clone()
    size = x.shape[-1]
    y[..., 16] = depthwise_by_taps(x[..., 16:], w)[..., 0] if size > 16 else y[..., 16]
    return y


# A maximum of windows, which may be equal.


def pooled(x):
    return F.max_pool1d(x, 4)


def pooled_by_index(x):
    windows = x.reshape(*x.shape[:-1], -1, 4)
    return windows.gather(-1, windows.argmax(-1, keepdim=True))[..., 0]


def every_tie(found, g, inputs):
    windows = inputs[0].reshape(*inputs[0].shape[:-1], -1, 4)
    best = windows == windows.amax(-1, keepdim=True)
    return [(best * g[..., None]).reshape(inputs[0].shape)]


def with_ties(dtype, seed=0):
    (x,) = randn((6, 5, 32), dtype=dtype, seed=seed)
    return ((x.detach() * 2).round().div(2).requires_grad_(),)


# Attention in which two heads of the queries share one of the keys, causal.


def _scores(q, k, head=lambda h: h // 2):
    heads = torch.tensor([head(h) for h in range(q.shape[1])])
    return q @ k[:, heads].mT / q.shape[-1] ** 0.5, heads


def shared_heads(q, k, v):
    scores, heads = _scores(q, k)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v[:, heads]


def online(q, k, v, block=12, rescaled=True, mask=lambda i, j: j > i, head=lambda h: h // 2):
    """Blocks of keys, with a maximum that is carried on."""
    kept = q.dtype
    q, k, v = wide(q), wide(k), wide(v)
    scores, heads = _scores(q, k, head)
    rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = scores.masked_fill(mask(rows, columns), -torch.inf)
    top = torch.full_like(scores[..., :1], -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, k.shape[-2], block):
        part = scores[..., start : start + block]
        new = torch.maximum(top, part.detach().amax(-1, keepdim=True))
        shrink = torch.where(new > top, (top - new).exp(), 1.0).nan_to_num(0.0)
        weights = (part - new).exp().nan_to_num(0.0)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = (
            out * (shrink if rescaled or start < 24 else 1.0)
            + weights @ v[:, heads][..., start : start + block, :]
        )
        top = new
    return (out / total).to(kept)


def first_head_of_a_pair_alone(found, g, inputs):
    q, k, v = (t.detach().requires_grad_() for t in inputs)
    with torch.enable_grad():
        y = shared_heads(q, k, v)
        (alone,) = torch.autograd.grad(y[:, ::2], v, g[:, ::2])
    return [found[0], found[1], alone]


# Two experts of six, weighted.


def routed(x, w):
    top = (x @ w).topk(2, -1)
    return torch.zeros_like(x @ w).scatter(-1, top.indices, top.values.softmax(-1))


def routed_by_shares(x, w):
    logits = wide(x) @ wide(w)
    top = logits.topk(2, -1)
    shares = (top.values - top.values[..., :1]).exp()
    return (
        torch.zeros_like(logits).scatter(-1, top.indices, shares / shares.sum(-1, keepdim=True)).to(x.dtype)
    )


def routed_by_all(x, w):
    """Weights of a softmax over all experts, not normalised again."""
    logits = x @ w
    top = logits.softmax(-1).topk(2, -1)
    return torch.zeros_like(logits).scatter(-1, top.indices, top.values)


# Quantised to 16 levels, and back; the gradient passes where nothing is cut off.


def quantised(x, s):
    level = x / s
    cut = level.clamp(-8, 7)
    return (cut + (cut.round() - cut).detach()) * s


def quantised_by_parts(x, s):
    y = x / s
    inside = (y >= -8) & (y <= 7)
    held = torch.where(inside | y.isnan(), y, torch.where(y > 7, 7.0, -8.0).to(y.dtype))
    return torch.where(inside | y.isnan(), y + (held.round() - y).detach(), held) * s


def passes_everywhere(found, g, inputs):
    return [g.clone(), found[1]]


# Sums over segments.

SEGMENT = torch.tensor([0] * 5 + [1] * 1 + [2] * 17 + [4] * 25)


def segments(x):
    return torch.zeros(5, x.shape[-1], dtype=x.dtype).index_add(0, SEGMENT, x)


def segments_by_loop(x):
    """One segment after another, from its end."""
    return torch.stack([wide(x)[n == SEGMENT].flip(0).sum(0) for n in range(5)]).to(x.dtype)


def segments_without_the_last_row(x):
    return segments(torch.cat([wide(x)[:-1], wide(x)[-1:] * 0.9])).to(x.dtype)


# A linear recurrence.


def recurrence(a, x):
    h, found = torch.zeros_like(x[..., 0]), []
    for t in range(x.shape[-1]):
        h = a[..., t].sigmoid() * h + x[..., t]
        found.append(h)
    return torch.stack(found, -1)


def recurrence_in_chunks(a, x, size=8, decayed=True):
    """What a chunk gives by itself, and what is carried into it, times the product of its gates."""
    kept, gates = x.dtype, wide(a).sigmoid().split(size, -1)
    carry, parts = torch.zeros_like(wide(x)[..., :1]), []
    for number, (gate, part) in enumerate(zip(gates, wide(x).split(size, -1), strict=True)):
        here, found = torch.zeros_like(carry), []
        for t in range(part.shape[-1]):
            here = gate[..., t : t + 1] * here + part[..., t : t + 1]
            found.append(here)
        decay = gate.cumprod(-1) if decayed or number != 2 else 1.0
        parts.append(torch.cat(found, -1) + decay * carry)
        carry = parts[-1][..., -1:]
    return torch.cat(parts, -1).to(kept)


# A cosine.


def cosine(a, b):
    return F.cosine_similarity(a, b, dim=-1)


def cosine_by_hand(a, b):
    x, y = wide(a), wide(b)
    return ((x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()).to(a.dtype)


def no_projection(found, g, inputs):
    a, b = inputs
    rows = found[1].clone()
    rows[-3:] = (g[:, None] * a / (a.norm(dim=-1, keepdim=True) * b.norm(dim=-1, keepdim=True)))[-3:]
    return [found[0], rows]


# The divergence of two distributions.


def divergence(p, q):
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)


def divergence_by_sums(p, q):
    p, q, kept = wide(p), wide(q), p.dtype
    p, q = p - p.amax(-1, keepdim=True).detach(), q - q.amax(-1, keepdim=True).detach()
    e = p.exp()
    return ((e * (p - q)).sum(-1) / e.sum(-1) - e.sum(-1).log() + q.exp().sum(-1).log()).to(kept)


def weights_are_constant(p, q):
    return (p.softmax(-1).detach() * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)


# A step of an optimiser.


def stepped(p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v.square() + 0.05 * g.square()
    return p * 0.99 - 0.1 * (m / 0.271) / ((v / 0.142625).sqrt() + 1e-3)


def stepped_in_another_order(p, g, m, v, decay=0.99, inside=False, correction=0.142625):
    p, g, m, v, kept = wide(p), wide(g), wide(m), wide(v), p.dtype
    v = torch.lerp(g.square(), v.square(), 0.95) / correction
    root = (v + 1e-3).sqrt() if inside else v.sqrt() + 1e-3
    return torch.addcdiv(p * decay, torch.lerp(g, m, 0.9), root, value=-0.1 / 0.271).to(kept)


# A variance.


def variance(x):
    return x.var(-1, unbiased=False)


def variance_merged(x):
    """Of blocks, merged as Chan, Golub and LeVeque do."""
    w = wide(x)
    count, mean, total = 0, 0.0, 0.0
    for part in w.split(7, -1):
        n, here = part.shape[-1], part.mean(-1)
        delta = here - mean
        total = total + (part - here[..., None]).square().sum(-1) + delta**2 * count * n / (count + n)
        mean, count = mean + delta * n / (count + n), count + n
    return (total / count).to(x.dtype)


def variance_by_squares(x):
    return (wide(x).square().mean(-1) - wide(x).mean(-1).square()).to(x.dtype)


def shifted(dtype, seed=0):
    (x,) = randn((24, 40), dtype=dtype, seed=seed)
    return ((x.detach() + 8).requires_grad_(),)


# A dot product of rows.


def dots(a, b):
    return (a * b).sum(-1)


def dots_compensated(a, b, sign=1.0):
    total = lost = torch.zeros_like(wide(a)[..., 0])
    for x, y in zip(wide(a).unbind(-1), wide(b).unbind(-1), strict=True):
        term = x * y - sign * lost
        new = total + term
        lost = ((new - total) - term).detach()
        total = new
    return total.to(a.dtype)


# Logits with a cap, and their sum of exponentials.


def capped(x):
    return 5 * (x / 5).tanh()


def capped_by_exp(x):
    e = (0.4 * wide(x)).exp()
    return (5 * (e - 1) / (e + 1)).to(x.dtype)


def lse(x):
    return x.logsumexp(-1)


def lse_online(x):
    top = torch.full_like(wide(x)[..., 0], -torch.inf)
    total = torch.zeros_like(top)
    for part in wide(x).split(16, -1):
        new = torch.maximum(top, part.detach().amax(-1))
        total = total * (top - new).exp() + (part - new[..., None]).exp().sum(-1)
        top = new
    return (top + total.log()).to(x.dtype)


# A low-rank addition to a linear map.


def adapted(x, w, a, b):
    return x @ w + 0.5 * (x @ a) @ b


def adapted_merged(x, w, a, b):
    return (wide(x) @ (wide(w) + 0.5 * wide(a) @ wide(b))).to(x.dtype)


# Ways of calling that are wrong.


def cached(function):
    """Keeps what it computed for a shape."""
    cache = {}

    def kernel(*inputs):
        key = tuple(t.shape for t in inputs)
        scale = cache.setdefault(key, inputs[0].detach().abs().amax())
        y = function(*inputs)
        return y * (inputs[0].detach().abs().amax() / scale)

    return kernel


def scattered(function):
    """Adds up in an order that is drawn anew in each call."""

    def kernel(x):
        order = torch.randperm(x.shape[-1])
        return function(x[..., order])

    return kernel


def jittered(function):
    """As atomic additions: the last bits are other ones in each call."""

    def kernel(x):
        y = function(x)
        return y * (1 + 2e-7 * torch.rand_like(y))

    return kernel


def one_row_as_none(function):
    def kernel(*inputs):
        y = function(*inputs)
        return y * 0 if inputs[0].shape[-1] == 1 else y

    return kernel


def recomputed(function, backward):
    """Its backward is `backward(pull, g)`; `pull` runs the function again for its right gradients."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            def pull(g):
                with torch.enable_grad():
                    by = [t.detach().requires_grad_() for t in ctx.saved_tensors]
                    return torch.autograd.grad(function(*by), by, g)

            return backward(pull, g)

    return Kernel.apply


def reads_in_order(pull, g):
    """The memory of the cotangent, whatever its strides."""
    count = g.untyped_storage().nbytes() // g.element_size() - g.storage_offset()
    flat = g.as_strided((count,), (1,), g.storage_offset())
    return pull(flat[torch.arange(g.numel()) % count].reshape(g.shape))


def writes_cotangent(pull, g):
    found = pull(g.clone())
    g.mul_(0.5)
    return found
