"""A release is consistent, what it needs is free to use, and the tool that makes one does what it says."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import release  # noqa: E402
from licences import FORBIDDEN, Licence, needed  # noqa: E402


def test_the_tree_could_be_released() -> None:
    assert release.problems(ROOT) == []


def test_every_licence_that_is_needed_is_allowed() -> None:
    found = needed()
    assert {"foundationdb", "lmdb", "msgpack", "typer", "rich", "cloudpickle", "aioboto3"} <= {
        one.name for one in found
    }
    assert [one for one in found if not one.allowed and one.licence != "not installed"] == []


@pytest.mark.parametrize("text", ["GPL-3.0-only", "GNU Affero General Public License v3", "MIT OR SSPL", "proprietary"])
def test_what_isn_t_free_to_use_is_found(text: str) -> None:
    assert FORBIDDEN.search(text)
    assert not Licence("x", "1", text).allowed
    assert not Licence("x", "1", "").allowed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file in [ROOT / "CHANGELOG.md", ROOT / "docs" / "conf.py", ROOT / "tests" / "docs" / "test_repository.py"]:
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    for folder in ("packages", "services"):
        ignore = shutil.ignore_patterns("tests", "__pycache__", "static", "node_modules")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('version = "{v}"', 'version = "9.9.9"', "packages have different versions"),
        ("idempotent-txn=={v}", "idempotent-txn>=0", "and must pin =={v}"),
        ('"cloudpickle>=3.0"', '"cloudpickle"', "'cloudpickle' has no lower bound"),
        ('"cloudpickle>=3.0"', '"cloudpickle>=3.1"', "cloudpickle has different ranges"),
    ],
)
def test_what_is_inconsistent_is_named(tree: Path, before: str, after: str, says: str) -> None:
    version = release.projects(tree)["lease-locks"][1]["version"]
    file = tree / "packages" / "lease-locks" / "pyproject.toml"
    text = file.read_text()
    assert before.format(v=version) in text
    file.write_text(text.replace(before.format(v=version), after))
    assert any(says.format(v=version) in problem for problem in release.problems(tree))


def test_a_missing_type_marker_is_named(tree: Path) -> None:
    (tree / "packages" / "lease-locks" / "src" / "lease_locks" / "py.typed").unlink()
    assert any("py.typed is missing" in problem for problem in release.problems(tree))


def test_a_new_version_is_set_everywhere_and_the_changelog_says_when(tree: Path) -> None:
    before = release.projects(tree)["lease-locks"][1]["version"]
    changed = release.set_version(tree, "7.8.9", "2031-02-03")
    assert {table["version"] for _, table in release.projects(tree).values()} == {"7.8.9"}
    assert release.problems(tree) == []
    assert not [file for file in tree.rglob("pyproject.toml") if f'"{before}"' in file.read_text()]
    assert tree / "CHANGELOG.md" in changed
    assert "## 7.8.9 (2031-02-03)" in (tree / "CHANGELOG.md").read_text()
    assert "mainspring up" in release.notes(tree, "7.8.9")
    assert '__version__ = "7.8.9"' in (tree / "packages/fdb-embedded/src/fdb_embedded/__init__.py").read_text()
    with pytest.raises(LookupError, match="no section"):
        release.notes(tree, "1.2.3")
    with pytest.raises(ValueError, match="is no version"):
        release.set_version(tree, "latest", "2031-02-03")


@pytest.mark.parametrize("home", [None, "https://example.org/mainspring"])
def test_a_readme_stands_alone_on_an_index(tmp_path: Path, home: str | None) -> None:
    folders = release.stage(ROOT, tmp_path / "staged", home)
    assert len(folders) == len(release.projects(ROOT))
    version = release.projects(ROOT)["lease-locks"][1]["version"]
    text = "".join((folder / "README.md").read_text() for folder in folders)
    assert not re.findall(r"\]\((?!https?:|mailto:|#)", text)
    assert (f"/mainspring/blob/v{version}/docs/security.md" in text) == (home is not None)
    assert ("security (`docs/security.md`)" in text) == (home is None)
    for folder in folders:
        urls = tomllib.loads((folder / "pyproject.toml").read_text())["project"].get("urls", {})
        assert urls.get("Repository") == home
