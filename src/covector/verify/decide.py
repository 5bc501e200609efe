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
from covector.verify.locate import columns_apart, locate_row
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
        if look.width == 1:
            columns, steps = look.groups[:, 0], suspects.steps[:, 0]
            return Entries(self._examiner, self._record, columns, steps, suspects.differences).pass_all()
        if not look.shared and self._owners_explain(suspects):
            return True
        halving = constants.EXTRA_RUNS + 4 * look.width.bit_length()
        if look.guessed or self._record.failed or self._examiner.hides(suspects) or halving > 2 * look.size:
            return False
        return self._parts_agree(suspects)

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

    def _parts_agree(self, suspects: Suspects) -> bool:
        """Whether the groups disagree because of a few columns, and these are right all the same."""
        look, moves = suspects.look, suspects.look.moves(suspects.steps)
        with np.errstate(all="ignore"):
            off = self._analytic.cotangents @ suspects.differences.T - self._analytic.mixed_along(moves)
        noise = np.sqrt(np.square(self._examiner.noise(look)).sum(1, keepdims=True))
        allowed = noise + look.share * self._tol.atol * look.least(suspects.steps)
        self._numeric.limit += int(constants.HALVING_SHARE * 2 * look.size)
        for group, columns in enumerate(look.groups):
            for column in columns_apart(
                self._numeric, self._analytic, columns, suspects.steps[group], off[:, group], allowed[group]
            ):
                if not self._column_is_right(column, int(abs(off[:, group]).argmax())) or not look.shared:
                    return False
        return look.shared

    def _column_is_right(self, column: int, which: int) -> bool:
        """Whether a column that disagrees along a cotangent is right all the same."""
        numeric, analytic = self._numeric, self._analytic
        step = numeric.steps.array(numeric.eps)[[column]]
        with np.errstate(all="ignore"):
            slope = numeric.singly(np.array([column]), step)[0] / step
        row = locate_row(analytic, column, slope, which)
        judged = judge(numeric, column, [row], [analytic.entry(row, column)], self._tol)
        self._record.add_column(column, judged)
        entry = judged.entries[0]
        if entry.outcome is not Outcome.PASSED or entry.kink:
            return False
        # The other entries of the column, mixed: they have to agree too.
        best, others = judged.best, analytic.cotangents.copy()
        assert best is not None
        others[:, row] = 0.0
        with np.errstate(all="ignore"):
            expected = analytic.mixed_along(unit(numeric.problem.inputs.size, column).numpy()[None])[:, 0]
            expected -= analytic.cotangents[:, row] * entry.mismatch.analytic
            noise = np.sqrt(np.square(others * best.bound).sum(1))
            off = abs(others @ best.value - expected)
            right = (off <= noise + constants.CELL_SHARE * self._tol.atol) & (noise <= self._tol.atol)
        return bool(right.all())
