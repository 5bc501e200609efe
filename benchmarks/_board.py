"""What the scoreboard is made of: areas of tasks, each of which gives rows.

A row compares covector with one peer in one respect, and lower is better in all of them: seconds and bytes as
a ratio with its quartiles, or a count (bugs missed, say) on both sides.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from benchmarks._measure import Call, Ratio, compare

SECONDS, BYTES, COUNT, EXPONENT = "s", "bytes", "count", "exponent"
# Whether covector was made faster, or its checks better, with this row in view.
TUNED, ASIDE = "tuned on", "held aside"

_SCALES = {
    SECONDS: ((1, "s"), (1e-3, "ms"), (1e-6, "us")),
    BYTES: ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
}


@dataclass(frozen=True)
class Row:
    """One line of a table. What could not be measured is None, and `note` says why."""

    name: str
    peer: str
    unit: str = SECONDS
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    ours: float | None = None
    theirs: float | None = None
    target: float | None = None
    part: str = TUNED
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    area: str = ""
    task: str = ""

    @classmethod
    def of(cls, name: str, peer: str, ratio: Ratio, target: float | None, **more: Any) -> Self:
        """A ratio of times, or with `unit=BYTES` of memory."""
        sides = {"low": ratio.low, "high": ratio.high, "ours": ratio.ours, "theirs": ratio.theirs}
        return cls(name, peer, ratio=ratio.median, **sides, target=target, **more)

    @classmethod
    def count(
        cls, name: str, peer: str, ours: int, theirs: int | None = None, target: int | None = 0, **more: Any
    ) -> Self:
        """How many on either side."""
        return cls(name, peer, COUNT, ours=ours, theirs=theirs, target=target, **more)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same row in another run."""
        return self.area, self.name, self.peer, self.unit

    @property
    def title(self) -> str:
        """What it is called where it is shown."""
        name = f"{self.name} ({ASIDE})" if self.part == ASIDE else self.name
        return f"{name}, memory" if self.unit == BYTES else name

    @property
    def value(self) -> float | None:
        """What the target is for: the ratio, or our count."""
        return self.ours if self.unit == COUNT else self.ratio

    @property
    def verdict(self) -> str:
        """Whether the target is met; a row without one is there to compare with."""
        if self.value is None or self.target is None:
            return ""
        return "ok" if self.value <= self.target else "over"

    def amount(self, value: float | None) -> str:
        """A number in the unit of the row, as it is read."""
        if value is None:
            return ""
        if self.unit in (COUNT, EXPONENT):
            return f"{value:.3g}"
        scales = _SCALES[self.unit]
        scale, unit = next((pair for pair in scales if value >= pair[0]), scales[-1])
        return f"{value / scale:.1f} {unit}"


@dataclass(frozen=True)
class Effort:
    """How long to look: pairs of blocks of calls, rounds where a block is too long, one sample of `every`."""

    pairs: int
    block: float
    rounds: int
    every: int
    quick: bool


# Of torch's hundreds of operators, a quick run takes one in sixty.
FULL = Effort(pairs=25, block=0.02, rounds=3, every=1, quick=False)
QUICK = Effort(pairs=5, block=0.005, rounds=1, every=60, quick=True)


@dataclass(frozen=True)
class Task:
    """What is measured in one go: it gives one row or a few, and a run can be stopped between two tasks."""

    name: str
    measure: Callable[[Effort], Iterable[Row]]
    needs: tuple[str, ...] = ()
    peer: str = ""
    slow: bool = False

    def missing(self) -> list[str]:
        """The modules that it needs and that are not installed."""
        return [module for module in self.needs if find_spec(module) is None]

    def skipped(self, missing: Sequence[str]) -> Row:
        """The row that stands for it where modules are missing."""
        return Row(self.name, self.peer, note=f"skipped: {', '.join(missing)} not installed")


def _no_totals(rows: Sequence[Row]) -> Iterable[Row]:
    return ()


@dataclass(frozen=True)
class Area:
    """A table: what it is about, its tasks, and what its rows come to (sums, medians, exponents).

    `settings` are what it depends on beside versions and source; `figures`, what is drawn of it.
    """

    name: str
    about: str
    tasks: Callable[[], Iterable[Task]]
    totals: Callable[[Sequence[Row]], Iterable[Row]] = _no_totals
    settings: dict[str, str] = field(default_factory=dict)
    figures: str = ""


def pair(
    name: str,
    peer: str,
    ours: Call,
    theirs: Call,
    target: float | None,
    *,
    check: Call = lambda: None,
    **more: Any,
) -> Task:
    """The task of comparing the times of two calls, after `check` found that they compute the same."""

    def measure(effort: Effort) -> Iterator[Row]:
        check()
        yield Row.of(name, peer, compare(ours, theirs, pairs=effort.pairs, block=effort.block), target)

    return Task(name, measure, peer=peer, **more)


def from_tests(module: str) -> ModuleType:
    """A table of the tests, which are no package."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        return importlib.import_module(module)
    finally:
        sys.path.pop(0)
