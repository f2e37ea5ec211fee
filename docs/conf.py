"""How the documentation site is built; `nox -s docs` gathers its sources first (tools/make_site.py)."""

from __future__ import annotations

import re
from typing import Any

project = "Mainspring"
author = "Mainspring's maintainers"
project_copyright = author
release = version = "0.1.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["README.md"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.strikethrough"]

autodoc_default_options = {"show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"  # one pair of backticks is code, as in the docstrings' own style
add_module_names = False

html_theme = "furo"
html_title = "Mainspring"
html_static_path = ["static"]
html_extra_path = ["extra"]  # the last report, if there is one
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

_TABLE = re.compile(r"^\s*\|.*\|\s*$")


def _plain(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings are written to be read in an editor: their tables become literal blocks, and nothing else is changed."""
    made: list[str] = []
    inside = False
    for line in lines:
        row = bool(_TABLE.match(line))
        if row and not inside:
            made += ["", "::", ""]
        if inside and not row:
            made.append("")
        made.append(("    " + line.strip()) if row else line)
        inside = row
    lines[:] = [
        re.sub(r"(?<![`|])\|(\w[^|`]*)\|(?!`)", r"\\|\1\\|", line) if not line.startswith("    ") else line
        for line in made
    ]


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", _plain, priority=400)
