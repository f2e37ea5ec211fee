"""What reaches a terminal or a log: no secrets, in whatever form, and nothing that commands the terminal."""

from __future__ import annotations

import errno
import io
import json
import logging
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Annotated
from urllib.parse import quote

import pytest
import typer
from typer.testing import CliRunner

from fdb_schema.cli import (
    DbOption,
    command_app,
    completing,
    fail,
    print_json,
    print_record,
    print_rows,
    printable,
    run_app,
    say,
)
from fdb_schema.serving.figures import short_ids, size, timestamp, timestamp_us, told
from fdb_schema.serving.logs import LogFormat, LogLevel, configure_logging, log_to_stderr

SECRET = 'to"k\\en and\tmore/ü'


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_DASHBOARD_TOKEN", SECRET)


@pytest.mark.parametrize("form", [LogFormat.json, LogFormat.text])
def test_what_commands_a_terminal_is_in_no_log(form: LogFormat) -> None:
    """Also lines of JSON are read in terminals."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    said = "\x1b[2J \x7f \x9b2J \u2028 \u202e \u2066 \u200b \U000e0041\U000e007f ü \u3000"
    try:
        configure_logging("worker", form, LogLevel.info, stream)
        logging.getLogger("x").warning("%s", said, extra={"name\u202e": said})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert printable(stream.getvalue()) == stream.getvalue()
    assert "ü" in stream.getvalue()
    if form is LogFormat.json:
        line = json.loads(stream.getvalue())
        assert (line["message"], line["name\u202e"]) == (said, said)


def test_a_program_that_is_no_service_logs_nothing_else_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    monkeypatch.setattr(logging.Logger, "root", logging.root)
    log_to_stderr()
    logging.getLogger().warning("%s", f"\x1b[2J \u202e {SECRET}\n2026-01-01 00:00:00 INFO forged")
    said = capsys.readouterr().err
    assert "\\x1b[2J \\u202e ***\n  2026" in said
    assert printable(said) == said


def test_what_commands_a_terminal_is_escaped_in_json_and_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = {"name": "\x9b2J \x7f \u202e \u2066 ü"}
    print_json(said)
    out = capsys.readouterr().out
    assert json.loads(out) == said
    assert printable(out) == out
    assert "ü" in out


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


@pytest.mark.parametrize("hidden", ["\U000e0041", "\u200b", "\xad", "\udc80", "\ufeff"])
def test_what_nobody_would_see_is_shown(hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tag characters and their like are text to programs that read logs, and nothing to people."""
    assert printable(f"a{hidden}b").encode("ascii").startswith(b"a\\")
    print_json({"name": f"a{hidden}b"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"name": f"a{hidden}b"}


@pytest.mark.parametrize(
    ("error", "argument", "says"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "x", "Too many open files; it needs more"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/tmp/y"), "x", "error: File name too long: /tmp/y"),
        (OSError(errno.ENXIO, "No such device or address", "log"), "x", "log, which is a pipe that nobody reads"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), "\udcff", "isn't UTF-8: \\udcff"),
        (TypeError("encoding of hostname failed"), "\udcff", "isn't UTF-8: \\udcff"),
    ],
)
def test_what_the_machine_refuses_and_arguments_that_are_no_text_are_told_in_a_line(
    error: Exception, argument: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def refused(given: str) -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["tool", argument])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    found = capsys.readouterr().err
    assert says in found
    assert found.count("\n") == 1
    assert ended.value.code in (1, 2)


def test_a_defect_shows_its_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def broken() -> None:
        raise TypeError("a defect")

    monkeypatch.setattr("sys.argv", ["tool"])
    with pytest.raises(SystemExit):
        run_app(app)
    assert "Traceback" in capsys.readouterr().err


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


MOMENT = datetime(2026, 5, 4, 8, 0, 0, 250_000, UTC)


def test_json_has_one_form_for_times_and_none_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    east = MOMENT.astimezone(timezone(timedelta(hours=9)))
    print_json({"at": MOMENT, "east": east, "id": b"\x01\xff", "level": LogLevel.info, "seconds": 1.5, "none": None})
    said = json.loads(capsys.readouterr().out)
    at = "2026-05-04T08:00:00.250Z"
    assert said == {"at": at, "east": at, "id": "01ff", "level": "info", "seconds": 1.5, "none": None}
    assert timestamp(MOMENT.timestamp()) == timestamp_us(int(MOMENT.timestamp() * 1e6)) == at
    assert timestamp(1e30) is timestamp(None) is timestamp_us(0) is None


