"""What reaches a terminal or a log: no secrets, in whatever form, and nothing that commands the terminal."""

from __future__ import annotations

import io
import json
import logging
from urllib.parse import quote

import pytest
import typer

from fdb_schema.cli import fail, print_rows, printable, run_app, say
from fdb_schema.logs import LogFormat, LogLevel, configure_logging

SECRET = 'to"k\\en and\tmore/ü'


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DASHBOARD_TOKEN", SECRET)


@pytest.mark.parametrize("form", [LogFormat.json, LogFormat.text])
def test_a_secret_with_quotes_and_backslashes_is_in_no_log(form: LogFormat) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("worker", form, LogLevel.info, stream)
        logging.getLogger("x").warning(
            "token %s, %r, ?token=%s", SECRET, SECRET, quote(SECRET, safe=""), extra={"settings": {"token": SECRET}}
        )
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    text = stream.getvalue()
    for shape in (SECRET, json.dumps(SECRET)[1:-1], repr(SECRET)[1:-1], quote(SECRET, safe="")):
        assert shape not in text
    assert "***" in text
    if form is LogFormat.json:
        assert json.loads(text)["settings"] == {"token": "***"}


def test_the_last_line_of_a_program_shows_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        fail(f"can't reach http://user:hunter2@host/ with {SECRET}\x1b[2J")
    said = capsys.readouterr().err
    assert SECRET not in said
    assert "hunter2" not in said
    assert "\x1b" not in said
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def broken() -> None:
        raise RuntimeError(f"unexpected {SECRET}")

    monkeypatch.setattr("sys.argv", ["broken"])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert SECRET not in said
    assert "RuntimeError: unexpected ***" in said


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x9b2J", "a\rb", "\u202egnp.exe", "\u2066x", "del\x7f", "\b\b"])
def test_what_others_named_doesnt_command_the_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"name {text}")
    print_rows([{"name": f"{text}\nforged  row"}], ["name"], as_json=False)
    shown = capsys.readouterr().out
    assert not any(character in shown for character in text if not character.isascii() or not character.isprintable())
    assert "\nforged" not in shown


def test_text_stays_as_it_is() -> None:
    assert printable("für 東京 ✓ a\tb\nc") == "für 東京 ✓ a\tb\nc"


def test_a_pipe_gets_all_of_each_column_also_of_a_table_with_one_that_flows(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"holder": "h" * 150, "by": "b" * 150, "name": "n" * 150}
    print_rows([row], list(row), as_json=False, flowing="name")
    told = capsys.readouterr().out
    assert "…" not in told
    assert [told.count(letter * 10) > 0 for letter in "hbn"] == [True] * 3
    assert sum(map(told.count, "hbn")) >= 450


def test_what_others_sent_commands_no_terminal_and_looks_like_no_record_of_its_own() -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("worker", LogFormat.text, LogLevel.info, stream)
        logging.getLogger("x").warning(
            "GET /%s", "\x1b[2J\x9b\n2026-01-01 00:00:00,000 INFO worker x pid=1 all is well"
        )
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("GET /\\x1b[2J\\x9b")
    assert second.startswith("  2026")
