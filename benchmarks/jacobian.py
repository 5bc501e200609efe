"""`jacobian` against the better of torch's two, under a memory limit, and beside jitted JAX.

The functions are networks in double precision, most with one hidden layer; torch's mode is the one that
is faster for that shape, found by trying both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import process_time
from typing import Any

import torch
from torch import Tensor

import covector
from benchmarks._board import BYTES, Area, Effort, Row, Task, pair
from benchmarks._measure import Ratio, compare, fresh, one_thread, resident_peak
from benchmarks._peers import jax as load_jax
from benchmarks.transforms import X, chain, layer, residuals, waves

SHAPES = [
    (2, 2000), (5, 2000), (20, 2000), (100, 2000), (300, 1000), (500, 500),
    (1000, 1000), (1000, 300), (2000, 100), (2000, 20), (2000, 5), (2000, 2),
]  # fmt: skip
HIDDEN = 64
LIMIT = 500_000_000
WIDE = (3000, 256, 65_536, 256, 3000)
JAX = "JAX, jitted"
BETTER = "torch.func, the better of jacrev and jacfwd"


@dataclass(frozen=True)
class Network:
    """A matrix for each layer, and the point at which to differentiate."""

    layers: tuple[Tensor, ...]
    point: Tensor

    @classmethod
    def of(cls, *widths: int) -> Network:
        """A network with layers of these widths, the same each time."""
        generator = torch.Generator().manual_seed(0)
        draw = partial(torch.randn, dtype=torch.float64, generator=generator)
        layers = [draw(after, before).div_(before**0.5) for before, after in pairwise(widths)]
        return cls(tuple(layers), draw(widths[0]))

    def __call__(self, x: Tensor) -> Tensor:
        """The value of the network."""
        for matrix in self.layers:
            x = torch.tanh(matrix @ x)
        return x


def _better(function: Callable[[Tensor], Tensor], point: Tensor) -> Callable[[], Tensor]:
    """The call of torch's that takes less time, of its two modes."""
    calls = [partial(make(function), point) for make in (torch.func.jacrev, torch.func.jacfwd)]
    with one_thread():
        return min(calls, key=lambda call: (call(), min(_seconds(call) for _ in range(3)))[1])


def _jacobian(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    return covector.jacobian(function)(point)


def _seconds(call: Callable[[], Any]) -> float:
    start = process_time()
    call()
    return process_time() - start


def shape(inputs: int, outputs: int, effort: Effort) -> Iterator[Row]:
    """A network with one hidden layer."""
    network = Network.of(inputs, HIDDEN, outputs)
    ours = partial(_jacobian, network, network.point)
    theirs = _better(network, network.point)
    torch.testing.assert_close(ours(), theirs())
    ratio = compare(ours, theirs, pairs=effort.pairs, block=2 * effort.block)
    yield Row.of(f"{inputs} -> {outputs}", BETTER, ratio, 1.1)


def beside_jax(inputs: int, outputs: int, effort: Effort) -> Iterator[Row]:
    """The same beside JAX, which compiles: there is no target for what runs eagerly."""
    network = Network.of(inputs, HIDDEN, outputs)
    ours, theirs = partial(_jacobian, network, network.point), _jax_call(load_jax(), network)
    ratio = compare(ours, theirs, pairs=effort.pairs, block=2 * effort.block)
    yield Row.of(f"{inputs} -> {outputs}", JAX, ratio, None)


def small(function: Callable[[Tensor], Tensor], effort: Effort) -> Iterator[Row]:
    """Ten numbers and a handful of operations."""
    ratio = compare(
        partial(_jacobian, function, X), _better(function, X), pairs=effort.pairs, block=effort.block
    )
    yield Row.of(f"small {function.__name__}", BETTER, ratio, 0.5)


def product() -> Task:
    """A Hessian times a vector: the loss of a network by its input."""
    network = Network.of(256, 256, 256)
    loss = lambda x: network(x).pow(2).sum()
    tangent = torch.ones_like(network.point)
    ours = lambda: covector.hvp(loss, (network.point,), (tangent,))
    theirs = lambda: torch.autograd.functional.hvp(loss, network.point, tangent)
    return pair("hvp 256", "torch.autograd.functional", ours, theirs, 0.6)


def memory(mode: str, effort: Effort) -> Iterator[Row]:
    """The peak above the result under a limit, as a share of it; and what the limit costs in time."""
    limited, time = fresh(_peak_and_time, mode, LIMIT)
    whole, plain = fresh(_peak_and_time, mode, None)
    name, peer = f"3000 x 3000 {mode}, max_memory 500 MB", "covector without limit"
    yield Row.of(name, "the limit", Ratio.of([limited], [LIMIT]), 1.0, unit=BYTES)
    yield Row.of(name, peer, Ratio.of([limited], [whole]), 1.0, unit=BYTES)
    yield Row.of(name, peer, Ratio.of([time], [plain]), 1.5)


def _peak_and_time(mode: str, max_memory: int | None) -> tuple[float, float]:
    """How far a Jacobian raises the resident memory of this process above its own size, and its time."""
    torch.set_num_threads(1)
    for limit in (None, "1MB"):  # loads what is loaded late
        covector.jacobian(torch.sin, mode=mode, max_memory=limit)(torch.ones(3))
    network = Network.of(*WIDE)
    jacobian = covector.jacobian(network, mode=mode, max_memory=max_memory)
    start = process_time()
    result, peak = resident_peak(lambda: jacobian(network.point))
    return peak - result.numel() * result.element_size(), process_time() - start


def _jax_call(jax: Any, network: Network) -> Callable[[], Any]:
    """The same Jacobian by JAX, by whichever of its modes has fewer directions."""
    first, second, point = (jax.numpy.asarray(t.numpy()) for t in (*network.layers, network.point))
    mode = jax.jacrev if second.shape[0] <= point.shape[0] else jax.jacfwd
    jitted = jax.jit(mode(lambda x: jax.numpy.tanh(second @ jax.numpy.tanh(first @ x))))
    return lambda: jitted(point).block_until_ready()


def tasks() -> Iterator[Task]:
    """Twelve shapes from wide to tall, small functions, a product, and a memory limit."""
    for one in SHAPES:
        yield Task("{} -> {}".format(*one), partial(shape, *one), peer=BETTER)
    for function in (chain, waves, layer, residuals):
        yield Task(f"small {function.__name__}", partial(small, function), peer=BETTER)
    yield product()
    for mode in ("reverse", "forward"):
        yield Task(f"memory {mode}", partial(memory, mode), peer="the limit", slow=True)
    for one in SHAPES:
        yield Task("{} -> {}, JAX".format(*one), partial(beside_jax, *one), ("jax",), JAX)


AREA = Area(
    "jacobian",
    "`jacobian`, which chooses its mode, of networks with one hidden layer in double precision; run eagerly "
    "also beside JAX, which compiles. Peaks of memory are beside the result.",
    tasks,
)
