"""Any recent torch: what the engine needs is listed, looked for at once, and named when it is missing."""

import ast
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


def unlisted(tree):
    return {
        name
        for name in used_of_torch(tree)
        if private(name) and not any(f"{listed}.".startswith(f"{name}.") for listed in LISTED)
    }


@pytest.mark.parametrize("path", sorted(ENGINE.glob("*.py")), ids=lambda path: path.stem)
def test_what_the_engine_uses_is_listed(path):
    """A private name that is used is looked for before: add it to `versions.NEEDED`, or a feature's list."""
    assert not unlisted(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C._not_listed()",
        "from torch._C import _functorch as stack\nstack._not_listed",
        "def f():\n    from torch._inductor import not_listed",
        "import torch._not_listed as name",
    ],
)
def test_an_unlisted_name_is_seen(code):
    """However the module came by it."""
    assert len(unlisted(ast.parse(code))) == 1


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_is_used(name):
    """The list has nothing that the engine could do without."""
    sources = [path for path in [*ENGINE.glob("*.py"), ENGINE.parent / "_tree.py"] if path.stem != "versions"]
    assert any(name.rpartition(".")[2] in path.read_text() for path in sources) or any(
        name in path.read_text() for path in sources
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch_requirement,) = [line for line in project["dependencies"] if line.startswith("torch")]
    assert torch_requirement == "torch>=" + versions.TESTED[0].rpartition(".")[0]


def test_the_table_has_the_releases_that_errors_name():
    """What an `EngineError` calls known to work has a row in the documentation, with what was run."""
    rows = [
        line for line in (ROOT / "docs" / "versions.md").read_text().splitlines() if line.startswith("| 2.")
    ]
    assert {row.split("|")[1].strip() for row in rows} >= set(versions.TESTED)
