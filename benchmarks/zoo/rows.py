"""What is shown of an entry: a row for each way to check it, one for the verdicts; and the sums of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks._board import COUNT, Row
from benchmarks._measure import Ratio
from benchmarks.zoo.measure import OVER, RIGHT, WRONG, Check, Cost, Result


@dataclass(frozen=True)
class Way:
    """A check of ours, the check of torch's that it is compared with, and what the ratio may be.

    `each` bounds a single entry, where torch runs the function `runs` times or more; `summed` the ratio of
    the sums of all entries.
    """

    name: str
    ours: Check
    theirs: Check
    each: float
    summed: float | None
    runs: int = 0
    counts: Callable[[Result], bool] = lambda result: True

    @property
    def peer(self) -> str:
        """What it is compared with."""
        return f"torch, {'fast' if self.theirs.fast else 'exhaustive'}"

    def row(self, result: Result) -> Row | None:
        """Times of one entry, which have no ratio where the two sides did not do the same work."""
        if result.costs is None or not self.counts(result):
            return None
        ours, theirs = result.costs[self.ours], result.costs[self.theirs]
        bounded = theirs.runs >= self.runs or theirs.verdict == OVER
        facts = {"way": self.name, "runs": [ours.runs, theirs.runs]}
        name = f"{result.entry}: {self.name}"
        if not _same_work(ours, theirs):
            note = f"covector says {ours.verdict}, torch {theirs.verdict}"
            return Row(name, self.peer, note=note, facts=facts)
        turns = list(zip(ours.turns, theirs.turns, strict=False))  # a brief check has more of them
        ratio = Ratio.of(*(zip(*turns, strict=True) if turns else ([ours.seconds], [theirs.seconds])))
        return Row.of(name, self.peer, ratio, self.each if bounded else None, facts=facts)


def _same_work(ours: Cost, theirs: Cost) -> bool:
    """One that stops early with another verdict, or gives up, has not done the same; one at its limit has."""
    if not all(cost.decided or cost.verdict == OVER for cost in (ours, theirs)):
        return False
    return len({ours.verdict, theirs.verdict} - {OVER}) == 1


WAYS = (
    Way(
        "right, exhaustive", Check("ours", False, False), Check("theirs", False, False),
        each=1.0, summed=0.3, counts=lambda result: result.batched,
    ),
    Way(
        "right, exhaustive, no batch", Check("ours", False, False), Check("theirs", False, False),
        each=1.2, summed=None, runs=100, counts=lambda result: not result.batched,
    ),
    Way("right, fast", Check("ours", False, True), Check("theirs", False, True), each=1.5, summed=1.0),
    Way(
        "wrong, exhaustive", Check("ours", True, False), Check("theirs", True, False),
        each=1.5, summed=1.0, runs=200,
    ),
    # torch's fast mode misses wrong derivatives; who relies on its verdict runs the exhaustive one.
    Way(
        "wrong, fast", Check("ours", True, True), Check("theirs", True, False),
        each=1.5, summed=1.0, runs=200,
    ),
)  # fmt: skip


def rows(result: Result) -> Iterator[Row]:
    """The rows of an entry; one that says why, if it was not measured."""
    if result.costs is None:
        yield Row(result.entry, "torch", note=result.note)
        return
    yield from filter(None, (way.row(result) for way in WAYS))
    yield _verdicts(result)


def _verdicts(result: Result) -> Row:
    """How many of the four checks of each side do not say what is true."""
    assert result.costs is not None
    untrue = {
        str(check): cost.verdict
        for check, cost in result.costs.items()
        if cost.verdict != (WRONG if check.wrong else RIGHT)
    }
    ours, theirs = (sum(check.startswith(side) for check in untrue) for side in ("ours", "theirs"))
    note = "; ".join(f"{check}: {verdict}" for check, verdict in untrue.items())
    return Row.count(f"{result.entry}: untrue verdicts, of 4", "torch", ours, theirs, note=note)


def totals(every: Sequence[Row]) -> Iterator[Row]:
    """The ratio of the sums for each way, and the number of untrue verdicts."""
    for way in WAYS:
        counted = [row for row in every if row.facts.get("way") == way.name and row.ratio is not None]
        if counted:
            ours, theirs = (sum(getattr(row, side) for row in counted) for side in ("ours", "theirs"))
            note = f"{len(counted)} entries"
            yield Row.of(f"sum: {way.name}", way.peer, Ratio.of([ours], [theirs]), way.summed, note=note)
    verdicts = [row for row in every if row.unit == COUNT]
    ours, theirs = (sum(getattr(row, side) for row in verdicts) for side in ("ours", "theirs"))
    yield Row.count(f"untrue verdicts, of {4 * len(verdicts)}", "torch", ours, theirs)


def details(result: Result) -> str:
    """A line for every check."""
    if result.costs is None:
        return f"  {result.entry}: {result.note}"
    lines = [
        f"  {result.entry} ({result.package}), {result.numbers}, {'' if result.batched else 'not '}batched"
    ]
    for check, cost in result.costs.items():
        amount = f"{cost.seconds:9.4f} s {cost.runs:6} runs {cost.points:6} points"
        amount += f" {cost.memory / 2**20:6.0f} MiB"
        said = "" if cost.verdict == (WRONG if check.wrong else RIGHT) else " ".join(cost.error.split())[:200]
        lines.append(f"    {check!s:26} {cost.verdict:8} {amount} {said}".rstrip())
    return "\n".join(lines)
