"""The command line, and running other programs with the engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import fdb_embedded
from fdb_embedded.cli import app

runner = CliRunner()


def command(*arguments: str, db: Path) -> Result:
    return runner.invoke(app, [*arguments, "--db", str(db)])


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    fdb = fdb_embedded.load()
    db = fdb_embedded.open(tmp_path / "db")
    db[b"plain"] = b"value"
    db[b"\x00\xff"] = b"\x01\x02"
    db[b""] = b"empty"
    db[b"k" * 2000] = b"long"
    for number in range(5):
        db[fdb.tuple.pack(("rows", number))] = fdb.tuple.pack((number * number,))
    fdb_embedded.close(db)
    return tmp_path / "db"


def test_get_and_set_take_tuples_and_escapes(filled: Path) -> None:
    assert command("get", "('rows', 3)", db=filled).stdout == "(9,)\n"
    assert command("get", "plain", db=filled).stdout == "value\n"
    assert command("get", r"\x00\xff", db=filled).stdout == "\\x01\\x02\n"
    assert command("set", "('new', 1)", r"a\x00b", db=filled).exit_code == 0
    assert (
        command("get", "('new', 1)", "--json", db=filled).stdout
        == json.dumps({"key": "('new', 1)", "value": "a\\x00b"}) + "\n"
    )


def test_exit_codes(filled: Path, tmp_path: Path) -> None:
    assert command("get", "absent", db=filled).exit_code == 3
    assert command("get", "x", db=tmp_path / "nowhere").exit_code == 4
    assert command("get", "(a", "--bad", db=filled).exit_code == 2
    assert command("get", "(not a literal)", db=filled).exit_code == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.mdb").write_bytes(b"x" * 100)
    result = command("status", db=tmp_path / "other")
    assert result.exit_code == 4
    assert "cut off" in result.stderr


@pytest.mark.parametrize("text", ["('app", "('app')x", "(app)", "({},)"])
def test_a_malformed_tuple_is_named_and_no_key(filled: Path, text: str) -> None:
    for words in (("range", text), ("get", text), ("set", text, "v"), ("set", "k", text)):
        result = command(*words, db=filled)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {text} isn't a tuple of literals (")
        assert "unknown" not in result.stderr


def test_a_text_in_parentheses_is_shown_as_it_is_typed(filled: Path) -> None:
    assert command("set", "paren", r"\x28note)", db=filled).exit_code == 0
    assert command("get", "paren", db=filled).stdout == "\\x28note)\n"


def test_load_names_a_missing_file_before_it_makes_a_database(tmp_path: Path) -> None:
    result = command("load", "nofile", db=tmp_path / "db")
    assert result.exit_code == 2
    assert "nofile" in result.stderr
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize("name", ["status", "get", "set", "range", "dump", "load", "compact", "check"])
def test_help_has_a_short_option(name: str) -> None:
    short, long = (runner.invoke(app, [name, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert f" {name} [OPTIONS]" in short.stdout


@pytest.mark.parametrize("name", [command.name or command.callback.__name__ for command in app.registered_commands])
def test_help_names_values_in_words(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert not re.search(r"<[a-z ]+>|\{\w+\}", shown), shown
    assert "[OPTIONS]" in shown


def test_range_in_both_directions(filled: Path) -> None:
    shown = command("range", "('rows',)", "--limit", "2", db=filled).stdout.splitlines()
    assert shown == ["('rows', 0)\t(0,)", "('rows', 1)\t(1,)"]
    shown = command("range", "('rows',)", "--limit", "2", "--reverse", db=filled).stdout.splitlines()
    assert shown == ["('rows', 4)\t(16,)", "('rows', 3)\t(9,)"]


def test_a_dump_loads_into_another_database(filled: Path, tmp_path: Path) -> None:
    assert command("dump", str(tmp_path / "dump"), db=filled).exit_code == 0
    assert command("load", str(tmp_path / "dump"), db=tmp_path / "copy").exit_code == 0
    one, two = fdb_embedded.open(filled), fdb_embedded.open(tmp_path / "copy")
    rows = [[(row.key, row.value) for row in db.get_range(b"", b"\xff")] for db in (one, two)]
    fdb_embedded.close(one)
    fdb_embedded.close(two)
    assert rows[0] == rows[1]
    assert len(rows[0]) == 9
    assert command("load", str(tmp_path / "dump"), db=tmp_path / "copy").exit_code == 1
    assert command("load", str(tmp_path / "dump"), "--force", db=tmp_path / "copy").exit_code == 0


@pytest.mark.parametrize("cut", ["short", "changed", "other", "no text"])
def test_a_damaged_dump_is_refused(filled: Path, tmp_path: Path, cut: str) -> None:
    command("dump", str(tmp_path / "dump"), db=filled)
    lines = (tmp_path / "dump").read_text().splitlines()
    if cut == "short":
        lines = lines[:-1]
    elif cut == "changed":
        lines[2] = lines[3]
    elif cut == "other":
        lines = ["something else"]
    data = ("\n".join(lines) + "\n").encode()
    if cut == "no text":
        data = data.replace(b'"k": "', b'"k": "\xff', 1)
    (tmp_path / "dump").write_bytes(data)
    told = {"short": "cut off", "changed": "damaged", "other": "isn't a dump", "no text": "damaged in line 2"}[cut]
    for result in (
        command("load", str(tmp_path / "dump"), db=tmp_path / "copy"),
        runner.invoke(app, ["load", "--db", str(tmp_path / "piped")], input=data),
        runner.invoke(app, ["load", "-", "--db", str(tmp_path / "dashed")], input=data),
    ):
        assert result.exit_code == (2 if cut == "other" else 1)
        assert told in result.stderr
    assert not (tmp_path / "copy").exists(), "a file is tried before a database is made of it"


def test_of_a_cut_dump_a_file_sets_nothing_and_a_pipe_says_what_it_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fdb_embedded.tools.archive, "BATCH_BYTES", 2)
    lines = ['{"fdb_embedded_dump": 1, "version": 1}', '{"k": "YQ==", "v": "YQ=="}', '{"k": "Yg==", "v": "Yg=="}']
    (tmp_path / "dump").write_text("\n".join(lines))
    path = tmp_path / "db"
    command("set", "c", "d", db=path)
    result = command("load", str(tmp_path / "dump"), "--force", db=path)
    assert (result.exit_code, result.stderr) == (1, "error: the dump is cut off after 2 rows\n")
    assert command("ls", db=path).stdout == "c\td\n"
    result = runner.invoke(app, ["load", "--force", "--db", str(path)], input="\n".join(lines))
    told = (
        "note: 2 rows of the dump are in the database: it holds a part of it\nerror: the dump is cut off after 2 rows\n"
    )
    assert (result.exit_code, result.stderr) == (1, told)
    assert command("ls", db=path).stdout == "a\ta\nb\tb\nc\td\n"


def test_check_and_compact(filled: Path) -> None:
    db = fdb_embedded.open(filled)
    for number in range(200):
        tr = db.create_transaction()
        tr.set_many([(b"bulk%d" % n, bytes(1000)) for n in range(50)])
        tr.commit().wait()
        assert number >= 0
    db.clear_range(b"bulk", b"bulm")
    assert command("compact", db=filled).exit_code == 1
    fdb_embedded.close(db)
    before, _, after, _ = command("compact", db=filled).stdout.split()
    assert int(after) < int(before)
    report = json.loads(command("check", "--json", db=filled).stdout)
    assert report["problems"] == []
    assert report["rows"] == 10  # and the row of locality


def test_check_finds_damage(filled: Path) -> None:
    db = fdb_embedded.open(filled)
    with db.dpointer.engine.store.map.env.begin(write=True) as txn:
        txn.put(b"z" * 511, b"no node")
    fdb_embedded.close(db)
    result = command("check", db=filled)
    assert result.exit_code == 1
    assert "node" in result.stderr


def test_status_counts(filled: Path) -> None:
    figures = json.loads(command("status", "--json", db=filled).stdout)
    assert figures["version"] > 0
    assert figures["bytes_used"] > 0
    assert figures["journaled"] is False


def test_figures_are_for_people_and_say_what_they_mean(filled: Path) -> None:
    shown = command("status", db=filled).stdout
    assert "journaled    no  (commits since the last checkpoint lie in a journal)" in shown
    checked = command("check", db=filled).stdout
    assert not any(form in shown + checked for form in ("None", "True", "False", "{", "["))


def test_the_database_is_a_url_as_everywhere(filled: Path) -> None:
    by_url = runner.invoke(app, ["get", "plain", "--db", f"embedded:{filled}"])
    assert (by_url.exit_code, by_url.stdout) == (0, "value\n")
    cluster = runner.invoke(app, ["get", "plain", "--db", "fdb:/etc/fdb.cluster"])
    assert cluster.exit_code == 2
    assert "looks at embedded databases" in cluster.stderr


@pytest.mark.parametrize("url", ["fdb:", "fdb:/etc/fdb.cluster", "fdb", "./db", "embeded:db"])
def test_no_other_database_is_opened_than_the_environment_names(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_DB", url)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "program.py"
    script.write_text("import fdb\nfdb.api_version(730)\nfdb.open()\n")
    with pytest.raises(fdb_embedded.InvalidOption, match=f"^MAINSPRING_DB={url}"):
        fdb_embedded.open()
    for arguments in (["status"], ["set", "a", "b"], ["load", str(script)]):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 2
    run = subprocess.run(
        [sys.executable, "-m", "fdb_embedded", "run", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for told, code in ((runner.invoke(app, ["set", "a", "b"]).stderr, 2), (run.stderr, run.returncode)):
        assert code == 2
        assert told.startswith(f"error: MAINSPRING_DB={url} ")
    assert [entry.name for entry in tmp_path.iterdir()] == ["program.py"]


def test_ls_and_show_mean_what_they_mean_everywhere(filled: Path) -> None:
    assert command("ls", "('rows',)", db=filled).stdout == command("range", "('rows',)", db=filled).stdout != ""
    assert command("show", "plain", db=filled).stdout == "value\n"


SCRIPT = """
import sys
import fdb
fdb.api_version(int(sys.argv[1]))
db = fdb.open("/etc/foundationdb/fdb.cluster")
db[b"from"] = b"script"
assert fdb.directory.exists(db, ("x",)) is False
print(db[b"from"].decode(), fdb.get_api_version())
"""


def test_any_script_runs_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    for version in (610, 730):
        done = subprocess.run(
            [sys.executable, "-m", "fdb_embedded", "run", "--db", str(tmp_path / "db"), str(script), str(version)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, f"script {version}\n", "")
    assert command("get", "from", db=tmp_path / "db").stdout == "script\n"


def test_a_script_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    script = tmp_path / "nosuch.py"
    done = subprocess.run(
        [sys.executable, "-m", "fdb_embedded", "run", "--db", str(tmp_path / "db"), str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"there is no script {script}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize("module", ["nosuchmodule", "nosuchmodule.part", "json.nosuchpart"])
def test_a_module_that_is_not_there_is_told_in_one_line(tmp_path: Path, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fdb_embedded", "run", "--db", str(tmp_path / "db"), "-m", module],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"error: there is no module {module}\n")
    assert not (tmp_path / "db").exists()


def test_a_file_that_cant_be_written_or_read_is_an_error_of_one_line(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for words, name in (
        (("dump", str(tmp_path / "nowhere" / "dump")), "nowhere"),
        (("dump", str(tmp_path / "folder")), "folder"),
        (("dump", "/dev/full"), "No space left"),
    ):
        result = command(*words, db=filled)
        assert result.exit_code == 1, result
        assert result.stderr.startswith("error: "), result
        assert name in result.stderr
        assert "row" not in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\u202eb", "a\U000e0041b", "a\udc80b"])
def test_what_an_error_says_of_a_key_or_a_path_commands_no_terminal(filled: Path, tmp_path: Path, text: str) -> None:
    for result in (command("get", text, db=filled), command("status", db=tmp_path / text)):
        assert result.exit_code in (2, 3, 4)
        assert "\\" in result.stderr
        assert all(one.isprintable() for one in result.stderr.rstrip("\n"))


def test_a_path_that_is_too_long_is_told_in_a_line(tmp_path: Path) -> None:
    result = command("get", "x", db=tmp_path / ("y" * 300))
    assert result.exit_code == 4
    assert "File name too long" in result.stderr
    with pytest.raises(fdb_embedded.PathUnusable, match="File name too long"):
        fdb_embedded.open(tmp_path / ("y" * 300) / "db")


def test_messages_have_text_and_no_bytes(filled: Path) -> None:
    fdb = fdb_embedded.load()
    assert str(fdb.FDBError(1020)) == "Transaction not committed due to conflict with another transaction (1020)"
    assert fdb.FDBError(1020).description == b"Transaction not committed due to conflict with another transaction"
    assert command("set", "k" * 20_000, "v", db=filled).stderr == "error: Key length exceeds limit (2102)\n"
