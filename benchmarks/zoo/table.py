"""What is printed: a row for each entry, and what the rows come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.zoo.measure import OVER, RIGHT, WRONG, Check, Cost, Result

WORST = 5  # rows that are named


@dataclass(frozen=True)
class Way:
    """A check of ours and the check of torch's that it is compared with."""

    name: str
    ours: Check
    theirs: Check

    @property
    def truth(self) -> str:
        """What should be said."""
        return WRONG if self.ours.wrong else RIGHT

    def costs(self, result: Result) -> tuple[Cost, Cost] | None:
        """Both sides, if the entry was measured."""
        if result.costs is None or self.ours not in result.costs:
            return None
        return result.costs[self.ours], result.costs[self.theirs]


RIGHT_EXHAUSTIVE, RIGHT_FAST, WRONG_EXHAUSTIVE, WRONG_FAST = WAYS = (
    Way("right, exhaustive", Check("ours", False, False), Check("theirs", False, False)),
    Way("right, fast", Check("ours", False, True), Check("theirs", False, True)),
    Way("wrong, exhaustive", Check("ours", True, False), Check("theirs", True, False)),
    # torch's fast mode misses wrong derivatives; who relies on its verdict runs the exhaustive one.
    Way("wrong, fast", Check("ours", True, True), Check("theirs", True, False)),
)


@dataclass(frozen=True)
class Comparison:
    """A way for one entry, where both sides came to the same verdict or one was stopped at the limit."""

    entry: str
    ours: Cost
    theirs: Cost

    @property
    def ratio(self) -> float:
        """Ours over theirs, in time."""
        return self.ours.seconds / self.theirs.seconds

    def __str__(self) -> str:
        times = f"{self.ours.seconds:.3f} s / {self.theirs.seconds:.3f} s"
        return f"{self.ratio:.2f}x {self.entry} ({times}, {_runs(self.ours, self.theirs)} runs)"


def comparisons(way: Way, results: Iterable[Result]) -> list[Comparison]:
    """Where times can be compared. One that stops early with another verdict has not done the same work."""
    found = []
    for result in results:
        costs = way.costs(result)
        if costs is None or not all(cost.decided or cost.verdict == OVER for cost in costs):
            continue
        verdicts = {cost.verdict for cost in costs} - {OVER}
        if len(verdicts) == 1:  # none: both were stopped
            found.append(Comparison(result.entry, *costs))
    return found


# The table.

HEADER = ("entry", "in > out", "b", *(column for way in WAYS for column in (way.name, "runs")))
WIDTHS = (34, 12, 1, *(17, 13) * len(WAYS))


def line(row: Sequence[str]) -> str:
    widths = zip(row, WIDTHS, strict=False)
    return "  ".join(f"{c:<{w}}" if i in (0, 2) else f"{c:>{w}}" for i, (c, w) in enumerate(widths)).rstrip()


def cells(result: Result) -> tuple[str, ...]:
    """The row of an entry. A verdict that is not the truth is said; a `b` stands for what can be batched."""
    if result.costs is None:
        return (result.entry, "", "", result.note)
    size = "{} > {}".format(*result.numbers)
    row = [result.entry, size, "b" if result.batched else ""]
    for way in WAYS:
        ours, theirs = way.costs(result)
        notes = [
            f"{name}:{cost.verdict}"
            for name, cost in (("us", ours), ("torch", theirs))
            if cost.verdict != way.truth
        ]
        row += [" ".join([*notes, f"{ours.seconds / theirs.seconds:.2f}"]), _runs(ours, theirs)]
    return tuple(row)


def _runs(ours: Cost, theirs: Cost) -> str:
    return "/".join("-" if cost.verdict == OVER else str(cost.runs) for cost in (ours, theirs))


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


def saved(result: Result) -> dict[str, Any]:
    """A result as plain data."""
    costs = {str(check): asdict(cost) for check, cost in (result.costs or {}).items()}
    return {**{k: v for k, v in vars(result).items() if k != "costs"}, "costs": costs}


