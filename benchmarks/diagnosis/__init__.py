"""Diagnoses: how many planted everyday bugs the report names, misleads about, or leaves without a name.

The bugs were written before the rules were tuned to them (`everyday`, `lost`); a third of each list is kept
aside while rules are written, and counted by itself. Those of `later` were written when the rules were there,
by somebody who had not read them, and those of `fresh` and `after` last, by another. Of `near`, no diagnosis
is right.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import covector
from benchmarks._board import ASIDE, TUNED, Area, Effort, Row, Task
from benchmarks._measure import one_thread
from benchmarks.diagnosis.after import AFTER
from benchmarks.diagnosis.everyday import EVERYDAY
from benchmarks.diagnosis.fresh import FRESH
from benchmarks.diagnosis.later import LATER
from benchmarks.diagnosis.lost import LOST
from benchmarks.diagnosis.near import NEAR
from benchmarks.diagnosis.planted import Bug

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
        return re.search(rf"(lost|later|fresh|after)\.py:{bug.cut}\b", evidence) is not None
    rules, words = TELLS[bug.kind]
    return rule in rules and re.search(words, evidence) is not None


def tables() -> dict[str, list[Bug]]:
    """The lists of bugs: those that rules were tuned on, those kept aside, and near misses."""
    everyday = [*enumerate(EVERYDAY), *enumerate(LOST)]
    return {
        TUNED: [bug for i, bug in everyday if i % 3 != 2],
        ASIDE: [bug for i, bug in everyday if i % 3 == 2],
        "written later": LATER,
        "of networks": FRESH,
        "after that": AFTER,
        "near misses": NEAR,
    }


def measure(name: str, effort: Effort) -> Iterator[Row]:
    """How many of a list are not named, and how many are named wrongly. What was wrong is kept aside too."""
    bugs = tables()[name]
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = [answer(bug) for bug in bugs]
    kind = ASIDE if name == ASIDE else TUNED  # rules were changed after the later lists were first run
    for verdict in ("misleading", "silent", "passed"):
        if bugs is NEAR and verdict == "silent":  # which is right
            continue
        those = [one.bug.name for one in answers if one.verdict == verdict]
        note = "" if name == ASIDE else "; ".join(those)
        row = f"{verdict}, of {len(bugs)} {name}"
        yield Row.count(row, "", len(those), None, part=kind, note=note)


def tasks() -> Iterator[Task]:
    """A task for each list."""
    for name in tables():
        yield Task(name, partial(measure, name), slow=name != "near misses")


AREA = Area(
    "diagnosis",
    "The first diagnosis that a report shows of planted everyday bugs (`benchmarks/diagnosis`): misleading, "
    "or silent, or the check passed. They were written by the authors of covector, before the rules were "
    "read; of the near misses no diagnosis is right. No peer has diagnoses.",
    tasks,
)
