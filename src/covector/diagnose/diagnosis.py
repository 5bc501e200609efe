"""From the entries of a finding to what the mistake may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from covector.checks.forgiving import forgiving
from covector.diagnose.case import Case
from covector.diagnose.facts import facts, right_parts
from covector.diagnose.raised import located
from covector.diagnose.rules import table
from covector.diagnose.rules.inputs import shown
from covector.diagnose.rules.observation import Observation
from covector.diagnose.rules.table import Rule
from covector.diagnose.suspects import listed
from covector.evidence.cuts import Cuts
from covector.evidence.evidence import NO_DERIVATIVE, Evidence
from covector.verify.finding import Diagnosis, Finding

# How many diagnoses are shown, and how sure the others have to be in comparison with the first.
_SHOWN = 3
_WORTH = 0.8

# A diagnosis with a rival for the same entries, which is as sure as this, is no surer than that.
_RIVAL, _CONTESTED = 0.8, 0.85

# Where a smaller share of the wrong entries lies is not told, if nobody knows about the others.
_SHARE = 0.1

UNKNOWN = "No known kind of mistake fits these entries."


def diagnosed(
    findings: Sequence[Finding], evidence: Sequence[Evidence | None], raised: BaseException | None
) -> tuple[Finding, ...]:
    """The findings, with what the evidence on each says about the mistake, and where a derivative raised."""
    return tuple(
        _explained(located(found, raised), about) for found, about in zip(findings, evidence, strict=True)
    )


def _explained(found: Finding, evidence: Evidence | None) -> Finding:
    """A finding with its diagnoses, or that there are none."""
    if evidence is None:
        return found
    case = Case(evidence)
    found = replace(found, diagnoses=diagnoses(case))
    if found.diagnoses and evidence.mode == NO_DERIVATIVE:
        found = replace(found, advice="")  # which says what may be the matter where no line is known
    with forgiving():
        found = replace(found, facts=right_parts(case))
    if not found.mismatches or found.diagnoses or found.advice:
        return found
    with forgiving():
        found = replace(found, facts=(*found.facts, *facts(case)))
    return replace(found, advice=UNKNOWN)


def with_cuts(found: Finding, cuts: Cuts) -> Finding:
    """A finding on outputs without a graph, with the lines at which it is left in place of a guess."""
    lines = (*cuts.lines, *cuts.exits)
    if not lines:
        return found
    text = shown(lines)
    return replace(found, advice=f"{text[0].upper()}{text[1:]}.")


def diagnoses(case: Case) -> tuple[Diagnosis, ...]:
    """What the rules see, surest first; what another rule explains better is left out."""
    rules = [rule for rule in table.RULES if case.evidence.steady or not rule.steady]
    seen = _seen([rule for rule in rules if rule.alone], case)
    if not seen and case.evidence.mode != NO_DERIVATIVE:
        able = [
            rule for rule in rules if not rule.alone and (not rule.entries or case.evidence.has_wrong_entries)
        ]
        seen = _seen(able, case)
    explained = {(rule.name, found.where) for rule, found in seen}
    kept = [
        (rule, found)
        for rule, found in seen
        if not any((better, found.where) in explained for better in rule.yields_to)
    ]
    merged = sorted(
        _merged(_contested(_in_part(kept, case)), case), key=lambda diagnosis: -diagnosis.confidence
    )
    return tuple(one for one in merged if one.confidence >= _WORTH * merged[0].confidence)[:_SHOWN]


def _seen(rules: Iterable[Rule], case: Case) -> list[tuple[Rule, Observation]]:
    return [(rule, found) for rule in rules for found in _fired(rule, case)]


def _fired(rule: Rule, case: Case) -> tuple[Observation, ...]:
    """What a rule sees. A rule that fails sees nothing: the report is about the user's mistake, not ours."""
    with forgiving():
        return tuple(rule.find(case))
    return ()


def _in_part(seen: list[tuple[Rule, Observation]], case: Case) -> list[tuple[Rule, Observation]]:
    """What leaves wrong entries unexplained, of its own input or of one nobody speaks of, is not sure.

    The place of a few of them is left out.
    """
    where = {found.where for _, found in seen}
    wrong = {suspect.where: int(suspect.bad.sum()) for suspect in case.suspects}
    every = "" in where or wrong.keys() <= where
    least = 0.0 if every else _SHARE * sum(wrong.values())
    seen = [(rule, found) for rule, found in seen if not rule.places or _accounted(found, wrong) >= least]
    return [
        (rule, found)
        if every and (found.explained is None or found.explained == wrong.get(found.where))
        else (rule, replace(found, confidence=min(found.confidence, _CONTESTED)))
        for rule, found in seen
    ]


def _contested(seen: list[tuple[Rule, Observation]]) -> list[tuple[Rule, Observation]]:
    """What two rules explain in different ways is sure in neither."""
    rules: dict[str, set[str]] = {}
    for rule, found in seen:
        if found.confidence >= _RIVAL:
            rules.setdefault(found.where, set()).add(rule.name)
    return [
        (rule, replace(found, confidence=min(found.confidence, _CONTESTED)))
        if len(rules.get(found.where, ())) > 1
        else (rule, found)
        for rule, found in seen
    ]


def _merged(seen: Iterable[tuple[Rule, Observation]], case: Case) -> list[Diagnosis]:
    """What is true of several inputs is said once."""
    groups: dict[tuple[str, str], list[tuple[Rule, Observation]]] = {}
    for rule, found in seen:
        groups.setdefault((rule.name, found.evidence), []).append((rule, found))
    return [_diagnosis(group, case) for group in groups.values()]


def _diagnosis(group: list[tuple[Rule, Observation]], case: Case) -> Diagnosis:
    rule, first = group[0]
    where = first.where
    if len(group) > 1:
        names = [found.where.removeprefix("input ") for _, found in group]
        where = f"inputs {listed(list(dict.fromkeys(names)))}"
    evidence = first.evidence.replace("{where}", where)
    look = first.look or rule.look
    if case.is_forward:
        look = look.replace("`backward`", "`jvp`").replace("the backward", "the jvp")
    tested = _tested(rule, [found for _, found in group], case)
    return Diagnosis(rule.name, evidence, look, first.confidence, tested)


def _tested(rule: Rule, group: list[Observation], case: Case) -> str:
    """How many of the wrong entries a diagnosis accounts for; most rules speak if all of an input fit."""
    if not rule.entries or rule.alone:
        return ""
    wrong = {s.where: int(s.bad.sum()) for s in case.suspects}
    accounted = {one.where: _accounted(one, wrong) for one in group}
    mine, every = sum(accounted.values()), sum(wrong.values())
    if rule.places:
        if every == 1:
            return ""  # wherever one entry lies, all of them lie there
        return f"{mine} of {every} wrong entries{case.coverage} lie there"
    return f"explains {mine} of {every} wrong entries{case.coverage}"


def _accounted(found: Observation, wrong: dict[str, int]) -> int:
    return wrong.get(found.where, 0) if found.explained is None else found.explained
