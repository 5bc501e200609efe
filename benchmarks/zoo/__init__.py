"""Gradient checks of functions that were not written for them: packages, networks, solvers.

A third of the entries is held out, by a shuffle with a fixed seed: what is tuned on the others shows there
whether it holds for functions that nobody has looked at. So it is an area of its own, which is run by its
name or with everything, and never while something is tuned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks._board import ASIDE, TUNED, Area, Effort, Row, Task
from benchmarks.zoo import densities, dynamics, images, networks, solvers
from benchmarks.zoo.entry import ENTRIES, Entry, held_out
from benchmarks.zoo.measure import measure
from benchmarks.zoo.rows import rows, totals

SOURCES = (densities, dynamics, images, networks, solvers)


def chosen(aside: bool, part: str = "") -> list[Entry]:
    """The entries with this part of a name: those not held out, or those that are."""
    third = held_out()
    return [entry for name, entry in ENTRIES.items() if part in name and (name in third) == aside]


def _measured(entry: Entry, part: str, effort: Effort) -> Iterator[Row]:
    for row in rows(measure(entry)):
        yield replace(row, part=part)


def tasks(part: str) -> Iterator[Task]:
    """All checks of each entry."""
    for number, entry in enumerate(chosen(part == ASIDE)):
        yield Task(
            entry.name, partial(_measured, entry, part), peer="torch", slow=part == ASIDE or number > 1
        )


ABOUT = (
    "Functions of other packages, networks and solvers, each right and with one planted mistake. `sum` is "
    "the ratio of the sums of times. Entries were chosen such that torch's exhaustive mode is right on them."
)
AREA = Area("zoo", ABOUT, partial(tasks, TUNED), totals)
HELD_OUT = Area(
    "zoo-held-out",
    "The third of the zoo that is held out while checks are tuned. What was over its target before "
    "was looked into, so it is not unseen any more.",
    partial(tasks, ASIDE),
    totals,
)
