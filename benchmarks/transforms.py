"""Every transform against torch.func's: small functions, large ones, nested ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, vmap
from torch.autograd import forward_ad
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils._pytree import tree_leaves

import covector
from benchmarks._board import BYTES, Area, Effort, Row, Task, pair
from benchmarks._measure import compare_memory, compare_statements

PEER = "torch.func"
# A use takes the library, covector or torch.func, so that both sides run the same line.
Use = Callable[[Any], Any]


@dataclass(frozen=True)
class Transform:
    """One use of a transform, and how the time (and peak memory) of ours may relate to theirs."""

    name: str
    use: Use
    target: float | None
    memory_target: float | None = None
    bare: Callable[[], Any] | None = None

    def ours(self) -> Any:
        """The use with covector; or the bare operations of torch, to see what no transform can go below."""
        return self.use(covector) if self.bare is None else self.bare()

    def theirs(self) -> Any:
        """The use with torch.func."""
        return self.use(torch.func)

    def check(self) -> None:
        """Both sides compute the same: a fast wrong answer is worth nothing."""
        for got, expected in zip(tree_leaves(self.ours()), tree_leaves(self.theirs()), strict=True):
            if isinstance(expected, Tensor):
                torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


_generator = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator) / max(shape[-1], 1) ** 0.5


# --- small: ten numbers, a handful of operations; the overhead of the transform is what is measured

W, B, X, U, XS, US = (
    _random(10, 10),
    _random(10),
    _random(10),
    _random(10),
    _random(32, 10),
    _random(32, 10),
)


def chain(x):
    return (x.sin() * x + 1).exp() / 2


def waves(x):
    # No constants: torch's forward rules for them cost more than the transform does; ours have no use here.
    return x.sin() * x.exp() + x


def layer(x):
    return torch.tanh(W @ x + B)


def residuals(x):
    return torch.cat([10 * (x[1:] - x[:-1] ** 2), 1 - x[:-1]])


def filled(x):
    # Writes to a tensor of its own, and captures one that has to be as before.
    out = torch.zeros_like(x)
    out[0] = x[1] * B[0]
    out[1:] = x[1:] * B[1:]
    return out


def chain_sum(x):
    return chain(x).sum()


def waves_sum(x):
    return waves(x).sum()


def layer_sum(x):
    return layer(x).sum()


def rosenbrock(x):
    return (residuals(x) ** 2).sum()


def filled_sum(x):
    return (filled(x) ** 2).sum()


def pull(F, f, x):
    output, vjp_fn = F.vjp(f, x)
    return vjp_fn(torch.ones_like(output))


def push(f, x, u):
    """`jvp` with nothing around it: one dual level, torch's rules, no checks, no trees, no captures."""
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, u))))


_SMALL = (
    (chain, chain_sum),
    (waves, waves_sum),
    (layer, layer_sum),
    (residuals, rosenbrock),
    (filled, filled_sum),
)


def _small() -> list[Transform]:
    tasks = []
    for f, scalar in _SMALL:
        uses: list[tuple[str, Use, float]] = [
            ("grad", lambda F, g=scalar: F.grad(g)(X), 0.5),
            ("vjp", lambda F, f=f: pull(F, f, X), 0.5),
            ("jvp", lambda F, f=f: F.jvp(f, (X,), (U,)), 0.5),
            ("jacrev", lambda F, f=f: F.jacrev(f)(X), 0.5),
            ("jacfwd", lambda F, f=f: F.jacfwd(f)(X), 0.5),
            ("hessian", lambda F, g=scalar: F.hessian(g)(X), 0.35),
        ]
        tasks += [Transform(f"small {verb} {f.__name__}", use, target) for verb, use, target in uses]
        bare = partial(push, f, X, U)
        tasks.append(Transform(f"small jvp {f.__name__}, bare torch", uses[2][1], None, bare=bare))
    return sorted(tasks, key=lambda task: task.name)


# --- large: the work of the operations is what is measured

IMAGES, LABELS = _random(64, 784), torch.randint(10, (64,), generator=_generator)
PARAMS = {
    "W1": _random(512, 784), "b1": _random(512),
    "W2": _random(512, 512), "b2": _random(512),
    "W3": _random(10, 512), "b3": _random(10),
}  # fmt: skip
H1, H2, Z = _random(256, 256), _random(256, 256), _random(256)
FEATURES, TARGETS = _random(1000, 100), torch.randint(2, (1000,), generator=_generator).float()
WEIGHTS = _random(100)


def classifier_loss(p, images, labels):
    h = torch.relu(images @ p["W1"].T + p["b1"])
    h = torch.relu(h @ p["W2"].T + p["b2"])
    return cross_entropy(h @ p["W3"].T + p["b3"], labels)


def network(z):
    return torch.tanh(H2 @ torch.tanh(H1 @ z))


def logistic_loss(w):
    return binary_cross_entropy_with_logits(FEATURES @ w, TARGETS)