def test_a_record_has_no_reprs_and_says_what_words_mean(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "a", "dirty": True, "dead": False, "last_error": None, "gens": (3, 4), "backoff": {"initial": 1.0, "obey_cadence": True}}  # fmt: skip
    print_record(row, {"dirty": "written, not looked at yet"})
    assert capsys.readouterr().out == (
        "name        a\ndirty       yes  (written, not looked at yet)\ndead        no\ngens        3, 4\n"
        "backoff     initial 1, obey cadence yes\n"
    )
    assert (told(None, "never"), told(()), told({}), told(0.1), told(MOMENT)) == (
        "never", "", "", "0.1", "2026-05-04 08:00:00 UTC",
    )  # fmt: skip


def test_a_listing_ends_where_it_was_told_and_says_what_it_left(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": name} for name in "abc"]
    print_rows(rows, ["name"], as_json=True, limit=2)
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ([{"name": "a"}, {"name": "b"}], "1 more: a greater --limit lists them\n")
    print_rows(rows, ["name"], as_json=True, limit=3)
    assert capsys.readouterr().err == ""


@pytest.fixture
def tool() -> typer.Typer:
    """A command with two commands, one of which has an old name."""
    app = command_app("fdb-schema", "Look at things.")

    @app.command(aliases=("things",))
    def ls(
        db: DbOption = None,
        limit: Annotated[int, typer.Option(min=1, help="So many.")] = 10,
        every: Annotated[bool, typer.Option("--every", help="All of them.")] = False,
    ) -> None:
        """List things. A second sentence, for the page of the command alone."""
        typer.echo(f"{limit} of {db}")

    @app.command()
    def show(name: Annotated[str, typer.Argument(autocompletion=completing(lambda *_: ["beta", "gamma"]))]) -> None:
        """Show one thing."""

    return app


def asked(app: typer.Typer, *words: str) -> str:
    """What it prints, without colours, in eighty columns."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}, prog_name="tool")
    return str(result.output)


def test_help_is_plain_and_has_no_noise(tool: typer.Typer) -> None:
    assert asked(tool, "-h") == (
        "Usage: tool [OPTIONS] COMMAND [ARGS]...\n\n  Look at things.\n\nOptions:\n"
        "  --version   Print the version and exit.\n  -h, --help  Show this message and exit.\n\n"
        "Commands:\n  ls    List things.\n  show  Show one thing.\n\n"
        "  Completion of commands, options and ids: fdb-schema --install-completion.\n"
    )
    page = asked(tool, "ls", "-h")
    assert "A second sentence" in page
    assert not any(noise in page for noise in ("<bool>", "╭", "TOOL_", "install-completion"))
    assert max(map(len, page.splitlines())) <= 80


def test_old_names_work_and_near_misses_are_said(tool: typer.Typer) -> None:
    assert asked(tool, "things", "--limit", "3", "--db", "memory:") == "3 of memory:\n"
    assert "Did you mean 'ls'?" in asked(tool, "list")
    assert "Did you mean 'show'?" in asked(tool, "describe")
    assert "No such command 'zzz'" in asked(tool, "zzz")
    assert "--limit" in asked(tool, "ls", "--limt", "3")
    assert "give it after one, as `tool ls --db`" in asked(tool, "--db", "memory:", "ls")


def test_a_completion_that_fails_prints_nothing() -> None:
    def broken(_db: str | None, _cluster: str, _beginning: str) -> list[str]:
        raise OSError("no database")

    context = SimpleNamespace(params={"db": "memory:"})
    assert completing(broken)(context, "a") == []  # type: ignore[arg-type]
    asked_for = completing(lambda *given: map(str, given))(context, "a")  # type: ignore[arg-type]
    assert asked_for == ["memory:", "mainspring", "a"]


def test_figures_take_little_room() -> None:
    assert [size(amount) for amount in (None, 0, 1023, 1536, 5 << 30)] == ["", "0 B", "1023 B", "1.5 KiB", "5 GiB"]
    assert short_ids(["abcdefgh-1", "abcdefgh-2"], 4) == {"abcdefgh-1": "abcdefgh-1", "abcdefgh-2": "abcdefgh-2"}
    assert short_ids(["aaaa-1", "bbbb-1"], 4) == {"aaaa-1": "aaaa", "bbbb-1": "bbbb"}
