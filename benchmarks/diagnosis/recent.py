"""Three dozen more bugs and ten near misses, written by somebody who had not read the rules.

When first run, of 37 bugs 32 were named, none misled, and 5 were left without a name: two activations, an
inverted mask, an absolute error, and the gradient of an exponent. (A 38th was no bug: what is cast to an
integer is constant.) Of the near misses, two were given a diagnosis that was true; they were replaced.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.diagnosis.planted import Bug, bug, cut

SOURCE = torch.tensor([0, 0, 1, 2, 3, 4, 4])
TARGET = torch.tensor([1, 2, 2, 3, 0, 0, 3])
CHOSEN = torch.tensor([[True, False, True, False], [False, True, True, False], [True, False, False, True]])
TURN = torch.complex(torch.tensor(0.6, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64))
DECAY = 0.7
SYSTEM = torch.tensor([[3.0, 1, 0, 2], [0, 2, 1, 0], [1, 0, 4, 1], [0, 3, 0, 5]], dtype=torch.float64)


def spread(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smoothed(x: Tensor) -> Tensor:
    """An exponential moving average along the last axis."""
    rows = [x[..., 0]]
    for t in range(1, x.shape[-1]):
        rows.append(DECAY * rows[-1] + (1 - DECAY) * x[..., t])
    return torch.stack(rows, -1)


def smoothed_forwards(g, y, x):
    carried, rows = torch.zeros_like(g[..., 0]), []
    for t in range(x.shape[-1]):
        carried = g[..., t] + DECAY * carried
        rows.append(carried * ((1 - DECAY) if t > 0 else 1.0))
    return torch.stack(rows, -1)


def smoothed_without_carry(g, y, x):
    scale = torch.full_like(g, 1 - DECAY)
    scale[..., 0] = 1.0
    return g * scale


def aggregated(x: Tensor) -> Tensor:
    """Messages along the edges of a graph, added up where they arrive."""
    return torch.zeros_like(x).index_add(0, TARGET, x[SOURCE])


def aggregated_the_other_way(g, y, x):
    return torch.zeros_like(g).index_add(0, TARGET, g[SOURCE])


def patches(x: Tensor) -> Tensor:
    """An image of 4 x 6 as six patches of 2 x 2."""
    return x.reshape(2, 2, 3, 2).permute(0, 2, 1, 3).reshape(6, 4)


def group_normed(x: Tensor) -> Tensor:
    return F.group_norm(x, 2)


def group_norm_without_mean(g, y, x):
    rows, grad, out = (t.reshape(t.shape[0], 2, -1) for t in (x, g, y))
    scale = (rows.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return ((grad - out * (grad * out).mean(-1, keepdim=True)) / scale).reshape(x.shape)


def unit_channels(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def mish_without_inner(g, y, x):
    return g * (F.softplus(x).tanh() + x * (1 - F.softplus(x).tanh() ** 2))


def rms_scaled(x: Tensor, w: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w


def rms_scaled_by_its_first_row(g, y, x, w):
    root = (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    normed = x * root
    gw = g * w
    return root * (gw - normed * (gw * normed).mean(-1, keepdim=True)), (g * normed)[0]


FUNCTIONS: list[Bug] = [
    bug("chain", "mish without its inner derivative", F.mish, mish_without_inner, (3, 5)),
    bug(
        "branch",
        "relu6 without its upper end",
        lambda x: F.relu6(6 * x),
        lambda g, y, x: 6 * g * (x > 0),
        (4, 5),
    ),
    bug(
        "branch",
        "softsign without the magnitude",
        F.softsign,
        lambda g, y, x: g / (1 + x) ** 2,
        (4, 5),
    ),
    bug(
        "chain",
        "log cosh, the tangent squared",
        lambda x: x.cosh().log(),
        lambda g, y, x: g * x.tanh() ** 2,
        (3, 4),
    ),
    bug(
        "branch",
        "a floor, its mask the other way round",
        lambda x: x.clamp(min=0.2),
        lambda g, y, x: g * (x < 0.2),
        (4, 4),
    ),
    bug(
        "branch",
        "absolute error without its sign",
        lambda x, t: (x - t).abs(),
        lambda g, y, x, t: (g, -g * (x - t).sign()),
        (7,),
        (7,),
    ),
    bug(
        "factor",
        "binary cross entropy, its mean forgotten",
        lambda x: F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.25)),
        lambda g, y, x: g * (x.sigmoid() - 0.25),
        (3, 4),
    ),
    bug(
        "transposed",
        "a linear layer, its weight the wrong way",
        lambda x, w: x @ w.T,
        lambda g, y, x, w: (g @ w, x.T @ g),
        (5, 4),
        (4, 4),
    ),
    bug(
        "factor",
        "a linear layer, the input divided by the batch",
        lambda x, w: x @ w.T,
        lambda g, y, x, w: (g @ w / len(x), g.T @ x),
        (5, 3),
        (4, 3),
    ),
    bug(
        "broadcast",
        "a weight shared by a batch, the first alone",
        lambda x, w: x @ w,
        lambda g, y, x, w: (g @ w.T, x[0].T @ g[0]),
        (3, 4, 2),
        (2, 5),
    ),
    bug(
        "factor",
        "squared distances without the 2",
        lambda a, b: (a[:, None] - b[None]).pow(2).sum(-1),
        lambda g, y, a, b: (
            (g[..., None] * (a[:, None] - b[None])).sum(1),
            -2 * (g[..., None] * (a[:, None] - b[None])).sum(0),
        ),
        (4, 3),
        (5, 3),
    ),
    bug("reversed", "a moving average carried forwards", smoothed, smoothed_forwards, (3, 6)),
    bug("diagonal", "a moving average without its carry", smoothed, smoothed_without_carry, (3, 6)),
    bug(
        "broadcast",
        "rms norm, the first row for its weight",
        rms_scaled,
        rms_scaled_by_its_first_row,
        (4, 5),
        (5,),
    ),
    bug("normalisation", "group norm without the mean", group_normed, group_norm_without_mean, (2, 4, 3)),
    bug(
        "normalisation",
        "channels of length one, as a plain division",
        unit_channels,
        lambda g, y, x: g / x.norm(dim=1, keepdim=True),
        (2, 4, 3),
    ),
    bug(
        "axis",
        "softmax of channels, summed along the width",
        lambda x: x.softmax(1),
        lambda g, y, x: y * (g - (g * y).sum(-1, keepdim=True)),
        (2, 3, 4),
    ),
    bug(
        "factor",
        "squared magnitude without the 2",
        lambda z: (z * z.conj()).real,
        lambda g, y, z: g * z,
        (6,),
        dtype=torch.complex128,
    ),
    bug(
        "conjugate",
        "turned by a complex number, and turned on",
        lambda z: z * TURN,
        lambda g, y, z: g * TURN,
        (6,),
        dtype=torch.complex128,
    ),
    bug(
        "order",
        "patches put together in order",
        patches,
        lambda g, y, x: g.reshape(x.shape),
        (4, 6),
    ),
    bug("transposed", "messages of a graph sent on", aggregated, aggregated_the_other_way, (5, 2)),
    bug(
        "factor",
        "symmetrised without the half",
        lambda x: (x + x.T) / 2,
        lambda g, y, x: g + g.T,
        (4, 4),
    ),
    bug(
        "mask", "the upper triangle in forward alone", lambda x: (2 * x).triu(), lambda g, y, x: 2 * g, (4, 4)
    ),
    bug(
        "mask",
        "a choice of two, both get everything",
        lambda a, b: torch.where(CHOSEN, 3 * a, b.exp()),
        lambda g, y, a, b: (3 * g, g * b.exp()),
        (3, 4),
        (3, 4),
    ),
    bug(
        "transposed",
        "a bilinear form, its matrix from the other side",
        lambda x, a, y: (x @ a * y).sum(-1),
        lambda g, out, x, a, y: (
            g[:, None] * (y @ a.T),
            torch.einsum("n,ni,nj->ji", g, x, y),
            g[:, None] * (x @ a),
        ),
        (5, 3),
        (3, 3),
        (5, 3),
    ),
    bug(
        "axis",
        "sums of all pairs, one added up along the wrong axis",
        lambda a, b: a[:, None] + 2 * b[None, :],
        lambda g, y, a, b: (g.sum(1), 2 * g.sum(1)),
        (5,),
        (5,),
    ),
    bug(
        "broadcast",
        "repeated, one of the copies",
        lambda x: x.repeat(3, 1),
        lambda g, y, x: g[: len(x)],
        (2, 4),
    ),
    bug(
        "sign",
        "a quotient, its denominator without the minus",
        lambda a, b: a / b,
        lambda g, y, a, b: (g / b, g * a / b**2),
        (4, 3),
        (4, 3),
        positive=True,
    ),
    bug(
        "transposed",
        "a linear system solved again as it is",
        lambda b: torch.linalg.solve(SYSTEM, b),
        lambda g, y, b: torch.linalg.solve(SYSTEM, g),
        (4, 2),
    ),
    bug(
        "chain",
        "a learned power, its exponent without the logarithm",
        lambda x, p: x**p,
        lambda g, y, x, p: (g * p * x ** (p - 1), g * y),
        (4, 3),
        (4, 3),
        positive=True,
    ),
]


# Derivatives that are lost.


class Gate(nn.Module):
    """A gate from pooled features, as a plain number."""

    def forward(self, x: Tensor) -> Tensor:
        """The gated features."""
        strength = math.tanh(x.mean())  # cut
        return strength * x


class Target(nn.Module):
    """A loss against what a second network says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online = nn.Linear(3, 2).double()
        self.slow = nn.Linear(3, 2).double()

    def target(self, x: Tensor) -> Tensor:
        """What the second network says."""
        torch.set_grad_enabled(False)
        try:
            return self.slow(x).tanh()  # cut
        finally:
            torch.set_grad_enabled(True)

    def forward(self, x: Tensor) -> Tensor:
        """The loss of each row."""
        return (self.online(x) - self.target(x)).pow(2).sum(-1)