LARGE = [
    Transform("large grad classifier", lambda F: F.grad(classifier_loss)(PARAMS, IMAGES, LABELS), 1.05, 1.0),
    Transform("large jacrev network", lambda F: F.jacrev(network)(Z), 1.05, 1.0),
    Transform("large jacfwd network", lambda F: F.jacfwd(network)(Z), 1.05, 1.0),
    Transform("large hessian logistic", lambda F: F.hessian(logistic_loss)(WEIGHTS), 1.05, 1.0),
]


# --- nested: inside vmap, or inside one another, where no shortcut around torch's levels exists


def squared_slope(F, f):
    return lambda x: (F.grad(f)(x) ** 2).sum()


_NESTED: dict[str, Use] = {
    "vmap(grad)": lambda F: vmap(F.grad(rosenbrock))(XS),
    "vmap(vjp)": lambda F: vmap(lambda x: pull(F, layer, x))(XS),
    "vmap(jvp)": lambda F: vmap(lambda x, u: F.jvp(layer, (x,), (u,)))(XS, US),
    "vmap(jacrev)": lambda F: vmap(F.jacrev(layer))(XS),
    "vmap(jacfwd)": lambda F: vmap(F.jacfwd(layer))(XS),
    "vmap(hessian)": lambda F: vmap(F.hessian(rosenbrock))(XS),
    "grad(grad)": lambda F: F.grad(squared_slope(F, rosenbrock))(X),
    "grad(grad(grad))": lambda F: F.grad(squared_slope(F, squared_slope(F, chain_sum)))(X),
    "grad(vmap(grad))": lambda F: F.grad(lambda xs: vmap(F.grad(rosenbrock))(xs).sum())(XS),
    "jvp(grad)": lambda F: F.jvp(F.grad(rosenbrock), (X,), (U,)),
    "vjp(grad)": lambda F: pull(F, F.grad(rosenbrock), X),
    "grad(jvp)": lambda F: F.grad(lambda x: F.jvp(layer, (x,), (U,))[1].sum())(X),
    "jvp(jvp)": lambda F: F.jvp(lambda x: F.jvp(layer, (x,), (U,))[1], (X,), (U,)),
    "jacfwd(jacrev)": lambda F: F.jacfwd(F.jacrev(layer))(X),
    "jacrev(jacfwd)": lambda F: F.jacrev(F.jacfwd(layer))(X),
    "jacfwd(jacfwd)": lambda F: F.jacfwd(F.jacfwd(layer))(X),
    "jacrev(jacrev)": lambda F: F.jacrev(F.jacrev(layer))(X),
    "jacrev(hessian)": lambda F: F.jacrev(F.hessian(chain_sum))(X),
    "torch.func.grad(grad)": lambda F: torch.func.grad(squared_slope(F, rosenbrock))(X),
    "torch.func.jvp(grad)": lambda F: torch.func.jvp(F.grad(rosenbrock), (X,), (U,)),
    "torch.func.jacrev(jacfwd)": lambda F: torch.func.jacrev(F.jacfwd(layer))(X),
    "grad(torch.func.grad)": lambda F: F.grad(squared_slope(torch.func, rosenbrock))(X),
    "jvp(torch.func.grad)": lambda F: F.jvp(torch.func.grad(rosenbrock), (X,), (U,)),
}

NESTED = [Transform(f"nested {name}", use, 1.0) for name, use in _NESTED.items()]

TRANSFORMS = {one.name: one for one in (*_small(), *LARGE, *NESTED)}


def run(name: str, side: str) -> Any:
    """One side, by name: a call that a fresh process can import."""
    return getattr(TRANSFORMS[name], side)()


def _memory(one: Transform, effort: Effort) -> Iterator[Row]:
    ratio = compare_memory(partial(run, one.name, "ours"), partial(run, one.name, "theirs"))
    yield Row.of(one.name, PEER, ratio, one.memory_target, unit=BYTES)


# --- what `import covector` adds to `import torch`

IMPORT_TARGET = 1.10
UNWANTED = {"sympy", "matplotlib", "rich"}


def _import(effort: Effort) -> Iterator[Row]:
    ratio = compare_statements("import torch, covector", "import torch", pairs=min(effort.pairs, 15))
    yield Row.of("import covector", "import torch", ratio, IMPORT_TARGET)
    program = "import sys, torch, covector; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    extra = sorted(UNWANTED & set(loaded.stdout.split()))
    yield Row.count("packages that the import should not load", "", len(extra), note=", ".join(extra))


def tasks() -> Iterator[Task]:
    """Time of each, memory of the large ones, and the import."""
    for name, one in TRANSFORMS.items():
        yield pair(name, PEER, one.ours, one.theirs, one.target, check=one.check)
        if one.memory_target is not None:
            yield Task(f"{name}, memory", partial(_memory, one), peer=PEER, slow=True)
    yield Task("import covector", _import, peer="import torch")


AREA = Area(
    "transforms",
    "Every transform on small functions (ten numbers, where its overhead shows), large ones, and nested; "
    "rows of bare torch show what no transform can go below.",
    tasks,
)
