"""Every command, option, nox session, file and package that a page of the repository names is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
TOPS = ("packages", "services", "docs", "tests", "tools")
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(page for top in TOPS for page in (ROOT / top).rglob("*.md"))]
    if "node_modules" not in page.parts
)
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")  # it may run over the end of a line
FILE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(TOPS)}|\.ci)/[\w./-]*\w\b/?")
SESSION = re.compile(r"\bnox -s((?: [a-z][a-z-]*)+)")
INSTALL = re.compile(r"(?:pip install|tools/install\.py)((?: (?:-\S+|'[^']+'|[\w.-]+))+)")
MODULE = re.compile(r"\bpython3? (?:-P )?-m (\w+(?:\.\w+)*)")
SHELLS = {"", "console", "sh", "bash", "shell", "text"}


sys.path.append(str(ROOT / "tools"))

from workspace import PROJECTS, extras  # noqa: E402

BEGINS_LIKE_OURS = re.compile("mainspring|fdb-(?:embedded|schema|datamodel)|idempotent-|lease-|futures-|s3heap-")
"""How names of packages of ours begin, and of those that somebody may take for ours."""


def names(node: ast.FunctionDef) -> Iterator[str]:
    """The name of a nox session; none where the function is none."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if ast.unparse(call.func if call else decorator) == "nox.session":
            given = {one.arg: ast.literal_eval(one.value) for one in call.keywords} if call else {}
            yield str(given.get("name", node.name))


SESSIONS = {
    name
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
    for name in names(node)
}


def programs() -> dict[str, str]:
    """Console script → the module that holds its typer application."""
    found: dict[str, str] = {}
    for file in [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]:
        scripts = tomllib.loads(file.read_text())["project"].get("scripts", {})
        found |= {name: f"{target.partition('.')[0]}.cli" for name, target in scripts.items()}
    return found


PROGRAMS = programs()


@cache
def command_of(program: str) -> Any:
    """The click command of a program of ours."""
    return typer.main.get_command(importlib.import_module(PROGRAMS[program]).app)


def code_of(page: Path) -> Iterator[str]:
    """Lines that may hold a command: of blocks of a shell, and spans in the text."""
    text = page.read_text()
    for language, block in FENCE.findall(text):
        if language in SHELLS:
            yield from (re.sub(r"\\\n\s*", " ", block)).splitlines()
    yield from (span.replace("\n", " ") for span in SPAN.findall(FENCE.sub("", text)))


def unknown(line: str) -> str:
    """What of a command line of ours isn't known; "" where all is, or it is no command of ours."""
    words = re.sub(r"^\s*[$#]\s+", "", line).split()
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if not words or Path(words[0]).name not in PROGRAMS:
        return ""
    program = Path(words[0]).name
    command = command_of(program)
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if not re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            return ""  # a list of names, or a placeholder
        if rest[0] not in command.commands:
            return f"{program} has no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    known = {"--help", "--version", "--install-completion", "--show-completion"}
    for parameter in command.params:
        known.update([*parameter.opts, *parameter.secondary_opts])
    for word in rest:
        if word in ("--", "|", "&", "&&", ";", ">", ">>", "#", "…"):
            break
        option = re.match(r"--[a-z][a-z-]*", word)
        if option and option[0] not in known:
            return f"{' '.join(words[: len(words) - len(rest)])} has no option {option[0]}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    wrong = {found for line in code_of(page) if (found := unknown(line))}
    for line in code_of(page):
        wrong |= set(missing(line, page))
    assert wrong == set()


def missing(line: str, page: Path) -> Iterator[str]:
    """The sessions, packages, modules and files that a line names and that aren't there."""
    for match in SESSION.finditer(line):
        yield from (f"nox has no session {name!r}" for name in match[1].split() if name not in SESSIONS)
    for match in INSTALL.finditer(line):
        for word in shlex.split(match[1], comments=True):
            name, _, chosen = word.rstrip("]").partition("[")
            if name in PROJECTS:
                yield from (
                    f"{name} has no extra {one!r}" for one in filter(None, chosen.split(",")) if one not in extras(name)
                )
            elif not word.startswith("-") and ("install.py" in match[0] or BEGINS_LIKE_OURS.match(name)):
                yield f"there is no package {name!r}"
    for match in MODULE.finditer(line):
        if BEGINS_LIKE_OURS.match(match[1].replace("_", "-")) and not _is_module(match[1]):
            yield f"there is no module {match[1]}"
    yield from (f"there is no {name}" for name in FILE.findall(line) if not _exists(page, name))


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _exists(page: Path, name: str) -> bool:
    package = next((folder for folder in page.parents if (folder / "pyproject.toml").is_file()), ROOT)
    return any((folder / name).exists() for folder in (ROOT, package, *ROOT.glob("packages/*"), page.parent))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("$ futures-worker ls --state failed", ""),
        ("futures-worker lst", "futures-worker has no command 'lst'"),
        ("MAINSPRING_DB=x mainspring doctor --deeep", "mainspring doctor has no option --deeep"),
        ("lease-locks run NAME -- make --jobs", ""),
        ("python -m venv --nothing", ""),
    ],
)
def test_a_name_that_is_not_there_is_found(line: str, says: str) -> None:
    assert unknown(line) == says


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nox -s lint types", []),
        ("nox -s lint chaoss", ["nox has no session 'chaoss'"]),
        ("python tools/install.py --editable futures-worker 's3heap-tender[s3]'", []),
        ("python tools/install.py 'futures-worker[s3]' lease-lock", ["futures-worker has no extra 's3'", "there is no package 'lease-lock'"]),
        ("pip install mainspring-dashboards numpy", ["there is no package 'mainspring-dashboards'"]),
        ("python -m s3heap_tender.demos", ["there is no module s3heap_tender.demos"]),
        ("see docs/no-such-page.md and tests/conformance", ["there is no docs/no-such-page.md"]),
    ],
)  # fmt: skip
def test_what_is_not_there_is_named(line: str, says: list[str]) -> None:
    assert list(missing(line, ROOT / "README.md")) == says
