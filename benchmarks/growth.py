"""How time and memory grow with n: gradient checks, Jacobians, Hessians, products; fitted, and drawn.

Every side of every size runs in a fresh process, on one thread: once to find its peak of resident memory,
the result included, and then a few times more unless it took long. Sizes go up to what the memory limit
holds. A side ends at the size at which it exceeds that or the limit of time, or would by its growth so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from itertools import takewhile
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hvp as functional_hvp

import covector
from benchmarks import _plot
from benchmarks._board import BYTES, EXPONENT, SECONDS, Area, Effort, Row, Task
from benchmarks._measure import Call, Ratio, Stopped, clean_fork, elsewhere, resident_peak, seconds_of
from benchmarks._peers import jax as load_jax
from benchmarks.jacobian import Network
from benchmarks.sparsity import Problem, asdex_first, burgers, rosenbrock
from benchmarks.sparsity import ours as sparse_first

# What one process may take: `make bench ONLY=growth MEMORY=20 SECONDS=120` sets it, in GB and processor time.
LIMIT = 1e9 * float(os.environ.get("BENCH_MEMORY") or 4)
LIMIT_SECONDS = int(os.environ.get("BENCH_SECONDS") or 60)
QUICK_SECONDS = 20
REPEATS, ENOUGH = 5, 2.0
# Memory is counted in pages of so many bytes.
PAGE = 4096.0
# An exponent is that of the largest sizes, where overhead no longer counts.
FITTED = 4

# A size is not tried if it would take so many times what is allowed: growth is not quite even.
HOPELESS = 1.2

# A last size is worth a point of its own if it is so many times the one before.
CLOSE = 1.2

OURS = "covector"
# The module that a side needs.
NEEDS = {"JAX, jitted": "jax", "asdex": "asdex"}

Make = Callable[[int], Call]


@dataclass(frozen=True)
class Curve:
    """One task for growing n: a call for each side, the sizes, and the bytes that our side takes, about."""

    name: str
    sides: dict[str, Make]
    start: int
    step: int
    bytes_of: Callable[[int], float]
    first: bool = field(default=False)

    def sizes(self, limit: float) -> list[int]:
        """Those that fit into so many bytes, four at least; the last is the largest of two digits."""
        every = [self.start * self.step**power for power in range(40)]
        fitting = list(takewhile(lambda n: self.bytes_of(n) <= limit, every))
        if len(fitting) < FITTED:
            return every[:FITTED]
        digit = 10 ** (len(str(fitting[-1])) - 2)
        larger = range(digit, fitting[-1] * self.step, digit)
        last = max(n for n in larger if self.bytes_of(n) <= limit)
        return [*fitting, last] if last > CLOSE * fitting[-1] else fitting


# --- gradient checks, exhaustive


class WrongSine(torch.autograd.Function):
    """A sine with a derivative that is wrong in one place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The sine."""
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The cosine, but for one element."""
        (x,) = ctx.saved_tensors
        slope = x.cos()
        slope[x.numel() // 2] *= 1.1
        return grad * slope


def _point(n: int) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5


def _check(checker: Callable[..., bool], sine: Callable[[Tensor], Tensor], dense: bool, n: int) -> Call:
    x = _point(n).requires_grad_()
    function = sine
    if dense:
        # Entries do not shrink with n, nor does the mistake.
        matrix = torch.rand(n, n, dtype=torch.float64).sub_(0.5)
        function = lambda x: matrix @ sine(x)

    def call() -> None:
        verdict = checker(function, (x,), raise_exception=False)
        assert verdict is (sine is torch.sin), f"the verdict is {verdict}"

    return call


def _checks(sine: Callable[[Tensor], Tensor], dense: bool) -> dict[str, Make]:
    return {
        OURS: partial(_check, covector.gradcheck, sine, dense),
        "torch, exhaustive": partial(_check, torch.autograd.gradcheck, sine, dense),
    }


# --- derivatives


def _network(n: int) -> Network:
    return Network.of(n, 64, n)


def _jacobian(verb: Callable[..., Any], n: int) -> Call:
    network = _network(n)
    return lambda: verb(network)(network.point)


def _hessian(verb: Callable[..., Any], n: int) -> Call:
    network = Network.of(n, 64, 64)
    return lambda: verb(lambda x: network(x).pow(2).sum())(network.point)


def _by_jax(verb: str, widths: Callable[[int], tuple[int, ...]], scalar: bool, n: int) -> Call:
    jax = load_jax()
    network = Network.of(*widths(n))
    first, second, point = (jax.numpy.asarray(t.numpy()) for t in (*network.layers, network.point))
    value = lambda x: jax.numpy.tanh(second @ jax.numpy.tanh(first @ x))
    fast = jax.jit(getattr(jax, verb)((lambda x: (value(x) ** 2).sum()) if scalar else value))
    return lambda: fast(point).block_until_ready()


def _products(n: int) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    return partial(rosenbrock, torch), _point(n), torch.ones(n, dtype=torch.float64)


def _hvp(n: int) -> Call:
    loss, x, u = _products(n)
    return lambda: covector.hvp(loss, (x,), (u,))


def _hvp_functional(n: int) -> Call:
    loss, x, u = _products(n)
    return lambda: functional_hvp(loss, x, u)


def _hvp_jax(n: int) -> Call:
    jax = load_jax()
    x, u = jax.numpy.asarray(_point(n).numpy()), jax.numpy.ones(n)
    gradient = jax.grad(partial(rosenbrock, jax.numpy))
    fast = jax.jit(lambda x, u: jax.jvp(gradient, (x,), (u,))[1])
    return lambda: fast(x, u).block_until_ready()


def _burgers(make: Callable[[Problem], Call], n: int) -> Call:
    return make(Problem("", burgers, (n,)))


def _dense_burgers(n: int) -> Call:
    x = _point(n)
    return lambda: torch.func.jacrev(partial(burgers, torch))(x)


CURVES = {
    curve.name: curve
    for curve in (
        Curve("gradcheck of sines, right", _checks(torch.sin, False), 256, 4, lambda n: 80 * n),
        Curve("gradcheck of sines, wrong", _checks(WrongSine.apply, False), 256, 4, lambda n: 1800 * n),
        Curve("gradcheck of a dense map, right", _checks(torch.sin, True), 60, 3, lambda n: 9 * n**2),
        Curve("gradcheck of a dense map, wrong", _checks(WrongSine.apply, True), 60, 3, lambda n: 9 * n**2),
        Curve(
            "Jacobian",
            {
                OURS: partial(_jacobian, covector.jacobian),
                "torch.func": partial(_jacobian, torch.func.jacrev),
                "JAX, jitted": partial(_by_jax, "jacrev", lambda n: (n, 64, n), False),
            },
            100, 4, lambda n: 20 * n**2,
        ),
        Curve(
            "Hessian",
            {
                OURS: partial(_hessian, covector.hessian),
                "torch.func": partial(_hessian, torch.func.hessian),
                "JAX, jitted": partial(_by_jax, "hessian", lambda n: (n, 64, 64), True),
            },
            100, 4, lambda n: 20 * n**2,
        ),
        Curve(
            "sparse Jacobian, first call",
            {
                OURS: partial(_burgers, sparse_first),
                "asdex": partial(_burgers, asdex_first),
                "torch.func, dense": _dense_burgers,
            },
            256, 4, lambda n: 450 * n, first=True,
        ),
        Curve(
            "Hessian times a vector",
            {OURS: _hvp, "torch.autograd.functional": _hvp_functional, "JAX, jitted": _hvp_jax},
            10_000, 8, lambda n: 100 * n,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """What one side took at one size: times of calls, and the peak of the first."""

    seconds: list[float]
    peak: float


def _measured(curve_name: str, side: str, n: int) -> Point:
    """In a fresh process."""
    torch.set_num_threads(1)
    curve = CURVES[curve_name]
    make = curve.sides[side]
    make(50)()  # loads what is loaded late
    call = make(n)
    start = process_time()
    peak = resident_peak(call)[1]
    first = process_time() - start
    once = curve.first or first > ENOUGH
    times = [first] if once else seconds_of(call, times=REPEATS, enough=ENOUGH)
    return Point(times, max(peak, PAGE))


@dataclass
class Side:
    """What one side of a curve took in this run, by size, and why it ended, if it did."""

    points: dict[int, Point] = field(default_factory=dict)
    ended: str = ""

    def expected(self, n: int, amount: Callable[[Point], float]) -> float:
        """What a larger size will take if growth goes on as between the last two; 0 if there are no two."""
        if len(self.points) < 2:
            return 0.0
        (before, less), (last, more) = list(self.points.items())[-2:]
        exponent = np.log(amount(more) / amount(less)) / np.log(last / before)
        return float(amount(more) * (n / last) ** exponent)

    def beyond(self, n: int, seconds: int) -> str:
        """Which limit a size would exceed, by the growth seen so far."""
        if (time := self.expected(n, lambda point: float(np.median(point.seconds)))) > HOPELESS * seconds:
            return f"some {time:.0f} s, over {seconds} s"
        if (memory := self.expected(n, lambda point: point.peak)) > HOPELESS * LIMIT:
            return f"some {memory / 1e9:.0f} GB, over {LIMIT / 1e9:.1f} GB"
        return ""


@cache
def _side(curve: str, name: str) -> Side:
    """What is known of a side in this run."""
    return Side()


def _point_of(curve: Curve, name: str, n: int, seconds: int) -> Point | str:
    """What a side took, or why there is nothing."""
    side = _side(curve.name, name)
    if (module := NEEDS.get(name)) and find_spec(module) is None:
        return f"skipped: {module} not installed"
    if side.ended:
        return side.ended
    if why := side.beyond(n, seconds):
        side.ended = f"{name} not tried at n = {n:,}: {why}, by its growth so far"
        return side.ended
    try:
        point = elsewhere(
            clean_fork("benchmarks.growth"),
            partial(_measured, curve.name, name, n),
            10 * seconds + 60,
            seconds=seconds,
            memory=LIMIT,
        )
    except Stopped as stopped:
        side.ended = f"{name} stopped at n = {n:,}: {stopped}"
        return side.ended
    except RuntimeError as error:
        said = str(error).strip().splitlines()[-1][:120]
        side.ended = f"{name} failed at n = {n:,}: {said}"
        return side.ended
    side.points[n] = point
    return point


def measure(curve: Curve, n: int, effort: Effort) -> Iterator[Row]:
    """All sides at one size, each peer as a row of time and one of memory; none if no side got so far."""
    if all(_side(curve.name, side).ended for side in curve.sides):
        return
    points = {
        side: _point_of(curve, side, n, QUICK_SECONDS if effort.quick else LIMIT_SECONDS)
        for side in curve.sides
    }
    ours = points.pop(OURS)
    for peer, theirs in points.items():
        for unit in (SECONDS, BYTES):
            yield _row(curve, n, peer, unit, ours, theirs)


def _row(curve: Curve, n: int, peer: str, unit: str, ours: Point | str, theirs: Point | str) -> Row:
    name, facts = f"{curve.name}, n = {n:,}", {"curve": curve.name, "n": n}
    notes = [point for point in (ours, theirs) if isinstance(point, str)]
    mine, others = (
        None if isinstance(point, str) else point.seconds if unit == SECONDS else [point.peak]
        for point in (ours, theirs)
    )
    if mine is not None and others is not None:
        pairs = min(len(mine), len(others))
        return Row.of(name, peer, Ratio.of(mine[:pairs], others[:pairs]), None, unit=unit, facts=facts)
    sides = {
        "ours": None if mine is None else float(np.median(mine)),
        "theirs": None if others is None else float(np.median(others)),
    }
    return Row(name, peer, unit, **sides, note="; ".join(notes), facts=facts)


def tasks() -> Iterator[Task]:
    """Each size of each curve; a quick run has the smallest four of one."""
    for curve in CURVES.values():
        for number, n in enumerate(curve.sizes(LIMIT)):
            slow = curve.name != "Jacobian" or number >= FITTED
            yield Task(f"{curve.name}, n = {n:,}", partial(measure, curve, n), peer="all", slow=slow)


# --- what the rows come to


@dataclass(frozen=True)
class Line:
    """One side of a curve, in time or memory: sizes and amounts."""

    curve: str
    side: str
    unit: str
    sizes: list[int]
    amounts: list[float]

    @property
    def exponent(self) -> float | None:
        """P of amount ~ n^p, fitted to the logarithms of the largest sizes."""
        if len(self.sizes) < 3:
            return None
        last = slice(-FITTED, None)
        return float(np.polyfit(np.log(self.sizes[last]), np.log(self.amounts[last]), 1)[0])


def lines(rows: Sequence[Row]) -> list[Line]:
    """The points of each side, in the order of the curves."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        for side, amount in ((OURS, row.ours), (row.peer, row.theirs)):
            points = found.setdefault((row.facts.get("curve", ""), side, row.unit), {})
            if amount is not None:
                points[row.facts["n"]] = amount
    return [
        Line(*key, sorted(points), [points[n] for n in sorted(points)])
        for key, points in found.items()
        if points
    ]


def totals(rows: Sequence[Row]) -> Iterator[Row]:
    """The exponents of both sides, for each peer."""
    fitted = {(line.curve, line.side, line.unit): line.exponent for line in lines(rows)}
    for (curve, side, unit), exponent in fitted.items():
        if side != OURS:
            name = f"{curve}: exponent of {'time' if unit == SECONDS else 'memory'}"
            ours = fitted.get((curve, OURS, unit))
            yield Row(name, side, EXPONENT, ours=ours, theirs=exponent)


def draw(rows: Sequence[Row]) -> list[Any]:
    """The figures of the docs; which files were written."""
    return _plot.draw(lines(rows))


FIGURES = """\
![Seconds against n for each task, covector beside its peers](../docs/images/growth-time.svg)

![Peak of memory against n for each task, covector beside its peers](../docs/images/growth-memory.svg)"""

AREA = Area(
    "growth",
    "Time and peak of memory against n, each side of each size in a fresh process; the exponent p of n^p is "
    f"fitted to the largest {FITTED} sizes. A side ends where it exceeds the limit of memory or of processor "
    "time, or would by its growth so far, which the note says.",
    tasks,
    totals,
    {"limit": f"{LIMIT / 1e9:g} GB and {LIMIT_SECONDS} s"},
    FIGURES,
)
