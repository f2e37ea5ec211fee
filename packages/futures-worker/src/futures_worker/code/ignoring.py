"""Which files of a folder don't travel: rules as those of a .gitignore, the last one that fits decides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

IGNORE_FILE: Final = ".mainspringignore"
NEVER_NEEDED: Final = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", ".tox/", ".nox/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".mainspring/", ".DS_Store",
)  # fmt: skip
"""Rules that come first: a folder's own can take them back, as `!venv/`."""


class Rule(NamedTuple):
    """One line. back: it is sent all the same (`!`). folders: it is of folders only (`/` at its end)."""

    pattern: re.Pattern[str]
    back: bool
    folders: bool


def read_rules(lines: Iterable[str]) -> list[Rule]:
    """The rules of these lines. Raises ValueError for one that can't be read."""
    found: list[Rule] = []
    for line in lines:
        text = line.rstrip()
        if not text or text.startswith("#"):
            continue
        back = text.startswith("!")
        text = text.removeprefix("!")
        folders = text.endswith("/")
        text = text.rstrip("/")
        anchored = "/" in text
        text = text.lstrip("/")
        if not text:
            raise ValueError(f"{line.rstrip()!r} names nothing")
        found.append(Rule(re.compile(("" if anchored else "(?:.*/)?") + _expression(text)), back, folders))
    return found


def ignored(rules: Iterable[Rule], path: str, folder: bool) -> bool:
    """Whether a path, relative to the folder, is left out. What is in an ignored folder is never asked for."""
    out = False
    for rule in rules:
        if (folder or not rule.folders) and rule.pattern.fullmatch(path):
            out = not rule.back
    return out


def _expression(glob: str) -> str:
    """A regular expression of a pattern: `*` and `?` stop at `/`, `**` doesn't, `[a-z]` is one of these."""
    parts: list[str] = []
    at = 0
    while at < len(glob):
        one = glob[at]
        if glob.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif glob.startswith("**", at):
            parts.append(".*")
            at += 2
        elif one == "*":
            parts.append("[^/]*")
            at += 1
        elif one == "?":
            parts.append("[^/]")
            at += 1
        elif one == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            parts.append(f"[{'^' + inside[1:] if inside[0] == '!' else inside}]")
            at = end + 1
        else:
            parts.append(re.escape(one))
            at += 1
    return "".join(parts)
