"""Many calls, many threads, other processes: nothing grows, and results are those of one call alone."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as registry

import covector
from covering import covered
from doors import DOORS, cubes, suited, used, waves
from watched import state

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tools"))
import soak

pytestmark = [
    pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

DOUBLE = torch.float64


# --- many calls


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kinds", "count"), [(soak.checks, 2_000), (soak.calls, 20_000)], ids=["checks", "transforms"]
)
def test_nothing_grows(kinds: Any, count: int) -> None:
    """A tenth of `tools/soak.py`: levels and files are exactly as before; memory and objects stay bounded."""
    samples = list(soak.soak(kinds(), count))
    first, last = samples[len(samples) // 4], samples[-1]
    assert {s.levels for s in samples} == {0}
    assert {s.files for s in samples} == {samples[0].files}
    assert last.caches <= first.caches
    assert last.objects - first.objects < 500  # those of the samples themselves, and of pytest
    assert last.memory - first.memory < 8 * 2**20  # what an allocator may do; a kilobyte a call would be more


# --- many threads


# `case` registers for one file at a time; `swap` is one for the whole process.
ALONE = {"case"}


def through(name: str) -> Any:
    """What a door gives for a function of its kind, as plain numbers."""
    x = torch.linspace(0.2, 1.1, 3, dtype=DOUBLE).requires_grad_()
    result = used(name, suited(name), x)
    return registry.tree_map(_plain, result)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to_dense()
    if isinstance(leaf, str):
        return "\n".join(line for line in leaf.splitlines() if "seconds" not in line)  # how long it took
    return leaf


def same(a: Any, b: Any) -> bool:
    first, second = registry.tree_leaves(a), registry.tree_leaves(b)
    return len(first) == len(second) and all(_same(x, y) for x, y in zip(first, second, strict=True))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool((a == b).all()) if hasattr(a, "all") else a == b


@pytest.mark.parametrize(
    "name", covered([(name,) for name in sorted(set(DOORS) - ALONE)], lambda name: name != "kernelcheck")
)
def test_eight_threads_at_once(name: str) -> None:
    """Through every door, bit for bit the serial result."""
    expected, before = through(name), state(random=False)
    ready = threading.Barrier(8)

    def run(_: int) -> Any:
        ready.wait(60)
        return through(name)

    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(run, range(8), timeout=300):
            assert same(result, expected)
    assert state(random=False) == before


def test_eight_threads_through_different_doors() -> None:
    """All doors at once, in an order of its own for each thread."""
    names = sorted(set(DOORS) - ALONE - {"swap", "compile", "check_kernel", "kernelcheck", "agree"})
    expected = {name: through(name) for name in names}

    def run(thread: int) -> None:
        for number in range(len(names)):
            name = names[(5 * number + thread * 7) % len(names)] if len(names) % 5 else names[number]
            assert same(through(name), expected[name]), name

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8), timeout=300))


# --- other processes


def in_child(connection: Any) -> None:
    x = torch.linspace(0.2, 1.1, 3, dtype=DOUBLE).requires_grad_()
    found = [
        covector.grad(cubes)(x).tolist(),
        covector.jacfwd(waves)(x).tolist(),
        bool(covector.check(waves, x)),
        not covector.check(soak.Wrong.apply, x),
    ]
    connection.send((found, os.getpid()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(method: str) -> None:
    """After this process has used everything, a child that was forked or spawned gives the same results."""
    for name in ("grad", "jacfwd", "hessian", "gradcheck", "check"):
        through(name)
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=in_child, args=(theirs,))
    process.start()
    assert ours.poll(120)
    found, number = ours.recv()
    process.join(60)
    x = torch.linspace(0.2, 1.1, 3, dtype=DOUBLE)
    assert found == [(3 * x**2).tolist(), covector.jacrev(waves)(x).tolist(), True, True]
    assert (process.exitcode, number) == (0, process.pid)
