"""How the pages are built: `make docs`."""

import tomllib
from pathlib import Path

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
# The names under which users import things, one parameter to a line.
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
# Without links: `argnums, argnames` and `ArgumentTypeError, OptionError` describe several at once.
napoleon_use_ivar = True