GATE, TEACHER = Gate(), Target()


def quantised(x: Tensor) -> Tensor:
    """Straight through: the step is not seen."""
    return 2 * x.sin() + ((4 * x).tanh() - x).detach()  # cut


def by_its_largest(x: Tensor) -> Tensor:
    largest = float(x.abs().max())  # cut
    return x / largest


def fresh_leaf(x: Tensor) -> Tensor:
    hidden = (x * 2).tanh()
    hidden = hidden.clone().detach().requires_grad_()  # cut
    return hidden * x


def forced(x: Tensor) -> Tensor:
    power = torch.from_numpy(x.pow(2).numpy(force=True))  # cut
    return x * power


def logged(x: Tensor) -> Tensor:
    rows = []
    for row in x:
        rows.append(row * row.exp().sum().tolist())  # cut
    return torch.stack(rows)


CUTS: list[Bug] = [
    cut("a gate by a function of math", GATE, (3, 4), within=Gate.forward),
    cut("a target with grad switched off", TEACHER, (4, 3), within=Target.target),
    cut("straight through", quantised, (3, 4)),
    cut("divided by a float", by_its_largest, (3, 4)),
    cut("a leaf made anew", fresh_leaf, (5,)),
    cut("forced into NumPy", forced, (5,)),
    cut("a number by tolist", logged, (3, 4)),
]

