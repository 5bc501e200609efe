"""What a page draws besides the findings: both Jacobians as heat maps, and suspects step by step.

It is gathered when a page is asked for and not before, from the problem that a report keeps; a report
that was pickled has lost it, and then the page has the findings alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from covector.checks.run import CheckRun
from covector.checks.state import quiet
from covector.evidence.jacobians import PAGE, gather
from covector.report.heatmaps import Pair, pairs_of
from covector.report.reproduce import Reproduction
from covector.report.scan import Scan, scan
from covector.verify.finding import Finding, Mismatch, Outcome
from covector.verify.options import Tolerance

# How many suspects are scanned.
_SCANS = 6


@dataclass(frozen=True)
class Figures:
    """Heat maps of the Jacobians of one mode by pair, worst pair first, and scans of the suspects."""

    mode: str
    whole: bool
    tol: Tolerance
    pairs: tuple[Pair, ...]
    scans: tuple[Scan, ...]
    rounded: bool = False
    """Whether entries may be off by their rounding error in low precision, beyond the tolerance."""


@dataclass(frozen=True)
class Source:
    """Where a page comes from: the derivatives, how the caller's things stay as they are, the inputs."""

    run: CheckRun
    unchanged: Callable[[], AbstractContextManager[Any]]
    again: Reproduction | None = None
    """How the check is made again, if it did not pass."""

    def figures(self, findings: tuple[Finding, ...]) -> Figures:
        """Both Jacobians, within the budget of a page, and the suspects step by step."""
        run = self.run
        mode = _mode(run, findings)
        named = [m for f in findings for m in f.mismatches if f.check == mode or mode == "no derivative"]
        with self.unchanged(), quiet():
            jacobians = gather(run, mode, named, PAGE)
            pairs = pairs_of(jacobians)
            suspects = named or [p.worst for p in pairs if p.worst is not None][:2]
            scans = [scan(run.numeric, m, run.options.tol) for m in _distinct(suspects)]
        return Figures(mode, jacobians.whole, run.options.tol, pairs, tuple(scans), run.above is not None)


def _mode(run: CheckRun, findings: tuple[Finding, ...]) -> str:
    """The mode that failed, or the first that was checked."""
    if not run.problem.differentiable:
        return "no derivative"
    for finding in findings:
        if finding.outcome is not Outcome.PASSED and finding.mismatches:
            return finding.check
    return "reverse mode" if run.options.reverse else "forward mode"


def _distinct(suspects: list[Mismatch]) -> list[Mismatch]:
    return list({(m.row, m.column): m for m in suspects if m.row >= 0}.values())[:_SCANS]
