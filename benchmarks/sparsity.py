"""Sparse Jacobians and Hessians beside asdex and sparsejac on JAX, CasADi, and dense torch.func.

Measured are the first call (detect, colour, evaluate) against asdex's, a repeated call (eager, replayed,
compiled) against the fastest peer, a dense Jacobian, and the memory of the largest. The peers are in the
extra `bench-sparse`.

Everything runs in one process on one thread, in double precision, measured in processor time, alternating.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from time import process_time
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.spatial import Delaunay

import covector
from benchmarks._board import BYTES, Area, Effort, Row, Task
from benchmarks._measure import Ratio, compare, fresh, one_thread, resident_peak
from benchmarks._peers import jax as load_jax

# What the design asks for.
FIRST_TARGET = 0.2  # of asdex's first call, from 8,000 inputs on
REPLAY_TARGET = 4.0  # of asdex's repeated call
INDUCTOR_TARGET = 1.0  # of the fastest peer, from 10,000 inputs on
DENSE_TARGET = 1e-3  # of dense torch.func at 10,000 inputs
MEMORY_TARGET = 80e6  # bytes at 100,000 inputs, beyond what was there before
LARGE = 8_000
LARGE_COMPILED = 10_000
PAIRS = 9


@dataclass(frozen=True)
class Problem:
    """One function, written for a namespace: torch, or jax.numpy, which share most names."""

    name: str
    function: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    hessian: bool = False
    symbolic: bool = False

    @property
    def size(self) -> int:
        """How many inputs there are."""
        return int(np.prod(self.shape))

    def larger(self, more: int) -> Problem:
        """The same function with a few more inputs."""
        # Not the short axes, which are numbers of substances and features.
        return replace(self, shape=tuple(n + more * (n > 8) for n in self.shape))

    def point(self) -> np.ndarray:
        """Where to differentiate."""
        return np.random.default_rng(0).random(self.shape) + 0.5


def burgers(xp: Any, u: Any) -> Any:
    left, right = xp.roll(u, 1), xp.roll(u, -1)
    return u * (left - right) / 2 + 0.1 * (left - 2 * u + right)


def brusselator(xp: Any, state: Any) -> Any:
    u, v = state[0], state[1]

    def laplacian(w: Any) -> Any:
        return xp.roll(w, 1, 0) + xp.roll(w, -1, 0) + xp.roll(w, 1, 1) + xp.roll(w, -1, 1) - 4 * w

    reaction = u * u * v
    return xp.stack([1 + reaction - 4.4 * u + 0.1 * laplacian(u), 3.4 * u - reaction + 0.1 * laplacian(v)])


def rosenbrock(xp: Any, x: Any) -> Any:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def arrow(xp: Any, x: Any) -> Any:
    return xp.concatenate([(x**2).sum().reshape(1), x[1:] * xp.sin(x[0])])


@cache
def _weights(xp: Any) -> Any:
    draw = np.random.default_rng(1)
    return [_constant(xp, draw.standard_normal(shape) / 3) for shape in ((8, 16), (16, 8))]


def _constant(xp: Any, array: np.ndarray) -> Any:
    """A constant that both namespaces take: JAX takes arrays of NumPy."""
    return torch.from_numpy(array) if xp is torch else array


def samples(xp: Any, x: Any) -> Any:
    first, second = _weights(xp)
    return xp.tanh(xp.tanh(x @ first) @ second)


@cache
def _edges(count: int) -> np.ndarray:
    points = np.random.default_rng(2).random((count, 2))
    pairs = Delaunay(points).simplices[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    return np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)


@cache
def _ends(xp: Any, count: int) -> tuple[Any, Any]:
    ends = _edges(count)
    return _constant(xp, ends[:, 0].astype(np.int64)), _constant(xp, ends[:, 1].astype(np.int64))


def mesh(xp: Any, x: Any) -> Any:
    """A nonlinear graph Laplacian: flow along the edges of random triangles."""
    start, end = _ends(xp, x.shape[0])
    flow = xp.tanh(x[end] - x[start])
    if xp is torch:
        return torch.zeros_like(x).index_add(0, start, flow) - x**3
    return xp.zeros_like(x).at[start].add(flow) - x**3


PROBLEMS = [
    *(Problem(f"Burgers {n:.0e}", burgers, (int(n),), symbolic=n <= 1e4) for n in (1e3, 1e4, 1e5)),
    *(Problem(f"Brusselator 2x{n}x{n}", brusselator, (2, n, n)) for n in (64, 128)),
    Problem("block MLP 1024x8", samples, (1024, 8)),
    *(Problem(f"Rosenbrock Hessian {n:.0e}", rosenbrock, (int(n),), hessian=True) for n in (1e3, 1e4, 1e5)),
    Problem("mesh of triangles 1e4", mesh, (10_000,)),
    Problem("arrow 1e4", arrow, (10_000,)),
]


def ours(problem: Problem) -> Callable[[], Any]:
    """Detect, colour, check and evaluate."""
    x = torch.from_numpy(problem.point())
    door = covector.sparse_hessian if problem.hessian else covector.sparse_jacobian
    return lambda: door(lambda x: problem.function(torch, x))(x)


def plan_of(problem: Problem) -> tuple[Any, torch.Tensor]:
    x = torch.from_numpy(problem.point())
    make = covector.hessian_plan if problem.hessian else covector.jacobian_plan
    return make(partial(problem.function, torch), x), x


def asdex_first(problem: Problem) -> Callable[[], Any]:
    """The same by asdex: detect, colour, compile and evaluate."""
    import asdex

    jax = load_jax()
    jnp = jax.numpy

    x = jnp.asarray(problem.point())
    door = asdex.hessian if problem.hessian else asdex.jacobian

    def call() -> Any:
        return jax.block_until_ready(door(lambda x: problem.function(jnp, x), x)(x))

    return call


def peers(problem: Problem) -> dict[str, Callable[[], Any]]:
    """A repeated call of each peer that can do it, compiled."""
    import asdex

    jax = load_jax()
    jnp = jax.numpy

    x = jnp.asarray(problem.point())
    function = lambda x: problem.function(jnp, x)
    found: dict[str, Callable[[], Any]] = {}
    fast = jax.jit((asdex.hessian if problem.hessian else asdex.jacobian)(function, x))
    found["asdex"] = lambda: jax.block_until_ready(fast(x))
    if (
        not problem.hessian
        and len(problem.shape) == 1
        and "arrow" not in problem.name
        and problem.size <= 10_000
    ):
        found["sparsejac"] = _sparsejac(problem, function, x)
    if problem.symbolic:
        found["CasADi"] = _casadi(problem)
    return found


def _sparsejac(problem: Problem, function: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    jax = load_jax()
    import sparsejac
    from jax.experimental.sparse import BCOO

    plan, _ = plan_of(problem)
    known = BCOO.from_scipy_sparse(sparse.csr_matrix(plan.pattern.to_scipy().astype(float)))
    fast = jax.jit(sparsejac.jacrev(function, known))
    return lambda: jax.block_until_ready(fast(x))


def _casadi(problem: Problem) -> Callable[[], Any]:
    import casadi

    n = problem.size
    u = casadi.SX.sym("u", n)
    left, right = casadi.vertcat(u[-1], u[: n - 1]), casadi.vertcat(u[1:], u[0])
    value = u * (left - right) / 2 + 0.1 * (left - 2 * u + right)
    function = casadi.Function("J", [u], [casadi.jacobian(value, u)])
    x = casadi.DM(problem.point())
    return lambda: function(x)


@cache
def _warm_up() -> None:
    small = Problem("", burgers, (64,))
    ours(small)()
    asdex_first(small)()


def first_call(problem: Problem, effort: Effort) -> Iterator[Row]:
    """Detect, colour, evaluate, alternating, after both were warmed up on a small problem.

    Each time the problem is a little larger: JAX remembers what it compiled for a size.
    """
    with one_thread():
        _warm_up()
        times: dict[str, list[float]] = {"ours": [], "asdex": []}
        for more in range(effort.rounds):
            for name, make in (("ours", ours), ("asdex", asdex_first)):
                times[name].append(_seconds(make(problem.larger(more))))
    target = FIRST_TARGET if problem.size >= LARGE else None
    yield Row.of(f"{problem.name}, first call", "asdex", Ratio.of(times["ours"], times["asdex"]), target)


def repeated_calls(problem: Problem, effort: Effort) -> Iterator[Row]:
    """The values at a new point, against asdex (eager, replay) and against the fastest peer (inductor)."""
    plan, x = plan_of(problem)
    theirs = peers(problem)
    seconds = {name: compare(call, call, pairs=3).ours for name, call in theirs.items()}
    fastest = min(seconds, key=lambda name: seconds[name])
    pairs = min(effort.pairs, PAIRS)
    for backend, peer, target in (
        ("eager", "asdex", None),
        ("replay", "asdex", REPLAY_TARGET),
        ("inductor", fastest, INDUCTOR_TARGET if problem.size >= LARGE_COMPILED else None),
    ):
        call = partial(plan if backend == "eager" else plan.compile(backend), x)
        ratio = compare(call, theirs[peer], pairs=pairs, block=effort.block)
        named = f"{peer}, the fastest" if backend == "inductor" else peer
        yield Row.of(f"{problem.name}, {backend}", named, ratio, target)


def dense_call(effort: Effort) -> Iterator[Row]:
    """A Jacobian of 10,000 x 10,000 by torch.func, in chunks that fit, against the plan's."""
    problem = PROBLEMS[1]
    plan, x = plan_of(problem)
    dense = torch.func.jacrev(lambda x: burgers(torch, x), chunk_size=500)
    with one_thread():
        theirs = _seconds(partial(dense, x))
        plan(x)
        times = [_seconds(partial(plan, x)) for _ in range(10)]
    yield Row.of(f"{problem.name}, eager", "torch.func, dense", Ratio.of(times, [theirs] * 10), DENSE_TARGET)


