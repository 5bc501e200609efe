"""Derivatives compiled: `covector.compile` beside jitted JAX and `torch.compile` of torch.func.

All in one process, on one thread, in processor time, warm. Each task is written once, for a library of
transforms and one of mathematics, so that the three sides run the same lines.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

import torch
from torch import Tensor

import covector
from benchmarks._measure import Call, compare, one_thread

NAME = "compiled"
# The most that a task may take beside JAX, and beside compiled torch.func; of the median, 1.
JAX_TARGET, FUNC_TARGET = 1.5, 1.3
# Or, beside JAX, this many seconds more: what two Python calls take.
SLACK = 5e-6
WIDTHS = (8, 8, 16)

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
class Task:
    """What is computed: a derivative for a library and constants, its constants, its arguments."""

    name: str
    use: Callable[..., Callable[..., Any]]
    constants: tuple[Tensor, ...]
    arguments: tuple[Any, ...]


def _loss(library, *layers):
    return lambda x: (network(library, *layers)(x) ** 2).sum()


LAYERS_64 = (_random(64, 64), _random(64, 64))
LAYERS_256 = (_random(256, 256), _random(256, 256))
PARAMS = {"first": _random(32, 8), "bias": _random(32), "second": _random(4, 32)}

TASKS = (
    Task("grad, Rosenbrock 50", lambda lib: lib.grad(rosenbrock), (), (_random(50),)),
    Task(
        "jacobian, network 64 -> 64",
        lambda lib, *w: lib.jacobian(network(lib, *w)),
        LAYERS_64,
        (_random(64),),
    ),
    Task("hessian, Rosenbrock 50", lambda lib: lib.hessian(rosenbrock), (), (_random(50),)),
    Task("hessian, network 64", lambda lib, *w: lib.hessian(_loss(lib, *w)), LAYERS_64, (_random(64),)),
    Task("vmap(grad), 256 x 16", lambda lib: lib.vmap(lib.grad(rosenbrock)), (), (_random(256, 16),)),
    Task(
        "hvp, network 256", lambda lib, *w: lib.hvp(_loss(lib, *w)), LAYERS_256, (_random(256), _random(256))
    ),
    Task(
        "jacfwd, trajectory 2 -> 500",
        lambda lib, times: lib.jacfwd(trajectory(lib, times)),
        (torch.linspace(0, 5, 500, dtype=torch.float64),),
        (torch.tensor([0.3, 2.0], dtype=torch.float64),),
    ),
    Task(
        "gradients per sample, by a dict",
        lambda lib: lib.vmap(lib.grad(sample_loss(lib)), (None, 0)),
        (),
        (PARAMS, _random(64, 8)),
    ),
    Task("vmap(hessian), 64 x 8", lambda lib: lib.vmap(lib.hessian(rosenbrock)), (), (_random(64, 8),)),
    Task(
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
FUNC = _torch_library(
    torch.func,
    jacobian=torch.func.jacrev,
    hvp=lambda f: lambda x, u: torch.func.vjp(torch.func.grad(f), x)[1](u)[0],
)


@dataclass(frozen=True)
class Side:
    """A compiled function, and what it took to compile; None where that failed."""

    call: Call | None
    seconds: float


def _side(make: Callable[[], Callable[..., Any]], arguments: tuple[Any, ...]) -> Side:
    start = process_time()
    try:
        function = make()
        function(*arguments)
    except Exception as error:  # a compiler that crashes is a result too
        print(f"    {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        return Side(None, process_time() - start)
    return Side(lambda: function(*arguments), process_time() - start)


def _jax_side(jax: Any, task: Task) -> Side:
    numpy = jax.numpy
    library = Library(
        jax.grad, jax.jacrev, jax.jacfwd, jax.jacrev, jax.hessian,
        lambda f: lambda x, u: jax.jvp(jax.grad(f), (x,), (u,))[1],
        jax.vmap, numpy,
    )  # fmt: skip

    def converted(tree):
        return jax.tree.map(lambda leaf: numpy.asarray(leaf.numpy()), tree)

    constants, arguments = converted(task.constants), converted(task.arguments)
    side = _side(lambda: jax.jit(task.use(library, *constants)), arguments)
    if side.call is None:
        return side
    call = side.call
    return Side(lambda: jax.block_until_ready(call()), side.seconds)


def _jax() -> Any:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    try:
        import jax
    except ImportError:
        print("jax is not installed: no column for it")
        return None
    jax.config.update("jax_enable_x64", True)
    return jax


@dataclass(frozen=True)
class Measured:
    """Ratios of one task; None where the other side is missing or failed."""

    task: str
    microseconds: float
    to_jax: float | None
    beyond_jax: float | None
    to_func: float | None
    compile_to_func: float | None

    @property
    def verdict(self) -> str:
        """Whether the targets are met."""
        slow = self.to_jax is not None and self.to_jax > JAX_TARGET and (self.beyond_jax or 0) > SLACK
        behind = self.to_func is not None and self.to_func > FUNC_TARGET
        return "over" if slow or behind else "ok"


def measure(task: Task, jax: Any) -> Measured:
    """All sides of a task."""
    ours = _side(lambda: covector.compile(task.use(OURS, *task.constants)), task.arguments)
    theirs = _side(lambda: torch.compile(task.use(FUNC, *task.constants)), task.arguments)
    assert ours.call is not None
    _check(ours.call(), task)
    to_func = compare(ours.call, theirs.call, pairs=15) if theirs.call else None
    beside = _jax_side(jax, task) if jax else Side(None, 0)
    to_jax = compare(ours.call, beside.call, pairs=15) if beside.call else None
    microseconds = 1e6 * (to_func or to_jax).ours if to_func or to_jax else float("nan")
    return Measured(
        task.name,
        microseconds,
        to_jax.median if to_jax else None,
        to_jax.ours - to_jax.theirs if to_jax else None,
        to_func.median if to_func else None,
        ours.seconds / theirs.seconds if theirs.call else None,
    )


def _check(result: Any, task: Task) -> None:
    """A fast wrong answer is worth nothing."""
    expected = task.use(OURS, *task.constants)(*task.arguments)
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def report() -> list[dict[str, Any]]:
    """Print the table, and what a call costs that has nothing to do."""
    print("\ncompiled, one thread, warm; ratios of processor time")
    print(f"{'':34}{'us':>9}{'/ JAX':>8}{'/ func':>8}{'compile / func':>16}")
    # Nothing that was compiled before: what is on disk would count as compiled in no time.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    with one_thread():
        jax = _jax()
        found = []
        _warm_up()
        for task in TASKS:
            row = measure(task, jax)
            found.append(row)
            columns = (row.to_jax, row.to_func, row.compile_to_func)
            cells = "".join(f"{_text(value):>{width}}" for value, width in zip(columns, WIDTHS, strict=True))
            print(f"{row.task:34}{row.microseconds:>9.1f}{cells}  {row.verdict}", flush=True)
        print(f"{'median':34}{'':9}" + "".join(_medians(found)))
        print(f"{'a call with nothing to do':34}{_overhead():>9.1f}")
    return [asdict(row) for row in found]


def _medians(found: list[Measured]) -> list[str]:
    columns = ([r.to_jax for r in found], [r.to_func for r in found], [r.compile_to_func for r in found])
    medians = [
        statistics.median([v for v in column if v is not None] or [float("nan")]) for column in columns
    ]
    return [f"{value:>{width}.2f}" for value, width in zip(medians, WIDTHS, strict=True)]


def _warm_up() -> None:
    """Load what each side loads at its first use."""
    point = torch.ones(2)
    covector.compile(covector.grad(torch.sum))(point)
    torch.compile(torch.func.grad(torch.sum))(point)


def _overhead() -> float:
    """Microseconds for a compiled function that returns its argument."""
    fast, x = covector.compile(lambda x: x, backend="replay"), torch.ones(3)
    fast(x)
    times = []
    for _ in range(20):
        start = process_time()
        for _ in range(500):
            fast(x)
        times.append((process_time() - start) / 500)
    return 1e6 * min(times)
