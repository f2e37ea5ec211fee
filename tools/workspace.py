"""The repository's packages, and which of its siblings each needs: read from their own pyproject.toml files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def _projects() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")) + sorted(ROOT.glob("services/*/pyproject.toml")):
        found[str(tomllib.loads(file.read_text())["project"]["name"])] = file.parent
    return found


PROJECTS: Final = _projects()
"""Distribution name → folder, of every package and service."""


def extras(name: str) -> list[str]:
    """The names of the extras of a package; none of what is none."""
    if name not in PROJECTS:
        return []
    project = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())["project"]
    return sorted(project.get("optional-dependencies", {}))


def siblings(name: str) -> list[str]:
    """The distributions of this repository that `name` requires, extras included."""
    project = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())["project"]
    requirements: list[str] = list(project.get("dependencies", []))
    for extra in project.get("optional-dependencies", {}).values():
        requirements += extra
    names = [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in requirements]
    return [found for found in names if found in PROJECTS and found != name]


def closure(names: Sequence[str]) -> list[Path]:
    """Folders of `names` and of all their siblings, each after those it needs.

    Raises `SystemExit` for a name that no package here has.
    """
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name not in PROJECTS:
            raise SystemExit(f"there is no package {name!r} here; there are: {', '.join(PROJECTS)}")
        if name in ordered:
            return
        for sibling in siblings(name):
            visit(sibling)
        if name not in ordered:
            ordered.append(name)

    for name in names:
        visit(name)
    return [PROJECTS[name] for name in ordered]


def requirements(*, optional: bool) -> list[str]:
    """What the packages ask for from elsewhere, each requirement once, sorted; with `optional`, what extras bring too."""
    found: set[str] = set()
    for folder in PROJECTS.values():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        found.update(project.get("dependencies", []))
        if optional:
            found.update(*project.get("optional-dependencies", {}).values())
    return sorted(one for one in found if re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] not in PROJECTS)
