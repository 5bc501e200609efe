"""What one check found, as data: how it ended, the entries that differ, and what the mistake may be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covector.verify.record import Verdict

NAMED = 8
"""How many wrong entries a report names."""

# How the note of an entry begins.
OUTSIDE = "outside the domain"
NOT_FINITE = "the analytic value is not finite"
NOISY = "the noise of the difference exceeds the tolerance"
JUMP = "the function jumps at this point"
UNSETTLED = "differences of several lengths do not agree"
KINK = "not differentiable here"

# What is said of a check that passed because there was nothing to look at.
NOTHING = "nothing was compared: the inputs, or the outputs that can be differentiated, hold no numbers"


class Outcome(StrEnum):
    """How a check ended; a report has the worst of its checks."""

    PASSED = "passed"
    UNSUPPORTED = "unsupported"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"


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
    tested: str = ""
    """How it was tested: how many of the wrong entries it explains."""

    @property
    def sure(self) -> str:
        """How sure it is, in words."""
        return next(word for least, word in _SURE if self.confidence >= least)

    @property
    def claim(self) -> str:
        """How sure it is, and on what grounds."""
        return f"{self.sure} ({self.tested})" if self.tested else self.sure


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers under names, to be shown as they are."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


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
    facts: tuple[str, ...] = ()
    """What is right, and what the wrong entries have in common where no kind of mistake is known."""
    tables: tuple[Table, ...] = ()

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


def finding(name: str, verdict: Verdict, what: str) -> Finding:
    """A finding from the verdict of a comparison."""
    if verdict.outcome is Outcome.PASSED:
        summary = _accepted(verdict.kinks) if verdict.entries else NOTHING
        return Finding(name, verdict.outcome, summary, entries=verdict.entries)
    notes = {m.note for m in verdict.mismatches}
    summary, advice = f"{what} disagrees with central differences", ""
    if any(note.startswith(OUTSIDE) for note in notes):
        places = ", ".join(str(m.entry) for m in verdict.mismatches[:4])
        summary = f"{OUTSIDE} at entries {places}"
    elif verdict.outcome is Outcome.INCONCLUSIVE and verdict.looks[-1:] == ("signs",):
        summary = f"{what} disagrees with differences along random directions, and no few columns explain it"
        advice = "Kinks or noise do this too. fast_mode=False moves every column, max_entries= a few."
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        reasons = [m.note for m in verdict.mismatches if m.note]
        summary = reasons[0] if reasons else NOISY
    elif notes and all(note.startswith(KINK) for note in notes):
        summary = "the function is not differentiable at this point"
    return Finding(
        name,
        verdict.outcome,
        summary,
        verdict.mismatches,
        len(verdict.mismatches),
        verdict.entries,
        advice,
        verdict.counted,
    )


def _accepted(kinks: tuple[Mismatch, ...]) -> str:
    """What has to be said of entries at a kink that were accepted."""
    if not kinks:
        return ""
    first = kinks[0]  # of others that are like it, not every one is judged by itself
    return f"{first.entry}: {first.note}; kinks='pass' accepts that, here and at other entries"


@cache
def passed(name: str) -> Finding:
    """A check that found nothing."""
    return Finding(name, Outcome.PASSED)


def failed(name: str, summary: str, advice: str = "") -> Finding:
    """A finding without entries."""
    return Finding(name, Outcome.FAILED, summary, advice=advice)
