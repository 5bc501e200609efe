"""How the pages are built: `make docs`."""

import tomllib
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

project = "covector"
author = copyright = PROJECT["authors"][0]["name"]
version = release = PROJECT["version"]

extensions = ["myst_parser", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"covector {version}"
html_static_path = []
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


def setup(app):
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("doctree-read", without_last_blank)
