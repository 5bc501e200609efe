"""Make the pictures of the documentation: `python docs/make_images.py`.

`failure.svg` is the report of a failed check as a terminal shows it, `page.png` the page of the same check.
The latter needs playwright and Chromium, and is left as it is without them.
"""

import io
import os
import re
import tempfile
from pathlib import Path

import torch
from rich.console import Console

import covector

IMAGES = Path(__file__).parent / "images"
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))


class Affine(torch.autograd.Function):
    """x @ weight + bias, with a gradient for the weight that is twice too large."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output @ weight.T, 2 * x.T @ grad_output, grad_output.sum(0)


def affine(x, weight, bias):
    return Affine.apply(x, weight, bias).tanh()


def report():
    """The report of a check that fails."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (3, 5), (5,))
    inputs = [torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for s in shapes]
    return covector.check(affine, tuple(inputs))


def svg():
    """The report as a terminal shows it."""
    console = Console(file=io.StringIO(), record=True, width=100, force_terminal=True)
    console.print(report())
    text = console.export_svg(title="python check_affine.py", unique_id="covector")
    # Without the fonts that rich would have the reader's browser load from elsewhere.
    return re.sub(r"\s*@font-face \{.*?\}", "", text, flags=re.DOTALL)


def screenshot(path):
    """The Jacobians on the page, with the pointer on an entry."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "page.html"
        report().to_html(page_path)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 1500}, color_scheme="light")
        page.goto(page_path.as_uri())
        page.locator("#map-error").hover(position={"x": 112, "y": 72})
        page.locator("section[aria-labelledby=jacobians]").screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    (IMAGES / "failure.svg").write_text(svg())
    if CHROMIUM.exists():
        screenshot(IMAGES / "page.png")
