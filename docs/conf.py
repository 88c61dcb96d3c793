"""Configure the documentation site, which `make docs` builds."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

# The two extensions that are next to this file.
sys.path.insert(0, str(Path(__file__).parent))

project = "qdqbert"
version = release = metadata.version("qdqbert")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_reference",
    "docstring_reference",
]

# Links to headings are written as on GitHub.
myst_heading_anchors = 4
# Dashes are made long, and quotes stay as they are typed.
smartquotes_action = "D"
# Blocks without a language are shown as they are.
highlight_language = "none"

# Docstrings mark names as Markdown does, with one backtick on each side.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"qdqbert {release}"
html_copy_source = False
html_show_copyright = False
