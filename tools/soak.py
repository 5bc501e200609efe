"""Run many checks and transform calls in one process, and see that nothing grows.

    make soak                         # 20,000 checks and 200,000 calls; some minutes
    make soak PART=0.01               # a hundredth of that

Written are `docs/images/soak.svg` (only by a whole run) and, to the terminal, a line for each sample: memory,
open files, nesting levels, objects that Python keeps, entries of our caches.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C import _functorch as stack

import covector

CHECKS, CALLS = 20_000, 200_000
# Of each kind before the first sample: what is loaded, compiled or remembered once is no growth.
WARM = 40
SAMPLES = 40


class Sample(NamedTuple):
    """What a process holds after so many calls."""

    calls: int
    memory: int
    """Bytes that are resident."""
    files: int
    levels: int
    objects: int
    caches: int
    seconds: float


class Wrong(torch.autograd.Function):
    """x ** 2 with a gradient of 3 x: its check fails, is located, diagnosed and reported."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Square."""
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """Half as much again as it should be."""
        return 3 * ctx.saved_tensors[0] * g


def checks() -> list[Callable[[], Any]]:
    """Checks that pass, fail, raise, and are shown; every function is a new one, as in a suite of tests."""
    x = torch.linspace(0.1, 1.0, 3, dtype=torch.float64, requires_grad=True)

    def raising() -> None:
        try:
            covector.gradcheck(lambda x: [][0], x)
        except IndexError:
            return
        raise AssertionError

    return [
        lambda: covector.gradcheck(lambda x: x.sin() * x, x),
        lambda: covector.gradcheck(lambda x: x.exp(), x, fast_mode=True, check_forward_ad=True),
        lambda: covector.gradgradcheck(lambda x: x**3, x, fast_mode=True),
        lambda: str(covector.check(lambda x: Wrong.apply(x), x)),
        lambda: covector.check(torch.nn.Linear(3, 2).double(), x.detach()),
        raising,
    ]


def calls() -> list[Callable[[], Any]]:
    """Transforms of new functions, alone, nested, in batches, and of one that raises."""
    x = torch.linspace(0.1, 1.0, 3, dtype=torch.float64)

    def raising() -> None:
        try:
            covector.grad(lambda x: [][0])(x)
        except IndexError:
            return
        raise AssertionError

    return [
        lambda: covector.grad(lambda x: x.sin().sum())(x),
        lambda: covector.vjp(lambda x: x.sin(), x)[1](x),
        lambda: covector.jvp(lambda x: x.sin(), (x,), (x,)),
        lambda: covector.linearize(lambda x: x.sin(), x)[1](x),
        lambda: covector.jacrev(lambda x: x.sin())(x),
        lambda: covector.jacfwd(lambda x: x.sin())(x),
        lambda: covector.jacobian(lambda x: x.sin())(x),
        lambda: covector.hessian(lambda x: x.sin().sum())(x),
        lambda: covector.hvp(lambda x: x.sin().sum(), (x,), (x,)),
        lambda: covector.grad(lambda x: covector.grad(lambda x: x.sin().sum())(x).sum())(x),
        lambda: torch.vmap(covector.grad(lambda x: x.sin()))(x),
        lambda: covector.functional.jacobian(lambda x: x.sin(), x),
        raising,
    ]


def our_caches() -> int:
    """How many entries the caches of covector's functions and the tables of its modules have in all."""
    total = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "covector":
            continue
        for value in [value for key, value in vars(module).items() if not key.startswith("__")]:
            info = getattr(value, "cache_info", None)
            if callable(info) and getattr(value, "__module__", name) == name:
                total += info().currsize
            elif isinstance(value, dict | list | set):
                total += len(value)
    return total


def sample(done: int, started: float) -> Sample:
    """How things are now, after what can be freed was."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return Sample(
        done,
        pages * resource.getpagesize(),
        len(os.listdir("/proc/self/fd")),
        stack.get_dynamic_layer_stack_depth(),
        len(gc.get_objects()),
        our_caches(),
        time.monotonic() - started,
    )


def soak(kinds: list[Callable[[], Any]], count: int) -> Iterator[Sample]:
    """Samples along so many calls, after each kind has been called some times."""
    started = time.monotonic()
    for _ in range(WARM):
        for kind in kinds:
            kind()
    yield sample(0, started)
    done, every = 0, max(count // SAMPLES, len(kinds))
    while done < count:
        for number in range(min(every, count - done)):
            kinds[number % len(kinds)]()
        done += min(every, count - done)
        yield sample(done, started)


def plot(runs: dict[str, list[Sample]], path: Path) -> None:
    """Memory, objects, open files and caches against the number of calls, beside each other."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = {
        "memory / MB": lambda s: s.memory / 2**20,
        "objects of Python / 1000": lambda s: s.objects / 1000,
        "open files": lambda s: s.files,
        "entries of caches": lambda s: s.caches,
        "nesting levels": lambda s: s.levels,
    }
    figure, axes = pyplot.subplots(len(rows), len(runs), figsize=(9, 9), sharex="col", squeeze=False)
    for column, (name, samples) in enumerate(runs.items()):
        for row, (label, value) in enumerate(rows.items()):
            axis, values = axes[row][column], [value(s) for s in samples]
            axis.plot([s.calls for s in samples], values, color="#2563a8")
            axis.set_ylim(0, 1.3 * max(values) or 1)
            axis.grid(alpha=0.3)
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(name)
        axes[-1][column].set_xlabel("calls")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all of it, or a part."""
    torch.set_num_threads(1)
    part = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs: dict[str, list[Sample]] = {}
    for name, kinds, count in (("checks", checks(), CHECKS), ("transform calls", calls(), CALLS)):
        runs[name] = []
        for one in soak(kinds, int(part * count)):
            runs[name].append(one)
            print(
                f"{one.calls:>8} {name}: {one.memory / 2**20:7.1f} MB  {one.objects:>8} objects  "
                f"{one.files} files  {one.levels} levels  {one.caches} in caches  {one.seconds:6.1f} s",
                flush=True,
            )
    if part == 1.0:
        plot(runs, Path(__file__).parent.parent / "docs" / "images" / "soak.svg")


if __name__ == "__main__":
    main()
