"""Every example that a user can read is run."""

import doctest
import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest

import covector

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
IMAGES = runpy.run_path(str(DOCS / "make_images.py"))
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

# What `make docs` makes pages of, without what it has made.
SOURCES = [path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts]

# Every page with a Python session in it; the files in the others are run by tests of their own.
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *SOURCES)
    if "```python\n>>>" in path.read_text(encoding="utf-8")
]

LINKING = [
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *(path.relative_to(ROOT).as_posix() for path in SOURCES),
]

# The modules that users may import from; each says what in its `__all__`.
PUBLIC_MODULES = ["covector", "covector.functional", "covector.scipy", "covector.compat", "covector.errors"]


def run(text, name):
    """Run a text as somebody would who types it into an interpreter."""
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    report = []
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    with IMAGES["session"]() as test.globs:
        runner.run(test, out=report.append, clear_globs=False)
    return runner.summarize(verbose=False), "".join(report)


def public_functions():
    """Every function that users may import, as module and name."""
    for module in PUBLIC_MODULES:
        names = importlib.import_module(module).__all__
        yield from ((module, name) for name in names if name[0].islower())


@pytest.mark.parametrize(("module", "name"), list(public_functions()))
def test_docstring_example(module, name):
    """The example in the docstring gives what it shows."""
    results, report = run(getattr(importlib.import_module(module), name).__doc__, name)
    assert results.attempted > 0
    assert results.failed == 0, report


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    """Every Python block of the page runs, in order, and gives what it shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    results, report = run("\n".join(blocks), page)
    assert results.attempted > 0
    assert results.failed == 0, report


def entries(page):
    """The pages in the toctrees of a page."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    names = [re.sub(r".*<(.+)>", r"\1", line) for line in lines]
    return [page.parent / f"{name}.md" for name in names]


def test_every_page_is_in_the_index():
    """And every entry of the index is a page."""
    index = DOCS / "index.md"
    reachable, waiting = {index}, [index]
    while waiting:
        found = [page for page in entries(waiting.pop()) if page not in reachable]
        reachable.update(found)
        waiting.extend(page for page in found if page.exists())
    assert reachable == set(SOURCES)


def documented():
    """The objects that the reference describes, by the names in its directives."""
    for page in (DOCS / "reference").glob("*.md"):
        for kind, name in re.findall(
            r"^\.\. auto(\w+):: ([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if kind == "module":
                module = importlib.import_module(name)
                yield from ((f"{name}.{member}", getattr(module, member)) for member in module.__all__)
            else:
                module, _, member = name.rpartition(".")
                yield name, getattr(importlib.import_module(module), member)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_in_the_reference(module):
    """Under this name, or under that of the module where it lives."""
    described = [described for _, described in documented()]
    public = importlib.import_module(module)
    things = {name: getattr(public, name) for name in public.__all__}
    described += [thing for thing in things.values() if any(inspect.unwrap(thing) is d for d in described)]
    assert not [name for name, thing in things.items() if not any(thing is d for d in described)]


def test_nothing_is_in_the_reference_twice():
    """One place to look each name up."""
    names = [name for name, _ in documented()]
    assert len(names) == len(set(names))


def anchors(page):
    """What can follow a # in a link to the page: its headings as they are made into anchors."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING)
def test_no_link_is_dead(page):
    """Links to other pages, headings and pictures; what lies on other hosts is not asked."""
    path = ROOT / page
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        target, _, anchor = link.partition("#")
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), link
        assert not anchor or anchor in anchors(linked), link


def test_pages_named_in_the_text_exist():
    """The README and the docstrings name pages by their path."""
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SOURCES, *(ROOT / "src").rglob("*.py")]
    named = {
        name for path in texts for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


PICTURES = {
    "failure.svg": ("report", "2.000&#160;x&#160;the&#160;numeric&#160;gradient"),
    "kernel.svg": ("kernel_report", "the&#160;last&#160;3&#160;indices"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_of_a_failure_is_up_to_date(name):
    """`docs/make_images.py` makes it; bounds vary between machines, and how often a function is run may."""
    report, said = PICTURES[name]

    def settled(text):
        text = re.sub(r"\+-(&#160;|\s)\S+?e-\d+", "+- ...", text)
        text = re.sub(r"\d+&#160;calls", "calls", text)
        # The figures of a kernel are rounding errors, which differ between releases of torch.
        return re.sub(r"<[^>]*>|&#160;|[^a-z]", "", text) if name == "kernel.svg" else text

    shown = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
    title = re.search(r">(covector\.[^<]*)</text>", shown)[1].replace("&#160;", " ")
    made = IMAGES["svg"](IMAGES[report](), title)
    assert settled(made) == settled(shown)
    assert said in made
    assert "@font-face" not in made


def test_tour(capsys):
    """The tour that `make demo` takes reaches its end."""
    runpy.run_path(str(ROOT / "examples" / "tour.py"))
    assert "Hessian" in capsys.readouterr().out


EVERY = [
    *(getattr(room, name) for room in (covector, covector.functional) for name in room.__all__),
    covector.sparsity.__wrapped__,
]
VERBS = [verb for verb in EVERY if inspect.isfunction(verb) and inspect.signature(verb).parameters]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb.__module__}.{verb.__name__}")
def test_every_parameter_is_explained_where_it_stands(verb):
    """Also those that are written down at another verb, and none that it does not take."""
    section = inspect.getdoc(verb).split("Args:\n")[1].split("\n\n")[0]
    explained = re.findall(r"^    (\w+(?:, \w+)*): ", section, re.MULTILINE)
    assert {name for names in explained for name in names.split(", ")} == {
        *inspect.signature(verb).parameters
    }
