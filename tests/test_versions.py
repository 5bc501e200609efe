"""Any recent torch: what the engine needs is listed, looked for at once, and named when it is missing."""

import ast
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from covector._engine import versions
from covector.errors import CovectorError, EngineError
from forked import printed

ROOT = Path(__file__).parent.parent
ENGINE = Path(versions.__file__).parent

# What the lists in `versions.py` hold together: what is needed at once, and what a feature asks for later.
LISTED = [
    name
    for table in vars(versions).values()
    if isinstance(table, tuple)
    for name in table
    if name.startswith("torch.")
]


def private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def bound_to_torch(tree):
    """What the names that a module imports from torch stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or "torch", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def used_of_torch(tree):
    """Every private name of torch that a module uses, written out from `torch.` on."""
    bound = {name: full for name, full in bound_to_torch(tree) if full.partition(".")[0] == "torch"}
    yield from bound.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in bound:
                yield ".".join([bound[first], *rest])
        elif isinstance(node, ast.Constant) and re.fullmatch(r"torch(\.\w+)+", str(node.value)):
            yield node.value


def unlisted(tree):
    return {
        name
        for name in used_of_torch(tree)
        if private(name) and not any(f"{listed}.".startswith(f"{name}.") for listed in LISTED)
    }


@pytest.mark.parametrize("path", sorted(ENGINE.glob("*.py")), ids=lambda path: path.stem)
def test_what_the_engine_uses_is_listed(path):
    """A private name that is used is looked for before: add it to `versions.NEEDED`, or a feature's list."""
    assert not unlisted(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C._not_listed()",
        "from torch._C import _functorch as stack\nstack._not_listed",
        "def f():\n    from torch._inductor import not_listed",
        "import torch._not_listed as name",
        "import sys\nsys.modules['torch._not_listed.module']",
    ],
)
def test_an_unlisted_name_is_seen(code):
    """However the module came by it."""
    assert len(unlisted(ast.parse(code))) == 1


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_is_used(name):
    """The list has nothing that the engine could do without."""
    sources = [path for path in [*ENGINE.glob("*.py"), ENGINE.parent / "_tree.py"] if path.stem != "versions"]
    assert any(name.rpartition(".")[2] in path.read_text(encoding="utf-8") for path in sources) or any(
        name in path.read_text(encoding="utf-8") for path in sources
    )


# For each name: take it away, load covector, put it back. Afterwards covector can be loaded.
WITHOUT = """
import torch
import torch.utils._pytree
for owner, name in (
    (torch._C._functorch, "_wrap_for_grad"),
    (torch._functorch.vmap, "lazy_load_decompositions"),
    (torch.utils._pytree, "keystr"),
    (torch._C._dynamo.eval_frame, "set_code_exec_strategy"),
):
    kept = getattr(owner, name)
    delattr(owner, name)
    for _ in range(2):
        try:
            import covector
        except ImportError as error:
            print(type(error).__name__, error)
        else:
            print("loaded")
    setattr(owner, name, kept)
import covector
print(covector.grad(torch.sin)(torch.zeros(())).item())
"""


def test_a_torch_that_lacks_a_name_is_refused_as_a_whole():
    """The error names the release, what is missing and what works; it is the same at the second try."""
    *refused, last = printed(WITHOUT).splitlines()
    names = [
        "torch._C._functorch._wrap_for_grad",
        "torch._functorch.vmap.lazy_load_decompositions",
        "torch.utils._pytree.keystr",
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    ]
    assert refused == [
        f"EngineError covector does not work with torch {torch.__version__}, which has no {name}. It is "
        f"known to work with torch {', '.join(versions.TESTED)}. Install one of these, or look whether "
        "there is a newer covector for this torch."
        for name in names
        for _ in range(2)
    ]
    assert last == "1.0"


def test_an_engine_error_is_an_import_error():
    """Code that does without covector where it cannot be imported goes on doing so."""
    with pytest.raises(ImportError, match=r"which has no torch\.nothing, torch\._C\.missing\. It is known"):
        versions.require(["torch.nothing", "torch.autograd", "torch._C.missing"], "jacobian")
    assert issubclass(EngineError, CovectorError)


