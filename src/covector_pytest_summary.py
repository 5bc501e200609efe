"""The end of a run of the pytest plugin: checks as data, those that differ from torch's, and the summary.

Outside the package for the same reason as the plugin: the process that people look at may load no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# How many lines of a list are shown.
SHOWN = 5

# How a test ended that was marked to fail, and did.
EXPECTED = "expected failure"


@dataclass(frozen=True)
class Check:
    """One check as data, fit to travel from a worker to its controller."""

    test: str
    what: str
    outcome: str
    seconds: float
    text: str = ""
    page: str = ""
    hint: str = ""
    peer_outcome: str = ""
    peer_seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.test} {self.what}: covector {self.outcome}, torch {self.peer_outcome}"

    @property
    def differs(self) -> bool:
        """Whether covector and torch were both asked and disagree."""
        return bool(self.peer_outcome) and (self.outcome == "passed") != (self.peer_outcome == "passed")


@dataclass(frozen=True)
class Accepted:
    """The differences between covector and torch that a suite has agreed to, one on each line of a file."""

    lines: frozenset[str] = frozenset()

    @classmethod
    def listed_in(cls, path: Path | None) -> Accepted:
        """Those of a file, in which empty lines and comments (#) mean nothing."""
        lines = [] if path is None else path.read_text(encoding="utf-8").splitlines()
        stripped = (line.strip() for line in lines)
        return cls(frozenset(line for line in stripped if line and not line.startswith("#")))

    def __contains__(self, check: Check) -> bool:
        return str(check) in self.lines

    def unmet(self, checks: list[Check]) -> list[str]:
        """Lines that are none of these checks: mistyped, out of date, or of a test that did not run."""
        return sorted(self.lines - {str(check) for check in checks if check.differs})


def write_differences(path: Path, checks: list[Check]) -> str:
    """Write the verdicts that differ into a file; what to tell about it."""
    lines = sorted({str(check) for check in checks if check.differs})
    try:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        return f"{counted(len(lines), 'difference')} could not be written to {path}: {error}"
    return f"{counted(len(lines), 'difference')} written to {path}"


def summary(checks: list[Check], ended: Mapping[str, str], accepted: Accepted) -> list[str]:
    """The lines at the end of a run, by how each test ended."""
    if not checks:
        return ["no gradcheck ran"]
    return [_first_line(checks, ended), *_differences(checks, accepted), *_slowest(checks)]


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _first_line(checks: list[Check], ended: Mapping[str, str]) -> str:
    outcomes = [_outcome(check, ended.get(check.test, "")) for check in checks]
    counts = ", ".join(f"{outcomes.count(o)} {o}" for o in sorted(set(outcomes), key=outcomes.index))
    total = sum(check.seconds for check in checks)
    return f"{counted(len(checks), 'check')} in {total:.2f} s: {counts}"


def _outcome(check: Check, test: str) -> str:
    """How a check ended, and whether its test is content with a check that did not pass.

    Where torch was asked too, a test ends by torch's verdict and expects nothing of another one.
    """
    content = check.outcome != "passed" and not check.differs and test in ("passed", EXPECTED)
    return f"{check.outcome} as the test expects" if content else check.outcome


def _differences(checks: list[Check], accepted: Accepted) -> Iterator[str]:
    compared = [check for check in checks if check.peer_outcome]
    if not compared:
        return
    ours, theirs = sum(c.seconds for c in compared), sum(c.peer_seconds for c in compared)
    median = statistics.median(c.seconds / c.peer_seconds for c in compared)
    yield (
        f"beside torch: {ours:.2f} s against {theirs:.2f} s, which is {ours / theirs:.2f} of its time for "
        f"all checks together, and {median:.2f} for the median check"
    )
    different = [check for check in compared if check.differs and check not in accepted]
    agreed = sum(check.differs for check in compared) - len(different)
    yield f"verdicts that differ: {len(different) or 'none'}" + (f", and {agreed} accepted" if agreed else "")
    for check in different:
        yield f"  {check.test}"
        yield f"    {check.what}: covector {check.outcome}, torch {check.peer_outcome}"
        yield from (f"      {line}" for line in check.text.splitlines())
    if unmet := accepted.unmet(compared):
        yield f"accepted, but not met in this run: {len(unmet)}"
        yield from (f"  {line}" for line in unmet[:SHOWN])


def _slowest(checks: list[Check]) -> Iterator[str]:
    yield "slowest:"
    for check in sorted(checks, key=lambda check: -check.seconds)[:SHOWN]:
        yield f"  {check.seconds:7.3f} s  {check.what}  {check.test}"
