"""Kernels: the table of wrong and right ones, by `check_kernel` and by `torch.testing.assert_close`.

A bug is caught if the checker says FAILED; a twin is accused if the checker does not pass it. `assert_close`
is used as everyday tests use it: outputs and gradients for one random cotangent, against the reference in the
same dtype, at its default tolerances and at a loose one. The fresh and the wild part were written after the
limits were chosen, and first checked all at once; what that showed stands in `docs/how-to/kernels.md`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import covector
from benchmarks._board import Area, Effort, Row, Task, from_tests
from benchmarks._measure import one_thread
from covector.verify.finding import Outcome

LOOSE = 1e-2


@dataclass(frozen=True)
class Part:
    """Bugs and right twins."""

    name: str
    bugs: list[Any]
    twins: list[Any]


def part(name: str) -> Part:
    """A table that the tests use."""
    if name == "known":
        table = from_tests("kernel_table")
        return Part(name, table.BUGS, table.TWINS)
    if name == "fresh":
        table = from_tests("kernel_fresh")
        return Part(name, table.FRESH_BUGS, table.FRESH_TWINS)
    table = from_tests("kernel_wild_table")
    return Part(name, table.WILD_BUGS, table.WILD_TWINS)


def ours(entry: Any) -> Outcome:
    """At default settings, through every lens."""
    return covector.check_kernel(entry.kernel, entry.reference, entry.inputs).outcome


def theirs(entry: Any, **tolerances: float) -> Outcome:
    """`assert_close` as an outcome."""
    passes = from_tests("kernel_table").passes_assert_close(entry, **tolerances)
    return Outcome.PASSED if passes else Outcome.FAILED


PEERS: dict[str, Callable[[Any], Outcome]] = {
    "assert_close": theirs,
    f"assert_close, {LOOSE}": partial(theirs, rtol=LOOSE, atol=LOOSE),
}


def judged(check: Callable[[Any], Outcome], of: Part) -> tuple[list[str], list[str]]:
    """The bugs that a checker misses, and the twins that it accuses."""
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missed = [str(bug) for bug in of.bugs if check(bug) is not Outcome.FAILED]
        accused = [str(twin) for twin in of.twins if check(twin) is not Outcome.PASSED]
    return missed, accused


def measure(name: str, effort: Effort) -> Iterator[Row]:
    """What `check_kernel` and its peers make of a part."""
    of = part(name)
    missed, accused = judged(ours, of)
    for peer, check in PEERS.items():
        peer_missed, peer_accused = judged(check, of)
        for what, all_of, names, theirs in (
            ("bugs missed", of.bugs, missed, peer_missed),
            ("right kernels accused", of.twins, accused, peer_accused),
        ):
            row = f"{what}, of {len(all_of)} {name}"
            yield Row.count(row, peer, len(names), len(theirs), note="; ".join(names))


def tasks() -> Iterator[Task]:
    """The table that limits were chosen on, and two that were written later."""
    for name in ("known", "fresh", "wild"):
        yield Task(name, partial(measure, name), peer="assert_close", slow=True)


AREA = Area(
    "kernels",
    "`check_kernel` at default settings on planted bugs and right kernels, beside "
    "`torch.testing.assert_close` of outputs and gradients. The fresh table was "
    "written after the limits were chosen; what it showed then stands in `docs/how-to/kernels.md`.",
    tasks,
)
