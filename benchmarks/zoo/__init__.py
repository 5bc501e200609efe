"""Gradient checks of functions that were not written for them: packages, networks, solvers.

A third of the entries is held out, by a shuffle with a fixed seed: what is tuned on the others shows there
whether it holds for functions that nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.zoo import densities, dynamics, images, networks, solvers
from benchmarks.zoo.entry import ENTRIES, Entry, held_out
from benchmarks.zoo.measure import LIMIT, Result, measure
from benchmarks.zoo.table import HEADER, cells, details, line, summary

SOURCES = (densities, dynamics, images, networks, solvers)


def chosen(aside: bool | None = False, part: str = "") -> list[Entry]:
    """The entries with this part of a name: those not held out, those that are, or (None) both."""
    third = held_out()
    return [
        entry
        for name, entry in ENTRIES.items()
        if part in name and (aside is None or (name in third) == aside)
    ]


def report(entries: Iterable[Entry], limit: int = LIMIT, *, every_check: bool = False) -> list[Result]:
    """Run all checks of the entries, and print a row for each and the summary."""
    print(f"\n{line(HEADER)}")
    results = []
    for entry in entries:
        results.append(measure(entry, limit=limit))
        print(line(cells(results[-1])), flush=True)
        if every_check:
            print(details(results[-1]), flush=True)
    print(summary(results))
    return results
