"""What it costs to compute a Jacobian elsewhere: bytes and time of a task, on a local cluster and in a pool.

    python -m benchmarks.executors

Starts two worker processes of each kind, so nothing here says how a real network behaves; the figures are
what covector and the engines add to the work itself.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import torch

import covector
from covector._tasks.sending import Span, answer, packed
from covector.transforms._blocks import MatrixJob
from covector.transforms._question import Request

WORKERS = 2
REPEATS = 3
TASKS = 256
REQUEST = Request(0, None, False, None, "error")


def small(x: torch.Tensor) -> torch.Tensor:
    """Next to nothing to compute: what is left is the overhead."""
    return x * x


def network(size: int) -> tuple[Callable[..., Any], torch.Tensor]:
    """A function that captures two square matrices, and its point."""
    first, second = (torch.randn(size, size, dtype=torch.float64) / size**0.5 for _ in range(2))
    return lambda x: torch.tanh(second @ torch.tanh(first @ x)), torch.randn(size, dtype=torch.float64)


@contextmanager
def pool() -> Iterator[Any]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covector"])
    with ProcessPoolExecutor(WORKERS, context, torch.set_num_threads, (1,)) as executor:
        yield executor


@contextmanager
def cluster() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0") as started,
        Client(started, set_as_default=False) as client,
    ):
        yield client


def best(call: Callable[[], Any]) -> float:
    """The shortest of several times, after one that warms up."""
    call()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


class Overhead(NamedTuple):
    """Seconds for each task: until it is done, and of this process, which is client and scheduler in one."""

    elapsed: float
    here: float


def overhead(executor: Any) -> Overhead:
    """Of tasks that do nothing to speak of, while many of them are under way."""
    x = torch.ones(TASKS, dtype=torch.float64)
    jacobian = covector.jacobian(small, mode="reverse", chunk_size=1, executor=executor)
    jacobian(x)
    times = []
    for _ in range(REPEATS):
        start, busy = time.perf_counter(), time.process_time()
        jacobian(x)
        times.append((time.perf_counter() - start, time.process_time() - busy))
    return Overhead(*(min(column) / TASKS for column in zip(*times, strict=True)))


def here() -> float:
    """Seconds for each of the same tasks in this process: the function, its graph, one row."""
    job = MatrixJob(
        covector.errors.Caller("jacobian", small),
        REQUEST,
        (torch.ones(256).double(),),
        {},
        attrgetter("problem"),
        "reverse",
    )
    return best(lambda: [job.images(Span(i, i + 1)) for i in range(100)]) / 100


def sizes(function: Callable[..., Any], x: torch.Tensor, rows: int) -> tuple[int, int]:
    """Bytes that go out with a task, and that come back."""
    job = MatrixJob(
        covector.errors.Caller("jacobian", function), REQUEST, (x,), {}, attrgetter("problem"), "reverse"
    )
    out = packed(job)
    return len(out.data), len(pickle.dumps(answer(out, Span(0, rows)), protocol=5))


def show(label: str, found: Overhead) -> None:
    print(f"| {label} | {1e3 * found.elapsed:.2f} | {1e3 * found.here:.2f} |", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    print("bytes of a task (function and point go out, a block comes back)")
    print("| function | block | out | back |\n| --- | --- | --- | --- |")
    for label, (function, x) in {
        "x * x, 256 numbers": (small, torch.ones(256, dtype=torch.float64)),
        "network, 256 wide": network(256),
        "network, 1024 wide": network(1024),
    }.items():
        for rows in (1, 16, 64):
            out, back = sizes(function, x, rows)
            print(f"| {label} | {rows} rows | {out:,} | {back:,} |")
    print(f"\ntime of a task of one row of x * x, {WORKERS} workers")
    print("| executor | ms until done | ms of client and scheduler |\n| --- | --- | --- |")
    print(f"| none: in this process | {1e3 * here():.2f} | |")
    with pool() as executor:
        show("ProcessPoolExecutor", overhead(executor))
    with cluster() as client:
        show("client.get_executor()", overhead(client.get_executor()))
        print("\nJacobian of a network, 1024 wide (16.8 MB captured), in blocks of 64 rows")
        print("| executor | s until done | s of client and scheduler |\n| --- | --- | --- |")
        function, x = network(1024)
        ways = {"none": None, "client.get_executor()": client.get_executor()}
        for label, executor in ways.items():
            jacobian = covector.jacobian(function, mode="reverse", chunk_size=64, executor=executor)
            busy = time.process_time()
            elapsed = best(lambda jacobian=jacobian: jacobian(x))
            busy = (time.process_time() - busy) / (REPEATS + 1)
            print(f"| {label} | {elapsed:.2f} | {busy:.2f} |", flush=True)
        print("\nwhat a client takes in, blocks of 32 MB from two workers")
        start = time.perf_counter()
        count = 16
        futures = [client.submit(bytes, 32 * 2**20, pure=False) for _ in range(count)]
        busy = time.process_time()
        for future in futures:
            future.result()
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        print(f"{count * 32 / seconds:.0f} MB/s, {count * 32 / busy:.0f} MB for each second of the client")


if __name__ == "__main__":
    main()
