"""What every package of the repository must have, and the layers that no import may break."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from workspace import PROJECTS, closure, siblings  # noqa: E402

ALLOWED = {
    "fdb-embedded": set(),
    "fdb-schema": {"fdb_embedded"},
    "idempotent-txn": {"fdb_schema"},
    "lease-locks": {"idempotent_txn", "fdb_schema"},
    "fdb-datamodel": {"idempotent_txn", "fdb_schema"},
    "futures-worker": {"fdb_datamodel", "idempotent_txn", "fdb_schema"},
    "s3heap-tender": {"lease_locks", "idempotent_txn", "fdb_schema"},
}
PLUGINS = {"futures_worker_pytest": {"futures_worker", "fdb_embedded"}}
"""Plugins of other programs, each a package beside that which it is installed with, and what they may import besides."""
OURS = {name.replace("-", "_") for name in PROJECTS}


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_every_package_says_who_it_is(name: str) -> None:
    folder = PROJECTS[name]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["version"] == "0.1.0"
    assert project["license"] == "Apache-2.0"
    assert project["requires-python"] == ">=3.11"
    assert len((folder / "README.md").read_text()) > 100
    assert (folder / "src" / name.replace("-", "_") / "py.typed").exists()
    pinned = re.sub(r"\[[\w,-]+\]==", "==", str(project))  # with an extra or without one
    assert all(f"{sibling}==0.1.0" in pinned for sibling in siblings(name))


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_nothing_imports_upward(name: str) -> None:
    own = name.replace("-", "_")
    for file in (PROJECTS[name] / "src").rglob("*.py"):
        beside = PLUGINS.get(file.relative_to(PROJECTS[name] / "src").parts[0], set())
        for node in ast.walk(ast.parse(file.read_text())):
            modules = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for module in modules:
                top = module.split(".")[0]
                assert top not in OURS or top == own or top in ALLOWED[name] | beside, (
                    f"{file.relative_to(ROOT)} imports {module}"
                )


def test_a_package_comes_after_those_it_needs() -> None:
    names = {folder: name for name, folder in PROJECTS.items()}
    order = [names[folder] for folder in closure(["mainspring"])]
    for name in order:
        assert all(order.index(sibling) < order.index(name) for sibling in siblings(name))


def test_an_unknown_package_is_named() -> None:
    with pytest.raises(SystemExit, match="no package 'nonsense' here"):
        closure(["nonsense"])
