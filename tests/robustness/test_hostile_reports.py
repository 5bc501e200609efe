"""Reports that are read back: the same as they were, or refused with an error of ours."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import covector
from covector.errors import ArgumentValueError
from covector.report.report import Report
from covector.verify.finding import Entry, Finding, Mismatch, Outcome
from covering import random_examples

X = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)


def wrong(x: torch.Tensor) -> torch.Tensor:
    return x.detach() * x


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


ODD = Finding(
    "reverse mode",
    Outcome.FAILED,
    "not a number",
    (Mismatch(Entry("output[0]", "x[0]"), math.nan, math.inf, -math.inf, 0.0),),
    1,
    1,
)
REPORTS: dict[str, Any] = {
    "failed": lambda: covector.check(wrong, X),
    "passed": lambda: covector.check(sine, X),
    "a table in a finding": lambda: covector.check(wrong, X, taylor=True),
    "tables of a kernel": lambda: covector.check_kernel(sine, wrong, (X.detach(),)),
    "not finite": lambda: Report("f", "check", (ODD,)),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_the_same_afterwards(name: str) -> None:
    report = REPORTS[name]()
    again = Report.from_json(report.to_json())
    assert (str(again), again.to_json(), bool(again)) == (str(report), report.to_json(), bool(report))
    assert again.worst.outcome is report.outcome
    if name != "not finite":  # nan differs from itself
        assert Report.from_dict(report.to_dict()) == report


def test_keys_of_a_later_writer_are_left_out() -> None:
    data = covector.check(wrong, X).to_dict()
    data["colour"] = data["findings"][0]["weight"] = 1
    assert not Report.from_dict(data)


WRONG: dict[str, Any] = {
    "not JSON": ("{", "the text is not JSON"),
    "too deep": ("[" * 100_000, "the text is not JSON"),
    "a number": ("3", "got 3 of version NoneType, expected the object"),
    "no version": ('{"function": "f"}', "got dict of version NoneType"),
    "another version": ('{"version": 2}', "of version 2, expected .* of version 1"),
    "true for a version": ('{"version": true}', "of version bool"),
    "nothing else": ('{"version": 1}', "the report has no 'function'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_texts_that_are_no_reports(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(ArgumentValueError, match=message):
        Report.from_json(text)


def test_bytes_are_no_text() -> None:
    with pytest.raises(ArgumentValueError, match="got a bytes, expected the text"):
        Report.from_json(b"{}")


DAMAGED: dict[str, Any] = {
    "an unknown outcome": (
        ("findings", 0, "outcome"),
        "won",
        "'outcome' of 'findings' of the report has 'won'",
    ),
    "an object for a list": (("findings",), {}, "'findings' of the report has dict"),
    "a list for an object": (("findings", 0), [], "is list, not an object"),
    "a text for a number": (("evaluations",), "many", "has 'many' where a report has int"),
    "true for a number": (("seed",), True, "has bool where a report has int"),
    "sure of more than all": (("findings", 0, "diagnoses", 0, "confidence"), 2, "not between 0 and 1"),
    "sure of nothing": (("findings", 0, "diagnoses", 0, "confidence"), "nan", "not between 0 and 1"),
    "half a character": (("function",), "\ud800", "where a report has str"),
    "rows without columns": (
        ("tables",),
        [{"title": "t", "columns": ["a"], "rows": [["b", "c"]]}],
        "rows that are not as long as its columns",
    ),
    "a cell that is a list": (
        ("tables",),
        [{"title": "t", "columns": ["a"], "rows": [[["b"]]]}],
        "'rows' of 'tables' of the report has list",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_data_that_are_not_a_reports(name: str) -> None:
    place, value, message = DAMAGED[name]
    data = covector.check(wrong, X).to_dict()
    _put(data, place, value)
    with pytest.raises(ArgumentValueError, match=message):
        Report.from_json(json.dumps(data))


def _put(data: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        data = data[key]
    data[place[-1]] = value


def _places(data: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, item in items for place in ((*before, key), *_places(item, (*before, key)))]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["nan", "failed"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.sweep)])
def test_damaged_reports(count: int, tmp_path: Path) -> None:
    """Values that are anything, or a text that is cut off: refused, or a report that can be shown."""
    originals = [json.loads(REPORTS[name]().to_json()) for name in ("failed", "tables of a kernel")]
    places = [_places(data) for data in originals]

    @random_examples(count)
    @given(draw=st.data())
    def run(draw: Any) -> None:
        which = draw.draw(st.integers(0, 1))
        data = copy.deepcopy(originals[which])
        _put(data, draw.draw(st.sampled_from(places[which])), draw.draw(ANYTHING))
        text = json.dumps(data)
        if draw.draw(st.integers(0, 4)) == 0:
            text = text[: draw.draw(st.integers(0, len(text)))]
        try:
            report = Report.from_json(text)
        except ArgumentValueError:
            return
        again = Report.from_json(report.to_json())
        assert str(again) == str(report)
        assert again.to_json() == report.to_json()
        report._repr_html_()
        report.to_html(tmp_path / "page.html")

    run()
