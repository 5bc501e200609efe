"""Diagnoses: how many planted everyday bugs the report names, misleads about, or leaves without a name.

The bugs were written before the rules were tuned to them (`everyday`, `lost`); a third of each list is kept
aside while rules are written, and counted by itself. Those of `later` were written when the rules were there,
by somebody who had not read them, and those of `fresh` after that, by another. Of `near`, no diagnosis is
right.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import covector
from benchmarks._measure import one_thread
from benchmarks._table import markdown
from benchmarks.diagnosis.everyday import EVERYDAY
from benchmarks.diagnosis.fresh import FRESH
from benchmarks.diagnosis.later import LATER
from benchmarks.diagnosis.lost import LOST
from benchmarks.diagnosis.near import NEAR
from benchmarks.diagnosis.planted import Bug

NAME = "diagnosis"
ASIDE = "kept aside"

# What a reader has to be told about each kind of mistake: the rules that say it, and words they must use.
TELLS: dict[str, tuple[set[str], str]] = {
    "normalisation": ({"normalisation"}, ""),
    "axis": ({"wrong axis", "transposed", "normalisation"}, "dimension"),
    "unbiased": ({"factor", "normalisation"}, "unbiased"),
    "factor": ({"factor", "broadcast"}, ""),
    "sign": ({"sign"}, ""),
    "branch": ({"both sides", "negative inputs", "threshold"}, ""),
    "chain": ({"power", "chain rule"}, ""),
    "cotangent": ({"cotangent ignored"}, ""),
    "permuted": ({"transposed"}, "dimension"),
    "transposed": ({"transposed"}, ""),
    "flip": ({"flipped window"}, ""),
    "argmax": ({"another element"}, ""),
    "conjugate": ({"conjugate"}, ""),
    "duplicates": ({"overwritten", "broadcast"}, ""),
    "swapped": ({"swapped inputs"}, ""),
    "missing": ({"zero"}, ""),
    "broadcast": ({"broadcast"}, ""),
    "reversed": ({"displaced", "transposed", "wrong way"}, "wrong way|direction|too far|too early|reverse"),
    "diagonal": ({"diagonal of the Jacobian"}, ""),
    "index": ({"few elements", "boundary"}, ""),
    "mask": ({"masked"}, ""),
    "hinge": ({"one slice", "masked"}, "zero"),
    "order": ({"another element", "transposed"}, ""),
    "turn": ({"transposed"}, ""),
    "halves": ({"displaced"}, ""),
    "kernel": ({"displaced", "flipped window"}, "reverse|backwards"),
    "border": ({"chain rule", "boundary"}, "output"),
    "slice": ({"one slice"}, ""),
    "target": ({"constant", "few elements"}, ""),
    "weight": ({"normalisation"}, ""),
    "nothing": (set(), ""),
}


@dataclass(frozen=True)
class Answer:
    """What the report said first about a planted bug, and what that comes to."""

    bug: Bug
    verdict: str
    rule: str
    text: str


def answer(bug: Bug) -> Answer:
    """What is said about a bug: right, misleading, silent, or that the check passed."""
    report = covector.check(bug.fn, bug.draw(), **bug.keywords)
    if report:
        return Answer(bug, "passed", "", "")
    said = [d for finding in report.findings for d in finding.diagnoses]
    if not said:
        return Answer(bug, "silent", "", "")
    first = said[0]
    return Answer(
        bug, "right" if _tells(bug, first.rule, first.evidence) else "misleading", first.rule, first.evidence
    )


def _tells(bug: Bug, rule: str, evidence: str) -> bool:
    if bug.cut is not None:
        return re.search(rf"(lost|later|fresh)\.py:{bug.cut}\b", evidence) is not None
    rules, words = TELLS[bug.kind]
    return rule in rules and re.search(words, evidence) is not None


def tables() -> Iterator[tuple[str, list[Bug]]]:
    """The lists of bugs: those that rules were tuned on, those kept aside, and near misses."""
    everyday = [*enumerate(EVERYDAY), *enumerate(LOST)]
    yield "tuned on", [bug for i, bug in everyday if i % 3 != 2]
    yield ASIDE, [bug for i, bug in everyday if i % 3 == 2]
    yield "written later", LATER
    yield "written last", FRESH
    yield "near misses", NEAR


WORDS = ("right", "misleading", "silent", "passed")


def line(name: str, bugs: object, counts: Iterable[object]) -> str:
    return f"{name:<14}{bugs!s:>6}" + "".join(f"{count!s:>12}" for count in counts)


def report(only: str = "") -> list[Answer]:
    """Print the counts of each list, and what was not right in those that rules were tuned on."""
    every = []
    print(f"\n{line(NAME, 'bugs', WORDS)}")
    for name, bugs in tables():
        if only not in name:
            continue
        with one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers = [answer(bug) for bug in bugs]
        counts = Counter(one.verdict for one in answers)
        print(line(name, len(bugs), [counts[word] for word in WORDS]), flush=True)
        if name != ASIDE:
            expected = "silent" if bugs is NEAR else "right"
            for one in answers:
                if one.verdict != expected:
                    print(f"  {one.verdict}: {one.bug.name} ({one.bug.kind}): {one.rule} {one.text}")
        every += answers
    return every


def table(answers: list[Answer]) -> str:
    """The counts of each list, for a page."""
    verdict = {id(one.bug): one.verdict for one in answers}
    rows = []
    for name, bugs in tables():
        counts = Counter(verdict[id(bug)] for bug in bugs)
        rows.append((name, len(bugs), *(counts[word] for word in WORDS)))
    return markdown(("list", "bugs", *WORDS), rows)


def saved(one: Answer) -> dict[str, str]:
    """An answer as data."""
    return {
        "bug": one.bug.name,
        "kind": one.bug.kind,
        "verdict": one.verdict,
        "rule": one.rule,
        "text": one.text,
    }
