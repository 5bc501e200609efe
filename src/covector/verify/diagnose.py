"""From the verdict of a comparison to a finding, and from its entries to what the mistake may be."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from covector.verify.compare import Verdict
from covector.verify.derivatives import Derivatives
from covector.verify.report import Diagnosis, Finding, Outcome
from covector.verify.rules import table
from covector.verify.rules.found import Found
from covector.verify.rules.table import Rule
from covector.verify.suspects import Case, listed
from covector.verify.worst import worst

# How many diagnoses are shown, and how sure the others have to be in comparison with the first.
_SHOWN = 3
_WORTH = 0.8

# Where the code lies that is not the user's.
_OURS = (str(Path(__file__).parent.parent), str(Path(inspect.getfile(torch)).parent))

_UNKNOWN = "No known kind of mistake fits these entries; report.to_html(path) shows both Jacobians."

_MODES = ("reverse mode", "forward mode")


def finding(name: str, verdict: Verdict, what: str) -> Finding:
    """A finding from the verdict of a comparison."""
    if verdict.outcome is Outcome.PASSED:
        return Finding(name, verdict.outcome, entries=verdict.entries)
    notes = {m.note for m in verdict.mismatches}
    summary = f"{what} disagrees with central differences"
    if any(note.startswith("outside the domain") for note in notes):
        places = ", ".join(str(m.entry) for m in verdict.mismatches[:4])
        summary = f"outside the domain at entries {places}"
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        summary = "the noise of the difference exceeds the tolerance"
    elif notes and all(note.startswith("not differentiable") for note in notes):
        summary = "the function is not differentiable at this point"
    return Finding(
        name,
        verdict.outcome,
        summary,
        verdict.mismatches,
        verdict.count,
        verdict.entries,
        counted=verdict.counted,
    )


@cache
def passed(name: str) -> Finding:
    """A check that found nothing."""
    return Finding(name, Outcome.PASSED)


def failed(name: str, summary: str, advice: str = "") -> Finding:
    """A finding without entries."""
    return Finding(name, Outcome.FAILED, summary, advice=advice)


def diagnosed(d: Derivatives, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, those on entries that differ with what these say about the mistake."""
    if all(found.outcome is Outcome.PASSED for found in findings):
        return findings
    findings = tuple(_located(found, d.raised) for found in findings)
    if any(f.check == "determinism" and f.outcome is Outcome.FAILED for f in findings):
        # There are other entries the next time; only what makes them differ can be told.
        return tuple(_unsteady(d, f) if f.check == "determinism" else f for f in findings)
    return tuple(
        _explained(Case(d, found, mode)) if (mode := _mode(found, findings)) else found for found in findings
    )


def _unsteady(d: Derivatives, found: Finding) -> Finding:
    """A finding on a backward that gives other gradients for the same cotangent."""
    case = Case(d, found, "reverse mode")
    seen = _seen([rule for rule in table.RULES if rule.name == "cotangent changed"], case)
    return replace(found, diagnoses=tuple(_merged(seen, case)))


def _located(found: Finding, raised: BaseException | None) -> Finding:
    """A finding on a derivative that raised, with the line of the user's that did."""
    if raised is None or found.summary != f"the derivative raised {type(raised).__name__}: {raised}":
        return found
    frames = traceback.extract_tb(raised.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((*_OURS, "<"))]
    if not theirs:
        return found
    where = f"at line {theirs[-1].lineno} of {Path(theirs[-1].filename).name}, in {theirs[-1].name}"
    return replace(found, advice=f"It was raised {where}.")


def _explained(case: Case) -> Finding:
    """A finding with the worst of its entries, and what these say."""
    found = replace(_worst(case), diagnoses=diagnoses(case))
    if found.mismatches and not found.diagnoses and not found.advice:
        return replace(found, advice=_UNKNOWN)
    return found


def _worst(case: Case) -> Finding:
    """The worst entries; those that the check came upon where the function does not let itself be run."""
    try:
        return worst(case)
    except Exception:
        return case.finding


def _mode(found: Finding, findings: tuple[Finding, ...]) -> str:
    """The mode that a finding is about, if it is one to be diagnosed."""
    if found.outcome not in (Outcome.FAILED, Outcome.INCONCLUSIVE):
        return ""
    if found.check in _MODES:
        return found.check
    right = any(f.check == "reverse mode" and f.outcome is Outcome.PASSED for f in findings)
    return "reverse mode" if found.check == "linearity" and right else ""


def diagnoses(case: Case) -> tuple[Diagnosis, ...]:
    """What the rules see, surest first; what another rule explains better is left out."""
    seen = _seen([rule for rule in table.RULES if rule.alone], case)
    if not seen:
        able = [rule for rule in table.RULES if not rule.alone and (case.readable or not rule.entries)]
        seen = _seen(able, case)
    explained = {(rule.name, found.where) for rule, found in seen}
    kept = [
        (rule, found)
        for rule, found in seen
        if not any((better, found.where) in explained for better in rule.yields_to)
    ]
    merged = sorted(_merged(kept, case), key=lambda diagnosis: -diagnosis.confidence)
    return tuple(one for one in merged if one.confidence >= _WORTH * merged[0].confidence)[:_SHOWN]


def _seen(rules: Iterable[Rule], case: Case) -> list[tuple[Rule, Found]]:
    return [(rule, found) for rule in rules for found in _fired(rule, case)]


def _fired(rule: Rule, case: Case) -> tuple[Found, ...]:
    """What a rule sees. A rule that fails sees nothing: the report is about the user's mistake, not ours."""
    try:
        return tuple(rule.find(case))
    except Exception:
        return ()


def _merged(seen: Iterable[tuple[Rule, Found]], case: Case) -> list[Diagnosis]:
    """What is true of several inputs is said once."""
    groups: dict[tuple[str, str], list[tuple[Rule, Found]]] = {}
    for rule, found in seen:
        groups.setdefault((rule.name, found.evidence), []).append((rule, found))
    return [_diagnosis(group, case) for group in groups.values()]


def _diagnosis(group: list[tuple[Rule, Found]], case: Case) -> Diagnosis:
    rule, first = group[0]
    where = first.where
    if len(group) > 1:
        names = [found.where.removeprefix("input ") for _, found in group]
        where = f"inputs {listed(list(dict.fromkeys(names)))}"
    evidence = first.evidence.replace("{where}", where)
    if rule.entries and not rule.alone and not case.evidence.whole:
        evidence += " (of a sample of the entries)"
    look = first.look or rule.look
    if case.mode == "forward mode":
        look = look.replace("`backward`", "`jvp`").replace("the backward", "the jvp")
    return Diagnosis(rule.name, evidence, look, first.confidence)
