"""From the verdict of a comparison to a finding: what it means, and what to do about it."""

from __future__ import annotations

from covector.verify.compare import Verdict
from covector.verify.derivatives import Derivatives
from covector.verify.report import Finding, Outcome


def finding(name: str, verdict: Verdict, what: str) -> Finding:
    """A finding from the verdict of a comparison."""
    if verdict.outcome is Outcome.PASSED:
        return Finding(name, verdict.outcome, entries=verdict.entries)
    notes = {m.note for m in verdict.mismatches}
    summary, advice = f"{what} disagrees with central differences", ""
    if any(note.startswith("outside the domain") for note in notes):
        places = ", ".join(str(m.entry) for m in verdict.mismatches[:4])
        summary = f"outside the domain at entries {places}"
        advice = "Move the inputs away from where the function is not defined."
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        summary = "the noise of the difference exceeds the tolerance"
        advice = "Give inputs in float64, a function that accepts them, or larger atol and rtol."
    elif notes and all(note.startswith("not differentiable") for note in notes):
        summary = "the function is not differentiable at this point"
        advice = 'Move the inputs away from the kink, or pass kinks="pass".'
    elif factor := _common_factor(verdict):
        advice = f"The analytic value is {factor:.3f} x the numeric one there."
    return Finding(
        name,
        verdict.outcome,
        summary,
        verdict.mismatches,
        verdict.count,
        verdict.entries,
        advice,
        verdict.counted,
    )


def _common_factor(verdict: Verdict) -> float | None:
    factors = [m.analytic / m.numeric for m in verdict.mismatches if m.numeric]
    if not factors or len(factors) < len(verdict.mismatches):
        return None
    return factors[0] if max(factors) - min(factors) <= 1e-3 * abs(factors[0]) else None


def failed(name: str, summary: str, advice: str = "") -> Finding:
    """A finding without entries."""
    return Finding(name, Outcome.FAILED, summary, advice=advice)


def diagnosed(d: Derivatives, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, with what their entries say about the mistake."""
    return findings
