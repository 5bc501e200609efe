"""How a check decides: the ladder of looks, what a look finds, and what becomes of it.

A look that agrees proves the derivative right. What disagrees is differenced again with doubled steps, which
takes most of the truncation error away; then entry by entry; and the worst entries are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covector.verify import constants
from covector.verify.analytic import Analytic
from covector.verify.finding import Mismatch, Outcome
from covector.verify.judge import NOT_FINITE, OUTSIDE, ColumnJudgement, Judgement, judge, outside
from covector.verify.locate import locate_column, locate_row
from covector.verify.looks import Look, ladder, singles
from covector.verify.numeric import BudgetSpent, Numeric
from covector.verify.tolerance import Tolerance
from covector.verify.vectors import unit

# Longer steps that are tried where rounding would hide an entry from a look.
_LENGTHS = (1.0, 4.0, 16.0, 64.0)

# How bad an entry is taken to be that cannot be computed, and is zero analytically.
_UNDEFINED = 2.0

# How many columns are looked for one by one behind a group that disagrees, how many are judged that cannot be
# decided, and the share of a disagreement that one column leaves: where there are many, the next look is better.
_LOCATED = 3
_UNDECIDED = 3
_FEWER = 0.25


@dataclass(frozen=True)
class Verdict:
    """What came of a comparison."""

    outcome: Outcome
    mismatches: tuple[Mismatch, ...] = ()
    looks: tuple[str, ...] = ()
    entries: int = 0
    visible: float = 0.0
    """The smallest error of an entry that would have shown."""
    unseen: int = 0
    """How many suspicious entries were not looked at: one that is wrong decides, and runs are limited."""

    @property
    def counted(self) -> bool:
        """Whether every suspicious entry was judged."""
        return self.unseen == 0 and self.looks[-1:] == ("singles",)


@dataclass(frozen=True)
class Suspects:
    """The groups of a look that disagree, with what was differenced, worst first."""

    look: Look
    steps: np.ndarray
    differences: np.ndarray
    which: np.ndarray
    """The cotangent along which each group disagrees the most."""

    def __len__(self) -> int:
        return len(self.look)


class Decision:
    """One derivative held against the differences of its function."""

    def __init__(self, numeric: Numeric, analytic: Analytic, tol: Tolerance) -> None:
        self.numeric, self.analytic, self.tol = numeric, analytic, tol
        self._looks: list[str] = []
        self._visible = 0.0
        self._judged: dict[tuple[int, int], Judgement] = {}
        self._columns: dict[int, ColumnJudgement] = {}
        self._unseen = 0

    def run(self, *, fast: bool, probes: int, seed: int) -> Verdict:
        """Take the looks in order, until one decides."""
        if 0 in self.numeric.problem.shape:
            return self._verdict(Outcome.PASSED)
        for looks in ladder(self.numeric, fast, probes, seed):
            self.numeric.limit = self.numeric.problem.runs + constants.EXTRA_RUNS
            try:
                if self._agree(looks):
                    return self._verdict(Outcome.PASSED)
            except BudgetSpent:
                self._unseen = max(self._unseen, 1)
            if self._failures:
                break
        return self._verdict(self._worst_outcome())

    def _agree(self, looks: Sequence[Look]) -> bool:
        """Whether these looks leave no doubt."""
        self._looks.append(looks[0].name if len({look.name for look in looks}) == 1 else "axes")
        self._visible = 0.0
        for look in looks:
            self.numeric.limit += 2 * len(look)
            suspects = self.examine(look)
            if len(suspects) == 0:
                continue
            self.numeric.problem.require_pure()
            suspects = self._doubled(suspects)
            if len(suspects) and not self._cleared(suspects):
                return False
        return True

    def _cleared(self, suspects: Suspects) -> bool:
        if suspects.look.groups.shape[1] == 1:
            return self._entries(suspects)
        return self._located(suspects)

    # The look.

    def examine(self, look: Look) -> Suspects:
        """The groups of a look of which some cell disagrees, with the shortest step that shows an entry."""
        numeric = self.numeric
        noise = constants.SIGMAS * look.noise(numeric, self.analytic)
        steps = self._visible_steps(look, noise)
        least = look.least(steps)
        with np.errstate(all="ignore"):
            self._visible = max(self._visible, float((noise / least).max()) + constants.SHARE * self.tol.atol)
        size = max(1, numeric.chunk() // 2) if numeric.batches else len(look)
        found = []
        for start in range(0, len(look), size):
            span = slice(start, start + size)
            part = look.part(span)
            differences = part.differences(numeric, steps[span])
            excess = self._excess(part, steps[span], differences, noise[span] if len(noise) > 1 else noise)
            found.append(self._suspicious(part, steps[span], differences, excess))
        return found[0] if len(found) == 1 else _joined(found)

    def _visible_steps(self, look: Look, noise: np.ndarray) -> np.ndarray:
        """The shortest steps with which one wrong entry would show; the usual ones if it never would."""
        for length in _LENGTHS:
            steps = look.steps(self.numeric, length)
            if not self._hidden(look, steps, noise).any():
                return steps
        return look.steps(self.numeric, 1.0)

    def _hidden(self, look: Look, steps: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Where noise would hide what one entry is allowed, so that agreement proves nothing."""
        return ~(noise <= 0.5 * self.tol.atol * look.least(steps))

    def _excess(
        self, look: Look, steps: np.ndarray, differences: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        """By how much cells are off beyond their noise, in units of what an entry is allowed."""
        with np.errstate(all="ignore"):
            off = abs(look.cells(self.analytic.cotangents, differences) - look.expected(self.analytic, steps))
            excess = (off - noise) / (self.tol.atol * look.least(steps))
            return np.where(self._hidden(look, steps, noise), np.maximum(1.0, off / noise), excess)

    def _suspicious(
        self, look: Look, steps: np.ndarray, differences: np.ndarray, excess: np.ndarray
    ) -> Suspects:
        worst = np.where(np.isnan(excess), np.inf, excess).max(2)
        bad = np.flatnonzero(worst.max(0) > constants.SHARE)
        order = bad[np.argsort(-worst.max(0)[bad], kind="stable")]
        return Suspects(look.part(order), steps[order], differences[order], worst[:, order].argmax(0))

    def _doubled(self, suspects: Suspects) -> Suspects:
        """What still disagrees with Richardson's extrapolation of steps s and 2s: the worst group first."""
        noise = constants.SIGMAS * suspects.look.noise(self.numeric, self.analytic)
        if self._hidden(suspects.look, suspects.steps, noise).any():
            return suspects
        remaining = suspects
        for some in (slice(0, 1), slice(1, None)):
            look, steps = suspects.look.part(some), suspects.steps[some]
            if len(look) == 0:
                break
            self.numeric.limit += 2 * (len(look) - 1)
            far = look.differences(self.numeric, 2 * steps)
            with np.errstate(all="ignore"):
                better = (4 * suspects.differences[some] - far / 2) / 3
            twice = 2 * constants.SIGMAS * look.noise(self.numeric, self.analytic)
            remaining = self._suspicious(look, steps, better, self._excess(look, steps, better, twice))
            if some.start == 0 and len(remaining):
                return suspects
        return remaining

    # Groups of several columns.

    def _located(self, suspects: Suspects) -> bool:
        """Whether groups are off by a few columns only, which are right all the same."""
        look, analytic = suspects.look, self.analytic
        noise = constants.SIGMAS * look.noise(self.numeric, analytic)
        least = self.tol.atol * look.least(suspects.steps)
        if self._hidden(look, suspects.steps, noise).any():
            return False
        off = self._off(suspects)
        if not look.shared:
            self._column_is_right(suspects, off)
            return False
        for _ in range(_LOCATED):
            column = self._column_is_right(suspects, off)
            if column is None:
                return False
            rest = off - self._off_by(column, suspects)
            if not abs(rest).max() < _FEWER * abs(off).max():
                return False
            off = rest
            if bool((abs(off) - noise[:, 0] <= constants.SHARE * least[:, 0]).all()):
                return True
        return False

    def _off(self, suspects: Suspects) -> np.ndarray:
        """What the groups are off by along each cotangent."""
        with np.errstate(all="ignore"):
            moved = self.analytic.mixed_along(suspects.look.moves(suspects.steps))
            return self.analytic.cotangents @ suspects.differences.T - moved

    def _off_by(self, column: int, suspects: Suspects) -> np.ndarray:
        """What one column alone is off by, in the steps that it takes in each group."""
        steps = np.where(suspects.look.groups == column, suspects.steps, 0.0).sum(1)
        moves = np.zeros((len(steps), suspects.look.size))
        moves[:, column] = steps
        with np.errstate(all="ignore"):
            moved = self.analytic.mixed_along(moves)
            return self.analytic.cotangents @ self.numeric.differences(moves).T - moved

    def _column_is_right(self, suspects: Suspects, off: np.ndarray) -> int | None:
        """The column that the worst group is off by the most; None if it is not right."""
        numeric, analytic = self.numeric, self.analytic
        group = int(np.nan_to_num(abs(off), nan=np.inf).max(0).argmax())
        which = int(np.nan_to_num(abs(off[:, group]), nan=np.inf).argmax())
        columns, steps = suspects.look.groups[group], suspects.steps[group]
        column = locate_column(numeric, analytic, columns, steps, which, float(off[which, group]))
        step = float(numeric.steps.array(numeric.eps)[column])
        with np.errstate(all="ignore"):
            slope = numeric.singly(np.array([column]), np.array([step]))[0] / step
        row = locate_row(analytic, column, slope, which)
        judged = self._judge(column, [row], [analytic.entry(row, column)])
        if judged.entries[0].outcome is not Outcome.PASSED or judged.entries[0].kink:
            return None
        # The other entries of the column, mixed: what the judged one is allowed to be off by is subtracted.
        value, bound = judged.best(row)
        known = judged.entries[0].mismatch
        with np.errstate(all="ignore"):
            mixed = analytic.cotangents @ value - analytic.cotangents[:, row] * (
                known.numeric - known.analytic
            )
            slack = np.sqrt(np.square(analytic.cotangents * bound).sum(1)) + constants.SHARE * self.tol.atol
            right = (
                abs(
                    mixed - analytic.mixed_along(unit(len(numeric.problem.point), column).numpy()[None])[:, 0]
                )
                <= slack
            )
        return column if bool(right.all()) else None

    # Single columns.

    def _entries(self, suspects: Suspects) -> bool:
        """Whether every entry of these columns passes: by the entry rule, or by a judge."""
        columns, steps = suspects.look.groups[:, 0], suspects.steps[:, 0]
        analytic = self.analytic.columns(columns)
        with np.errstate(all="ignore"):
            numeric = (suspects.differences / steps[:, None]).T
        severity = self._severity(analytic, numeric, steps, self.numeric.noise)
        self._set_undefined_aside(columns, analytic, severity)
        learnt, undecided = False, 0
        while (severity > 1).any():
            worst = severity.max(0)
            known = [i for i, column in enumerate(columns) if worst[i] > 1 and int(column) in self._columns]
            place = known[0] if known else int(worst.argmax())
            rows = np.flatnonzero(severity[:, place] > 1)
            rows = rows[np.argsort(-severity[rows, place], kind="stable")][: constants.NAMED]
            judged = self._judge(int(columns[place]), rows.tolist(), analytic[rows, place].tolist())
            severity[:, place] = 0.0
            undecided += all(entry.outcome is Outcome.INCONCLUSIVE for entry in judged.entries)
            if self._failures or undecided == _UNDECIDED:
                self._unseen = int((severity > 1).sum())
                return False
            if not learnt and judged.length and (severity > 1).any():
                learnt = True
                self._looked_again(columns, analytic, severity, judged)
        return not self._undecided

    def _set_undefined_aside(self, columns: np.ndarray, analytic: np.ndarray, severity: np.ndarray) -> None:
        """Entries of outputs that are not finite at the point cannot be judged."""
        undefined = (severity > 1) & ~np.isfinite(self.numeric.problem.value)[:, None]
        order = np.argsort(-severity, axis=None, kind="stable")
        for place in order[: int(undefined.sum())][: constants.NAMED]:
            row, at = divmod(int(place), len(columns))
            if undefined[row, at]:
                column = int(columns[at])
                self._judged[row, column] = outside(self.numeric, row, column, float(analytic[row, at]))
        severity[undefined] = 0.0

    def _severity(
        self, analytic: np.ndarray, numeric: np.ndarray, steps: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        """The error of entries in units of what is allowed; more than one also where noise could hide it."""
        with np.errstate(all="ignore"):
            error = abs(analytic - numeric)
            allowed = self.tol.atol + self.tol.rtol * abs(numeric)
            severity = np.where(error == 0, 0.0, error / allowed)
            # Where the point itself is outside of the domain, look first where the derivative says something.
            undefined = np.where(analytic == 0, _UNDEFINED, np.inf)
            severity = np.where(np.isnan(severity), undefined, severity)
            if not self.numeric.problem.low_precision:
                hidden = constants.SIGMAS * noise[:, None] / abs(steps) > allowed
                severity = np.where(hidden & (error > 0) & (severity <= 1), 1.0 + 1e-9, severity)
            return severity

    def _looked_again(
        self, columns: np.ndarray, analytic: np.ndarray, severity: np.ndarray, judged: ColumnJudgement
    ) -> None:
        """Difference the other suspect columns with the step that suited the one that was judged."""
        places = np.flatnonzero((severity > 1).any(0))
        look = singles(self.numeric.problem.inputs.size).part(columns[places])
        steps = self._steps_like(columns[places], judged)[:, None]
        self.numeric.limit += 2 * len(places)
        plus, minus = self.numeric.sides(look.moves(steps))
        with np.errstate(all="ignore"):
            central = ((plus - minus) / (2 * steps)).T
            right, left = (
                ((plus - self.numeric.problem.value) / steps).T,
                ((self.numeric.problem.value - minus) / steps).T,
            )
        again = self._severity(analytic[:, places], central, steps[:, 0], judged.noise)
        if self.tol.kinks == "pass" and any(entry.kink for entry in judged.entries):
            slack = self.tol.atol + self.tol.rtol * np.maximum(abs(left), abs(right))
            low, high = np.minimum(left, right) - slack, np.maximum(left, right) + slack
            again = np.where((low <= analytic[:, places]) & (analytic[:, places] <= high), 0.0, again)
        severity[:, places] = np.minimum(severity[:, places], again)

    def _steps_like(self, columns: np.ndarray, judged: ColumnJudgement) -> np.ndarray:
        """Steps in the proportion to each coordinate, or to its scale, that suited the judged column."""
        point, scale = self.numeric.problem.point, self.numeric.steps.array(1.0)
        first = judged.entries[0].mismatch.column
        steps = judged.length / scale[first] * scale[columns]
        if 0 < abs(point[first]) < scale[first]:
            relative = judged.length / abs(point[first]) * abs(point[columns])
            steps = np.where(relative > 0, np.minimum(relative, steps), steps)
        return self.numeric.steps.made_at(columns, steps)

    # What was decided.

    def _judge(self, column: int, rows: list[int], analytic: list[float]) -> ColumnJudgement:
        judged = judge(self.numeric, column, rows, analytic, self.tol, self._columns.get(column))
        self._columns[column] = judged
        self.numeric.truncation = max(self.numeric.truncation, judged.truncation)
        for entry in judged.entries:
            self._judged[entry.mismatch.row, column] = entry
        return judged

    @property
    def _failures(self) -> bool:
        return any(entry.outcome is Outcome.FAILED for entry in self._judged.values())

    @property
    def _undecided(self) -> bool:
        return any(entry.outcome is Outcome.INCONCLUSIVE for entry in self._judged.values())

    def _worst_outcome(self) -> Outcome:
        return Outcome.FAILED if self._failures else Outcome.INCONCLUSIVE

    def _verdict(self, outcome: Outcome) -> Verdict:
        judged = [entry for entry in self._judged.values() if entry.outcome is not Outcome.PASSED]
        if any(entry.mismatch.note.startswith(OUTSIDE) for entry in judged):
            # Zero times infinity: next to such an entry a derivative of NaN is no mistake of its own.
            judged = [
                replace(e, outcome=Outcome.INCONCLUSIVE) if e.mismatch.note == NOT_FINITE else e
                for e in judged
            ]
            outcome = Outcome.FAILED if any(e.outcome is Outcome.FAILED for e in judged) else outcome
            if outcome is Outcome.FAILED and not any(e.outcome is Outcome.FAILED for e in judged):
                outcome = Outcome.INCONCLUSIVE
        shown = [e.mismatch for e in judged if e.outcome is outcome] or [e.mismatch for e in judged]
        shown.sort(key=lambda m: -m.error if m.error == m.error else float("-inf"))
        height, width = self.numeric.problem.shape
        return Verdict(
            outcome,
            () if outcome is Outcome.PASSED else tuple(shown),
            tuple(self._looks),
            height * width,
            self._visible,
            self._unseen,
        )


def _joined(parts: Sequence[Suspects]) -> Suspects:
    """The suspects of all chunks of a look."""
    some = [part for part in parts if len(part)] or list(parts[:1])
    look = replace(
        some[0].look,
        groups=np.concatenate([part.look.groups for part in some]),
        weights=np.concatenate([part.look.weights for part in some]),
    )
    return Suspects(
        look,
        *(np.concatenate([getattr(p, name) for p in some]) for name in ("steps", "differences", "which")),
    )
