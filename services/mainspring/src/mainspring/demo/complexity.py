"""What the demo computes: the functions of Python sources ranked by cyclomatic complexity. Pure, and merged in any order.

Complexity is McCabe's: one plus the decisions of a function (branches, loops, handlers, cases, boolean operators,
conditions of comprehensions). A nested function is ranked by itself and doesn't count for the one around it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

KEPT: Final = 400
"""How many functions of a report are ranked; more are only counted."""


@dataclass(frozen=True, slots=True, order=True)
class RankedFunction:
    """A function and its complexity; sorts by falling complexity, then by place."""

    order: int  # minus the complexity
    file: str
    line: int
    name: str

    @property
    def complexity(self) -> int:
        return -self.order


@dataclass(frozen=True, slots=True)
class Report:
    """Counts over some files, and their most complex functions (at most `KEPT`, sorted)."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    complexity: int = 0  # the sum over all functions
    unparsable: tuple[str, ...] = ()
    ranking: tuple[RankedFunction, ...] = field(default=(), repr=False)


def _decisions(node: ast.AST) -> int:
    if isinstance(node, (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert)):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    if isinstance(node, ast.Match):
        return len(node.cases)
    return 0


def _walk(node: ast.AST, prefix: str, file: str) -> Iterator[tuple[RankedFunction | None, int]]:
    """Every function below `node`, as (function, 0), every class as (None, 1)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = prefix + child.name
            yield RankedFunction(-_complexity(child), file, child.lineno, name), 0
            yield from _walk(child, name + ".", file)
        elif isinstance(child, ast.ClassDef):
            yield None, 1
            yield from _walk(child, prefix + child.name + ".", file)
        else:
            yield from _walk(child, prefix, file)


def _complexity(function: ast.AST) -> int:
    total = 1
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        total += _decisions(node)
        pending.extend(ast.iter_child_nodes(node))
    return total


def analyse_file(root: str, file: str) -> Report:
    """The report of one file, `file` relative to `root`. A file that Python can't parse is named, not an error."""
    return analyse_source((Path(root) / file).read_bytes(), file)


def analyse_source(source: bytes, file: str) -> Report:
    """The report of one file's text; `file` is only its name."""
    lines = source.count(b"\n") + (not source.endswith(b"\n") and bool(source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, file)
            found = list(_walk(tree, "", file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Report(files=1, lines=lines, unparsable=(file,))
    functions = sorted(function for function, _ in found if function is not None)
    return Report(
        files=1,
        lines=lines,
        functions=len(functions),
        classes=sum(count for _, count in found),
        complexity=sum(function.complexity for function in functions),
        ranking=tuple(functions[:KEPT]),
    )


def merge_reports(reports: Iterable[Report]) -> Report:
    """The report over all the reports' files; the same in whatever order and grouping they are merged."""
    listed = list(reports)
    return Report(
        files=sum(report.files for report in listed),
        lines=sum(report.lines for report in listed),
        functions=sum(report.functions for report in listed),
        classes=sum(report.classes for report in listed),
        complexity=sum(report.complexity for report in listed),
        unparsable=tuple(sorted(name for report in listed for name in report.unparsable)),
        ranking=tuple(sorted(function for report in listed for function in report.ranking)[:KEPT]),
    )


def python_files(root: Path) -> list[str]:
    """Every `.py` file below `root`, relative to it, sorted; installed packages of an interpreter are left out."""
    found = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not {"site-packages", "dist-packages", "__pycache__"} & set(relative.parts) and path.is_file():
            found.append(str(relative))
    return sorted(found)
