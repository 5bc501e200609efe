"""What a check found, as data: truthy, printable, JSON."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a check ended; a report has the worst of its checks."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"


_RANK = list(Outcome)
_WIDTH = 100


@dataclass(frozen=True)
class Entry:
    """One entry of a Jacobian: which number of the output, by which number of the input."""

    output: str
    input: str

    def __str__(self) -> str:
        return f"d {self.output} / d {self.input}"


@dataclass(frozen=True)
class Mismatch:
    """An entry on which two derivatives differ."""

    entry: Entry
    analytic: float
    numeric: float
    bound: float
    allowed: float
    note: str = ""

    @property
    def error(self) -> float:
        """How far the two values are apart."""
        return abs(self.analytic - self.numeric)


@dataclass(frozen=True)
class Finding:
    """How one check ended, and why."""

    check: str
    outcome: Outcome
    summary: str = ""
    mismatches: tuple[Mismatch, ...] = ()
    count: int = 0
    entries: int = 0
    advice: str = ""
    counted: bool = True

    def lines(self) -> list[str]:
        """The finding for people."""
        lines = [
            f"{self.check}: {self.outcome.value.upper()}" + (f": {self.summary}" if self.summary else "")
        ]
        width = max((len(str(m.entry)) for m in self.mismatches), default=0)
        for m in self.mismatches:
            relation = "<=" if m.error <= m.allowed else ">"
            lines.append(
                f"  {m.entry!s:<{width}}   analytic {m.analytic:.6g}   numeric {m.numeric:.6g}"
                + (f" +- {m.bound:.0e}" if m.bound else "")
                + f"   error {m.error:.1e} {relation} allowed {m.allowed:.1e}"
            )
        # What is true of several entries is said once.
        lines += [f"  {note}." for note in dict.fromkeys(m.note for m in self.mismatches) if note]
        if self.mismatches and self.entries:
            what = "differ" if self.outcome is Outcome.FAILED else "could not be decided"
            few = f"; {len(self.mismatches)} are shown" if self.count > len(self.mismatches) else ""
            least = "" if self.counted else "At least "
            lines.append(f"  {least}{self.count} of {self.entries} entries {what}{few}.")
        if self.advice:
            lines.append(f"  {self.advice}")
        return lines


@dataclass(frozen=True)
class Report:
    """What was checked, how, and what was found. True if everything passed."""

    function: str
    verb: str
    findings: tuple[Finding, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    method: str = ""
    seed: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    cause: BaseException | None = field(default=None, repr=False, compare=False)

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all checks."""
        return max((f.outcome for f in self.findings), key=_RANK.index, default=Outcome.PASSED)

    def __bool__(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def worst(self) -> Finding | None:
        """The first finding with the report's outcome."""
        return next((f for f in self.findings if f.outcome is self.outcome), None)

    def __str__(self) -> str:
        lines = [f"{self.verb}({self.function}): {self.outcome.value.upper()}"]
        bad = [f for f in self.findings if f.outcome is not Outcome.PASSED]
        for finding in bad:
            lines += finding.lines()
        lines += [f"remark: {f.summary}" for f in self.findings if f.outcome is Outcome.PASSED and f.summary]
        if not bad:
            lines.append(f"checks: {', '.join(dict.fromkeys(f.check for f in self.findings))}")
        calls = "1 call" if self.evaluations == 1 else f"{self.evaluations} calls"
        lines.append(f"how: {self.method}; {calls} of the function")
        return "\n".join(part for line in lines for part in _wrapped(line))

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        data = asdict(replace(self, cause=None))
        del data["cause"]
        data["outcome"] = self.outcome.value
        for finding, original in zip(data["findings"], self.findings, strict=True):
            finding["outcome"] = original.outcome.value
            for mismatch, source in zip(finding["mismatches"], original.mismatches, strict=True):
                mismatch["error"] = source.error
        return data

    def to_json(self) -> str:
        """The report as JSON; numbers that are not finite are written as strings."""
        return json.dumps(_finite(self.to_dict()), indent=2)


def _wrapped(line: str) -> list[str]:
    """The line, or several that fit a terminal; rows of a table stay whole."""
    if len(line) <= _WIDTH or "   analytic " in line:
        return [line]
    return textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_long_words=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
