"""How a check decides: the ladder of looks, and what becomes of what disagrees.

If the looks agree, the derivative passes. What disagrees is narrowed down: a direction that moves many
columns by halving, single columns entry by entry; and the worst entries are judged.
"""

from __future__ import annotations

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.entries import Entries
from covector.verify.examine import Compared, Examiner
from covector.verify.finding import Outcome
from covector.verify.judge import ColumnJudgement, judge
from covector.verify.locate import columns_apart, locate_row
from covector.verify.looks import Look, ladder, signs
from covector.verify.numeric import BudgetSpent, Numeric
from covector.verify.options import Options
from covector.verify.record import Record, Verdict
from covector.verify.vectors import unit


def decide(numeric: Numeric, analytic: Analytic, options: Options) -> Verdict:
    """Hold a derivative against differences: the looks in the order of their price, until one decides."""
    record, height, width = Record(), *numeric.problem.shape
    if height * width == 0:
        return record.verdict(0, agreed=True)
    decision = _Decision(Examiner(numeric, analytic, options.tol), record, options)
    for looks in ladder(numeric, options):
        numeric.spare = constants.EXTRA_RUNS
        record.begin()
        try:
            agreed = all(map(decision.agree, looks))
        except BudgetSpent:
            agreed, record.cut_short = False, True
        if agreed or record.failed:
            return record.verdict(height * width, agreed=agreed)
    numeric.problem.require_pure(runs=3)  # of a function with a period of two or three runs nothing is known
    return record.verdict(height * width, agreed=False)


def undoubted(numeric: Numeric, analytic: Analytic, options: Options) -> Verdict | None:
    """The verdict on a derivative that the first looks find right; None if they leave a doubt."""
    examiner, record = Examiner(numeric, analytic, options.tol), Record()
    height, width = numeric.problem.shape
    for look in next(ladder(numeric, options)) if height * width else ():
        examined = examiner.examine(look)
        if examined is None or examined.suspects is not None:
            return None
        record.take(look.name)
        record.show(examined.visible)
    return record.verdict(height * width, agreed=True)


def decide_constant(numeric: Numeric, zero: Analytic, options: Options) -> Verdict:
    """Hold a derivative of zero against differences.

    Along random directions every output has to stay exactly as it is, as in torch. What moves is decided as
    any derivative is.
    """
    record, height, width = Record(), *numeric.problem.shape
    if height * width == 0:
        return record.verdict(0, agreed=True)
    for at in range(max(1, options.directions)):
        look = signs(width, 1, options.seed + at, fast=options.fast)
        steps = look.steps(numeric, look.lengths(numeric.eps)[0])
        if look.differences(numeric, steps).any():
            return decide(numeric, zero, options)
        record.show(float(numeric.noise.max() / look.least(steps)[0]))
    record.take(look.name)
    return record.verdict(height * width, agreed=True)


class _Decision:
    """What is done about the suspects of a look."""

    def __init__(self, examiner: Examiner, record: Record, options: Options) -> None:
        self._examiner, self._record = examiner, record
        # A report shows every column if they are few.
        few = examiner.numeric.problem.inputs.size <= constants.WHOLE_COLUMNS
        self._spares_columns = options.fast or options.brief or not few
        self._numeric, self._analytic, self._tol = examiner.numeric, examiner.analytic, examiner.tol

    def agree(self, look: Look) -> bool:
        """Whether a look leaves no doubt."""
        examined = self._examiner.examine(look)
        if examined is None:
            return False
        self._record.take(look.name)
        self._record.show(examined.visible)
        if examined.suspects is None:
            return True
        self._record.suspected = True
        remaining = self._examiner.extrapolated(examined.suspects)
        if remaining is None:  # noise was too small to hide a wrong entry
            self._record.show((constants.HIDDEN_SHARE + look.share) * self._tol.atol)
            return True
        self._numeric.problem.require_pure()
        if (unsteady := self._numeric.problem.unsteady) is not None and unsteady.any():
            known = self._examiner.measured
            self._examiner.measured = unsteady if known is None else np.maximum(known, unsteady)
        return self._parts_agree(remaining) if look.columns is None else self._entries_pass(remaining)

    def _entries_pass(self, suspects: Compared) -> bool:
        """Whether every entry of single columns passes: the worst columns first, as many as memory allows."""
        columns, steps = suspects.look.columns, self._steps(suspects)[:, 0]
        assert columns is not None
        size = max(constants.WHOLE_COLUMNS, constants.BATCH_BYTES // (8 * self._numeric.problem.outputs.size))
        learnt: ColumnJudgement | None = None
        for start in range(0, len(columns), size):
            at = slice(start, start + size)
            entries = Entries(
                self._examiner, self._record, columns[at], steps[at], suspects.taken[0][at], learnt
            )
            if not entries.pass_all():
                self._record.cut_short |= start + size < len(columns)
                return False
            learnt = entries.learnt
        return True

    def _steps(self, suspects: Compared) -> np.ndarray:
        return suspects.look.steps(self._numeric, suspects.length)

    def _parts_agree(self, suspects: Compared) -> bool:
        """Whether the directions disagree only in columns that a judge finds right."""
        look, all_runs = suspects.look, 2 * suspects.look.width
        halving = constants.EXTRA_RUNS + 4 * look.width.bit_length()
        if not self._spares_columns or suspects.hidden(self._tol).any() or halving > all_runs:
            return False
        self._numeric.spare += int(constants.HALVING_SHARE * min(all_runs, constants.FAST_RUNS))
        allowed = suspects.noise + look.share * self._tol.atol * suspects.least
        each = zip(self._steps(suspects), suspects.off, allowed.tolist(), strict=True)
        right: list[int] = []
        for steps, off, limit in each:
            others = np.delete(np.arange(look.width), right)  # leave out what was found right
            known = None if right else off
            left = steps[others] if right else steps
            for column in columns_apart(self._numeric, self._analytic, others, left, limit, known):
                if not self._column_is_right(column, int(abs(off).argmax())):
                    return False
                right.append(column)
        return True

    def _column_is_right(self, column: int, which: int) -> bool:
        """Whether a judge finds a column right that disagrees along a cotangent."""
        numeric, analytic = self._numeric, self._analytic
        numeric.spend(2)
        step = numeric.first_steps(np.array([column]))
        with np.errstate(all="ignore"):
            slope = numeric.singly(np.array([column]), step)[0] / step
        row = locate_row(analytic, column, slope, which)
        moved = np.union1d(np.flatnonzero(slope), [row])
        judged = judge(numeric, column, [row], [analytic.entry(row, column)], self._tol, kept=moved)
        self._record.add_column(column, judged)
        entry = judged.entries[0]
        if entry.outcome is not Outcome.PASSED or entry.kink:
            return False
        self._record.show(entry.mismatch.allowed)  # the judge accepts any error up to that
        # The other entries of the column have to agree too, mixed by the cotangents.
        best, others = judged.best, analytic.cotangents[:, moved]
        assert best is not None
        others[:, moved == row] = 0.0
        with np.errstate(all="ignore"):
            expected = analytic.mixed_along(unit(numeric.problem.inputs.size, column).numpy()[None])[:, 0]
            expected -= analytic.cotangents[:, row] * entry.mismatch.analytic
            noise = np.sqrt(np.square(others * best.bound).sum(1))
            off = abs(others @ best.value - expected)
            right = (off <= noise + constants.SUM_SHARE * self._tol.atol) & (noise <= self._tol.atol)
        return bool(right.all())
