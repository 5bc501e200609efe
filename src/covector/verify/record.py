"""What a check has done: the looks that were taken, the entries that were judged, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from covector.verify.finding import NAMED, NOT_FINITE, OUTSIDE, Mismatch, Outcome
from covector.verify.judge import ColumnJudgement, Judgement


@dataclass(frozen=True)
class Verdict:
    """What came of holding a derivative against differences."""

    outcome: Outcome
    mismatches: tuple[Mismatch, ...] = ()
    looks: tuple[str, ...] = ()
    entries: int = 0
    visible: float = 0.0
    """How far an entry may be off at most."""
    cut_short: bool = False
    """Whether suspicious entries were not looked at: one that is wrong decides, and runs are limited."""
    suspected: bool = False
    """Whether some look disagreed, whatever came of it."""
    kinks: tuple[Mismatch, ...] = ()
    """Entries that were judged to be at a kink, and accepted."""

    @property
    def counted(self) -> bool:
        """Whether every suspicious entry was judged."""
        return not self.cut_short and self.looks[-1:] == ("singles",)


class Record:
    """The looks taken, the entries judged, and what was not looked at."""

    def __init__(self) -> None:
        self.columns: dict[int, ColumnJudgement] = {}
        self.cut_short = False
        self.visible = 0.0
        self.suspected = False
        self._looks: list[str] = []
        self._judged: dict[tuple[int, int], Judgement] = {}
        self.failed = False
        """Whether an entry is certainly wrong."""

    def begin(self) -> None:
        """Forget what the last looks judged, which could not decide; but keep the stencils."""
        self.visible, self.cut_short, self.failed, self._judged = 0.0, False, False, {}

    def take(self, look: str) -> None:
        """A look is taken."""
        self._looks.append(look)

    def show(self, error: float) -> None:
        """An entry may be as far off as this, where it was looked at last."""
        self.visible = max(self.visible, error)

    def add(self, judgement: Judgement) -> None:
        """An entry was judged."""
        self._judged[judgement.mismatch.row, judgement.mismatch.column] = judgement
        self.failed |= judgement.outcome is Outcome.FAILED

    def add_column(self, column: int, judged: ColumnJudgement) -> None:
        """Entries of a column were judged."""
        self.columns[column] = judged
        for entry in judged.entries:
            self.add(entry)

    @property
    def undecided(self) -> bool:
        """Whether there is an entry that could not be decided."""
        return any(entry.outcome is Outcome.INCONCLUSIVE for entry in self._judged.values())

    def verdict(self, entries: int, *, agreed: bool) -> Verdict:
        """What it comes to: if the last look agreed, the derivative is right."""
        looks = tuple(self._looks)
        if agreed:
            kinks = tuple(entry.mismatch for entry in self._judged.values() if entry.kink)
            return Verdict(Outcome.PASSED, (), looks, entries, self.visible, False, self.suspected, kinks)
        judged = [entry for entry in self._judged.values() if entry.outcome is not Outcome.PASSED]
        if any(entry.mismatch.note.startswith(OUTSIDE) for entry in judged):
            # Zero times infinity: next to such an entry a derivative of NaN is no mistake of its own.
            judged = [_excused(entry) for entry in judged]
        wrong = [entry.mismatch for entry in judged if entry.outcome is Outcome.FAILED]
        shown = wrong or [entry.mismatch for entry in judged]
        shown.sort(key=lambda m: -m.error if m.error == m.error else float("-inf"))
        outcome = Outcome.FAILED if wrong else Outcome.INCONCLUSIVE
        cut_short = self.cut_short or len(shown) >= NAMED  # there may be more
        return Verdict(outcome, tuple(shown[:NAMED]), looks, entries, self.visible, cut_short, self.suspected)


def _excused(entry: Judgement) -> Judgement:
    """An entry whose derivative is not finite counts as undecided."""
    return replace(entry, outcome=Outcome.INCONCLUSIVE) if entry.mismatch.note == NOT_FINITE else entry
