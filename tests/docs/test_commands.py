"""Every command, option, session and file that the documentation names is there."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("services/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
)
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<![\w/.])(?:tools|tests|packages|services|docs)/[\w./-]+\.(?:py|md|toml|svg|png)\b")
SHELLS = {"", "console", "sh", "bash", "shell", "text"}


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
    yield from SPAN.findall(FENCE.sub("", text))


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
    text = page.read_text()
    for match in re.finditer(r"nox -s ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", text):
        wrong |= {f"nox has no session {name!r}" for name in match[1].split()[:1] if name not in SESSIONS}
    wrong |= {f"there is no {name}" for name in FILE.findall(text) if not _exists(page, name)}
    assert wrong == set()


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
