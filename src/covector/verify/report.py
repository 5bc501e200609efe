"""What a check found, as data: truthy, printable, JSON, a page."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covector.verify.exhibit import Source

# Of the data that `to_dict` gives: raised when a key is renamed, removed or changes its meaning.
VERSION = 1


class Outcome(StrEnum):
    """How a check ended; a report has the worst of its checks."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"


_RANK = list(Outcome)


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
    row: int = -1
    column: int = -1

    @property
    def error(self) -> float:
        """How far the two values are apart."""
        return abs(self.analytic - self.numeric)

    @property
    def beyond(self) -> bool:
        """Whether that is more than allowed."""
        return not self.error <= self.allowed


# How sure a diagnosis is, in words.
_SURE = ((0.9, "almost certain"), (0.6, "likely"), (0.0, "possible"))


@dataclass(frozen=True)
class Diagnosis:
    """What kind of mistake the entries show: the evidence, how sure it is, and what to look at."""

    rule: str
    evidence: str
    look: str
    confidence: float

    @property
    def sure(self) -> str:
        """How sure it is, in words."""
        return next(word for least, word in _SURE if self.confidence >= least)


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
    diagnoses: tuple[Diagnosis, ...] = ()

    @property
    def headline(self) -> str:
        """The check, how it ended, and why."""
        return f"{self.check}: {self.outcome.value.upper()}" + (f": {self.summary}" if self.summary else "")

    @property
    def extent(self) -> str:
        """How many entries differ."""
        if not self.mismatches or not self.entries:
            return ""
        what = "differ" if self.outcome is Outcome.FAILED else "could not be decided"
        few = f"; {len(self.mismatches)} are shown" if self.count > len(self.mismatches) else ""
        least = "" if self.counted else "At least "
        return f"{least}{self.count} of {self.entries} entries {what}{few}."

    @property
    def notes(self) -> list[str]:
        """What is true of several entries, said once."""
        return [f"{note}." for note in dict.fromkeys(m.note for m in self.mismatches) if note]


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
    reproduce: str = ""
    cause: BaseException | None = field(default=None, repr=False, compare=False)
    source: Source | None = field(default=None, repr=False, compare=False)

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

    @property
    def title(self) -> str:
        """What was called, and how it ended."""
        return f"{self.verb}({self.function}): {self.outcome.value.upper()}"

    @property
    def how(self) -> str:
        """How much was looked at, and what it took."""
        calls = "1 call" if self.evaluations == 1 else f"{self.evaluations} calls"
        return f"{self.method}; {calls} of the function"

    def __str__(self) -> str:
        from covector.verify.terminal import plain

        return plain(self)

    def __rich__(self) -> Any:
        from covector.verify.terminal import rendered

        return rendered(self)

    def _repr_html_(self) -> str:
        from covector.verify.page import fragment

        return fragment(self)

    def __getstate__(self) -> dict[str, Any]:
        # The problem holds the caller's function and tensors, which stay where they are.
        return {**self.__dict__, "cause": None, "source": None}

    def show(self, file: Any = None) -> None:
        """Print the report: in colour where the terminal allows it and `rich` is installed."""
        from covector.verify.terminal import show

        show(self, file)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; `docs/report.md` describes it."""
        return {
            "version": VERSION,
            "function": self.function,
            "verb": self.verb,
            "outcome": self.outcome.value,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "method": self.method,
            "seed": self.seed,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "reproduce": self.reproduce,
            "findings": [_finding_data(finding) for finding in self.findings],
        }

    def to_json(self) -> str:
        """The report as JSON; numbers that are not finite are written as strings."""
        return json.dumps(finite(self.to_dict()), indent=2)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows the report, both Jacobians and the suspects step by step.

        One file that needs no network. The Jacobians are computed now, by running the function again;
        a report that was pickled has lost the function, and its page has the findings alone.
        """
        from covector.verify.page import page

        Path(path).write_text(page(self), encoding="utf-8")


def _finding_data(finding: Finding) -> dict[str, Any]:
    data = asdict(finding)
    data["outcome"] = finding.outcome.value
    data["mismatches"] = [{**asdict(m), "error": m.error} for m in finding.mismatches]
    data["diagnoses"] = [{**asdict(diagnosis), "sure": diagnosis.sure} for diagnosis in finding.diagnoses]
    return data


def finite(value: Any) -> Any:
    """The data with numbers that JSON lacks written as strings."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
