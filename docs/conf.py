"""How the pages are built: `make docs`."""

import tomllib
from pathlib import Path

from docutils import nodes

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

project = "covector"
author = copyright = PROJECT["authors"][0]["name"]
version = release = PROJECT["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"covector {version}"
html_static_path = []
html_copy_source = False
myst_heading_anchors = 3

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


def setup(app):
    app.connect("doctree-read", without_last_blank)
