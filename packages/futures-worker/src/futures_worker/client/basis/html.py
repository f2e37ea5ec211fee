"""How objects look in a notebook: a caption and a small table, every text escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


def panel(title: str, rows: Mapping[str, Any]) -> str:
    """HTML for `_repr_html_`."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(str(name))}</th><td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<div><strong>{escape(title)}</strong><table>{cells}</table></div>"
