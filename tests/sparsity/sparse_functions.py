"""The table of functions with sparse derivatives: what detection, colouring and plans are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class SparseFunction:
    """A function of one tensor; `exact` if the detected pattern has no entry too many; None: in some torch.

    `forward` is False where torch has no forward mode for it, `batched` where some torch cannot batch it.
    """

    name: str
    function: Callable[[Tensor], Any]
    shape: tuple[int, ...]
    exact: bool | None = True
    forward: bool = True
    batched: bool = True

    def at(self, seed: int) -> Tensor:
        """A random point."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.shape, dtype=torch.float64, generator=generator)

    def __str__(self) -> str:
        return self.name


def _constant(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(99)) + 0.1


class StraightThrough(torch.autograd.Function):
    """Rounds; its derivative is said to be one."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ShiftedSquare(torch.autograd.Function):
    """x[i] x[i + 1], with both derivatives of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x.roll(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.roll(-1) + (gradient * x).roll(1)

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.roll(-1) + x * tangent.roll(-1)


def burgers(u):
    left, right = u.roll(1), u.roll(-1)
    return -u * (right - left) / 2 + 0.1 * (right - 2 * u + left)


def brusselator(state):
    u, v = state

    def laplacian(w):
        return w.roll(1, 0) + w.roll(-1, 0) + w.roll(1, 1) + w.roll(-1, 1) - 4 * w

    reaction = u * u * v
    return torch.stack([1 + reaction - 4.4 * u + 0.1 * laplacian(u), 3.4 * u - reaction + 0.1 * laplacian(v)])


def in_place_slices(x):
    y = x.clone()
    y[1:-1] = x[:-2] * x[2:]
    y[0] = 0.0
    y[3:5].mul_(x[0])
    view = y.view(2, -1)
    view[1] += view[0].flip(0)
    return y


def loop(x):
    state = x
    for _ in range(3):
        state = state + 0.1 * torch.sin(state.roll(1))
    return state


def scattered(x):
    index = torch.tensor([0, 2, 2, 5, 0, 1, 4, 4])
    return torch.zeros(6, dtype=x.dtype).scatter_add(0, index, x * x)


def accumulated(x):
    rows, columns = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 1, 0])
    return torch.zeros(3, 2, dtype=x.dtype).index_put((rows, columns), x**3, accumulate=True)


def block_solve(x):
    blocks = _BLOCKS + 3 * torch.eye(2, dtype=x.dtype) + 0.1 * x.reshape(3, 2, 1)
    return torch.linalg.solve(blocks, x.reshape(3, 2, 1)).reshape(-1)


def block_fft(x):
    spectrum = torch.fft.rfft(x.reshape(3, 4), dim=1)
    return torch.fft.irfft(spectrum * _FILTER, n=4, dim=1).reshape(-1) ** 2


def two_outputs(x):
    return {"first": x[:3] * x[3:6], "rest": (x[6:].sum(), x[0].exp())}


def stencil_kernel(x):
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]], dtype=x.dtype)
    return F.conv2d(x[None, None], kernel[None, None], padding=1)[0, 0] ** 2


def grouped_channels(x):
    return F.conv1d(x[None], _GROUPED, groups=2, dilation=2, padding=1)[0].tanh()


def complex_rotation(x):
    z = torch.view_as_complex(x.reshape(-1, 2))
    return torch.view_as_real(z * z.conj() + z**3).reshape(-1)


def through_choice(x):
    return x[torch.argsort(x.detach())] * 2