def test_no_release_is_excluded_by_number():
    """The oldest release that was tested is the lower bound, and there is no upper one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch_requirement,) = [line for line in project["dependencies"] if line.startswith("torch")]
    assert torch_requirement == "torch>=" + versions.TESTED[0].rpartition(".")[0]


def test_the_table_has_the_releases_that_errors_name():
    """What an `EngineError` calls known to work has a row in the documentation, with what was run."""
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    table = page.partition("<!-- versions -->")[2].partition("<!-- /versions -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| 2.")]
    assert tuple(row.split("|")[1].strip() for row in rows) == versions.TESTED


SPEC = importlib.util.spec_from_file_location("tools_versions", ROOT / "tools" / "versions.py")
tool = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = tool  # dataclasses look there
SPEC.loader.exec_module(tool)

RECORD = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one" />
<testcase classname="tests.a" name="test_two[x]"><failure message="no">no</failure></testcase>
<testcase classname="tests.a" name="test_three"><skipped message="not today">a.py:3: not today</skipped>
</testcase>
<testcase classname="" name="tests.b"><skipped message="collection skipped">('b', 1, "Skipped: isn't here")\
</skipped></testcase>
</testsuite></testsuites>"""


def result(torch, passed=(), failed=(), skipped=(), commit="abc"):
    return tool.Result(torch, commit, "2026-01-01", "3.11", 125.0, list(passed), list(failed), dict(skipped))


def test_what_became_of_each_test_is_read(tmp_path):
    """A file that is skipped as a whole gives its reason, too."""
    (tmp_path / "tests.xml").write_text(RECORD, encoding="utf-8")
    assert tool.read(tmp_path / "tests.xml") == (
        ["tests.a::test_one"],
        ["tests.a::test_two[x]"],
        {"tests.a::test_three": "not today", "tests.b": "isn't here"},
    )


def test_no_test_is_left_out_without_a_row():
    """What failed or was skipped, and what is not there with some release."""
    old = result("2.9.1", ["a::f[x]", "a::f[y]", "a::g"], skipped={"b": "no compiler"})
    new = result("2.15.0", ["a::g"], ["c|d"], {"b": "no compiler"})
    assert tool.table([old, new]) == (
        f"{tool.RUNS}| 2.9.1 | 2026-01-01 | abc | 3.11 | 3 | 0 | 1 | 2 |\n"
        "| 2.15.0 | 2026-01-01 | abc | 3.11 | 1 | 1 | 1 | 2 |\n"
        f"{tool.DIFFERENCES}| `a::f` | 2 cases are not there | 2.15.0 |\n"
        "| `b` | skipped: no compiler | 2.9.1, 2.15.0 |\n"
        "| `c\\|d` | 1 cases are not there | 2.9.1 |\n| `c\\|d` | failed | 2.15.0 |\n"
    )


def test_the_table_has_its_place_in_the_page():
    """The page has the lines between which `--write` puts it, and the rest stays."""
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    once = tool.written(page, [result("2.9.1", ["a"])])
    assert once == tool.written(once, [result("2.9.1", ["a"])])
    assert "| 2.9.1 | 2026-01-01 | abc |" in once
    assert once.partition(tool.BEGIN)[0] == page.partition(tool.BEGIN)[0]
    assert once.partition(tool.END)[2] == page.partition(tool.END)[2]


def test_a_release_is_run_once_for_a_commit(monkeypatch, tmp_path):
    """What is kept is of this commit and of all tests; where there are changes, nothing is."""
    ran = []

    def run(version, tests):
        ran.append(version)
        return result(version, ["a"], commit=tool.commit())

    monkeypatch.setattr(tool, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(tool, "run", run)
    monkeypatch.setattr(tool, "commit", lambda: "abc")
    assert tool.result_of("2.9.1", []) == tool.result_of("2.9.1", [])
    tool.result_of("2.9.1", ["tests/test_rooms.py"])
    monkeypatch.setattr(tool, "commit", lambda: "def")
    tool.result_of("2.9.1", [])
    monkeypatch.setattr(tool, "commit", lambda: "")
    tool.result_of("2.9.1", [])
    tool.result_of("2.9.1", [])
    assert ran == ["2.9.1"] * 5
    assert len(list((tmp_path / "kept").iterdir())) == 2
