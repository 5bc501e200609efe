"""Wrong derivatives that no kind of mistake explains: every diagnosis of these misleads."""

from __future__ import annotations

import torch

from benchmarks.diagnosis.planted import Bug, bug


def scattered(size: float, seed: int):
    """Noise that depends on the entry alone."""

    def noise(shape):
        return 1 + size * torch.randn(
            shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )

    return noise


def mixing(seed: int):
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


some, more = scattered(0.3, 1), scattered(1.0, 2)

NEAR: list[Bug] = [
    bug(
        "nothing",
        "factors at random by element",
        lambda x: x.sin(),
        lambda g, y, x: g * x.cos() * some(x.shape),
        (3, 5),
    ),
    bug(
        "nothing",
        "a random matrix for a matrix product",
        lambda x: x @ mixing(3),
        lambda g, y, x: g @ mixing(4).T,
        (3, 4),
    ),
    bug(
        "nothing",
        "softmax by random weights",
        lambda x: x.softmax(-1),
        lambda g, y, x: y * (g - (g * y * more(x.shape)).sum(-1, keepdim=True)),
        (3, 4),
    ),
    bug(
        "nothing",
        "factors near to two",
        lambda x: x.sin(),
        lambda g, y, x: g * x.cos() * (2 + 0.05 * (some(x.shape) - 1)),
        (3, 5),
    ),
    bug(
        "nothing",
        "a layer norm with random terms",
        lambda x: torch.nn.functional.layer_norm(x, (4,)),
        lambda g, y, x: g * more(x.shape),
        (3, 4),
    ),
    bug(
        "nothing",
        "a permutation nobody would write",
        lambda x: x.exp(),
        lambda g, y, x: (g * y)[torch.tensor([3, 0, 4, 1, 2, 6, 5])],
        (7,),
    ),
    bug(
        "nothing",
        "a product with something added",
        lambda a, b: a * b,
        lambda g, y, a, b: (g * b + g * some(a.shape), g * a),
        (5,),
        (5,),
    ),
    bug("nothing", "random gradients", lambda x: x.tanh(), lambda g, y, x: g * more(x.shape), (6,)),
]
