"""Every example that a user can read is run."""

import doctest
import re
import runpy
from pathlib import Path

import pytest

import covector
from covector import functional

ROOT = Path(__file__).parent.parent
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

# Every page with Python in it.
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if "```python" in path.read_text()
]


def run(text, name, namespace):
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    report = []
    runner.run(doctest.DocTestParser().get_doctest(text, namespace, name, name, 0), out=report.append)
    return runner.summarize(verbose=False), "".join(report)


@pytest.mark.parametrize("name", [name for name in covector.__all__ if name[0].islower()])
def test_docstring_example(name):
    """The example in the docstring gives what it shows."""
    results, report = run(getattr(covector, name).__doc__, name, {})
    assert results.attempted > 0
    assert results.failed == 0, report


@pytest.mark.parametrize("name", functional.__all__)
def test_docstring_example_of_functional(name):
    """The same for the verbs of the functional door."""
    results, report = run(getattr(functional, name).__doc__, name, {})
    assert results.attempted > 0
    assert results.failed == 0, report


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    """Every Python block of the page runs, in order, and gives what it shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    results, report = run("\n".join(blocks), page, {})
    assert results.attempted > 0
    assert results.failed == 0, report


def test_the_picture_of_a_failure_is_up_to_date():
    """`docs/make_images.py` makes it; bounds vary between machines, and how often a function is run may."""
    images = runpy.run_path(str(ROOT / "docs" / "make_images.py"))

    def settled(text):
        text = re.sub(r"\+-(&#160;|\s)\S+?e-\d+", "+- ...", text)
        return re.sub(r"\d+&#160;calls", "calls", text)

    shown, made = (ROOT / "docs" / "images" / "failure.svg").read_text(), images["svg"]()
    assert settled(made) == settled(shown)
    assert "2.000&#160;x&#160;the&#160;numeric&#160;gradient" in made
    assert "@font-face" not in made


def test_tour(capsys):
    """The tour that `make demo` takes reaches its end."""
    runpy.run_path(str(ROOT / "examples" / "tour.py"))
    assert "Hessian" in capsys.readouterr().out
