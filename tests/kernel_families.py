"""Kernels as people write them: each right, or with one planted bug of the kind that really happens.

They stand for fused kernels: they compute in float32 (float64 for float64), block by block where that
matters, and give the dtype that they were given.
"""

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

F = torch.nn.functional


def wide(tensor):
    """The accumulator's dtype."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def kernel(forward, backward):
    """A custom Function from `forward(ctx, ...)` and `backward(ctx, ...)`, differentiable once."""
    namespace = {"forward": staticmethod(forward), "backward": staticmethod(once_differentiable(backward))}
    return type("Kernel", (Function,), namespace).apply


def careless(function, bug):
    """A right function, called as if inputs were contiguous, or as if there were one call only."""
    cache = {}

    def in_order(t):
        """What lies in memory where a contiguous tensor would have its numbers; the gradient is right."""
        seen = t.detach().as_strided(t.shape, torch.empty(t.shape).stride(), t.storage_offset())
        return t + (seen - t.detach()) if not t.is_contiguous() and 0 not in t.stride() else t

    def kernel(*inputs):
        if bug == "memory read in order":
            return function(*map(in_order, inputs))
        if (
            bug == "needs every gradient"
            and not all(t.requires_grad for t in inputs)
            and torch.is_grad_enabled()
        ):
            raise RuntimeError("all inputs have to require grad")
        y = function(*inputs)
        if bug == "NaN cleared":
            return y.nan_to_num(0.0)
        if bug == "mask kept from the first call":
            mask = cache.setdefault(y.shape, (y > y.detach().mean()).detach())
            return torch.where(mask == (y > y.detach().mean()), y, y.detach())
        return y

    kernel.__name__ = "careless"
    return kernel


# Softmax.


def softmax_reference(x):
    return torch.softmax(x, -1)


def softmax(bug=None):
    def forward(ctx, x):
        if x.numel() == 0:
            ctx.save_for_backward(x)
            return x.clone()
        if bug == "contiguous input assumed":
            x = x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset())
        if bug == "offset ignored":
            x = x.as_strided(x.shape, x.stride(), 0)
        if bug == "input written":
            with torch.no_grad():
                x.sub_(x.amax(-1, keepdim=True))
        w = wide(x)
        if bug == "NaN swallowed":
            w = w.nan_to_num(0.0, math.inf, -math.inf)
        shifted = w if bug == "maximum not subtracted" else w - w.amax(-1, keepdim=True)
        e = torch.exp(shifted)
        if bug == "low-precision row sum":
            total = torch.zeros_like(e[..., :1], dtype=x.dtype)
            for column in e.to(x.dtype).split(1, -1):
                total = total + column
            total = wide(total)
        else:
            total = e.sum(-1, keepdim=True)
        y = (e / total).to(x.dtype)
        if bug == "last block not normalized":
            y = torch.cat([y[..., :-8], y[..., -8:] * 1.04], -1)
        ctx.save_for_backward(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        if bug == "contiguous cotangent assumed" and 0 not in g.stride():
            g = g.as_strided(g.shape, torch.empty(g.shape).stride(), g.storage_offset())
        if bug == "cotangent not expanded" and 0 in g.stride():
            g = g.new_zeros(g.shape).flatten().index_fill(0, torch.tensor([0]), float(g.flatten()[0]))
            g = g.reshape(y.shape)
        if bug == "cotangent written":
            with torch.no_grad():
                g.mul_(y)
            p = wide(g)
        else:
            p = wide(g) * wide(y)
        total = p.sum(-1, keepdim=True)
        if bug == "row sum without the tail":
            total = p[..., : p.shape[-1] // 32 * 32].sum(-1, keepdim=True)
        r = p - wide(y) * total
        if bug == "last columns 4 % off":
            r = torch.cat([r[..., :-3], r[..., -3:] * 1.04], -1)
        if bug == "last row of a block skipped":
            r = r.clone()
            r[15::16] *= 0.95
        if bug == "saved tensor written":
            y.mul_(0.5)
        return r.to(g.dtype)

    return kernel(forward, backward)


def softmax_unfused(x):
    e = torch.exp(x - x.amax(-1, keepdim=True).detach())
    return e / e.sum(-1, keepdim=True)


def softmax_by_blocks(x):
    """The online way: a running maximum and a running sum."""
    w = wide(x)
    top = torch.full_like(w[..., :1], -math.inf)
    total = torch.zeros_like(top)
    for block in w.split(16, -1):
        new = torch.maximum(top, block.amax(-1, keepdim=True).detach())
        total = total * torch.exp(top - new) + torch.exp(block - new).sum(-1, keepdim=True)
        top = new
    return (torch.exp(w - top) / total).to(x.dtype)


# Layer norm, with a backward for the weight in two stages.


def layer_norm_reference(x, weight, bias):
    return F.layer_norm(wide(x), x.shape[-1:], wide(weight), wide(bias)).to(x.dtype)


def layer_norm(bug=None):
    eps = 1e-3 if bug == "another eps" else 1e-5

    def forward(ctx, x, weight, bias):
        w = wide(x)
        centred = w - w.mean(-1, keepdim=True)
        inverse = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        y = centred * inverse * wide(weight) + wide(bias)
        return y.to(x.dtype)

    def backward(ctx, g):
        x, weight, inverse = ctx.saved_tensors
        w = wide(x)
        hat = (w - w.mean(-1, keepdim=True)) * inverse
        p = wide(g) * wide(weight)
        mean = p.mean(-1, keepdim=True)
        if bug == "mean term missing in the last rows":
            mean = torch.cat([mean[:-4], torch.zeros_like(mean[-4:])])
        dx = (p - mean - hat * (p * hat).mean(-1, keepdim=True)) * inverse
        rows = list((wide(g) * hat).split(16))
        if bug == "last partial sum dropped" and len(rows) > 1:
            rows = rows[:-1]
        partial = torch.stack([block.sum(0) for block in rows])
        if bug == "low-precision weight gradient":
            dw = torch.zeros_like(weight)
            for row in (wide(g) * hat).to(x.dtype):
                dw = dw + row
        else:
            dw = partial.sum(0).to(weight.dtype)
        db = wide(g).sum(0)
        if bug == "bias gradient is that of the weight":
            db = partial.sum(0)
        if bug == "gradients by need" and not ctx.needs_input_grad[0]:
            dw, db = db, dw  # what is needed is counted from the front
        return dx.to(x.dtype), dw, db.to(weight.dtype)

    return kernel(forward, backward)


def layer_norm_unfused(x, weight, bias):
    """The mean and the deviation are kept in the dtype."""
    d = x - x.mean(-1, keepdim=True)
    deviation = torch.sqrt(wide(d).square().mean(-1, keepdim=True) + 1e-5).to(x.dtype)
    return d / deviation * weight + bias


# Root-mean-square norm.


def rms_norm_reference(x, weight):
    w = wide(x)
    return (w * torch.rsqrt(w.square().mean(-1, keepdim=True) + 1e-6) * wide(weight)).to(x.dtype)


def rms_norm(bug=None):
    cache = {}
    buffer = {}
    count = [0]

    def forward(ctx, x, weight):
        w = wide(x)
        inverse = torch.rsqrt(w.square().mean(-1, keepdim=True) + 1e-6)
        if bug == "cache by address":
            inverse = cache.setdefault((x.data_ptr(), x.shape), inverse)
        if bug == "statistics kept outside":
            cache["inverse"] = inverse
        if bug == "not deterministic":
            count[0] += 1
            inverse = inverse * (1 + 2**-7 * (count[0] % 2))
        ctx.save_for_backward(x, weight, inverse)
        y = (w * inverse * wide(weight)).to(x.dtype)
        if bug == "output buffer used again":
            return buffer.setdefault(x.shape, torch.empty_like(x)).copy_(y)
        return y

    def backward(ctx, g):
        x, weight, inverse = ctx.saved_tensors
        if bug == "statistics kept outside":
            inverse = cache["inverse"]
        hat = wide(x) * inverse
        p = wide(g) * wide(weight)
        scale = x.shape[-1] + 1 if bug == "mean over one too many" else x.shape[-1]
        dx = (p - hat * (p * hat).sum(-1, keepdim=True) / scale) * inverse
        dw = (wide(g) * hat).sum(0).to(weight.dtype)
        if bug == "gradient of the weight needs that of the input" and not ctx.needs_input_grad[0]:
            dw = None
        return dx.to(x.dtype), dw

    return kernel(forward, backward)


def rms_norm_unfused(x, weight):
    return weight * (x / torch.sqrt(wide(x).square().mean(-1, keepdim=True) + 1e-6).to(x.dtype))


# Activations.


def gelu_reference(x):
    return F.gelu(x)


def gelu(bug=None):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        w = wide(x)
        if bug == "tanh instead of erf":
            return F.gelu(w, approximate="tanh").to(x.dtype)
        y = 0.5 * w * (1 + torch.erf(w * math.sqrt(0.5)))
        if bug == "view of the input":
            return y.to(x.dtype).view(x.numel()).view(x.shape)
        return y.to(x.dtype)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        w = wide(x)
        if bug == "contiguous view":
            g.view(-1)
        cdf = 0.5 * (1 + torch.erf(w * math.sqrt(0.5)))
        pdf = torch.exp(-0.5 * w * w) / math.sqrt(2 * math.pi)
        if bug == "density cut off":
            pdf = pdf * (w.abs() < 2.5)
        return (wide(g) * (cdf + w * pdf)).to(g.dtype)

    return kernel(forward, backward)


def gelu_unfused(x):
    return x * (0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))))


def softplus_reference(x):
    return F.softplus(x)


def softplus(bug=None):
    threshold = 5.0 if bug == "threshold too low" else math.inf

    def forward(ctx, x):
        ctx.save_for_backward(x)
        w = wide(x)
        y = (
            torch.log1p(torch.exp(w))
            if bug == "overflow"
            else w.clamp_min(0) + torch.log1p(torch.exp(-w.abs()))
        )
        return torch.where(w > threshold, w, y).to(x.dtype)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (wide(g) * torch.sigmoid(wide(x))).to(g.dtype)

    return kernel(forward, backward)


def swiglu_reference(gate, up):
    return F.silu(gate) * up


def swiglu(bug=None):
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        a, b = wide(gate), wide(up)
        if bug == "strides of the other input":
            b = wide(up.as_strided(up.shape, gate.stride(), up.storage_offset()))
        return (a * torch.sigmoid(a) * b).to(gate.dtype)

    def backward(ctx, g):
        gate, up = ctx.saved_tensors
        a, b, p = wide(gate), wide(up), wide(g)
        s = torch.sigmoid(a)
        slope = s * (1 + a * (1 - s))
        if bug == "slope without its second term for large inputs":
            slope = torch.where(a > 2, s, slope)
        da, db = p * b * slope, p * a * s
        if bug == "gradients exchanged for one" and ctx.needs_input_grad == (False, True):
            db = da
        return da.to(g.dtype), db.to(g.dtype)

    return kernel(forward, backward)


def swiglu_unfused(gate, up):
    return gate * torch.sigmoid(gate) * up


# Matrix products.


def linear_reference(x, weight, bias):
    return F.linear(wide(x), wide(weight), wide(bias)).to(x.dtype)


@torch.compiler.disable
def accumulated(x, weight, bias):
    """A product whose sums are kept in the dtype."""
    y = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
    for column, row in zip(x.T, weight.T, strict=True):
        y = y + column[:, None] * row
    return y + bias


def linear(bug=None):
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        a, b = wide(x), wide(weight)
        if bug == "half-precision inputs":
            a, b = a.half().float(), b.half().float()
        if bug == "low-precision accumulator":
            return accumulated(x, weight, bias)
        if bug == "tail of the inner axis dropped":
            whole = a.shape[1] // 16 * 16
            a, b = a[:, :whole], b[:, :whole]
        return (a @ b.T + wide(bias)).to(x.dtype)

    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        p = wide(g)
        db = p.sum(0)
        if bug == "bias gradient of one block":
            db = p[:-1].sum(0) + p[-1] * 0.9
        return (p @ wide(weight)).to(x.dtype), (p.T @ wide(x)).to(x.dtype), db.to(x.dtype)

    return kernel(forward, backward)


def linear_split(x, weight, bias):
    """Two products, each rounded to the dtype, are added in it."""
    half = x.shape[1] // 2
    left = (wide(x[:, :half]) @ wide(weight[:, :half]).T).to(x.dtype)
    right = (wide(x[:, half:]) @ wide(weight[:, half:]).T).to(x.dtype)
    return left + right + bias


# Cross entropy with an index that is ignored; the targets are part of the function.


def targets_of(x):
    return (torch.arange(x.shape[0]) * 7 + 3) % x.shape[1]


def cross_entropy_reference(x):
    target = targets_of(x)
    target[::5] = -100
    return F.cross_entropy(wide(x), target, label_smoothing=0.1).to(x.dtype)


def cross_entropy(bug=None):
    def forward(ctx, x):
        target = targets_of(x)
        kept = torch.ones_like(target, dtype=torch.bool)
        kept[::5] = False
        w = wide(x)
        log = torch.log_softmax(w, -1)
        count = x.shape[0] if bug == "mean over what is ignored" else int(kept.sum())
        smoothing = 0.1
        loss = -(1 - smoothing) * log.gather(1, target[:, None])[:, 0] - smoothing * log.mean(-1)
        ctx.save_for_backward(log, target, kept)
        ctx.count, ctx.dtype = count, x.dtype
        return torch.where(kept, loss, 0.0).sum().div(count).to(x.dtype)

    def backward(ctx, g):
        log, target, kept = ctx.saved_tensors
        p = wide(torch.exp(log))
        smoothing = 0.0 if bug == "smoothing missing in backward" else 0.1
        wanted = torch.full_like(p, smoothing / p.shape[1])
        wanted.scatter_add_(1, target[:, None], torch.full_like(p[:, :1], 1 - smoothing))
        r = p - wanted
        if bug != "ignored rows have gradients":
            r = r * kept[:, None]
        if bug == "cotangent applied twice":
            r = r * wide(g)
        return (r / ctx.count * wide(g)).to(ctx.dtype)

    return kernel(forward, backward)


def cross_entropy_unfused(x):
    target = targets_of(x)
    log = x - torch.logsumexp(x, -1, keepdim=True)
    kept = [i for i in range(x.shape[0]) if i % 5]
    loss = -0.9 * log[kept, target[kept]] - 0.1 * log[kept].mean(-1)
    return loss.sum() / len(kept)


# Attention, causal, by blocks of keys with a running maximum.


def attention_reference(q, k, v):
    return F.scaled_dot_product_attention(wide(q), wide(k), wide(v), is_causal=True).to(q.dtype)


def attention(bug=None):
    block = 16

    def scores(q, k):
        s = wide(q) @ wide(k).mT / math.sqrt(q.shape[-1])
        rows, columns = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        hidden = columns > rows
        if bug == "mask off by one":
            hidden = columns > rows + 1
        if bug == "mask off by a block":
            hidden = columns // block > rows // block
        if bug == "mask is a small number":
            return s.masked_fill(hidden, -12.0)
        return s.masked_fill(hidden, -math.inf)

    def forward(ctx, q, k, v):
        s = scores(q, k)
        top = torch.full_like(s[..., :1], -math.inf)
        total, acc = torch.zeros_like(top), torch.zeros_like(wide(v))
        acc = torch.zeros(*s.shape[:-1], v.shape[-1], dtype=s.dtype)
        for part, values in zip(s.split(block, -1), wide(v).split(block, -2), strict=True):
            new = torch.maximum(top, part.amax(-1, keepdim=True))
            factor = torch.exp(top - new)
            e = torch.exp(part - new)
            if bug == "missing rescale":
                total = total * factor + e.sum(-1, keepdim=True)
                acc = acc + e @ values
            else:
                total = total * factor + e.sum(-1, keepdim=True)
                acc = acc * factor + e @ values
            top = new
        y = (acc / total).to(q.dtype)
        ctx.save_for_backward(q, k, v, top + torch.log(total))
        return y

    def backward(ctx, g):
        q, k, v, log = ctx.saved_tensors
        p = torch.exp(scores(q, k) - log)
        dv = p.mT @ wide(g)
        dp = wide(g) @ wide(v).mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        scale = 1 / math.sqrt(q.shape[-1])
        dq, dk = ds @ wide(k) * scale, ds.mT @ wide(q) * scale
        if bug == "scale of one head":
            dk = torch.cat([dk[:, :-1], dk[:, -1:] * 1.04], 1)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)

    return kernel(forward, backward)


def attention_unfused(q, k, v):
    """Scores and probabilities are kept in the dtype."""
    s = (wide(q) @ wide(k).mT * (1 / math.sqrt(q.shape[-1]))).to(q.dtype)
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
    return (wide(torch.softmax(s.masked_fill(hidden, -math.inf), -1)) @ wide(v)).to(q.dtype)


# A scan, with a carry between blocks; and a mean.


def scan_reference(x):
    return x.cumsum(-1)


def scan(bug=None):
    def forward(ctx, x):
        carry, parts = torch.zeros_like(wide(x)[..., :1]), []
        for block in wide(x).split(16, -1):
            part = block.cumsum(-1) + carry
            parts.append(part)
            carry = part[..., -1:]
            if bug == "carry in low precision":
                carry = wide(carry.bfloat16())
        return torch.cat(parts, -1).to(x.dtype)

    def backward(ctx, g):
        p = wide(g)
        if bug == "exclusive in backward":
            p = torch.cat([p[..., 1:], torch.zeros_like(p[..., :1])], -1)
        return p.flip(-1).cumsum(-1).flip(-1).to(g.dtype)

    return kernel(forward, backward)


def scan_in_two_stages(x):
    """Sums of the blocks first, then inside of them."""
    w = wide(x)
    before = torch.zeros_like(w[..., :1])
    parts = []
    for block in w.split(30, -1):
        parts.append(torch.cat([before, block], -1).cumsum(-1)[..., 1:])
        before = before + block.sum(-1, keepdim=True)
    return torch.cat(parts, -1).to(x.dtype)


def row_mean_reference(x):
    return x.mean(-1)


def row_mean(bug=None):
    def forward(ctx, x):
        ctx.shape = x.shape
        size = x.shape[-1]
        if bug == "tail of a vector ignored":
            whole = size // 8 * 8
            return (wide(x)[..., :whole].sum(-1) / max(1, size)).to(x.dtype)
        if bug == "padded size":
            size = -(-size // 64) * 64 + 1
        return (wide(x).sum(-1) / size).to(x.dtype)

    def backward(ctx, g):
        if bug == "no rows" and g.numel() == 0:
            raise ValueError("grid of size 0")
        return (wide(g)[..., None] / ctx.shape[-1]).expand(ctx.shape).to(g.dtype)

    return kernel(forward, backward)


def row_mean_by_halves(x):
    return (x.sum(-1) / x.shape[-1]).to(x.dtype)
