"""Each package declares what it imports, so that it can be installed alone, and carries its licence."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from workspace import PROJECTS  # noqa: E402

INSTALLED = packages_distributions()


def imports(source: str) -> set[str]:
    """The top-level names of what a module imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


def providers(module: str) -> set[str]:
    """The distributions that a module may come from, in lower case."""
    ours = module.replace("_", "-")
    return (
        {ours} if ours in PROJECTS else {name.lower() for name in INSTALLED.get(module, [f"{module}: not installed"])}
    )


def declared(folder: Path) -> set[str]:
    """What a package says it needs, extras included."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"]]
    for extra in project.get("optional-dependencies", {}).values():
        requirements += extra
    return {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0].lower() for one in requirements}


PLUGINS = {"futures_worker_pytest": {"futures-worker", "fdb-embedded", "pytest"}}
"""What a plugin may import besides: of the program that loads it, and what comes with the package that it is in."""


@pytest.mark.parametrize("name", PROJECTS)
def test_a_package_declares_what_it_imports(name: str) -> None:
    folder = PROJECTS[name]
    allowed = declared(folder) | {name}
    missing = {
        f"{module} in {file.relative_to(folder)}"
        for file in sorted(folder.glob("src/**/*.py"))
        for top in [file.relative_to(folder / "src").parts[0]]
        for module in imports(file.read_text()) - {top}
        if not providers(module) & (allowed | PLUGINS.get(top, set()))
    }
    assert missing == set(), f"{folder / 'pyproject.toml'} declares none of these"


@pytest.mark.parametrize("name", PROJECTS)
def test_a_package_carries_the_licence(name: str) -> None:
    assert (PROJECTS[name] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


PACKAGES = [name for name, folder in PROJECTS.items() if folder.parent.name == "packages"]
PROGRAMS = [one.name for one in entry_points(group="console_scripts") if one.name in PACKAGES]
LEAN = """
import sys
sys.modules["typer"] = sys.modules["rich"] = None  # as where the extra isn't installed
"""
EVERY_MODULE = (
    LEAN
    + """
import importlib, pkgutil
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not {"cli", "commands", "help", "service", "__main__"} & set(module.name.split(".")):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name in ("typer", "rich"):
                print(module.name)
"""
)
PROGRAM = (
    LEAN
    + """
from importlib.metadata import entry_points
sys.argv[0] = sys.argv.pop(1)
(script,) = entry_points(group="console_scripts", name=sys.argv[0])
script.load()()
"""
)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_library_comes_without_a_command_line(name: str) -> None:
    needed = set(tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())["project"]["dependencies"])
    assert not {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in needed} & {"typer", "rich"}
    done = subprocess.run(
        [sys.executable, "-c", EVERY_MODULE, name.replace("-", "_")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "", "these modules want typer or rich, and are no part of a command line"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_without_its_extra_says_what_to_install(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, name, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"pip install '{name}[cli]'" in done.stderr


def test_every_package_with_commands_was_asked() -> None:
    assert len(PROGRAMS) == 5
