"""Make the pictures of the documentation: `python docs/make_images.py`.

`failure.svg` is the report of the first check in the README as a terminal shows it, `page.png` its page,
`kernel.svg` the report of the planted bug in `how-to/kernels.md`.
`page.png` needs playwright and Chromium, and is left as it is without them.
"""

import doctest
import io
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from rich.console import Console

import covector

IMAGES = Path(__file__).parent / "images"
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))


README = Path(__file__).parent.parent / "README.md"
KERNELS = Path(__file__).parent / "how-to" / "kernels.md"


@contextmanager
def session():
    """The names of an interpreter in which somebody types what a page shows."""
    outside, inside = sys.modules["__main__"], ModuleType("__main__")
    sys.modules["__main__"] = inside
    try:
        yield vars(inside)
    finally:
        sys.modules["__main__"] = outside


def report():
    """The report of the first check in the README, which fails."""
    with session() as names:
        for example in doctest.DocTestParser().get_examples(README.read_text(encoding="utf-8")):
            try:
                exec(compile(example.source, "README.md", "exec"), names)
            except covector.GradcheckError as error:
                return error.report
    raise AssertionError("the first check of the README fails")


def kernel_report():
    """The first report that fails on the page about kernels."""
    with session() as names:
        for example in doctest.DocTestParser().get_examples(KERNELS.read_text(encoding="utf-8")):
            exec(compile(example.source, "kernels.md", "exec"), names)
            if "report" in names and not names["report"]:
                return names["report"]
    raise AssertionError("a check of the page fails")


def svg(shown, title):
    """A report as a terminal shows it."""
    console = Console(file=io.StringIO(), record=True, width=100, force_terminal=True)
    console.print(shown)
    text = console.export_svg(title=title, unique_id="covector")
    # Without the fonts that rich would have the reader's browser load from elsewhere.
    return re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL)


def screenshot(path):
    """The Jacobians on the page, with the pointer on a wrong entry."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "page.html"
        report().to_html(page_path)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 1500}, color_scheme="light")
        page.goto(page_path.as_uri())
        page.locator("#map-error").hover(position={"x": 117, "y": 8})
        page.locator("section[aria-labelledby=jacobians]").screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    (IMAGES / "failure.svg").write_text(
        svg(report(), "covector.gradcheck(Affine.apply, inputs)"), encoding="utf-8"
    )
    title = "covector.check_kernel(Wrong.apply, reference, x)"
    (IMAGES / "kernel.svg").write_text(svg(kernel_report(), title), encoding="utf-8")
    if CHROMIUM.exists() and find_spec("playwright"):
        screenshot(IMAGES / "page.png")
