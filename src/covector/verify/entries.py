"""Columns that were differenced one by one, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covector.verify import constants
from covector.verify.examine import Examiner
from covector.verify.finding import JUMP, NAMED, NOISY, OUTSIDE
from covector.verify.judge import ColumnJudgement, judge, outside
from covector.verify.record import Record

# The severity of an entry that agrees, where noise could hide a disagreement.
_HIDDEN = 1.0 + 1e-9

# The severity of an entry without a numeric value, where the derivative is zero, and where it is not. Entries
# with a numeric value are judged first, since they may be certainly wrong.
_UNDEFINED = 1.0 + 2e-9
_UNDEFINED_SLOPE = 1.0 + 3e-9


class Entries:
    """The entries of suspect columns: each passes by the entry rule, or is judged, the worst first.

    `severity` is the error of an entry in units of what is allowed; above one it is suspicious.
    """

    def __init__(
        self,
        examiner: Examiner,
        record: Record,
        columns: np.ndarray,
        steps: np.ndarray,
        differences: np.ndarray,
        learnt: ColumnJudgement | None = None,
    ) -> None:
        self._numeric, self._tol, self._record, self._columns = (
            examiner.numeric,
            examiner.tol,
            record,
            columns,
        )
        self._analytic, self._steps = examiner.analytic.columns(columns), steps
        with np.errstate(all="ignore"):
            slopes = (differences / steps[:, None]).T
        # What passes by the entry rule may be off by what that allows.
        record.show(self._tol.allowed(float(np.where(np.isfinite(slopes), abs(slopes), 0.0).max())))
        self._severity = self._severity_of(self._analytic, slopes, steps, self._numeric.noise)
        self._lost = self._lost_zeros(slopes, steps)
        self.learnt = learnt
        """The judged column whose step is tried on the others."""
        self._in_steps: set[int] = set()
        """Columns in which the function seems to move in steps longer than that one."""

    def _lost_zeros(self, slopes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """The last place of the outputs where it hides that an entry is not zero; 0 elsewhere.

        An output that is 1e7 moves by no less than 2e-9: a coupling of 5e-4 is lost with a step of 1e-6.
        """
        problem, atol = self._numeric.problem, self._tol.atol
        last_place = np.where(np.isfinite(problem.value), problem.rounding * abs(problem.value), 0.0)[:, None]
        lost = (slopes == 0) & (self._analytic == 0) & (last_place > atol * abs(steps))
        return np.where(lost & (atol > 0) & (not problem.low_precision), last_place, 0.0)

    def _doubt_zeros(self) -> None:
        """Look again, with longer steps, at entries that are zero in both and would not show otherwise."""
        places = np.flatnonzero(self._lost.any(0))
        if len(places) == 0:
            return
        lost, columns = self._lost[:, places], self._columns[places]
        longest = constants.LONGEST_STEP * self._numeric.steps.scale_of(columns)
        longer = np.exp2(np.ceil(np.log2(np.minimum(lost.max(0) / self._tol.atol, longest))))
        moved = self._numeric.singly(columns, longer).T != 0
        self._severity[:, places] = np.where((lost > 0) & moved, _HIDDEN, self._severity[:, places])

    def pass_all(self) -> bool:
        """Whether every entry passes."""
        self._set_undefined_aside()
        if self.learnt is not None:
            self._try_step_of(self.learnt)
        for look_again in (self._doubt_zeros, None):
            while (self._severity > 1).any():
                judged = self._judge_worst()
                if self._record.failed:
                    self._record.cut_short = bool((self._severity > 1).any())
                    return False
                if judged.entries[0].mismatch.note not in (NOISY, JUMP):
                    self._learn(judged)
                if self._record.undecided:  # another entry may be certainly wrong
                    in_all = 2 * self._numeric.problem.inputs.size + constants.SPARE_RUNS
                    self._numeric.spare = max(self._numeric.spare, in_all - self._numeric.runs)
            if look_again is not None:
                look_again()
        return not self._record.undecided

    def _judge_worst(self) -> ColumnJudgement:
        """Judge the column with the worst entry, or one of which stencils are known."""
        worst, known = self._severity.max(0), self._record.columns
        places = [i for i, column in enumerate(self._columns.tolist()) if column in known and worst[i] > 1]
        place = places[0] if places else int(worst.argmax())
        rows = np.flatnonzero(self._severity[:, place] > 1)
        rows = rows[np.argsort(-self._severity[rows, place], kind="stable")][:NAMED]
        column, values = int(self._columns[place]), self._analytic[rows, place].tolist()
        first = None
        if self.learnt is not None and column not in self._in_steps:
            step = float(self._steps_like(self.learnt, [column])[0])
            # Beside a kink a step may be so short that rounding hides every other entry.
            rounding = constants.SIGMAS * self._numeric.noise[rows[0]] / abs(step)
            first = step if rounding <= constants.QUIET_SHARE * self._tol.allowed(values[0]) else None
        judged = judge(self._numeric, column, rows.tolist(), values, self._tol, known.get(column), first)
        self._record.add_column(column, judged)
        self._severity[rows, place] = 0.0
        if judged.entries[0].mismatch.note.startswith(OUTSIDE):
            # This holds for all other rows of the column that are not finite.
            undefined = np.zeros(len(self._severity), dtype=bool)
            undefined[judged.kept] = ~np.any([np.isfinite(s.value) for s in judged.stencils.taken], axis=0)
            if not np.isfinite(values[0]):
                undefined |= ~np.isfinite(self._analytic[:, place])
            self._record.cut_short |= bool((self._severity[undefined, place] > 1).any())
            self._severity[undefined, place] = 0.0
        return judged

    def _set_undefined_aside(self) -> None:
        """Entries of outputs that are not finite at the point cannot be judged."""
        undefined = (self._severity > 1) & ~np.isfinite(self._numeric.problem.value)[:, None]
        rows, places = np.nonzero(undefined)
        worst = np.argsort(-self._severity[undefined], kind="stable")[:NAMED]
        for row, place in zip(rows[worst].tolist(), places[worst].tolist(), strict=True):
            value = float(self._analytic[row, place])
            self._record.add(outside(self._numeric, row, int(self._columns[place]), value))
        self._severity[undefined] = 0.0

    def _severity_of(
        self, analytic: np.ndarray, slopes: np.ndarray, steps: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        with np.errstate(all="ignore"):
            error = abs(analytic - slopes)
            allowed = self._tol.atol + self._tol.rtol * abs(slopes)
            severity = np.where(error == 0, 0.0, error / allowed)
            undefined = np.where(analytic == 0, _UNDEFINED, _UNDEFINED_SLOPE)
            severity = np.where(np.isnan(severity), undefined, severity)
            if self._numeric.problem.low_precision:
                return severity
            hidden = constants.SIGMAS * noise[:, None] / abs(steps) > allowed
            return np.where(hidden & (error > 0), np.maximum(severity, _HIDDEN), severity)

    def _learn(self, judged: ColumnJudgement) -> None:
        """Keep the step that suited the column that was judged first, if it is another than was taken."""
        place = int(np.flatnonzero(self._columns == judged.entries[0].mismatch.column)[0])
        length = judged.length / abs(float(self._steps[place]))
        if self.learnt is None and length != 0.0 and not 0.5 < length < 2:
            self.learnt = judged
            self._try_step_of(judged)

    def _try_step_of(self, judged: ColumnJudgement) -> None:
        """Difference the other suspect columns with the step that suited the one that was judged."""
        places = np.flatnonzero((self._severity > 1).any(0))
        if len(places) == 0:
            return
        value, columns = self._numeric.problem.value, self._columns[places]
        steps, noise = self._steps_like(judged, columns), self._numeric.noise
        noise[judged.kept] = judged.noise
        plus, minus = self._numeric.sides(columns, steps)
        analytic = self._analytic[:, places]
        with np.errstate(all="ignore"):
            right, left = ((plus - value) / steps[:, None]).T, ((value - minus) / steps[:, None]).T
            again = self._severity_of(analytic, (left + right) / 2, steps, noise)
            if self._tol.kinks == "pass" and any(entry.kink for entry in judged.entries):
                slack = self._tol.atol + self._tol.rtol * np.maximum(abs(left), abs(right))
                low, high = np.minimum(left, right) - slack, np.maximum(left, right) + slack
                again = np.where((low <= analytic) & (analytic <= high), 0.0, again)
        again = np.where(self._may_be_flat(columns, analytic, left + right), again, np.inf)
        self._severity[:, places] = np.minimum(self._severity[:, places], again)

    def _may_be_flat(self, columns: np.ndarray, analytic: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Where an entry may be zero that does not move with another step, but moved with the usual one.

        Next to a kink one side does not move, with the usual step either. A function that moves in steps,
        such as one in single precision, is flat between them.
        """
        flat = (moved == 0) & (analytic == 0)
        some = np.flatnonzero(flat.any(0))
        if len(some) == 0:
            return ~flat
        steps = self._numeric.steps.array(self._numeric.eps)[columns[some]]
        least = constants.SIGMAS * self._numeric.noise + self._tol.atol * abs(steps[:, None])
        flat[:, some] &= (self._numeric.moved_least(columns[some]) > least).T
        self._in_steps.update(columns[flat.any(0)].tolist())
        return ~flat

    def _steps_like(self, judged: ColumnJudgement, columns: Sequence[int] | np.ndarray) -> np.ndarray:
        """Steps in the same proportion to the scale of each coordinate as suited the judged column.

        A step that truncation made shorter is in proportion to the coordinate itself, if that is small.
        """
        point, scale = self._numeric.problem.point, self._numeric.steps.scale_of()
        which, others = judged.entries[0].mismatch.column, np.asarray(columns)
        steps = judged.length / scale[which] * scale[others]
        shorter = judged.length < self._numeric.steps.array(self._numeric.eps)[which]
        if shorter and 0 < abs(point[which]) < scale[which]:
            relative = judged.length / abs(point[which]) * abs(point[others])
            steps = np.where(relative > 0, np.minimum(relative, steps), steps)
        return self._numeric.steps.made_at(others, steps)
