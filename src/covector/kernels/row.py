"""A row of the report: one way of calling the kernel, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from covector._engine.messages import is_out_of_memory
from covector.kernels.bench import raised
from covector.kernels.comparison import BEYOND_DOUBT, BROADLY, WHOLE, Comparison
from covector.verify.finding import Outcome


class Status(StrEnum):
    """How a way of calling ended; the last two do not speak against a kernel."""

    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"
    SKIPPED = "not looked at"


_OF_OUTCOME = {
    Outcome.PASSED: Status.PASSED,
    Outcome.FAILED: Status.FAILED,
    Outcome.INCONCLUSIVE: Status.INCONCLUSIVE,
    Outcome.UNSUPPORTED: Status.UNSUPPORTED,
}
_RANK = [Outcome.PASSED, Outcome.UNSUPPORTED, Outcome.INCONCLUSIVE, Outcome.FAILED]


@dataclass(frozen=True)
class Row:
    """One way of calling the kernel: how it ended, why, and the tensor that says so."""

    way: str
    status: Status
    text: str = ""
    comparison: Comparison | None = None

    @property
    def ratio(self) -> float | None:
        """The error of its worst tensor over the noise floor, of the worst slice."""
        if self.comparison is None or self.comparison.worst is None:
            return None
        return max(self.comparison.worst.ratio, self.comparison.whole)


def row_of(way: str, comparisons: Sequence[Comparison]) -> Row:
    """A row from the tensors of a run: the worst of them speaks for it."""
    worst = max(comparisons, key=_badness, default=None)
    if worst is None:
        return Row(way, Status.SKIPPED, "there is nothing to compare")
    text = f"{worst.name}: {worst.summary}" if worst.summary else ""
    return Row(way, _OF_OUTCOME[worst.outcome], text, worst)


def row_of_error(way: str, error: Exception) -> Row:
    """A way in which the kernel raises has failed; without memory for it, it may be right all the same."""
    return Row(way, Status.UNSUPPORTED if is_out_of_memory(error) else Status.FAILED, raised(error))


def as_compared(comparison: Comparison) -> Comparison:
    """As it was compared."""
    return comparison


def beyond_doubt(comparison: Comparison) -> Comparison:
    """Inconclusive where what is wrong may be noise that the reference does not have."""
    return _if_sure(comparison, any(m.excess > BEYOND_DOUBT for m in comparison.wrong))


def broadly_wrong(comparison: Comparison) -> Comparison:
    """Inconclusive where only a part is wrong, which a single rounding may have turned."""
    return _if_sure(comparison, any(m.where == WHOLE and m.excess > BROADLY for m in comparison.wrong))


def _if_sure(comparison: Comparison, sure: bool) -> Comparison:
    if comparison.outcome is not Outcome.FAILED or not comparison.wrong:  # infinities, and shapes, are sure
        return comparison
    return comparison if sure else replace(comparison, outcome=Outcome.INCONCLUSIVE)


def _badness(comparison: Comparison) -> tuple[int, float]:
    """What is wrong for another reason than a ratio (a shape, a NaN, no gradient) says more than one."""
    measured = comparison.wrong or ((comparison.worst,) if comparison.worst else ())
    plain = math.inf if comparison.outcome is Outcome.FAILED else 0.0
    return _RANK.index(comparison.outcome), max((measure.excess for measure in measured), default=plain)