def _seconds(call: Callable[[], Any]) -> float:
    start = process_time()
    call()
    return process_time() - start


def memory(name: str, effort: Effort) -> Iterator[Row]:
    """The first call, as a share of what is asked for."""
    peak = Ratio.of([fresh(_memory_here, name)], [MEMORY_TARGET])
    yield Row.of(f"{name}, first call", "80 MB", peak, 1.0, unit=BYTES)


def _memory_here(name: str) -> float:
    """How far the first call raises the memory of this process, in which a small one was made before."""
    torch.set_num_threads(1)
    problem = next(problem for problem in PROBLEMS if problem.name == name)
    ours(Problem("", problem.function, (64,), hessian=problem.hessian))()
    call = ours(problem)
    _, peak = resident_peak(call)
    return peak


def tasks() -> Iterator[Task]:
    """First calls, a dense one, repeated calls, memory."""
    everyone = ("asdex", "casadi", "jax", "sparsejac")
    for problem in PROBLEMS:
        name = f"{problem.name}, first call"
        yield Task(name, partial(first_call, problem), ("asdex",), "asdex", slow=problem.size > LARGE)
    yield Task("dense", dense_call, peer="torch.func, dense", slow=True)
    for problem in PROBLEMS:
        name = f"{problem.name}, repeated"
        yield Task(name, partial(repeated_calls, problem), everyone, "asdex", slow=problem is not PROBLEMS[0])
    for name in ("Burgers 1e+05", "Rosenbrock Hessian 1e+05"):
        yield Task(f"{name}, memory", partial(memory, name), peer="80 MB", slow=True)


AREA = Area(
    "sparsity",
    "Sparse Jacobians and Hessians: the first call (detect, colour, evaluate) and repeated ones (eager, "
    "replayed, compiled by inductor), beside asdex and sparsejac on JAX, CasADi, and a dense Jacobian.",
    tasks,
)
