"""Ten more masks and factors by place, written when the rules for them were there, and counted at once.

When first run, 9 were named, none misled, and one was left without a name (a prefix).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.diagnosis.planted import Bug, bug
from benchmarks.diagnosis.uneven import attention, attention_backward, kept

D = torch.float64
LATER_ONLY = torch.ones(6, 6, dtype=torch.bool).triu()
DILATED = ((torch.arange(8)[:, None] - torch.arange(8)) % 2) == 0
PREFIX = torch.ones(6, 6, dtype=torch.bool).tril() | (torch.arange(6) < 2)
SPACING = torch.tensor([0.5, 1.0, 1.0, 2.0, 0.5], dtype=D)
HEADS = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=D)[:, None, None]


def everywhere(g, y, q, k, v):
    return attention_backward(g, q, k, v, torch.ones_like(q @ k.mT, dtype=torch.bool))


def recurrent(x: Tensor) -> Tensor:
    state, rows = torch.zeros_like(x[0]), []
    for row in x:
        state = 0.8 * state + row.tanh()
        rows.append(state)
    return torch.stack(rows)


def truncated(g, y, x):
    """Two steps back and no further."""
    slope, carried = 1 - x.tanh() ** 2, torch.zeros_like(g)
    for steps in range(3):
        carried[: len(g) - steps] += 0.8**steps * g[steps:]
    return carried * slope


def stretched(x: Tensor) -> Tensor:
    return (x[:, 1:] - x[:, :-1]) / SPACING


def stretched_evenly(g, y, x):
    return F.pad(g, (1, 0)) - F.pad(g, (0, 1))


def framed(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), mode="replicate")


def framed_once(g, y, x):
    return g[..., 1:-1, 1:-1].clone()


def dropped_channels(x: Tensor) -> Tensor:
    return x.cosh() * kept((1, x.shape[1], 1), 11)


def dropped_channels_redrawn(g, y, x):
    return g * x.sinh() * kept((1, x.shape[1], 1), 12)


LATER_UNEVEN: list[Bug] = [
    bug(
        "reach",
        "attention to later tokens, the backward to all",
        lambda q, k, v: attention(q, k, v, LATER_ONLY),
        everywhere,
        (6, 2),
        (6, 2),
        (6, 2),
    ),
    bug(
        "reach",
        "dilated attention, the backward to all",
        lambda q, k, v: attention(q, k, v, DILATED),
        everywhere,
        (8, 2),
        (8, 2),
        (8, 2),
    ),
    bug(
        "reach",
        "a prefix that all may see, the backward to all",
        lambda q, k, v: attention(q, k, v, PREFIX),
        everywhere,
        (6, 2),
        (6, 2),
        (6, 2),
    ),
    bug("reach", "a recurrence, its backward cut off after two steps", recurrent, truncated, (7, 2)),
    bug("uneven", "differences, their spacing taken as one", stretched, stretched_evenly, (3, 6)),
    bug(
        "uneven",
        "scales of heads, forgotten",
        lambda x: x.sin() * HEADS,
        lambda g, y, x: g * x.cos(),
        (4, 3, 2),
    ),
    bug(
        "uneven",
        "the upper half of a covariance, twice",
        lambda x: x @ x.mT,
        lambda g, y, x: (g.triu() * 2 + g.tril(-1)) @ x + (g.triu() * 2 + g.tril(-1)).mT @ x,
        (4, 3),
    ),
    bug("duplicates", "replicated padding, the frame forgotten", framed, framed_once, (1, 4, 5)),
    bug("redrawn", "dropped channels, drawn again", dropped_channels, dropped_channels_redrawn, (2, 10, 3)),
    bug(
        "redrawn",
        "dropout in a sum, its mask drawn again",
        lambda x, w: (x * kept(x.shape, 13)) @ w,
        lambda g, y, x, w: (g @ w.T * kept(x.shape, 14), (x * kept(x.shape, 14)).T @ g),
        (4, 6),
        (6, 3),
    ),
]
