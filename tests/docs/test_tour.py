"""The tour of the code names files and what is in them: all of it is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TOUR: Final = ROOT / "docs" / "tour.md"
STEPS: Final = re.findall(r"\[`([^`]+)`\]\(\.\./(packages/[^)]+\.py)\)", TOUR.read_text(encoding="utf-8"))


def names(tree: ast.AST, within: str = "") -> Iterator[str]:
    """What a file defines: functions, classes, their methods, and constants at the top."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield within + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node, f"{within}{node.name}.")
        elif isinstance(node, ast.Assign):
            yield from (within + target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield within + node.target.id


def test_every_step_of_the_tour_is_in_its_file() -> None:
    missing = []
    for name, path in STEPS:
        file = ROOT / path
        if not file.is_file():
            missing.append(f"{path}: no such file")
        elif name != file.name and name not in set(names(ast.parse(file.read_text(encoding="utf-8")))):
            missing.append(f"{path} has no {name}")
    assert missing == []
    assert len(STEPS) > 100, "four walks and a table of changes"
