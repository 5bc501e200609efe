"""How the pages are built: `make docs`."""

import doctest
import re
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]

project = "covector"
author = copyright = PROJECT["authors"][0]["name"]
version = release = PROJECT["version"]

extensions = ["myst_parser", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"covector {version}"
html_static_path = ["style"]
html_css_files = ["narrow.css"]
html_copy_source = False
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
# A button copies what is typed, without prompts and output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_math_renderer = "mathml"

# In docstrings, `a word in single backticks` is code, as in the pages.
default_role = "literal"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
# One parameter to a line, and short names of types.
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80


def without_last_blank(app, document):
    """Code as it is shown: the empty line that ends a session in a page is for doctest."""
    for block in document.findall(nodes.literal_block):
        text = block.astext().rstrip("\n")
        block.rawsource, block.children = text, [nodes.Text(text)]


def inline_formula(writer, node):
    """A formula as MathML, which browsers show by themselves: nothing is loaded from elsewhere."""
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def formula(writer, node):
    """The same on lines of its own."""
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def gallery_reports():
    """The reports of the gallery, in the order in which it shows what they say."""
    import torch

    import covector

    names, reports = {}, []

    def said(forward, backward, *shapes):
        torch.manual_seed(0)
        inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        reports.append(covector.check(names["function"](forward, backward), inputs))

    text = (Path(__file__).parent / "gallery.md").read_text(encoding="utf-8")
    for example in doctest.DocTestParser().get_examples(text):
        if example.source.startswith("def said("):
            names["said"] = said
        elif not example.source.startswith("print("):
            exec(compile(example.source, "gallery.md", "exec"), names)
    return reports


def link_pages(app, document):
    """Under each block of the gallery, links to the pages of its reports."""
    if app.env.docname != "gallery":
        return
    count = 0
    for block in list(document.findall(nodes.literal_block)):
        links = []
        for _ in re.findall(r"^>>> said\(", block.astext(), re.MULTILINE):
            count += 1
            links.append(f'<a href="gallery/{count}.html">{count}</a>')
        if links:
            words = "The page of this report" if len(links) == 1 else "The pages of these reports"
            html = f"<p>{words}: {', '.join(links)}</p>"
            block.parent.insert(block.parent.index(block) + 1, nodes.raw("", html, format="html"))


def write_pages(app, error):
    """The pages that the gallery links to."""
    if error is None and app.builder.name == "html":
        folder = Path(app.outdir) / "gallery"
        folder.mkdir(exist_ok=True)
        for number, report in enumerate(gallery_reports(), start=1):
            assert not report, f"failure {number} of the gallery passes"
            report.to_html(folder / f"{number}.html")


def setup(app):
    app.connect("doctree-read", link_pages)
    app.connect("build-finished", write_pages)
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("doctree-read", without_last_blank)
