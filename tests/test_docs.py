"""Every example that a user can read is run."""

import doctest
import re
import runpy
from pathlib import Path

import pytest

import covector

ROOT = Path(__file__).parent.parent
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


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


@pytest.mark.parametrize("page", ["README.md", "docs/jacobians.md"])
def test_page(page):
    """Every Python block of the page runs, in order, and gives what it shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    results, report = run("\n".join(blocks), page, {})
    assert results.attempted > 0
    assert results.failed == 0, report


def test_tour(capsys):
    """The tour that `make demo` takes reaches its end."""
    runpy.run_path(str(ROOT / "examples" / "tour.py"))
    assert "Hessian" in capsys.readouterr().out