class Turned(torch.autograd.Function):
    """Works in place; its derivative is not that of what it does."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2.0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(0) * 2


def sweep(x):
    y = x.clone()
    for i in range(1, 3):
        for j in range(1, 3):
            y[i, j] = (y[i - 1, j] + y[i, j - 1] + x[i + 1, j] + x[i, j + 1]) / 4
    return y


def continued_fraction(x):
    terms = [x[0].exp()]
    for element in x[1:]:
        terms.append(element + 1 / terms[-1])
    return torch.stack(terms)


def imaginary_in_place(x):
    z = torch.complex(x[:3], x[3:])
    z.imag.mul_(x[3:])
    return z.real + z.imag


def cells(x):
    state, outputs = None, []
    for step in x:
        state = _CELL(step, state)
        outputs.append(state[0])
    return torch.stack(outputs)


_CELL = torch.nn.LSTMCell(2, 2).double()
_TRIDIAGONAL = torch.diag(_constant(8)) + torch.diag(_constant(7), 1) + torch.diag(_constant(7), -1)
_BLOCKS, _MIXING, _KERNEL, _TRANSPOSED = (
    _constant(3, 2, 2),
    _constant(3, 4),
    _constant(2, 1, 3),
    _constant(2, 3, 3),
)
_GROUPED = _constant(4, 1, 3)
_GROUPED[1] = 0
_GRID = torch.rand(2, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) - 0.5
_IMAGE = _constant(2, 1, 3, 3)
_RIGHT = _constant(2, 3, 1)
_RECURRENT = torch.nn.GRU(2, 2).double()
_FILTER = torch.tensor([1.0, 2.0 + 1.0j, 0.5], dtype=torch.complex128)
_MASK = torch.tensor([True, False, True, True, False, False, True, False])
_LAYER = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
_NORM = torch.nn.LayerNorm(4).double()
_CONV = torch.nn.Conv2d(2, 3, 3, stride=2, padding=1).double()
_EVAL = torch.nn.BatchNorm1d(3).double().eval()

FUNCTIONS = [
    SparseFunction("burgers", burgers, (8,)),
    SparseFunction("a stencil at zero", lambda x: burgers(x - x.detach()), (8,)),
    SparseFunction("brusselator", brusselator, (2, 4, 5)),
    SparseFunction("where", lambda x: torch.where(x > 0, x * x.roll(1), x.roll(2)), (7,)),
    SparseFunction("where with a constant condition", lambda x: torch.where(_MASK, x.roll(1), x * x), (8,)),
    SparseFunction("relu", lambda x: F.relu(x[1:] - x[:-1]), (6,)),
    SparseFunction("clamp", lambda x: x.clamp(-0.5, 0.5) * x.flip(0), (6,)),
    SparseFunction("minimum", lambda x: torch.minimum(x, x.roll(1)), (6,)),
    SparseFunction("abs and sign", lambda x: x.abs() + x.sign() * x.roll(1), (6,)),
    SparseFunction("max pool", lambda x: F.max_pool2d(x[None, None], 2)[0, 0], (4, 6)),
    SparseFunction("overlapping max pool", lambda x: F.max_pool1d(x[None], 3, stride=1, padding=1)[0], (2, 6)),
    SparseFunction("average pool", lambda x: F.avg_pool2d(x[None], 2, stride=1)[0].sin(), (2, 3, 4)),
    SparseFunction("adaptive pool", lambda x: F.adaptive_avg_pool2d(x[None], (2, 2))[0].sin(), (2, 5, 4)),
    SparseFunction("interpolate", lambda x: F.interpolate(x[None], size=(4, 6), mode="bilinear")[0].sin(), (1, 3, 3)),
    SparseFunction("nearest", lambda x: F.interpolate(x[None], scale_factor=2)[0] ** 2, (2, 3)),
    SparseFunction("sort", lambda x: x.sort(dim=1)[0], (3, 4)),
    SparseFunction("topk", lambda x: x.topk(2, dim=1)[0], (3, 4)),
    SparseFunction("argsort as index", through_choice, (5,)),
    SparseFunction("median", lambda x: x.median(dim=1)[0], (3, 5)),
    SparseFunction("cumsum", lambda x: x.cumsum(1).sin(), (2, 5)),
    SparseFunction("cumprod", lambda x: x.cumprod(0), (5, 2)),
    SparseFunction("logcumsumexp", lambda x: x.logcumsumexp(0), (6,)),
    SparseFunction("gather", lambda x: x.gather(1, torch.tensor([[0, 2], [1, 1], [3, 0]])) ** 2, (3, 4)),
    SparseFunction("scatter_add", scattered, (8,)),
    SparseFunction("scatter", lambda x: torch.ones(5, dtype=x.dtype).scatter(0, torch.tensor([1, 4, 0]), x**2), (3,)),
    SparseFunction("scatter_reduce", lambda x: x.new_zeros(3).scatter_reduce(0, torch.tensor([0, 1, 1, 2]), x, "amax"), (4,)),
    SparseFunction("index_add", lambda x: x.new_zeros(3, 2).index_add(0, torch.tensor([0, 0, 2]), x * x), (3, 2)),
    SparseFunction("index_put accumulating", accumulated, (4,)),
    SparseFunction("advanced index", lambda x: x[torch.tensor([2, 0, 2]), :, torch.tensor([1, 1, 0])] ** 2, (3, 2, 2)),
    SparseFunction("embedding", lambda x: F.embedding(torch.tensor([0, 3, 3]), x) ** 2, (4, 2)),
    SparseFunction("einsum", lambda x: torch.einsum("bij,bj->bi", x, x[:, 0].sin()), (3, 2, 2)),
    SparseFunction("einsum with a constant", lambda x: torch.einsum("bi,ij->bj", x, _MIXING).tanh(), (4, 3)),
    SparseFunction("dense storage of a tridiagonal matrix", lambda x: (_TRIDIAGONAL @ x).sin(), (8,)),
    SparseFunction("tridiagonal from the right", lambda x: (x.reshape(2, 8) @ _TRIDIAGONAL) ** 2, (16,)),
    SparseFunction("sparse matrix", lambda x: torch.mv(_TRIDIAGONAL.to_sparse(), x).sin(), (8,), forward=False),
    SparseFunction("sparse csr matrix", lambda x: (_TRIDIAGONAL.to_sparse_csr() @ x[:, None])[:, 0].sin(), (8,), forward=False, batched=False),
    SparseFunction("conv1d", lambda x: F.conv1d(x[None, None], _KERNEL, padding=1)[0].tanh(), (7,)),
    SparseFunction("conv2d", lambda x: _CONV(x[None])[0].tanh(), (2, 5, 4)),
    SparseFunction("conv2d with zeros in the kernel", stencil_kernel, (4, 5)),
    SparseFunction("grouped and dilated conv1d", grouped_channels, (2, 6)),
    SparseFunction("transposed conv", lambda x: F.conv_transpose1d(x[None], _TRANSPOSED, stride=2)[0].sin(), (2, 4)),
    SparseFunction("gated units", lambda x: torch.nn.functional.glu(x.reshape(2, 4)), (8,)),
    SparseFunction("softmax", lambda x: x.softmax(1), (3, 4)),
    SparseFunction("log_softmax", lambda x: x.log_softmax(0), (3, 2)),
    SparseFunction("logsumexp", lambda x: x.logsumexp(1), (3, 4)),
    SparseFunction("layer norm", lambda x: _NORM(x), (3, 4)),
    SparseFunction("batch norm in evaluation", lambda x: _EVAL(x).sin(), (4, 3)),
    SparseFunction("block solve", block_solve, (6,)),
    SparseFunction("triangular solve", lambda x: torch.linalg.solve_triangular(_TRIDIAGONAL.tril(), x, upper=False), (8, 3), exact=False),
    SparseFunction("inverse", lambda x: torch.linalg.inv(x.reshape(2, 2, 2) + 3 * torch.eye(2, dtype=x.dtype)), (8,)),
    SparseFunction("block fft", block_fft, (12,)),
    SparseFunction("floor(x) * y", lambda x: x[:3].floor() * x[3:], (6,)),
    SparseFunction("detach", lambda x: x.detach() * x.roll(1), (6,)),
    SparseFunction("straight through", lambda x: StraightThrough.apply(x) * x.roll(1), (6,), forward=False),
    SparseFunction("custom function with a jvp", lambda x: ShiftedSquare.apply(x).sin(), (6,)),
    SparseFunction("mask", lambda x: (x * _MASK) ** 2 + x.masked_fill(_MASK, 0.0).roll(1), (8,)),
    SparseFunction("boolean index", lambda x: x[_MASK] ** 2, (8,)),
    SparseFunction("broadcasting", lambda x: x[:3, None] * x[None, 3:], (5,)),
    SparseFunction("slices of slices", lambda x: (y := x[2:] * 2)[1:] * y[:-1], (7,)),
    SparseFunction("slices of rows", lambda x: (y := x[1:, 1:].sin())[1:, :2] * y[:-1, 1:], (4, 4)),
    SparseFunction("in-place slices", in_place_slices, (8,)),
    SparseFunction("loop", loop, (9,)),
    SparseFunction("checkpoint", lambda x: checkpoint(lambda y: y.sin() * y.roll(1), x, use_reentrant=False), (6,), batched=False),
    SparseFunction("module by samples", lambda x: _LAYER(x), (5, 3)),
    SparseFunction("vmap inside", lambda x: torch.vmap(lambda row: row.prod() * row)(x), (3, 2)),
    SparseFunction("outer product of means", lambda x: x.mean(0) * x.std(0), (4, 3)),
    SparseFunction("padding", lambda x: F.pad(x, (1, 1), mode="reflect").unfold(1, 3, 1).prod(-1), (2, 4)),
    SparseFunction("roll, flip and tril", lambda x: (x.roll(1, 0).flip(1).tril() ** 2), (3, 3)),
    SparseFunction("norms", lambda x: x.norm(dim=1) + x.amax(1) * x.var(1), (3, 4)),
    SparseFunction("complex inside", complex_rotation, (8,)),
    SparseFunction("several outputs", two_outputs, (9,)),
    SparseFunction("independent of x", lambda x: torch.ones(3, dtype=x.dtype) * x.detach()[:3], (4,)),
    SparseFunction("prod with a reduction", lambda x: x.prod(dim=1), (3, 3)),
    SparseFunction("pairwise distances", lambda x: (x[:, None] - x[None]).pow(2).sum(-1), (3, 2), exact=False),
    SparseFunction("attention", lambda x: F.scaled_dot_product_attention(x, x, x), (2, 1, 3, 2), forward=False),
    SparseFunction("folded columns", lambda x: F.fold(x[None], (3, 3), 2, padding=0)[0] ** 2, (4, 4)),
    SparseFunction("fold with padding", lambda x: F.fold(x[None], (3, 2), 2, padding=1)[0] ** 2, (4, 12)),
    SparseFunction("cross entropy", lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1]), reduction="none"), (3, 4)),
    SparseFunction("cross entropy of pixels", lambda x: F.cross_entropy(x, torch.tensor([[[0, 2]], [[1, 1]]]), reduction="none"), (2, 3, 1, 2), exact=False),
    SparseFunction("mean negative log-likelihood", lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([0, 2])), (2, 3)),
    SparseFunction("sampled grid", lambda x: F.grid_sample(x, _GRID, align_corners=False), (2, 1, 3, 3), exact=False, forward=False),
    SparseFunction("grid to sample at", lambda x: F.grid_sample(_IMAGE, x.tanh(), align_corners=False), (2, 2, 1, 2), exact=None, forward=False, batched=False),
    SparseFunction("least squares", lambda x: torch.linalg.lstsq(x.reshape(2, 3, 2), _RIGHT)[0], (12,)),
    SparseFunction("transposed in place", lambda x: x.clone().transpose_(0, 1).unsqueeze_(0) ** 2, (2, 3)),
    SparseFunction("lists of tensors", lambda x: torch.stack(torch._foreach_mul(list(x.unbind()), 2.0)) ** 2, (3, 2)),
    SparseFunction("recurrent layer", lambda x: _RECURRENT(x)[0], (3, 1, 2)),
    SparseFunction("cells in a loop", cells, (3, 2, 2)),
    SparseFunction("sweep in place", sweep, (4, 4)),
    SparseFunction("continued fraction", continued_fraction, (5,)),
    SparseFunction("imaginary part in place", imaginary_in_place, (6,)),
    SparseFunction("Function in place", lambda x: Turned.apply(x * 1), (5,), forward=False, batched=False),
    SparseFunction("gradient inside", lambda x: torch.func.grad(lambda y: (y[1:] * y[:-1] ** 2).sum())(x), (5,)),
    SparseFunction("vmap in vmap", lambda x: torch.vmap(torch.vmap(lambda a: a.sin() * a), in_dims=1)(x), (3, 2)),
    SparseFunction("checkpoint in checkpoint", lambda x: checkpoint(lambda y: checkpoint(torch.sin, y, use_reentrant=False) * y.roll(1), x, use_reentrant=False), (6,), batched=False),
    SparseFunction("bicubic", lambda x: F.interpolate(x, size=(5, 3), mode="bicubic").sin(), (1, 1, 4, 4)),
    SparseFunction("pixel shuffle", lambda x: F.pixel_shuffle(x, 2).sin(), (1, 4, 2, 2)),
    SparseFunction("index arithmetic", lambda x: x[(torch.arange(6) * 5 + 1) % 6] * x[torch.arange(6) // 2], (6,)),
    SparseFunction("dilated unfold", lambda x: F.unfold(x, 2, stride=2, padding=1, dilation=2) ** 2, (1, 1, 5, 4)),
    SparseFunction("window of a spectrum", lambda x: torch.stft(x, 4, 2, center=False, return_complex=True, window=x.new_ones(4)).abs(), (10,)),
    SparseFunction("empty", lambda x: x[:0] * 2, (3,)),
    SparseFunction("scalar in, scalar out", lambda x: x.sin() * x, ()),
]  # fmt: skip
