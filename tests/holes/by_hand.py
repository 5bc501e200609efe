"""Layers whose backward is written by hand, in low precision, where terms of it cancel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holes.table import Hole, Table, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []
dtypes = Table("dtype", HOLES)


def attention(f: float) -> Any:
    """The wrong one forgets the correction of the softmax for the last query."""

    def shares(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)

    def pull(g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        p = shares(q, k)
        of_shares = g @ v.mT
        correction = (of_shares * p).sum(-1, keepdim=True)
        if f != 1.0:
            correction = torch.cat([correction[:-1], 0 * correction[-1:]])
        of_scores = p * (of_shares - correction) / math.sqrt(q.shape[-1])
        return of_scores @ k, of_scores.mT @ q, p.mT @ g

    return ruled(lambda q, k, v: shares(q, k) @ v, pull)


def softmax(f: float) -> Any:
    def pull(g: Tensor, x: Tensor) -> Tensor:
        p = x.softmax(-1)
        correction = (g * p).sum(-1, keepdim=True)
        return p * (g - (correction if f == 1.0 else correction / 2))

    return ruled(lambda x: x.softmax(-1), pull)


def log_softmax(f: float) -> Any:
    share = 1.0 if f == 1.0 else 0.6
    return ruled(
        lambda x: x.log_softmax(-1), lambda g, x: g - share * x.softmax(-1) * g.sum(-1, keepdim=True)
    )


def layer_norm(f: float) -> Any:
    def parts(x: Tensor) -> tuple[Tensor, Tensor]:
        centred = x - x.mean(-1, keepdim=True)
        deviation = centred.square().mean(-1, keepdim=True).add(1e-5).sqrt()
        return centred / deviation, deviation

    def pull(g: Tensor, x: Tensor) -> Tensor:
        y, deviation = parts(x)
        inner = g - g.mean(-1, keepdim=True)
        if f == 1.0:
            inner = inner - y * (g * y).mean(-1, keepdim=True)
        return inner / deviation

    return ruled(lambda x: parts(x)[0], pull)


def gated(f: float) -> Any:
    def pull(g: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        s = a.sigmoid()
        bend = a * s * (1 - s) if f == 1.0 else 0.0
        return g * b * (s + bend), g * a * s

    return ruled(lambda a, b: a * a.sigmoid() * b, pull)


def rotary(f: float) -> Any:
    angles = torch.tensor([0.1, 0.9, 2.0])

    def turned(x: Tensor, sign: float) -> Tensor:
        a, b = x[..., :3], x[..., 3:]
        cosine, sine = angles.cos().to(x.dtype), sign * angles.sin().to(x.dtype)
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)

    return ruled(lambda x: turned(x, 1.0), lambda g, x: turned(g, -1.0 if f == 1.0 else 1.0))


def convolution(f: float) -> Any:
    def pull(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        of_weight = functional.conv1d(x.transpose(0, 1), g.transpose(0, 1)).transpose(0, 1)
        return functional.conv_transpose1d(g, w), of_weight * (1.0 if f == 1.0 else 0.7)

    return ruled(functional.conv1d, pull)


def running_sum(f: float) -> Any:
    def pull(g: Tensor, x: Tensor) -> Tensor:
        return x.exp() * (g.flip(-1).cumsum(-1).flip(-1) if f == 1.0 else g.cumsum(-1))

    return ruled(lambda x: x.exp().cumsum(-1), pull)


def variance(f: float) -> Any:
    def pull(g: Tensor, x: Tensor) -> Tensor:
        count = x.shape[-1] - (1 if f == 1.0 else 0)
        return g[..., None] * 2 * (x - x.mean(-1, keepdim=True)) / count

    return ruled(lambda x: x.var(-1), pull)


LAYERS: dict[str, tuple[Callable[[float], Any], tuple[tuple[int, ...], ...]]] = {
    "attention": (attention, ((3, 4), (5, 4), (5, 4))),
    "softmax": (softmax, ((3, 12),)),
    "log softmax": (log_softmax, ((2, 8),)),
    "layer norm": (layer_norm, ((2, 10),)),
    "a gated unit": (gated, ((3, 5), (3, 5))),
    "rotary embedding": (rotary, ((2, 6),)),
    "a convolution": (convolution, ((1, 2, 8), (2, 2, 3))),
    "a cumulative sum": (running_sum, ((2, 9),)),
    "a variance": (variance, ((2, 4),)),
}
for _name, (_layer, _shapes) in LAYERS.items():
    for _low, _dtype in {"bfloat16": torch.bfloat16, "half": torch.float16}.items():
        dtypes.pair(f"{_name} by hand, {_low}", _layer, leaves(*_shapes, dtype=_dtype, low=-0.5))
dtypes.pair(
    "attention by hand, all numbers positive, bfloat16",
    attention,
    leaves((3, 4), (5, 4), (5, 4), dtype=torch.bfloat16),
)
dtypes.pair(
    "softmax by hand, peaked, bfloat16",
    softmax,
    lambda: ((6 * drawn(3, 12, low=-0.5)).bfloat16().requires_grad_(),),
)


def one_number(g: Tensor) -> bool:
    return int(g.count_nonzero()) == 1


dtypes.pair(
    "wrong for one number alone, in bfloat16 alone",
    lambda f: ruled(
        torch.sin,
        lambda g, x: g * x.cos() * (f if g.dtype is torch.bfloat16 and one_number(g) else 1.0),
    ),
    leaves((9,), dtype=torch.bfloat16),
    factor=1.5,
)


def filtered(f: float) -> Any:
    """A filter in frequency space; the wrong one forgets to conjugate the weight."""

    def pull(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        count, spectrum = x.shape[-1], torch.fft.fft(g) / x.shape[-1]
        of_input = torch.fft.ifft(spectrum * (w.conj() if f == 1.0 else w)) * count
        return of_input, spectrum * torch.fft.fft(x).conj()

    return ruled(lambda x, w: torch.fft.ifft(torch.fft.fft(x) * w), pull)


def phase(f: float) -> Any:
    def pull(g: Tensor, z: Tensor) -> Tensor:
        turned = torch.complex(-z.imag, z.real if f == 1.0 else -z.real)
        return g * turned / z.abs().square()

    return ruled(torch.angle, pull)


def unit(f: float) -> Any:
    def pull(g: Tensor, z: Tensor) -> Tensor:
        along = (g * z.conj()).real / z.abs() ** 2
        return (g - (z if f == 1.0 else z.conj()) * along) / z.abs()

    return ruled(lambda z: z / z.abs(), pull)


for _low, _dtype in {"complex64": torch.complex64, "complex128": torch.complex128}.items():
    dtypes.pair(f"a filter in frequency space, {_low}", filtered, leaves((6,), (6,), dtype=_dtype, low=-0.5))
    dtypes.pair(f"the phase, {_low}", phase, leaves((4,), dtype=_dtype))
    dtypes.pair(f"numbers of size one, {_low}", unit, leaves((5,), dtype=_dtype, low=-0.5))


def autocast(f: float) -> Any:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return too_much(functional.linear(x, w), f)

    return function


dtypes.pair("bfloat16 inside by autocast", autocast, leaves((3, 4), (5, 4), dtype=torch.float32), factor=1.4)
dtypes.pair(
    "second derivative by hand, complex64",
    lambda f: ruled(lambda z: z**3, lambda g, z: 3 * g * too_much(z.conj() ** 2, f)),
    leaves((3,), dtype=torch.complex64),
    order=2,
)
