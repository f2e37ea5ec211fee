"""What a release must be, and how one is made.

    python tools/release.py check              every problem, one per line; exit code 1 where there is one
    python tools/release.py set 0.2.0          that version in every package, every sibling's pin, the changelog
    python tools/release.py notes 0.1.0        the changelog's section of a release
    python tools/release.py stage FOLDER       the packages as they are built: their READMEs stand alone on an index

MAINSPRING_HOME is the address of the repository's page. What is staged with it says so, and its READMEs link there; without
it they name the files that they point to.

All packages share one version and pin their siblings to it, since they are tested together. A third-party package has one
range wherever it is named, with a lower bound; it may be named by several packages.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from make_site import relinked

ROOT: Final = Path(__file__).resolve().parent.parent
_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+")
_VERSION: Final = re.compile(r"^\d+\.\d+\.\d+$")


def projects(root: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Distribution → (its folder, its [project] table), of every package and service."""
    files = sorted(root.glob("packages/*/pyproject.toml")) + sorted(root.glob("services/*/pyproject.toml"))
    tables = [(file.parent, tomllib.loads(file.read_text())["project"]) for file in files]
    return {table["name"]: (folder, table) for folder, table in tables}


def problems(root: Path) -> list[str]:
    """What keeps the tree from being released; each names its package."""
    found: list[str] = []
    known = projects(root)
    versions = {name: str(table["version"]) for name, (_, table) in known.items()}
    if len(set(versions.values())) != 1:
        found.append(f"packages have different versions: {versions}")
    ranges: dict[str, dict[str, str]] = {}
    for name, (folder, table) in known.items():
        module = folder / "src" / name.replace("-", "_")
        for file in (folder / "README.md", module / "__init__.py", module / "py.typed"):
            if not file.exists():
                found.append(f"{name}: {file.relative_to(root)} is missing")
        for key in ("description", "readme", "license", "requires-python", "classifiers"):
            if key not in table:
                found.append(f"{name}: its pyproject.toml says no {key}")
        listed = list(table.get("dependencies", []))
        for extra in table.get("optional-dependencies", {}).values():
            listed += extra
        for requirement in listed:
            match = _NAME.match(requirement)
            needed = match.group() if match else requirement
            rest = requirement[len(needed) :].partition(";")[0].strip()
            rest = re.sub(r"^\[[^\]]*\]", "", rest).strip()
            if needed in known:
                if rest != f"=={versions[needed]}":
                    found.append(f"{name}: needs {needed}{rest}, and must pin =={versions[needed]}")
            elif ">=" not in rest and "==" not in rest and "~=" not in rest:
                found.append(f"{name}: {requirement!r} has no lower bound")
            else:
                ranges.setdefault(needed.lower(), {})[name] = rest
    for needed, by in ranges.items():
        if len(set(by.values())) > 1:
            found.append(f"{needed} has different ranges: {by}")
    current = next(iter(versions.values()), "")
    changelog = (root / "CHANGELOG.md").read_text()
    if "## Unreleased" not in changelog and f"## {current} " not in changelog:
        found.append(f"CHANGELOG.md has neither a section {current} nor an unreleased one")
    return found


def set_version(root: Path, version: str, date: str) -> list[Path]:
    """Write `version` everywhere and date the changelog's unreleased section; the files that changed."""
    if not _VERSION.match(version):
        raise ValueError(f"{version!r} is no version: give MAJOR.MINOR.PATCH")
    known = projects(root)
    (before,) = {str(table["version"]) for _, table in known.values()}
    changed = []
    files = [folder / "pyproject.toml" for folder, _ in known.values()]
    files += [*root.glob("packages/*/src/*/__init__.py"), root / "docs" / "conf.py"]
    files += [root / "tests" / "docs" / "test_repository.py"]
    for file in files:
        if not file.exists():
            continue
        text = file.read_text()
        after = re.sub(rf'(?<=version = "){re.escape(before)}(?=")', version, text)
        after = re.sub(rf'(?<=__version__ = "){re.escape(before)}(?=")', version, after)
        for name in known:
            pin = rf"({re.escape(name)}(?:\[[^\]]*\])?==){re.escape(before)}"  # with an extra or without one
            after = re.sub(pin, rf"\g<1>{version}", after)
        if file.name == "test_repository.py":
            after = after.replace(f'"{before}"', f'"{version}"').replace(f"=={before}", f"=={version}")
        if after != text:
            file.write_text(after)
            changed.append(file)
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text()
    if "## Unreleased" in text:
        changelog.write_text(text.replace("## Unreleased", f"## Unreleased\n\n## {version} ({date})", 1))
        changed.append(changelog)
    return changed


def stage(root: Path, target: Path, home: str | None = None) -> list[Path]:
    """Copies of the packages in the empty folder `target`, with what a stranger to the repository needs; their folders."""
    shutil.rmtree(target, ignore_errors=True)
    made = []
    for folder, table in projects(root).values():
        copy = target / folder.relative_to(root)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", ".*", "dist", "build"))
        readme = folder / "README.md"
        (copy / "README.md").write_text(alone(readme.read_text(), readme, root, home, f"v{table['version']}"))
        if home is not None:
            urls = {"Repository": home, "Changelog": f"{home}/blob/v{table['version']}/CHANGELOG.md"}
            with (copy / "pyproject.toml").open("a") as file:
                file.write("\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items()))
        made.append(copy)
    return made


def alone(text: str, page: Path, root: Path, home: str | None, tag: str) -> str:
    """A README without relative links: to the repository's page of a file, or where that isn't known its path."""

    def moved(match: re.Match[str]) -> str:
        name, _, anchor = match["target"].partition("#")
        path = (page.parent / name).resolve().relative_to(root.resolve()).as_posix()
        if home is not None:
            url = f"{home}/blob/{tag}/{path}" + (f"#{anchor}" if anchor else "")
            return f"{match['image']}[{match['text']}]({url})"
        return match["text"] if match["text"].strip("`") in path.split("/") else f"{match['text']} (`{path}`)"

    return relinked(text, moved)


def notes(root: Path, version: str) -> str:
    """The changelog's section of `version`. Raises `LookupError` where there is none."""
    match = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)",
        (root / "CHANGELOG.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    if match is None:
        raise LookupError(f"CHANGELOG.md has no section {version}")
    return match.group(1).strip()


def main(arguments: Sequence[str]) -> int:
    """Run one of them; the exit code."""
    match list(arguments):
        case ["check"]:
            found = problems(ROOT)
            print("\n".join(found) or "ready to be released")
            return 1 if found else 0
        case ["set", version]:
            for file in set_version(ROOT, version, time.strftime("%Y-%m-%d")):
                print(file.relative_to(ROOT))
            return 0
        case ["notes", version]:
            print(notes(ROOT, version))
            return 0
        case ["stage", folder]:
            for path in stage(ROOT, Path(folder), os.environ.get("MAINSPRING_HOME")):
                print(path)
            return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
