"""Derivatives compiled: `covector.compile` beside jitted JAX and `torch.compile` of torch.func.

All in one process, on one thread, in processor time, warm. Each task is written once, for a library of
transforms and one of mathematics, so that the three sides run the same lines.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache

import covector
from benchmarks._board import Area, Effort, Row, Task, pair
from benchmarks._measure import Call, Ratio, compare, one_thread
from benchmarks._peers import jax as load_jax

JAX, FUNC = "JAX, jitted", "torch.compile"
# The most that a derivative may take beside each; of the median, MEDIAN_TARGET.
TARGETS = {JAX: 1.5, FUNC: 1.3}
MEDIAN_TARGET = 1.0
# The most that compiling may take beside torch.compile, and how often each is done for the median.
COMPILE_TARGET = 1.0
COMPILATIONS = 3
# Or, beside JAX, this many seconds more: what two Python calls take.
SLACK = 5e-6

_generator = torch.Generator().manual_seed(0)


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_generator, dtype=torch.float64) / max(shape[-1], 1) ** 0.5


@dataclass(frozen=True)
class Library:
    """Transforms and mathematics of one side."""

    grad: Any
    jacrev: Any
    jacfwd: Any
    jacobian: Any
    hessian: Any
    hvp: Any
    vmap: Any
    math: Any


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def network(library: Library, first, second) -> Callable[..., Any]:
    return lambda x: library.math.tanh(second @ library.math.tanh(first @ x))


def trajectory(library: Library, times) -> Callable[..., Any]:
    return lambda p: library.math.exp(-p[0] * times) * library.math.cos(p[1] * times)


def sample_loss(library: Library) -> Callable[..., Any]:
    def loss(params, x):
        hidden = library.math.tanh(params["first"] @ x + params["bias"])
        return ((params["second"] @ hidden) ** 2).sum()

    return loss


@dataclass(frozen=True)
class Derivative:
    """What is computed: a derivative for a library and constants, its constants, its arguments."""

    name: str
    use: Callable[..., Callable[..., Any]]
    constants: tuple[Tensor, ...]
    arguments: tuple[Any, ...]


def _loss(library, *layers):
    return lambda x: (network(library, *layers)(x) ** 2).sum()


WARM_LAYERS = (_random(20, 20), _random(20, 20))
LAYERS_64 = (_random(64, 64), _random(64, 64))
LAYERS_256 = (_random(256, 256), _random(256, 256))
PARAMS = {"first": _random(32, 8), "bias": _random(32), "second": _random(4, 32)}

DERIVATIVES = (
    Derivative("grad, Rosenbrock 50", lambda lib: lib.grad(rosenbrock), (), (_random(50),)),
    Derivative(
        "jacobian, network 64 -> 64",
        lambda lib, *w: lib.jacobian(network(lib, *w)),
        LAYERS_64,
        (_random(64),),
    ),
    Derivative("hessian, Rosenbrock 50", lambda lib: lib.hessian(rosenbrock), (), (_random(50),)),
    Derivative("hessian, network 64", lambda lib, *w: lib.hessian(_loss(lib, *w)), LAYERS_64, (_random(64),)),
    Derivative("vmap(grad), 256 x 16", lambda lib: lib.vmap(lib.grad(rosenbrock)), (), (_random(256, 16),)),
    Derivative(
        "hvp, network 256", lambda lib, *w: lib.hvp(_loss(lib, *w)), LAYERS_256, (_random(256), _random(256))
    ),
    Derivative(
        "jacfwd, trajectory 2 -> 500",
        lambda lib, times: lib.jacfwd(trajectory(lib, times)),
        (torch.linspace(0, 5, 500, dtype=torch.float64),),
        (torch.tensor([0.3, 2.0], dtype=torch.float64),),
    ),
    Derivative(
        "gradients per sample, by a dict",
        lambda lib: lib.vmap(lib.grad(sample_loss(lib)), (None, 0)),
        (),
        (PARAMS, _random(64, 8)),
    ),
    Derivative("vmap(hessian), 64 x 8", lambda lib: lib.vmap(lib.hessian(rosenbrock)), (), (_random(64, 8),)),
    Derivative(
        "jacobian, network 256 -> 256",
        lambda lib, *w: lib.jacobian(network(lib, *w)),
        LAYERS_256,
        (_random(256),),
    ),
)


def _torch_library(verbs: Any, *, jacobian: Any, hvp: Any) -> Library:
    return Library(verbs.grad, verbs.jacrev, verbs.jacfwd, jacobian, verbs.hessian, hvp, torch.vmap, torch)


OURS = _torch_library(
    covector, jacobian=covector.jacobian, hvp=lambda f: lambda x, u: covector.hvp(f, (x,), (u,))[1][0]
)
THEIRS = _torch_library(
    torch.func,
    jacobian=torch.func.jacrev,
    hvp=lambda f: lambda x, u: torch.func.vjp(torch.func.grad(f), x)[1](u)[0],
)


@dataclass(frozen=True)
class Side:
    """A compiled function, and what it took to compile; or why there is none."""

    call: Call | None
    seconds: float
    note: str = ""


def _side(make: Callable[[], Callable[..., Any]], arguments: tuple[Any, ...]) -> Side:
    # Nothing that was compiled before, by the other side either: it would count as compiled in no time.
    with fresh_cache():
        start = _processor_time()
        try:
            function = make()
            function(*arguments)
        except Exception as error:  # a compiler that crashes is a result too
            said = str(error).strip().partition("\n")[0][:90]
            return Side(None, _processor_time() - start, f"the peer fails: {type(error).__name__}: {said}")
        return Side(lambda: function(*arguments), _processor_time() - start)


def _processor_time() -> float:
    """Seconds of this process and of the C++ compilers that it called."""
    return sum(os.times()[:4])


def _by_us(derivative: Derivative) -> Side:
    return _side(lambda: covector.compile(derivative.use(OURS, *derivative.constants)), derivative.arguments)


def _by_func(derivative: Derivative) -> Side:
    torch._dynamo.reset()  # else it would compare with what it compiled before, and allow for other sizes
    return _side(lambda: torch.compile(derivative.use(THEIRS, *derivative.constants)), derivative.arguments)


def _by_jax(derivative: Derivative) -> Side:
    jax = load_jax()
    numpy = jax.numpy
    library = Library(
        jax.grad, jax.jacrev, jax.jacfwd, jax.jacrev, jax.hessian,
        lambda f: lambda x, u: jax.jvp(jax.grad(f), (x,), (u,))[1],
        jax.vmap, numpy,
    )  # fmt: skip

    def converted(tree):
        return jax.tree.map(lambda leaf: numpy.asarray(leaf.numpy()), tree)

    constants, arguments = converted(derivative.constants), converted(derivative.arguments)

    def make():
        fast = jax.jit(derivative.use(library, *constants))
        return lambda *args: jax.block_until_ready(fast(*args))

    return _side(make, arguments)


PEERS: dict[str, Callable[[Derivative], Side]] = {FUNC: _by_func, JAX: _by_jax}


def measure(derivative: Derivative, peer: str, effort: Effort) -> Iterator[Row]:
    """One derivative, beside one peer: a warm call, and beside torch.compile what it takes to compile."""
    with one_thread():
        _warm_up()
        ours = _by_us(derivative)
        assert ours.call is not None, ours.note
        _check(ours.call(), derivative)
        theirs = PEERS[peer](derivative)
        if theirs.call is None:
            yield Row(derivative.name, peer, note=theirs.note)
            return
        ratio = compare(ours.call, theirs.call, pairs=min(effort.pairs, 15), block=effort.block)
        compiling = _compiling(derivative) if peer == FUNC else None
    target = max(TARGETS[peer], 1 + SLACK / ratio.theirs) if peer == JAX else TARGETS[peer]
    yield Row.of(derivative.name, peer, ratio, target)
    if compiling is not None:
        yield Row.of(f"{derivative.name}: to compile", peer, compiling, COMPILE_TARGET)


def _compiling(derivative: Derivative) -> Ratio:
    """What it takes to compile, several times in turn: a single time moves by half with what else runs."""
    sides: dict[Callable[[Derivative], Side], list[float]] = {_by_us: [], _by_func: []}
    for _ in range(COMPILATIONS):
        for by, seconds in sides.items():
            seconds.append(by(derivative).seconds)
    return Ratio.of(sides[_by_us], sides[_by_func])


def _check(result: Any, derivative: Derivative) -> None:
    """A fast wrong answer is worth nothing."""
    expected = derivative.use(OURS, *derivative.constants)(*derivative.arguments)
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)


@cache
def _warm_up() -> None:
    """Load what each side loads at its first use: the one that is measured first would pay for both.

    The operations are those of the derivatives, for inductor loads some of its parts when it first meets a
    slice, a product of matrices or a loop that is long enough for vectors.
    """
    point = _random(20)

    def warm(library: Library) -> Callable[..., Any]:
        return library.hessian(lambda x: rosenbrock(x) + _loss(library, *WARM_LAYERS)(x))

    covector.compile(warm(OURS))(point)
    torch.compile(warm(THEIRS))(point)


def _nothing_to_do() -> Task:
    """What a call costs of a compiled function that returns its argument."""
    x = torch.ones(3)
    fast = covector.compile(lambda x: x, backend="replay")
    return pair("a call with nothing to do", "x + 1", lambda: fast(x), lambda: x + 1, None)


def tasks() -> Iterator[Task]:
    """Each derivative beside each peer."""
    for peer, needs in ((FUNC, ()), (JAX, ("jax",))):
        for number, derivative in enumerate(DERIVATIVES):
            name = f"{derivative.name} / {peer}"
            yield Task(name, partial(measure, derivative, peer), needs, peer, slow=number > 1)
    yield _nothing_to_do()


def totals(rows: Sequence[Row]) -> Iterator[Row]:
    """The median over the derivatives, for each peer."""
    names = {derivative.name for derivative in DERIVATIVES}
    for peer in PEERS:
        ratios = [
            row.ratio for row in rows if row.peer == peer and row.name in names and row.ratio is not None
        ]
        if ratios:
            low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            yield Row("median", peer, ratio=median, low=low, high=high, target=MEDIAN_TARGET)


AREA = Area(
    "compiled",
    "`covector.compile`, warm, beside jitted JAX and `torch.compile` of the same lines with torch.func; "
    "below 10 us, 5 us more than JAX are allowed.",
    tasks,
    totals,
)
