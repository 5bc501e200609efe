"""Every verb of covector.functional against that of torch.autograd.functional."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.functional as peer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from benchmarks._board import Area, Task, pair
from covector import functional

Use = Callable[[Any], Any]


@dataclass(frozen=True)
class Verb:
    """One use of a verb; the peer may be used in another way than ours."""

    name: str
    use: Use
    target: float
    peer_use: Use | None = None

    def ours(self) -> Any:
        """The use with covector."""
        return self.use(functional)

    def theirs(self) -> Any:
        """The use with torch.autograd.functional."""
        return (self.peer_use or self.use)(peer)

    def check(self) -> None:
        """Both sides compute the same: a fast wrong answer is worth nothing."""
        for got, expected in zip(tree_leaves(self.ours()), tree_leaves(self.theirs()), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


_generator = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator)


def _mlp(width: int) -> nn.Module:
    layers = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)]
    module = nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(_random(*parameter.shape) / width**0.5)
    return module


WIDE, X, BATCH = _mlp(256), _random(256), _random(32, 256)
LABELS = torch.arange(32) % 256
SMALL, SMALL_LABELS = (_random(10, 10), _random(10)), torch.arange(16) % 10
POINT, OTHER, DATA = _random(10), _random(10), _random(16, 10)
MATRIX = _random(10, 10) + 10 * torch.eye(10)
IMAGES, FILTERS = _random(4, 3, 16, 16), _random(8, 3, 3, 3) / 5


def mlp(x):
    return WIDE(x)


def mlp_loss(x):
    return WIDE(x).pow(2).mean()


def weights_loss(*weights):
    return cross_entropy(
        nn.functional.linear(nn.functional.linear(BATCH, *weights[:2]).tanh(), *weights[2:]), LABELS
    )


WEIGHTS = tuple(p.detach() for p in (*WIDE[0].parameters(), *WIDE[2].parameters()))
ALONG = tuple(_random(*w.shape) for w in WEIGHTS)


def chain(x):
    return (x.sin() * x + 1).exp() / 2


def waves(x):
    return x.sin() * x.exp() + x


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def logistic(w, b):
    return cross_entropy(DATA @ w + b, SMALL_LABELS)


def solved(a):
    return torch.linalg.solve(a, POINT)


def filtered(x):
    return nn.functional.conv2d(x, FILTERS).relu()


def quadratic(x):
    return x @ MATRIX @ x


def two(x):
    return x.sin(), x.prod()


VERBS = (
    Verb("jacobian mlp 256", lambda f: f.jacobian(mlp, X), 0.1),
    Verb(
        "jacobian mlp 256 / vectorized",
        lambda f: f.jacobian(mlp, X),
        1.0,
        peer_use=lambda f: f.jacobian(mlp, X, vectorize=True),
    ),
    Verb("jacobian chain 10", lambda f: f.jacobian(chain, POINT), 1.0),
    Verb("jacobian of a number", lambda f: f.jacobian(rosenbrock, POINT), 1.0),
    Verb("jacobian of a tuple", lambda f: f.jacobian(two, POINT), 1.0),
    Verb("jacobian solve 10", lambda f: f.jacobian(solved, MATRIX), 1.0),
    Verb("jacobian chain 10, graph", lambda f: f.jacobian(chain, POINT, create_graph=True), 1.0),
    Verb("jacobian chain 10, strict", lambda f: f.jacobian(chain, POINT, strict=True), 1.0),
    Verb("jacobian chain 10, vectorized", lambda f: f.jacobian(chain, POINT, vectorize=True), 1.0),
    Verb("hessian rosenbrock 10", lambda f: f.hessian(rosenbrock, POINT), 1.0),
    Verb("hessian logistic", lambda f: f.hessian(logistic, SMALL), 1.0),
    Verb("hessian mlp loss 256", lambda f: f.hessian(mlp_loss, X), 0.1),
    Verb("hvp mlp loss, inputs", lambda f: f.hvp(mlp_loss, X, X), 1.0),
    Verb("hvp mlp loss, weights", lambda f: f.hvp(weights_loss, WEIGHTS, ALONG), 0.6),
    Verb("hvp rosenbrock 10", lambda f: f.hvp(rosenbrock, POINT, OTHER), 1.0),
    Verb("hvp logistic", lambda f: f.hvp(logistic, SMALL, SMALL), 1.0),
    Verb("hvp quadratic", lambda f: f.hvp(quadratic, POINT, OTHER), 1.0),
    Verb("hvp chain, graph", lambda f: f.hvp(lambda x: chain(x).sum(), POINT, OTHER, create_graph=True), 1.0),
    Verb("vhp mlp loss, weights", lambda f: f.vhp(weights_loss, WEIGHTS, ALONG), 1.0),
    Verb("vhp rosenbrock 10", lambda f: f.vhp(rosenbrock, POINT, OTHER), 1.0),
    Verb("vhp logistic", lambda f: f.vhp(logistic, SMALL, SMALL), 1.0),
    Verb("jvp mlp", lambda f: f.jvp(mlp, BATCH, BATCH), 1.0),
    Verb("jvp waves 10", lambda f: f.jvp(waves, POINT, OTHER), 1.0),
    Verb("jvp chain 10", lambda f: f.jvp(chain, POINT, OTHER), 1.0),
    Verb("jvp solve 10", lambda f: f.jvp(solved, MATRIX, MATRIX), 1.0),
    Verb("jvp conv", lambda f: f.jvp(filtered, IMAGES, IMAGES), 1.0),
    Verb("jvp chain 10, graph", lambda f: f.jvp(chain, POINT, OTHER, create_graph=True), 1.0),
    Verb("vjp mlp", lambda f: f.vjp(mlp, BATCH, BATCH), 1.0),
    Verb("vjp chain 10", lambda f: f.vjp(chain, POINT, OTHER), 1.0),
    Verb("vjp rosenbrock 10", lambda f: f.vjp(rosenbrock, POINT), 1.0),
)


PEER = "torch.autograd.functional"


def tasks() -> Iterator[Task]:
    """The time of each."""
    for verb in VERBS:
        yield pair(verb.name, PEER, verb.ours, verb.theirs, verb.target, check=verb.check)


AREA = Area("functional", "Every verb of `covector.functional`, on small functions and networks.", tasks)
