"""Kernels in Triton, right, and with planted bugs of the kind that really happen.

With TRITON_INTERPRET=1 they run on CPU tensors, as `make kernels` has it.
Each maker takes the number of a bug; 0 is the right kernel.
"""

from threading import Lock

import torch
import triton
import triton.language as tl
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# Triton's interpreter is not made for threads.
_LAUNCH = Lock()


def launch(kernel, grid, *args, **constants):
    """Run a kernel, one at a time."""
    with _LAUNCH:
        kernel[grid](*args, **constants)


# Softmax: a row for each program.


@triton.jit
def softmax_forward(x, y, size, BUG: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    if BUG == 1:  # the mask is off by one
        inside = columns < size - 1
    values = tl.load(x + row * size + columns, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * size + columns, e / tl.sum(e, 0), mask=columns < size)


@triton.jit
def softmax_backward(y, g, dx, size, BUG: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(y + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    cotangent = tl.load(g + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    p = values * cotangent
    total = tl.sum(p, 0)
    if BUG == 2:  # the sum stops in the middle of the block
        total = tl.sum(tl.where(columns < BLOCK // 2, p, 0.0), 0)
    tl.store(dx + row * size + columns, p - values * total, mask=inside)


def softmax(bug=0):
    """Bugs: 1 the mask, 2 the sum of the backward, 3 contiguous inputs assumed."""

    class Softmax(Function):
        @staticmethod
        def forward(ctx, x):
            if bug != 3:
                x = x.contiguous()
            y = torch.empty(x.shape, dtype=x.dtype)
            rows, size = x.shape
            block = triton.next_power_of_2(size)
            launch(softmax_forward, (rows,), x, y, size, BUG=bug, BLOCK=block)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            dx = torch.empty_like(y)
            rows, size = y.shape
            block = triton.next_power_of_2(size)
            launch(softmax_backward, (rows,), y, g.contiguous(), dx, size, BUG=bug, BLOCK=block)
            return dx

    return Softmax.apply


def softmax_reference(x):
    """What the kernel is compared with."""
    return torch.softmax(x, -1)


# Layer norm: gradients of weight and bias in two stages, sums of groups of rows, then of the groups.


@triton.jit
def norm_forward(x, weight, bias, y, mean, inverse, size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    average = tl.sum(values, 0) / size
    centred = tl.where(inside, values - average, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / size + 1e-5)
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * size + columns, centred * scale * w + b, mask=inside)
    tl.store(mean + row, average)
    tl.store(inverse + row, scale)


@triton.jit
def norm_backward(
    x,
    weight,
    g,
    mean,
    inverse,
    dx,
    dw,
    db,
    rows,
    size,
    BUG: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    partial_w = tl.zeros([BLOCK], dtype=tl.float32)
    partial_b = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(GROUP):
        row = group * GROUP + i
        here = inside & (row + 0 * columns < rows)
        values = tl.load(x + row * size + columns, mask=here, other=0.0).to(tl.float32)
        cotangent = tl.load(g + row * size + columns, mask=here, other=0.0).to(tl.float32)
        last = tl.minimum(row, rows - 1)  # what lies behind it is masked
        average = tl.load(mean + last)
        scale = tl.load(inverse + last)
        hat = tl.where(here, (values - average) * scale, 0.0)
        p = cotangent * w
        first = tl.sum(p, 0) / size
        second = tl.sum(p * hat, 0) / size
        if BUG == 1:  # the block is taken for the size
            first = tl.sum(p, 0) / BLOCK
        tl.store(dx + row * size + columns, (p - first - hat * second) * scale, mask=here)
        partial_w += cotangent * hat
        partial_b += cotangent
        if BUG == 3:  # sums are kept in half precision
            partial_w = partial_w.to(tl.float16).to(tl.float32)
    tl.store(dw + group * size + columns, partial_w, mask=inside)
    tl.store(db + group * size + columns, partial_b, mask=inside)


def layer_norm(bug=0):
    """Bugs: 1 a mean over the block, 2 the last group of rows left out, 3 half-precision sums."""

    class LayerNorm(Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
            y = torch.empty(x.shape, dtype=x.dtype)
            rows, size = x.shape
            mean, inverse = torch.empty(rows), torch.empty(rows)
            block = triton.next_power_of_2(size)
            launch(norm_forward, (rows,), x, weight, bias, y, mean, inverse, size, BLOCK=block)
            ctx.save_for_backward(x, weight, mean, inverse)
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            x, weight, mean, inverse = ctx.saved_tensors
            rows, size = x.shape
            groups, block = triton.cdiv(rows, 8), triton.next_power_of_2(size)
            dx = torch.empty_like(x)
            dw, db = torch.zeros(groups, size), torch.zeros(groups, size)
            args = (x, weight, g.contiguous(), mean, inverse, dx, dw, db, rows, size)
            launch(norm_backward, (groups,), *args, BUG=bug, GROUP=8, BLOCK=block)
            kept = slice(None, -1) if bug == 2 else slice(None)
            return dx, dw[kept].sum(0).to(weight.dtype), db[kept].sum(0).to(weight.dtype)

    return LayerNorm.apply


def layer_norm_reference(x, weight, bias):
    """What the kernel is compared with."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


# Cross entropy: the gradient is computed with the loss, and scaled by the cotangent in the backward.


@triton.jit
def entropy(x, target, loss, dx, size, BUG: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    values = tl.load(x + row * size + columns, mask=inside, other=-float("inf")).to(tl.float32)
    if BUG == 2:  # what lies outside counts as exp(0)
        values = tl.load(x + row * size + columns, mask=inside, other=0.0).to(tl.float32)
    top = tl.max(values, 0)
    e = tl.exp(values - top)
    total = tl.sum(e, 0)
    wanted = tl.load(target + row)
    chosen = tl.sum(tl.where(columns == wanted, values, 0.0), 0)
    tl.store(loss + row, top + tl.log(total) - chosen)
    slope = e / total - tl.where(columns == wanted, 1.0, 0.0)
    if BUG == 1:  # the target of the row before
        slope = e / total - tl.where(columns == wanted - 1, 1.0, 0.0)
    tl.store(dx + row * size + columns, slope, mask=inside)


def targets(x):
    """A class for every row."""
    return (torch.arange(x.shape[0]) * 7 + 3) % x.shape[1]


def cross_entropy(bug=0):
    """Bugs: 1 the index of the target, 2 the tail counted, 3 the gradient kept outside of the context."""
    kept = {}

    class CrossEntropy(Function):
        @staticmethod
        def forward(ctx, x):
            x = x.contiguous()
            rows, size = x.shape
            loss, dx = torch.empty(rows), torch.empty(rows, size)
            block = triton.next_power_of_2(size)
            launch(entropy, (rows,), x, targets(x), loss, dx, size, BUG=bug, BLOCK=block)
            kept["dx"] = dx
            ctx.save_for_backward(dx)
            ctx.dtype = x.dtype
            return loss.to(x.dtype)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            dx = kept["dx"] if bug == 3 else ctx.saved_tensors[0]
            return (dx * g[:, None].float()).to(ctx.dtype)

    return CrossEntropy.apply


def cross_entropy_reference(x):
    """What the kernel is compared with."""
    return torch.nn.functional.cross_entropy(x, targets(x), reduction="none")


# Flash attention with a causal mask: a block of rows for each program, keys block by block; the backward
# computes the probabilities again, from the logarithm of the sum that the forward keeps for each row.


@triton.jit
def block_of(x, i, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A block of rows, zeros behind the last."""
    rows = i * BLOCK + tl.arange(0, BLOCK)
    width = tl.arange(0, WIDTH)
    return tl.load(x + rows[:, None] * WIDTH + width[None, :], mask=rows[:, None] < size, other=0.0).to(
        tl.float32
    )


@triton.jit
def scores_of(q, k, scale, i, j, size, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The scores of a block of queries and a block of keys; what the mask leaves out is -infinity."""
    rows = i * BLOCK + tl.arange(0, BLOCK)
    columns = j * BLOCK + tl.arange(0, BLOCK)
    queries, keys = block_of(q, i, size, WIDTH, BLOCK), block_of(k, j, size, WIDTH, BLOCK)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    inside = (columns[None, :] <= rows[:, None]) & (rows[:, None] < size)
    return tl.where(inside, scores, -float("inf"))


@triton.jit
def attention_forward(
    q,
    k,
    v,
    y,
    logs,
    scale,
    size,
    BUG: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0)
    head = tl.program_id(1) * size
    rows = i * BLOCK + tl.arange(0, BLOCK)
    width = tl.arange(0, WIDTH)
    top = tl.zeros([BLOCK], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK], dtype=tl.float32)
    sums = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
    for j in range(BLOCKS):
        scores = scores_of(q + head * WIDTH, k + head * WIDTH, scale, i, j, size, WIDTH, BLOCK)
        higher = tl.maximum(top, tl.max(scores, 1))
        rescale = tl.exp(top - higher)
        p = tl.exp(scores - higher[:, None])
        values = block_of(v + head * WIDTH, j, size, WIDTH, BLOCK)
        if BUG == 1:  # what was added up under another maximum is not rescaled
            sums = sums + tl.dot(p, values, input_precision="ieee")
        else:
            sums = sums * rescale[:, None] + tl.dot(p, values, input_precision="ieee")
        if BUG == 3:  # sums are kept in half precision
            sums = sums.to(tl.float16).to(tl.float32)
        total = total * rescale + tl.sum(p, 1)
        top = higher
    total = tl.where(rows < size, total, 1.0)
    tl.store(
        y + (head + rows[:, None]) * WIDTH + width[None, :], sums / total[:, None], mask=rows[:, None] < size
    )
    tl.store(logs + head + rows, top + tl.log(total), mask=rows < size)


@triton.jit
def attention_by_queries(
    q, k, v, g, logs, inner, dq, scale, size, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    i = tl.program_id(0)
    head = tl.program_id(1) * size
    rows = i * BLOCK + tl.arange(0, BLOCK)
    width = tl.arange(0, WIDTH)
    pulled = block_of(g + head * WIDTH, i, size, WIDTH, BLOCK)
    kept = tl.load(logs + head + rows, mask=rows < size, other=0.0)
    along = tl.load(inner + head + rows, mask=rows < size, other=0.0)
    found = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
    for j in range(BLOCKS):
        scores = scores_of(q + head * WIDTH, k + head * WIDTH, scale, i, j, size, WIDTH, BLOCK)
        p = tl.exp(scores - kept[:, None])
        values = block_of(v + head * WIDTH, j, size, WIDTH, BLOCK)
        slope = p * (tl.dot(pulled, tl.trans(values), input_precision="ieee") - along[:, None])
        keys = block_of(k + head * WIDTH, j, size, WIDTH, BLOCK)
        found += tl.dot(slope, keys, input_precision="ieee") * scale
    tl.store(dq + (head + rows[:, None]) * WIDTH + width[None, :], found, mask=rows[:, None] < size)


@triton.jit
def attention_by_keys(
    q,
    k,
    v,
    g,
    logs,
    inner,
    dk,
    dv,
    scale,
    size,
    BUG: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    j = tl.program_id(0)
    head = tl.program_id(1) * size
    columns = j * BLOCK + tl.arange(0, BLOCK)
    width = tl.arange(0, WIDTH)
    values = block_of(v + head * WIDTH, j, size, WIDTH, BLOCK)
    by_keys = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
    by_values = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
    for i in range(BLOCKS):
        rows = i * BLOCK + tl.arange(0, BLOCK)
        kept = tl.load(logs + head + rows, mask=rows < size, other=0.0)
        along = tl.load(inner + head + rows, mask=rows < size, other=0.0)
        scores = scores_of(q + head * WIDTH, k + head * WIDTH, scale, i, j, size, WIDTH, BLOCK)
        p = tl.exp(scores - kept[:, None])
        if BUG == 2:  # the mask is off by a block: queries begin behind that of the keys
            p = tl.where((rows >= (j + 1) * BLOCK)[:, None], p, 0.0)
        pulled = block_of(g + head * WIDTH, i, size, WIDTH, BLOCK)
        by_values += tl.dot(tl.trans(p), pulled, input_precision="ieee")
        slope = p * (tl.dot(pulled, tl.trans(values), input_precision="ieee") - along[:, None])
        queries = block_of(q + head * WIDTH, i, size, WIDTH, BLOCK)
        by_keys += tl.dot(tl.trans(slope), queries, input_precision="ieee") * scale
    place = (head + columns[:, None]) * WIDTH + width[None, :]
    tl.store(dk + place, by_keys, mask=columns[:, None] < size)
    tl.store(dv + place, by_values, mask=columns[:, None] < size)


def attention(bug=0):
    """Bugs: 1 the missing rescale, 2 a mask that is off by a block in the backward, 3 half-precision sums."""

    class Attention(Function):
        @staticmethod
        def forward(ctx, q, k, v):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            heads, size, width = q.shape
            y, logs = torch.empty(q.shape, dtype=q.dtype), torch.empty(heads, size)
            blocks = triton.cdiv(size, 16)
            ctx.scale, ctx.constants = width**-0.5, {"BLOCKS": blocks, "WIDTH": width, "BLOCK": 16}
            args = (q, k, v, y, logs, ctx.scale, size)
            launch(attention_forward, (blocks, heads), *args, BUG=bug, **ctx.constants)
            ctx.save_for_backward(q, k, v, y, logs)
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            q, k, v, y, logs = ctx.saved_tensors
            heads, size, _ = q.shape
            g = g.contiguous()
            inner = (g.float() * y.float()).sum(-1)
            dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
            grid, args = (ctx.constants["BLOCKS"], heads), (q, k, v, g, logs, inner)
            launch(attention_by_queries, grid, *args, dq, ctx.scale, size, **ctx.constants)
            launch(attention_by_keys, grid, *args, dk, dv, ctx.scale, size, BUG=bug, **ctx.constants)
            return dq, dk, dv

    return Attention.apply


def attention_reference(q, k, v):
    """What the kernel is compared with."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


KERNELS = {
    "softmax": (softmax, softmax_reference, ((6, 45),)),
    "layer norm": (layer_norm, layer_norm_reference, ((20, 21), (21,), (21,))),
    "cross entropy": (cross_entropy, cross_entropy_reference, ((6, 45),)),
    "attention": (attention, attention_reference, ((2, 40, 16), (2, 40, 16), (2, 40, 16))),
}


def inputs(name, dtype=torch.float32):
    """Random inputs of a kernel."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in KERNELS[name][2])


if __name__ == "__main__":
    import covector

    for name, (make, reference, _) in KERNELS.items():
        for bug in range(4):
            covector.check_kernel(make(bug), reference, inputs(name), lenses=["-modes"]).show()
