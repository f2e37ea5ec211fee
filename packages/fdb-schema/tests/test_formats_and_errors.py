"""A newer format is an error, FoundationDB's errors are told by code, commands exit as documented."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import (
    ClusterSpace,
    NewerFormatError,
    RecordError,
    check_format,
    fdb_error_code,
    is_maybe_committed,
    is_retryable,
    is_retryable_not_committed,
    open_database,
    pack,
)
from fdb_schema.cli import print_rows


def test_a_newer_format_is_a_clear_error(any_url: str) -> None:
    db = open_database(any_url)
    space = ClusterSpace("format-test")
    tr: Any = db.create_transaction()
    tr.clear_range_startswith(space.key())
    assert check_format(tr, space, "futures", 2) == 2
    assert check_format(tr, space, "futures", 3) == 2
    tr.set(space.format.pack(("futures",)), pack(4))
    with pytest.raises(NewerFormatError, match=r"'futures' of cluster 'format-test' has format 4.*up to 3.*upgrade"):
        check_format(tr, space, "futures", 3)
    tr.set(space.format.pack(("futures",)), b"\xc1")
    with pytest.raises(RecordError, match="format of subspace 'futures' of cluster 'format-test' can't be read"):
        check_format(tr, space, "futures", 3)


def test_errors_of_any_copy_of_the_binding_are_told_by_code() -> None:
    class FDBError(Exception):
        def __init__(self, code: int) -> None:
            self.code = code

    assert fdb_error_code(FDBError(1020)) == 1020
    assert fdb_error_code(ValueError()) is None
    assert is_retryable_not_committed(FDBError(1020))
    assert not is_retryable_not_committed(FDBError(1021))
    assert is_maybe_committed(FDBError(1021))
    assert is_maybe_committed(FDBError(1039))
    assert is_retryable(FDBError(1021))
    assert not is_retryable(FDBError(1031))
    assert not is_retryable(FDBError(2101))


def test_the_predicates_agree_with_the_engine(any_url: str) -> None:
    open_database(any_url)
    import fdb

    predicates = fdb.impl.predicates  # type: ignore[attr-defined]
    of_later_clients = {1235, 1242}  # which the client retries from API version 740 on, and these predicates always
    assert all(is_retryable_not_committed(fdb.FDBError(code)) for code in of_later_clients)
    for code in set(range(1000, 2300)) - of_later_clients:
        error = fdb.FDBError(code)
        assert is_retryable_not_committed(error) == bool(predicates.is_retryable_not_committed(error)), code
        assert is_maybe_committed(error) == bool(predicates.is_maybe_committed(error)), code


SCRIPT = """
import sys
from fdb_schema import cli, errors
app = cli.command_app("fdb-schema", "A test.")
@app.command()
def go(kind: str, json: cli.JsonOption = False) -> None:
    if kind == "rows":
        cli.print_rows([{"a": 1, "b": b"\\xff"}], ["a"], as_json=json)
        return
    raise getattr(errors, kind)("it broke: mend it")
@app.command()
def other() -> None: ...
cli.run_app(app)
"""


@pytest.mark.parametrize(
    ("kind", "code"),
    [("MainspringError", 1), ("DatabaseUrlError", 2), ("BlobMissingError", 3), ("DatabaseUnreachableError", 4)],
)
def test_errors_become_one_line_and_an_exit_code(tmp_path: Path, kind: str, code: int) -> None:
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), "go", kind], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert (done.returncode, done.stderr) == (code, "error: it broke: mend it\n")


def test_a_program_learns_how_its_processes_end_whoever_started_it(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        """
import os, signal
from fdb_schema import cli
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as a parent may leave it
app = cli.command_app("fdb-schema", "A test.")
@app.command()
def go() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
@app.command()
def other() -> None: ...
cli.run_app(app)
"""
    )
    done = subprocess.run([sys.executable, str(script), "go"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_listings_print_json_or_a_table(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    env = dict(os.environ)
    shown = subprocess.run(
        [sys.executable, str(script), "go", "rows"], capture_output=True, text=True, env=env, check=True
    )
    assert shown.stdout.split() == ["a", "1"]
    shown = subprocess.run(
        [sys.executable, str(script), "go", "rows", "--json"], capture_output=True, text=True, env=env, check=True
    )
    assert shown.stdout == '[{"a": 1, "b": "ff"}]\n'
    bad = subprocess.run([sys.executable, str(script), "nothing"], capture_output=True, text=True, env=env, check=False)
    assert bad.returncode == 2


def test_a_listing_shows_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "sum[int] :smile: [red]x[/b]"
    print_rows([{"name": text}], ["name"], as_json=False)
    print_rows([], ["name"], as_json=False, empty=f"nothing in {text} {'x' * 200}")
    shown = capsys.readouterr()
    assert text in shown.out
    assert shown.err == f"nothing in {text} {'x' * 200}\n"
