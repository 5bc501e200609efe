"""Nothing from a file is run that was not the user's, and no text of the user's becomes markup of ours."""

from __future__ import annotations

import ast
import html.parser
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import covector
from covector import cli
from covector._index import Line, write_index
from covector.errors import ArgumentValueError
from covector.report.report import VERSION
from covering import random_examples
from test_rooms import parsed, walked

SOURCE = Path(covector.__file__).parent
FILES = [*SOURCE.rglob("*.py"), *SOURCE.parent.glob("covector_pytest*.py")]

# --- what the source may not do

# What makes code or objects of data.
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "yaml", "joblib"}
CALLS = {"eval", "exec", "__import__"}
ATTRIBUTES = {("torch", "load"), ("jit", "load"), ("os", "system"), ("os", "popen"), ("subprocess", "run")}


# A worker of an executor unpickles what its client sent it, never a file: there the executor is trusted.
SENDING = SOURCE / "_tasks" / "sending.py"


@pytest.mark.parametrize("path", [path for path in FILES if path != SENDING], ids=lambda path: path.name)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    for node in walked(parsed(path)):
        if isinstance(node, ast.Import):
            assert not MODULES & {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.module.partition(".")[0] not in MODULES
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in ATTRIBUTES
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only", "shell"):
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is (node.arg == "weights_only")


def test_arrays_are_read_without_pickle() -> None:
    """Every `np.load` says so itself."""
    loads = [
        node
        for path in FILES
        for node in walked(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("np", "numpy")
    ]
    assert loads
    assert all(any(keyword.arg == "allow_pickle" for keyword in node.keywords) for node in loads)


# --- texts

NASTY = "<script>alert('x')</script>\"&amp;\u2028]]>--><img src=x onerror=alert(1)>"


class Markup(html.parser.HTMLParser):
    """The tags of a page, and what its attributes say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts, self.images, self.handlers = 0, 0, []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.scripts += tag == "script"
        self.images += tag == "img"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def nasty(kind: str) -> Any:
    """A check in which one text is markup."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def wrong(*args: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves(args)
        total = sum(leaf.detach() * leaf for leaf in leaves)
        return {NASTY: total} if kind == "output" else total

    def raises(*args: Any) -> Any:
        class Raising(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
                raise ValueError(NASTY)

        return Raising.apply(args[0])

    wrong.__name__ = NASTY if kind == "function" else "wrong"
    if kind == "exception":
        return covector.check(raises, x)
    return covector.check(wrong, ({NASTY: x},) if kind == "input" else (x,))


@pytest.mark.parametrize("kind", ["function", "input", "output", "exception"])
def test_texts_are_escaped(kind: str, tmp_path: Path) -> None:
    """The page has as many scripts as one without such texts; the JSON gives the text back."""
    report, plain = nasty(kind), nasty("plain")
    assert not report
    report.to_html(tmp_path / "nasty.html")
    plain.to_html(tmp_path / "plain.html")
    markup, expected = (
        Markup((tmp_path / name).read_text(encoding="utf-8")) for name in ("nasty.html", "plain.html")
    )
    assert (markup.scripts, markup.images) == (expected.scripts, 0)
    assert not markup.handlers
    shown = Markup(report._repr_html_())
    assert (shown.scripts, shown.images, shown.handlers) == (0, 0, [])
    data = json.loads(report.to_json())
    assert data["version"] == VERSION
    assert "onerror=alert(1)" in json.dumps(data)


def test_scripts_inside_the_data_of_a_page_do_not_end_it(tmp_path: Path) -> None:
    """Where a page holds data in a script, its texts cannot close that."""
    report = nasty("input")
    report.to_html(tmp_path / "page.html")
    assert "</script>alert" not in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_texts_of_the_index_are_escaped(tmp_path: Path) -> None:
    """Names of files, tests and cases, outcomes, hints and links."""
    lines = [Line(NASTY, NASTY, NASTY, 1.0, NASTY, NASTY, NASTY, NASTY)]
    markup = Markup(write_index(tmp_path, NASTY, lines).read_text(encoding="utf-8"))
    assert (markup.scripts, markup.images, markup.handlers) == (0, 0, [])


@pytest.mark.parametrize("name", ["../../outside", "/absolute", "a/../../b", "..", "\\..\\x", "<b>"])
def test_pages_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    """Whatever a case is called, its page has a plain name."""
    from covector._results import Request, _page

    folder = tmp_path / "pages"
    written = _page(nasty("plain"), Request(f"{name}.py", name, True, str(folder)))
    assert [path.name for path in folder.iterdir()] == [written]
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]


# --- files


def f(x: torch.Tensor) -> torch.Tensor:
    return x[1:] * x[:-1]


X = torch.arange(1.0, 6.0, dtype=torch.float64)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.npz"
    covector.jacobian_plan(f, X).save(path)
    return path


def refused(path: Path) -> bool:
    """Whether a file is refused with an error of ours; if not, its Jacobian is right."""
    try:
        plan = covector.jacobian_plan.load(path, f, X)
    except covector.errors.CovectorError:
        return True
    assert torch.equal(plan(X).to_dense(), covector.jacrev(f)(X))
    return False


def parts_of(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def facts_of(parts: dict[str, Any]) -> dict[str, Any]:
    return json.loads(bytes(parts["facts"]))


def written(path: Path, parts: dict[str, Any], **facts: Any) -> Path:
    """A file with these parts, and facts that are others than its own."""
    parts = dict(parts)
    if facts:
        text = json.dumps({**facts_of(parts), **facts})
        parts["facts"] = np.frombuffer(text.encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **parts)
    return path


def test_a_file_of_ours_is_read(plan_file: Path) -> None:
    assert not refused(plan_file)


HOSTILE_FACTS: dict[str, Any] = {
    "another version": {"version": 2},
    "no version": {"version": None},
    "another verb": {"verb": "hessian_plan"},
    "a shape of texts": {"shape": ["a", "b"]},
    "a shape of one": {"shape": [4]},
    "a negative shape": {"shape": [-4, 5]},
    "a huge shape": {"shape": [2**62, 2**62]},
    "an unknown kind": {"kind": "__class__"},
    "a list for a text": {"reason": ["because"]},
    "a text for a list": {"kinds": "float64"},
    "kinds of numbers": {"kinds": [1, 2]},
    "a number for a table": {"fallbacks": 3},
    "a table of texts": {"fallbacks": {"a": "b"}},
    "true for a number": {"chosen": [True]},
    "other arguments": {"kinds": ["something else"]},
    "local as text": {"local": "yes"},
}


@pytest.mark.parametrize("name", HOSTILE_FACTS)
def test_facts_that_are_not_a_plans(name: str, plan_file: Path, tmp_path: Path) -> None:
    assert refused(written(tmp_path / "plan.npz", parts_of(plan_file), **HOSTILE_FACTS[name]))


HOSTILE_ARRAYS: dict[str, Any] = {
    "objects": lambda a: np.array([{}] * len(a), dtype=object),
    "floats": lambda a: a.astype(np.float64),
    "texts": lambda a: a.astype(str),
    "times": lambda a: a.astype("datetime64[s]"),
    "a matrix": lambda a: a.reshape(1, -1),
    "a scalar": lambda a: np.int64(0),
    "too few": lambda a: a[:-1],
    "none": lambda a: a[:0],
    "too large": lambda a: np.full_like(a, 2**62),
    "negative": lambda a: np.full_like(a, -(2**62)),
    "reversed": lambda a: a[::-1],
}


@pytest.mark.parametrize("part", ["indptr", "indices", "columns", "rows", "source"])
@pytest.mark.parametrize("name", HOSTILE_ARRAYS)
def test_arrays_that_are_not_a_plans(name: str, part: str, plan_file: Path, tmp_path: Path) -> None:
    """Refused, or (an array that is the same reversed) right."""
    parts = parts_of(plan_file)
    changed = HOSTILE_ARRAYS[name](parts[part])
    same = np.array_equal(changed, parts[part]) and changed.dtype == parts[part].dtype
    assert refused(written(tmp_path / "plan.npz", {**parts, part: changed})) or same


def test_a_file_that_unpacks_to_too_much(plan_file: Path, tmp_path: Path) -> None:
    """Some kilobytes that say they hold 80 GB, and some megabytes that do hold more than a text may."""
    path = tmp_path / "huge.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**10,)})
    with zipfile.ZipFile(plan_file) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in archive.namelist():
            bomb.writestr(name, header.getvalue() if name == "indices.npy" else archive.read(name))
    assert refused(path)
    parts = parts_of(plan_file)
    parts["facts"] = np.zeros(2**25, dtype=np.uint8)
    path = written(tmp_path / "bomb.npz", parts)
    assert path.stat().st_size < 2**17
    with pytest.raises(ArgumentValueError, match="facts would unpack to"):
        covector.jacobian_plan.load(path, f, X)


def test_names_that_lead_elsewhere(plan_file: Path, tmp_path: Path) -> None:
    """Nothing is unpacked to the disk, whatever it is called."""
    path = tmp_path / "names.npz"
    with zipfile.ZipFile(plan_file) as archive, zipfile.ZipFile(path, "w") as other:
        for name in archive.namelist():
            other.writestr(f"../../{name}", archive.read(name))
    assert refused(path)
    assert [p.name for p in tmp_path.iterdir()] == ["names.npz"]


@pytest.mark.parametrize("name", ["missing.npz", ".", "empty.npz", "null\0.npz"])
def test_paths_that_are_no_plans(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.npz").touch()
    assert refused(tmp_path / name)


def mutated(draw: Any, content: bytes) -> bytes:
    """A file that was cut off, or in which some bytes are others."""
    if draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    data = bytearray(content)
    for _ in range(draw(st.integers(0, 8))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def try_bytes(content: bytes, folder: Path) -> None:
    path = folder / "plan.npz"
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.sweep)])
def test_damaged_files(count: int, plan_file: Path, tmp_path: Path) -> None:
    """Of a plan, with bytes that are others, cut off, or anything at all: refused, or right."""
    content = plan_file.read_bytes()

    @random_examples(count)
    @given(data=st.data())
    def run(data: Any) -> None:
        if data.draw(st.integers(0, 4)):
            try_bytes(mutated(data.draw, content), tmp_path)
        else:
            try_bytes(data.draw(st.binary(max_size=200)), tmp_path)

    run()


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.sweep)])
def test_arrays_that_fit_by_chance(count: int, plan_file: Path, tmp_path: Path) -> None:
    """Single numbers of the arrays are others: refused, or the Jacobian is right."""
    parts = parts_of(plan_file)

    @random_examples(count)
    @given(data=st.data())
    def run(data: Any) -> None:
        name = data.draw(st.sampled_from(["indptr", "indices", "columns", "rows", "source"]))
        array = parts[name].copy()
        array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(-2, 20))
        refused(written(tmp_path / "plan.npz", {**parts, name: array}))

    run()


def test_a_file_of_cases_is_run_as_python_runs_it() -> None:
    """And both the help and the docs say so."""
    root = Path(__file__).parent.parent.parent
    assert "as Python runs a script" in (root / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert "as Python runs a script" in cli.EPILOG
