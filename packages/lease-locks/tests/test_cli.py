"""The command, as people and scripts use it: what it prints and how it exits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memo_functions as functions
import pytest
from silent_database import Hanging
from typer.testing import CliRunner

from fdb_schema import DatabaseUnreachableError
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks.cli import app, leases, running
from lease_locks.errors import MemoUriError
from lease_locks.memo.functions import bind
from lease_locks.session.host import process_start

DEADLINE = 60.0
Command = Callable[..., "tuple[int, str]"]


@pytest.fixture
def command(shared_url: str) -> Command:
    def call(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(args), env={"MAINSPRING_DB": shared_url}, catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            code = getattr(result.exception, "exit_code", None)
            if code is None:
                raise result.exception
            return code, str(result.exception)
        return result.exit_code, result.output

    return call


@pytest.fixture
def locks(shared_url: str) -> Iterator[LeaseManager]:
    with LeaseManager(shared_url) as manager:
        yield manager


def lease_locks(url: str, *args: str, **options: Any) -> subprocess.Popen[str]:
    """The command as a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MAINSPRING_DB": url}
    main = "from lease_locks.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", main, *args], env=env, text=True, stdout=-1, stderr=-1, **options)


def test_ls_show_history_and_sessions(command: Command, locks: LeaseManager) -> None:
    assert command("ls", "--json") == (0, "[]\n")
    assert command("show", "a")[0] == 3
    assert command("history", "a")[0] == 3
    lease = locks.acquire("a", meta={"job": 1})
    code, output = command("ls", "--json")
    (row,) = json.loads(output)
    assert code == 0
    assert (row["name"], row["token"], row["holder"].split(":")[1]) == ("a", lease.token.hex, str(os.getpid()))
    assert command("ls", "zzz", "--json")[1] == "[]\n"
    assert "a" in command("ls")[1]
    assert json.loads(command("show", "a", "--json")[1])["meta"] == {"job": 1}
    assert "maintainer  orchestrator" in command("show", "a")[1]
    lease.release()
    events = json.loads(command("history", "a", "--json")[1])
    assert [e["kind"] for e in events] == ["acquired", "released"]
    (session,) = json.loads(command("sessions", "--json")[1])
    assert session["process"].endswith(f":{os.getpid()}")
    assert session["dead"] is None


def test_force_release_needs_a_reason_and_a_holder(command: Command, locks: LeaseManager) -> None:
    assert command("force-release", "a")[0] == 2
    assert command("force-release", "a", "--reason", "test")[0] == 3
    lease = locks.acquire("a")
    code, output = command("force-release", "a", "--reason", "test")
    assert (code, lease.token.hex in output) == (0, True)
    assert lease.lost.wait(DEADLINE)


def test_wait_ends_when_the_lease_is_free_and_75_at_its_timeout(command: Command, locks: LeaseManager) -> None:
    assert command("wait", "a")[0] == 0
    lease = locks.acquire("a")
    code, message = command("wait", "a", "--timeout", "0.1")
    assert code == 75
    assert "still held" in message
    timer = threading.Timer(0.2, lease.release)
    timer.start()
    assert command("wait", "a", "--timeout", str(DEADLINE))[0] == 0


def test_wait_does_not_wait_for_the_dead(shared_url: str, command: Command, locks: LeaseManager) -> None:
    holder = lease_locks(shared_url, "run", "a", "--ttl", "600", "--", "sh", "-c", "echo held; exec sleep 1000")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    waiting = lease_locks(shared_url, "wait", "a", "--timeout", str(DEADLINE))
    holder.kill()
    holder.communicate(timeout=DEADLINE)
    _, errors = waiting.communicate(timeout=2 * DEADLINE)
    assert (waiting.returncode, errors) == (0, "")
    assert locks.read("a") is not None, "and takes nothing over"


