"""The help of every command says what stands for a value in words, not in Python's types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mainspring.cli import app


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from _paths(one, (*path, name))


PAGES = list(_paths(typer.main.get_command(app), ()))


def page(*words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert result.exit_code == 0, result.output
    return str(result.output)


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_no_page_has_a_type_of_python_or_a_name_in_braces(path: tuple[str, ...]) -> None:
    shown = page(*path)
    assert not re.search(r"<[a-z][a-z |_\[\]]*>|\{\w+\}|\[\[|list\[", shown), shown
    usage = " ".join(re.split(r"\n\s*\n", shown)[0].split())
    assert not re.search(r"\b[a-z_-]+\b", usage.partition("[OPTIONS]")[2]), "names of values are in capitals"
    options = shown.partition("\nOptions:\n")[2]
    valued = re.findall(r"^  (?:-\w, )?--[\w-]+(?:, --?[\w-]+)* (\S+)", options, re.MULTILINE)
    assert all(
        re.fullmatch(r"[A-Z][A-Z_:/=]*|[\w-]+(\|[\w-]+)+", word) for word in valued if not word.startswith("/")
    ), valued


def test_commands_to_be_copied_are_not_broken_at_a_hyphen() -> None:
    for words in (("futures",), ("leases",), ("heap",), ("ids",), ()):
        assert re.search(r" [\w-]+ --install-completion\.", " ".join(page(*words).splitlines()[-2:]))


def test_choices_and_bounds_are_told() -> None:
    shown = page("heap", "create")
    assert "Usage: root heap create [OPTIONS] PARTITION NAME" in shown
    assert "--cadence SECONDS" in shown
    assert "x>=0" in shown
    assert "--overlap skip|buffer_one|buffer_all|cancel_other" in shown
    assert "--catch-up once|all" in shown
    assert "[OPTIONS] [ID...]" in page("futures", "cancel")