# The summary.


@dataclass(frozen=True)
class Target:
    """A limit of the ratio, in the sum of the rows that count or in each of them."""

    way: Way
    limit: float
    rows: str = ""
    counts: Callable[[Result], bool] = lambda result: True
    runs: int = 0
    summed: bool = False

    def verdict(self, results: Sequence[Result]) -> str:
        """Whether it is met, and the rows that are worst."""
        rows = comparisons(self.way, filter(self.counts, results))
        rows = [row for row in rows if row.theirs.runs >= self.runs or row.theirs.verdict == OVER]
        kind = "sum " if self.summed else "each"
        head = f"{self.way.name + self.rows:<42} {kind} <= {self.limit:.1f}x"
        if not rows:
            return f"{head}  no rows"
        if self.summed:
            ours, theirs = (sum(getattr(row, side).seconds for row in rows) for side in ("ours", "theirs"))
            met = "ok" if ours / theirs <= self.limit else "OVER"
            return f"{head}  {met:4}  {ours / theirs:.3f}x of {len(rows)} ({ours:.1f} s / {theirs:.1f} s)"
        over = sorted((row for row in rows if row.ratio > self.limit), key=lambda row: -row.ratio)
        met = "OVER" if over else "ok"
        few = f" (the worst {WORST})" if len(over) > WORST else ""
        return "\n".join(
            [
                f"{head}  {met:4}  {len(over)} of {len(rows)} over{few}",
                *(f"      {row}" for row in over[:WORST]),
            ]
        )


TARGETS = (
    Target(RIGHT_FAST, 1.0, summed=True),
    Target(RIGHT_FAST, 1.5),
    Target(RIGHT_EXHAUSTIVE, 0.3, ", batched", lambda result: result.batched, summed=True),
    Target(RIGHT_EXHAUSTIVE, 1.0, ", batched", lambda result: result.batched),
    Target(RIGHT_EXHAUSTIVE, 1.2, ", others, 100 runs", lambda result: not result.batched, runs=100),
    Target(WRONG_EXHAUSTIVE, 1.0, summed=True),
    Target(WRONG_EXHAUSTIVE, 1.5, ", 200 runs", runs=200),
    Target(WRONG_FAST, 1.0, " / torch exhaustive", summed=True),
    Target(WRONG_FAST, 1.5, " / torch exhaustive, 200 runs", runs=200),
)


def summary(results: Sequence[Result]) -> str:
    """The targets, the verdicts, what was not run, and where memory went."""
    measured = [result for result in results if result.costs is not None]
    lines = ["", *(target.verdict(results) for target in TARGETS), ""]
    for side in ("ours", "theirs"):
        for fast in (False, True):
            lines += _verdicts(side, fast, measured)
    for check in ("ours", "theirs"):
        peak, where = max(
            ((c.memory, r.entry) for r in measured for k, c in r.costs.items() if k.side == check)
        )
        lines.append(f"most memory, {check}: {peak / 2**20:.0f} MiB ({where})")
    lines += [f"not run: {result.entry} ({result.note})" for result in results if result.costs is None]
    return "\n".join(lines)


def _verdicts(side: str, fast: bool, results: Sequence[Result]) -> list[str]:
    """How many wrong ones are caught and right ones accused, and which."""
    wrong = {r.entry: r.costs[Check(side, True, fast)].verdict for r in results}
    right = {r.entry: r.costs[Check(side, False, fast)].verdict for r in results}
    caught = sum(verdict == WRONG for verdict in wrong.values())
    accused = sum(verdict == WRONG for verdict in right.values())
    mode = "fast" if fast else "exhaustive"
    lines = [f"{side} {mode}: {caught} of {len(wrong)} wrong ones caught, {accused} right ones accused"]
    lines += [f"      wrong, called {verdict}: {name}" for name, verdict in wrong.items() if verdict != WRONG]
    lines += [f"      right, called {verdict}: {name}" for name, verdict in right.items() if verdict != RIGHT]
    return lines
