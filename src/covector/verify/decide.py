"""How a check decides: the ladder of looks, and what becomes of what disagrees.

A look that agrees proves the derivative right. What disagrees is narrowed down: groups of several columns by
halving, single columns entry by entry; and the worst entries are judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.entries import Entries
from covector.verify.examine import Examiner, Suspects
from covector.verify.finding import Outcome
from covector.verify.judge import judge
from covector.verify.locate import locate_column, locate_row
from covector.verify.looks import Look, ladder
from covector.verify.numeric import BudgetSpent, Numeric
from covector.verify.record import Record, Verdict
from covector.verify.tolerance import Tolerance
from covector.verify.vectors import unit


def decide(numeric: Numeric, analytic: Analytic, tol: Tolerance, *, probes: int, seed: int) -> Verdict:
    """Hold a derivative against differences: the looks in the order of their price, until one decides.

    With `probes`, as many random directions come first.
    """
    record, height, width = Record(), *numeric.problem.shape
    if height * width == 0:
        return record.verdict(0, agreed=True)
    decision = _Decision(Examiner(numeric, analytic, tol), record)
    for looks in ladder(numeric, probes, seed):
        numeric.limit = numeric.runs + constants.EXTRA_RUNS
        try:
            agreed = decision.agree(looks)
        except BudgetSpent:
            agreed, record.cut_short = False, True
        if agreed or record.failed:
            return record.verdict(height * width, agreed=agreed)
    return record.verdict(height * width, agreed=False)


class _Decision:
    """What is done about the suspects of a look."""

    def __init__(self, examiner: Examiner, record: Record) -> None:
        self._examiner, self._record = examiner, record
        self._numeric, self._analytic, self._tol = examiner.numeric, examiner.analytic, examiner.tol

    def agree(self, looks: Sequence[Look]) -> bool:
        """Whether these looks leave no doubt."""
        self._record.take("axes" if any(look.name == "axes" for look in looks) else looks[0].name)
        for look in looks:
            self._numeric.limit += 2 * len(look)
            suspects, visible = self._examiner.examine(look)
            self._record.show(visible)
            if suspects is None:
                continue
            if look.guessed and (suspects.many or self._numeric.columns_are_cheap):
                self._record.drop_look()  # the guess itself may be wrong
                return False
            remaining = self._examiner.doubled(suspects)
            self._record.suspected = True
            if remaining is None:
                continue
            self._numeric.problem.require_pure()
            if not self._cleared(remaining):
                return False
        return True

    def _cleared(self, suspects: Suspects) -> bool:
        look = suspects.look
        if look.groups.shape[1] == 1:
            columns, steps = look.groups[:, 0], suspects.steps[:, 0]
            return Entries(self._examiner, self._record, columns, steps, suspects.differences).pass_all()
        if not look.shared and self._owners_explain(suspects):
            return True
        if look.guessed or self._record.failed or not suspects.steady or self._examiner.hides(suspects):
            return False
        return self._few_columns_explain(suspects)

    def _owners_explain(self, suspects: Suspects) -> bool:
        """Whether cells disagree because of the columns that own them, and these are right all the same.

        If such a column moves its cell by itself as the whole group did, no other column had a part in it.
        """
        if suspects.many:  # as many runs as moving each column
            return False
        look, (groups, cells) = suspects.look, np.nonzero(suspects.cells)
        owners, steps = look.owned(look.groups, groups, cells), look.owned(suspects.steps, groups, cells)
        self._numeric.limit += 2 * owners.size
        alone = self._numeric.singly(owners.ravel(), steps.ravel())
        with np.errstate(all="ignore"):
            cotangents, each = self._analytic.cotangents, np.repeat(np.arange(len(cells)), look.owners)
            by_all = look.cells(cotangents, suspects.plain)[:, groups, cells]
            by_each = look.cells(cotangents, alone)[:, np.arange(owners.size), cells[each]]
            by_owners = by_each.reshape(-1, *owners.shape).sum(2)
            noise = np.broadcast_to(self._examiner.noise(look), suspects.cells.shape)[groups, cells]
            share = look.share * self._tol.atol * look.least(suspects.steps)[groups, 0]
            explained = (abs(by_all - by_owners) <= noise + share) | (by_all == by_owners)
        if not explained.all():
            return False
        return Entries(self._examiner, self._record, owners.ravel(), steps.ravel(), alone).pass_all()

    def _few_columns_explain(self, suspects: Suspects) -> bool:
        """Whether groups are off by a few columns only, and these are right all the same.

        An error that the tolerance allows, or that of the difference, is subtracted; the rest must be noise.
        """
        look = suspects.look
        share = look.share * self._tol.atol * look.least(suspects.steps)
        allowed = (self._examiner.noise(look) + share)[:, 0]
        off = self._off(look.moves(suspects.steps), suspects.differences)
        while True:
            column = self._right_column(suspects, off)
            if column is None or not look.shared:
                return False
            moves = np.where(np.arange(look.size) == column, look.moves(suspects.steps), 0.0)
            before, off = off, off - self._off(moves, self._numeric.differences(moves))
            if (abs(off) <= allowed).all():
                return True
            if not abs(off).max() < constants.REST * abs(before).max():
                return False

    def _off(self, moves: np.ndarray, differences: np.ndarray) -> np.ndarray:
        """What differences along some moves are off by: cotangent, move."""
        with np.errstate(all="ignore"):
            return self._analytic.cotangents @ differences.T - self._analytic.mixed_along(moves)

    def _right_column(self, suspects: Suspects, off: np.ndarray) -> int | None:
        """The column that contributes the most to what the worst group is off by; None if it is not right."""
        numeric, analytic = self._numeric, self._analytic
        which, group = np.unravel_index(np.nan_to_num(abs(off), nan=np.inf).argmax(), off.shape)
        columns, steps = suspects.look.groups[group], suspects.steps[group]
        column = locate_column(numeric, analytic, columns, steps, int(which), float(off[which, group]))
        step = numeric.steps.array(numeric.eps)[[column]]
        with np.errstate(all="ignore"):
            slope = numeric.singly(np.array([column]), step)[0] / step
        row = locate_row(analytic, column, slope, int(which))
        judged = judge(numeric, column, [row], [analytic.entry(row, column)], self._tol)
        self._record.add_column(column, judged)
        entry = judged.entries[0]
        if entry.outcome is not Outcome.PASSED or entry.kink:
            return None
        # The other entries of the column, mixed; what the judged one is allowed to be off by is subtracted.
        cotangents, best = analytic.cotangents, judged.best
        assert best is not None
        with np.errstate(all="ignore"):
            allowed = cotangents[:, row] * (entry.mismatch.numeric - entry.mismatch.analytic)
            expected = analytic.mixed_along(unit(numeric.problem.inputs.size, column).numpy()[None])[:, 0]
            noise = np.sqrt(np.square(cotangents * best.bound).sum(1))
            off = abs(cotangents @ best.value - allowed - expected)
            right = (off <= noise + constants.CELL_SHARE * self._tol.atol) & (noise <= self._tol.atol)
        return column if right.all() else None
