"""Manifests: spans that grow together, and files that are read as what a stranger gives."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covector._tasks.manifest import Manifest, read
from covector._tasks.mapping import spans
from covector._tasks.sending import Span
from covector.errors import Caller, ResumeError

CALLER = Caller("jacobian", len)
MATRIX = Manifest("f", "x", "reverse", (10, 4), "float64", 3)


@given(st.permutations(spans(0, 10, 3)))
def test_blocks_in_any_order_become_one(order):
    """What is finished and what is missing are the whole, at any moment."""
    manifest = MATRIX
    for span in order:
        manifest = manifest.with_finished(span)
        covered = [row for part in (*manifest.finished, *manifest.missing()) for row in range(*part)]
        assert sorted(covered) == list(range(10))
    assert manifest.finished == (Span(0, 10),)
    assert not manifest.missing()


def test_round_trip(tmp_path):
    """What is written is read, and no other file is left."""
    manifest = MATRIX.with_finished(Span(3, 6))
    manifest.write(tmp_path / "m.json")
    assert read(CALLER, tmp_path / "m.json") == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


GOOD = {
    "schema": 1,
    "function": "f",
    "inputs": "x",
    "mode": "reverse",
    "shape": [10, 4],
    "dtype": "float64",
    "block": 3,
    "finished": [[0, 3], [6, 9]],
}
DAMAGE = {
    "another schema": ({"schema": 2}, "expected schema 1, got 2"),
    "another mode": ({"mode": "sideways"}, "the mode is unknown"),
    "a number for a text": ({"function": 4}, "a text is missing"),
    "three sides": ({"shape": [10, 4, 2]}, "malformed"),
    "a negative side": ({"shape": [-10, 4]}, "expected whole numbers"),
    "a fraction": ({"block": 2.5}, "expected whole numbers"),
    "no block": ({"block": 0}, "malformed"),
    "a truth value": ({"block": True}, "expected whole numbers"),
    "overlap": ({"finished": [[0, 4], [3, 6]]}, "overlap, or lie outside"),
    "outside": ({"finished": [[0, 11]]}, "overlap, or lie outside"),
    "backwards": ({"finished": [[3, 0]]}, "overlap, or lie outside"),
    "an empty span": ({"finished": [[3, 3]]}, "overlap, or lie outside"),
    "no list": ({"finished": {"0": 3}}, "expected a list, got dict"),
    "more": ({"code": "import os"}, "expected the fields"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name, tmp_path):
    """And nothing is continued."""
    change, text = DAMAGE[name]
    (tmp_path / "m.json").write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ResumeError, match=text):
        read(CALLER, tmp_path / "m.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\x80\x04N.", '{"schema": 1}'])
def test_what_is_no_manifest_is_refused(text, tmp_path):
    """Whatever it holds; nothing of it is run."""
    (tmp_path / "m.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ResumeError, match="is not a manifest that can be continued"):
        read(CALLER, tmp_path / "m.json")


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_hostile_fields_are_refused_or_right(value):
    """A field of any kind gives a manifest that makes sense, or an error of ours."""
    from covector._tasks.manifest import _validated

    for field in GOOD:
        try:
            manifest = _validated({**GOOD, field: value})
        except ValueError:
            continue
        assert manifest.block > 0
        assert all(0 <= span.start < span.stop <= manifest.directions for span in manifest.finished)