@pytest.mark.parametrize("looks", [0, 1])
def test_wait_keeps_its_time_limit_where_the_database_is_silent(
    command: Command, locks: LeaseManager, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    locks.acquire("a")
    db, judged = Hanging(locks.db), leases.judged
    monkeypatch.setattr(leases, "look_into", lambda *_, **__: LeaseManager(db))
    monkeypatch.setattr(leases, "GRACE", 0.05)
    made: list[Any] = []

    def look(*args: Any) -> Any:
        db.hangs = lambda: len(made) >= looks  # from the start, or where the holder is to be named at the end
        found = judged(*args)
        made.append(found)
        return found

    monkeypatch.setattr(leases, "judged", look)
    code, message = command("wait", "a", "--timeout", "0")
    assert (code, db.unbounded) == (75, 0)
    assert "did not answer within 0 s" in message


def test_watch_prints_every_event_once(command: Command, locks: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that happens while the events before it are printed."""
    history = leases._history
    turns: list[int] = []

    def and_meanwhile(*args: Any) -> Any:
        found = history(*args)
        if len(turns) < 6:
            turns.append(1)
            locks.acquire("a").release()
        return found

    monkeypatch.setattr(leases, "_history", and_meanwhile)
    monkeypatch.setattr(leases, "_WATCH_SECONDS", 0.01)
    code, output = command("watch", "a", "--for", "1.5")
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[1] for line in lines] == ["acquired", "released"] * (len(lines) // 2)
    assert len(lines) == 2 * len(turns) == 12


def test_watch_prints_events_as_they_happen(shared_url: str, locks: LeaseManager) -> None:
    process = lease_locks(shared_url, "watch", "a", "--json")
    try:
        seen: list[dict[str, Any]] = []
        assert process.stdout is not None
        done = threading.Event()

        def turn() -> None:
            while not done.wait(0.1):
                locks.acquire("a").release()

        thread = threading.Thread(target=turn)
        thread.start()
        try:
            while len(seen) < 4:
                seen.append(json.loads(process.stdout.readline()))
        finally:
            done.set()
            thread.join()
        assert {e["kind"] for e in seen} == {"acquired", "released"}
        versions = [e["version"] for e in seen]
        assert versions == sorted(set(versions))
    finally:
        process.kill()
        process.communicate()


def test_doctor_finds_and_cleans_what_a_killed_process_left(shared_url: str, shared_db: Any, command: Command) -> None:
    code, output = command("doctor", "--json")
    assert (code, json.loads(output)["findings"]) == (0, [])
    process = lease_locks(shared_url, "run", "a", "--", "sh", "-c", "echo $$; exec sleep 1000")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=DEADLINE)
    until = time.monotonic() + DEADLINE
    while (found := process_start(child)) is not None and not found[1]:
        assert time.monotonic() < until, "a command whose lease nobody keeps doesn't go on"
        time.sleep(0.01)
    (session,) = json.loads(command("sessions", "--json")[1])
    assert session["process"].endswith(f":{process.pid}")
    assert session["dead"] and session["dead"] in command("sessions")[1]
    code, output = command("doctor", "--json")
    assert code == 1
    assert len(json.loads(output)["findings"]) == 2
    code, output = command("doctor", "--clean", "--json")
    assert json.loads(output)["cleaned"] == 1


# --- run


def test_run_exits_as_its_command_and_tells_it_the_token(command: Command, shared_url: str) -> None:
    process = lease_locks(
        shared_url, "run", "a", "--", "sh", "-c", "echo $MAINSPRING_LEASE_NAME $MAINSPRING_LEASE_TOKEN; exit 7"
    )
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 7
    name, token = output.split()
    assert name == "a"
    assert len(bytes.fromhex(token)) == 14
    assert command("show", "a")[0] == 3


def test_run_waits_no_longer_than_its_timeout(locks: LeaseManager, shared_url: str) -> None:
    locks.acquire("a")
    process = lease_locks(shared_url, "run", "a", "--timeout", "0.1", "--", "true")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 75
    assert f"held by {os.uname().nodename}:{os.getpid()}" in errors


@pytest.mark.parametrize("stubborn", [False, True], ids=["TERM", "KILL"])
def test_run_stops_its_command_when_the_lease_is_lost(
    locks: LeaseManager, shared_url: str, tmp_path: Path, stubborn: bool
) -> None:
    trap = "trap '' TERM; " if stubborn else ""
    script = f"{trap}echo $$; while :; do sleep 0.05; done"
    process = lease_locks(shared_url, "run", "a", "--grace", "0.5", "--", "sh", "-c", script)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert locks.force_release("a", reason="test")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 47
    assert "was lost (forced)" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_command_is_killed_before_anybody_can_have_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        ttl = 15.0
        lost_reason = "unreachable"

    # Fenced 0.8 × 15 s after the last renewal began, by a clock 10 % slow: at 13.3 s. Taken at 1.1 × 15 s by a fast one: 15 s.
    assert 1.0 < running._grace(Lost(), None) <= 15.0 - 13.3  # type: ignore[arg-type]
    # Fenced 4 s after it was had, by a slow clock; a fast one takes it at OVERHOLD × 4 s.
    assert 0.0 < running._grace(Lost(), 4.0) <= 4.0 * running.OVERHOLD / 1.1 - 4.0 / 0.9  # type: ignore[arg-type]
    Lost.lost_reason = "forced"
    assert running._grace(Lost(), 4.0) == 5.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("inspect", "memo:a/b/zz"), 2),
        (("inspect", "nonsense"), 2),
        (("diff", "memo:a/b/00", "nonsense"), 2),
        (("show", "x" * 300), 2),
        (("acquire",), 2),
        (("run", "a", "--ttl", "-1", "--", "true"), 2),
        (("force-release", "a"), 2),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else str(value),
)
def test_bad_input_is_an_error_of_one_line_and_no_traceback(shared_url: str, args: tuple[str, ...], code: int) -> None:
    process = lease_locks(shared_url, *args)
    _, errors = process.communicate(timeout=DEADLINE)
    assert "Traceback" not in errors
    assert process.returncode == code, errors


def test_run_says_what_it_can_not_run(shared_url: str) -> None:
    process = lease_locks(shared_url, "run", "a", "--", "/no/such/command")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 127
    assert "/no/such/command" in errors


def test_a_missing_database_exits_4(tmp_path: Path) -> None:
    not_a_database = tmp_path / "file"
    not_a_database.write_text("hello")
    process = lease_locks(f"embedded:{not_a_database}", "ls")
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 4
    assert errors.startswith("error: ")


@pytest.mark.parametrize(
    "args",
    [
        ("ls",),
        ("show", "a"),
        ("history", "a"),
        ("watch", "a"),
        ("wait", "a"),
        ("sessions",),
        ("doctor",),
        ("runs",),
        ("summarize",),
        ("inspect", "memo:a/b"),
        ("inspect", "memo:a/b/00"),
        ("diff", "memo:a/b/00", "memo:a/b/01"),
    ],
    ids=" ".join,
)
def test_a_look_at_a_mistyped_path_exits_4_and_makes_no_database(tmp_path: Path, args: tuple[str, ...]) -> None:
    typo = tmp_path / "typo"
    result = CliRunner().invoke(app, [*args, "--db", f"embedded:{typo}"])
    assert isinstance(result.exception, DatabaseUnreachableError)
    assert f"there is no database at {typo}" in str(result.exception)
    assert result.exception.exit_code == 4
    assert not typo.exists()


# --- the memo


def test_runs_inspect_summarize_diff_invalidate(command: Command, locks: LeaseManager, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")
    for _ in range(4):
        runner.call(functions.square, 3, str(marks))
    runner.call(functions.square, 4, str(marks))
    with pytest.raises(functions.Refusal):
        runner.call(functions.fails, str(marks))
    runner.flush()
    (run,) = json.loads(command("runs", "--json")[1])
    counts = {kind: run[kind] for kind in ("calls", "executed", "hit", "awaited", "failed")}
    assert counts == {"calls": 6, "executed": 3, "hit": 3, "awaited": 0, "failed": 1}
    assert 0 < run["computed_seconds"] < 60
    assert run["started_at"] <= run["last_at"]
    by_function = {row["function"]: row for row in json.loads(command("summarize", run["run"], "--json")[1])}
    assert by_function["memo_functions--square"]["invocations"] == 2
    assert by_function["memo_functions--square"]["calls"] == 5
    assert by_function["memo_functions--fails"]["failed"] == 1
    assert sum(row["computed_seconds"] for row in by_function.values()) == pytest.approx(
        run["computed_seconds"], abs=0.01
    )
    assert command("summarize", "no-such-run")[0] == 3

    left, right = (bind("demo", functions.square, (x, str(marks)), {}).memo.uri for x in (3, 4))
    shown = json.loads(command("inspect", left, "--json")[1])
    assert {a["parameter"]: a["value"] for a in shown["arguments"]} == {"x": "3", "folder": repr(str(marks))}
    assert [a["state"] for a in shown["attempts"]] == ["ok"]
    assert all(0 <= a[part] < 60 for a in shown["attempts"] for part in ("pending_seconds", "ran_seconds"))
    assert shown["result"]["error"] == ""
    assert "x = 3" in command("inspect", left)[1]
    assert re.search(r"^attempt .* pending [\d.e-]+ s ran [\d.e-]+ s", command("inspect", left)[1], re.MULTILINE)
    code, output = command("diff", left, right, "--json")
    assert (code, json.loads(output)) == (1, [{"what": "x", "left": "3", "right": "4"}])
    assert command("diff", left, left)[0] == 0

    short = [uri[: uri.rindex("/") + 9] for uri in (left, right)]
    assert json.loads(command("inspect", short[0], "--json")[1])["memo_uri"] == left
    assert json.loads(command("diff", *short, "--json")[1]) == json.loads(output)
    assert command("inspect", f"{left.rpartition('/')[0]}/0123456789abcde")[0] == 3
    assert command("invalidate", short[0], "--dry-run") == (0, "would forget 1 invocation\n")
    assert command("invalidate", left, "--dry-run") == (0, "would forget 1 invocation\n")
    assert command("prune", "--older-than", "0", "--dry-run")[1].startswith("would forget 3 invocations")
    assert command("inspect", left)[0] == 0
    assert command("invalidate", left) == (0, "forgot 1 invocation\n")
    assert command("inspect", left)[0] == 3
    assert command("invalidate", left)[0] == 3
    runner.call(functions.square, 3, str(marks))
    function_uri = left.rsplit("/", 1)[0]
    assert command("invalidate", function_uri) == (0, "forgot 2 invocations\n")


def test_addresses_that_name_nothing_or_too_much(command: Command, locks: LeaseManager) -> None:
    assert command("inspect", "memo:nope")[0] == command("inspect", "memo:nope/f", "--json")[0] == 3
    result = CliRunner().invoke(app, ["invalidate", "memo:demo"])
    assert isinstance(result.exception, MemoUriError)
    assert "give memo:PIPELINE/FUNCTION," in str(result.exception)


def test_help_names_every_command() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    for name in [
        "ls",
        "show",
        "history",
        "watch",
        "wait",
        "force-release",
        "sessions",
        "doctor",
        "run",
        "runs",
        "inspect",
        "summarize",
        "diff",
        "invalidate",
    ]:
        assert name in output


def test_every_help_page_can_be_shown(shared_url: str) -> None:
    for name in sorted(str(command.name) for command in app.registered_commands):
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0, (name, result.output, result.exception)
        assert "Usage" in result.output


def test_a_user_finds_an_invocation_from_the_summary(command: Command, locks: LeaseManager, tmp_path: Path) -> None:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="a/b")
    for x in (3, 4):
        runner.call(functions.square, x, str(tmp_path))
    runner.flush()
    (row,) = json.loads(command("summarize", "--json")[1])
    listed = json.loads(command("inspect", row["uri"], "--json")[1])
    assert [(r["outcome"], r["arguments"].split(",")[0]) for r in listed] in (
        [("result", "x=3"), ("result", "x=4")],
        [("result", "x=4"), ("result", "x=3")],
    )
    assert json.loads(command("inspect", "memo:a%2Fb", "--json")[1]) == listed
    assert json.loads(command("inspect", listed[0]["memo_uri"], "--json")[1])["memo_uri"] == listed[0]["memo_uri"]
    assert command("inspect", "memo:nobody")[0] == 3