RECENT = FUNCTIONS + CUTS


# Nobody makes these mistakes: no diagnosis is right.

NOISE = spread(3, 5, 7)
SIGNS = spread(4, 4, 8).sign()
WARP = torch.linspace(0.6, 1.7, 15, dtype=torch.float64).reshape(3, 5) ** 2
ALMOST = torch.full((12,), 2.0, dtype=torch.float64)
ALMOST[5] = 1.9
MATRIX, OTHER = spread(4, 4, 9), spread(4, 4, 10)


def half_a_layer_norm(g, y, x):
    scale = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    shares = 0.4 * spread(1, 5, 11), 1.3 * spread(1, 5, 12)
    return (g - shares[0] * g.mean(-1, keepdim=True) - shares[1] * y * (g * y).mean(-1, keepdim=True)) / scale


def another_softmax(g, y, x):
    p = (1.3 * x + 0.2 * NOISE).softmax(-1)
    return p * (g - (g * p).sum(-1, keepdim=True))


RECENT_NEAR: list[Bug] = [
    bug("nothing", "factors along a curve", torch.sin, lambda g, y, x: g * x.cos() * WARP, (3, 5)),
    bug("nothing", "signs at random", lambda x: x.exp(), lambda g, y, x: g * y * SIGNS, (4, 4)),
    bug("nothing", "twice, but for one", lambda x: x.tanh(), lambda g, y, x: g * (1 - y * y) * ALMOST, (12,)),
    bug(
        "nothing",
        "a layer norm with terms of other sizes",
        lambda x: F.layer_norm(x, (5,)),
        half_a_layer_norm,
        (3, 5),
    ),
    bug(
        "nothing",
        "nearly a transpose",
        lambda x: x @ MATRIX,
        lambda g, y, x: g @ (MATRIX + 0.2 * OTHER),
        (3, 4),
    ),
    bug(
        "nothing",
        "a cumulative sum with random losses",
        lambda x: x.cumsum(-1),
        lambda g, y, x: (g * (1 + 0.3 * NOISE)).flip(-1).cumsum(-1).flip(-1) * (1 - 0.2 * NOISE.flip(0)),
        (3, 5),
    ),
    bug(
        "nothing",
        "a conjugate turned at random",
        lambda z: z * z,
        lambda g, y, z: g * 2 * z * torch.polar(torch.ones(5, dtype=torch.float64), NOISE[0]),
        (5,),
        dtype=torch.complex128,
    ),
    bug(
        "nothing",
        "a product, each with a share of the other",
        lambda a, b: a * b,
        lambda g, y, a, b: (g * (0.8 * b + 0.3 * a * a), g * (a - 0.4 * b * (a * b + b).cos())),
        (3, 4),
        (3, 4),
    ),
    bug(
        "nothing",
        "a softmax by another temperature and some noise",
        lambda x: x.softmax(-1),
        another_softmax,
        (3, 5),
    ),
    bug(
        "nothing",
        "a convolution with another kernel",
        lambda x: F.conv1d(x[:, None], spread(1, 3, 13)[None], padding=1)[:, 0],
        lambda g, y, x: F.conv1d(g[:, None], spread(1, 3, 14)[None], padding=1)[:, 0],
        (2, 7),
    ),
]
