"""Kernels: the table of wrong and right ones, by `check_kernel` and by `torch.testing.assert_close`.

A bug is caught if the checker says FAILED; a twin is accused if the checker does not pass it. `assert_close`
is used as everyday tests use it: outputs and gradients for one random cotangent, against the reference in the
same dtype, at its default tolerances and at a loose one. The fresh part was written after the limits were
chosen, and first checked all at once; what that showed stands in `docs/how-to/kernels.md`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import covector
from benchmarks._measure import one_thread
from covector.verify.finding import Outcome

NAME = "kernels"


@dataclass(frozen=True)
class Result:
    """What a checker made of a part of the table."""

    part: str
    checker: str
    bugs: int
    twins: int
    missed: tuple[str, ...]
    accused: tuple[str, ...]
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """What is printed."""
        caught = self.bugs - len(self.missed)
        return (
            f"{self.part}, {self.checker}",
            f"{caught} of {self.bugs}",
            f"{caught / self.bugs:.1%}",
            f"{len(self.accused)} of {self.twins}",
            f"{len(self.accused) / self.twins:.1%}",
            f"{self.seconds:.1f} s",
        )


def tables() -> tuple[dict[str, tuple[list[Any], list[Any]]], Callable[..., bool]]:
    """The tables that the tests use, which are no package: bugs and twins by part; and assert_close."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from kernel_fresh import FRESH_BUGS, FRESH_TWINS
        from kernel_table import BUGS, TWINS, passes_assert_close
    finally:
        sys.path.pop(0)
    parts = {"known": (BUGS, TWINS), "fresh": (FRESH_BUGS, FRESH_TWINS)}
    return parts, passes_assert_close


def ours(entry: Any) -> Outcome:
    """At default settings, through every lens."""
    return covector.check_kernel(entry.kernel, entry.reference, entry.inputs).outcome


def theirs(passes: Callable[..., bool], entry: Any, **tolerances: float) -> Outcome:
    """`assert_close` as an outcome."""
    return Outcome.PASSED if passes(entry, **tolerances) else Outcome.FAILED


def judged(
    part: str, name: str, check: Callable[[Any], Outcome], bugs: list[Any], twins: list[Any]
) -> Result:
    """Run one checker over a part."""
    start = time.perf_counter()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missed = tuple(str(bug) for bug in bugs if check(bug) is not Outcome.FAILED)
        accused = tuple(str(twin) for twin in twins if check(twin) is not Outcome.PASSED)
    return Result(part, name, len(bugs), len(twins), missed, accused, time.perf_counter() - start)


HEADER = ("kernels", "caught", "share", "twins accused", "share", "time")


def line(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:<34}" + "".join(f"{cell:>16}" for cell in cells[1:])


def report() -> list[Result]:
    """Print what every checker made of every part, and the names behind it."""
    parts, passes = tables()
    checkers: dict[str, Callable[[Any], Outcome]] = {
        "check_kernel": ours,
        "assert_close": partial(theirs, passes),
        "assert_close, 1e-2": partial(theirs, passes, rtol=1e-2, atol=1e-2),
    }
    print(f"\n{line(HEADER)}")
    results = []
    for part, (bugs, twins) in parts.items():
        for name, check in checkers.items():
            results.append(judged(part, name, check, bugs, twins))
            print(line(results[-1].cells()), flush=True)
    for result in results:
        for what, names in (("missed", result.missed), ("accused", result.accused)):
            if names and result.checker == "check_kernel":
                print(f"\n{result.part}, {result.checker} {what}: {'; '.join(names)}")
    return results


if __name__ == "__main__":
    report()
