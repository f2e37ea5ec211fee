"""The commands that look and act: what they print, and their exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.trace_format import check_schema

import fdb_datamodel as dm
from fdb_schema import ClusterSpace, open_database
from fdb_schema.serving.metrics import Metric, MetricsServer, render
from futures_worker.cli import main
from futures_worker.commands import output as output_command
from futures_worker.commands import timeline as timeline_command
from futures_worker.commands.opening import size
from futures_worker.operations.rows import dashed
from idempotent_txn import run

WAIT = 60.0


def command(*arguments: str, code: int = 0) -> Any:
    """Runs a command inside this process: a new one would mostly import."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["futures-worker", *arguments]
    found: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        found = end.code or 0
    finally:
        sys.argv = argv
    assert found == code, err.getvalue()
    return SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())


def as_json(*arguments: str) -> Any:
    return json.loads(command(*arguments, "--json").stdout)


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_session_ttl_that_live_clients_cant_keep_is_refused(tmp_path: Path) -> None:
    for seconds in ("0", "1", "14.9"):
        found = command("run", "--db", f"embedded:{tmp_path / 'db'}", "--session-ttl", seconds, code=2)
        assert f"--session-ttl {seconds}" in found.stderr
        assert "every 5 s" in found.stderr
    assert not (tmp_path / "db").exists()


def chatty(lines: int, gate: str = "") -> int:
    for number in range(lines):
        print(f"line {number}")
    os.system("echo from a process it started")
    print("to standard error", file=sys.stderr)
    while gate and not os.path.exists(gate):
        time.sleep(0.05)
    if gate:
        print("the gate is open")
    return lines


def print_and_die() -> None:
    print("last words")
    sys.stdout.flush()
    os._exit(3)


def silent() -> int:
    return 1


@pytest.fixture
def demo(shared_cluster: Any) -> Any:
    return shared_cluster(1, 2, "--metrics-port", "0", "--json")


@pytest.fixture
def own(cluster: Any) -> Any:
    """For tests that count what the whole cluster did."""
    return cluster(1, 2, "--metrics-port", "0", "--json")


def where(demo: Any) -> tuple[str, ...]:
    return "--db", demo.url, "--cluster", demo.name


def raises() -> None:
    raise ValueError("on purpose")


def test_what_a_task_printed_commands_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "50 %\r100 %\r\nred \x1b[31mtext\x1b[0m\ttitle \x1b]0;owned\x07 back\x08\x9b2J end\n"
    output = dm.TaskOutput(1, printed.encode(), len(printed.encode()))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown, piped = Terminal(), io.StringIO()
    for stream in (shown, piped):
        monkeypatch.setattr(sys, "stdout", stream)
        output_command._show_new(output, {})
    monkeypatch.undo()
    assert piped.getvalue() == printed
    text = shown.getvalue()
    assert text.startswith("50 %\n100 %\nred ")
    assert not any((ord(one) < 32 and one not in "\n\t") or 127 <= ord(one) < 160 for one in text)
    assert "owned" in text


def test_logs_are_kept_and_followed(demo: Any, tmp_path: Path) -> None:
    client = demo.client()
    gate = tmp_path / "gate"
    short = client.submit(chatty, 3)
    quiet = client.submit(silent)
    dying = client.submit(print_and_die, max_retries=1)
    long = client.submit(chatty, 2, str(gate))
    assert short.result(WAIT) == 3 and quiet.result(WAIT) == 1
    dying.exception(WAIT)
    (row,) = until(lambda: as_json("logs", str(short.id), *where(demo)))
    text = "line 0\nline 1\nline 2\nfrom a process it started\nto standard error\n"
    assert sorted(row["output"].split("\n")) == sorted(text.split("\n"))
    assert (row["attempt"], row["bytes"], row["kept_bytes"]) == (1, len(text), len(text))
    assert as_json("logs", str(quiet.id), *where(demo)) == []
    until(lambda: len(as_json("logs", str(dying.id), *where(demo))) == 2)
    assert command("logs", str(dying.id), *where(demo), "--attempt", "2").stdout == "last words\n"
    following = subprocess.Popen(
        [sys.executable, "-m", "futures_worker", "logs", "-f", str(long.id), *where(demo)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        lines = [following.stdout.readline() for _ in range(4)]
        assert "line 1\n" in lines, "it shows what a task prints while it runs"
        gate.touch()
        assert "the gate is open\n" in following.stdout.read()
        assert following.wait(WAIT) == 0
    finally:
        following.kill()
        following.wait()
    client.delete(short)
    assert command("logs", str(short.id), *where(demo), code=3).stderr.count("deleted") == 1
    assert client.submit(chatty, 30_000).result(WAIT) == 30_000
    demo.check()


def test_a_tasks_output_is_bounded(demo: Any) -> None:
    client = demo.client()
    future = client.submit(chatty, 30_000)
    assert future.result(WAIT) == 30_000
    (row,) = until(lambda: [r for r in as_json("logs", str(future.id), *where(demo)) if r["bytes"] > 300_000])
    assert row["kept_bytes"] == 64_000
    assert "line 29999" in row["output"] and "line 2000\n" not in row["output"]
    shown = command("logs", str(future.id), *where(demo))
    assert "no longer kept" in shown.stderr
    pid = demo.workers[0].pid
    (folder,) = Path("/dev/shm").glob(f"futures-worker-{os.getuid()}-{pid}-*/logs")
    until(
        lambda: not [path for path in folder.iterdir() if path.suffix == ".done"]
    )  # removed once it is in the database


def test_cancel_retry_and_why(demo: Any, tmp_path: Path) -> None:
    client = demo.client()
    gate = tmp_path / "gate"
    running = client.submit(chatty, 1, str(gate))
    ended = client.submit(silent)
    bad = client.submit(int, "x", max_retries=0)
    after = client.submit(abs, bad)
    huge = client.submit(silent, resources={"cpu": 999, "ram": "2GiB"})
    assert ended.result(WAIT) == 1
    after.exception(WAIT)
    waits = client.submit(abs, huge)
    client.flush()
    shown = as_json("show", str(huge.id), *where(demo))
    assert "unschedulable" in shown["reason"] and shown["ram"] == 2 << 30
    assert "2 GiB" in command("show", str(huge.id), *where(demo)).stdout
    assert "unschedulable" in command("ls", *where(demo)).stdout
    assert str(huge.id) in as_json("show", str(waits.id), *where(demo))["reason"]
    assert as_json("show", str(huge.id), *where(demo))["named_by"] == [str(waits.id)]
    text = command("show", str(bad.id), *where(demo)).stdout
    assert "(times that its result was lost and computed again)" in text
    assert "(all but the first are retries, of which max_retries allows so many)" in text
    assert "(futures that have it as an argument)" in command("show", str(huge.id), *where(demo)).stdout
    newest_first = [row["id"] for row in as_json("ls", "--newest", *where(demo))]
    assert newest_first == [row["id"] for row in as_json("ls", *where(demo))][::-1]
    assert text.count("invalid literal") == 2, "once as the reason, once as the traceback's last line"
    assert "invalid literal" in text.rstrip().splitlines()[-1]
    for one in (huge, running):
        assert as_json("cancel", str(one.id), *where(demo)) == [
            {"id": str(one.id), "state": "failed", "cancelled": True}
        ]
    late = command("cancel", str(ended.id), *where(demo), code=1)
    assert "not cancelled, it had ended before" in late.stdout
    assert as_json("retry", str(bad.id), *where(demo))[0]["retried"] is True
    until(lambda: as_json("show", str(bad.id), *where(demo))["epoch"] == 1)
    assert "isn't failed" in command("retry", str(ended.id), *where(demo), code=1).stdout
    assert command("cancel", "01890000-0000-7000-8000-000000000000", *where(demo), code=3).stderr.startswith("error: ")
    demo.check()


def test_a_failed_task_s_traceback_is_shown_and_raised(demo: Any) -> None:
    bad = demo.client().submit(raises, max_retries=0)
    error = bad.exception(WAIT)
    shown = as_json("show", str(bad.id), *where(demo))
    assert shown["traceback"].startswith("Traceback (most recent call last)")
    assert "in raises" in shown["traceback"]
    assert shown["ended"] is not None
    assert shown["claimed"] is not None and shown["seconds"] >= 0
    assert shown["worker"] == as_json("workers", *where(demo))[0]["address"], "who had it when it failed"
    assert command("show", str(bad.id), *where(demo)).stdout.rstrip().endswith("ValueError: on purpose")
    logged = command("logs", str(bad.id), *where(demo))
    assert logged.stdout == "", "only what the task printed"
    assert logged.stderr.startswith("--- attempt 1 failed: ValueError: on purpose\nTraceback")
    assert isinstance(error, ValueError)
    assert "in raises" in str(error.__cause__), "the caller has it too"


def test_top_workers_and_timeline(own: Any, tmp_path: Path) -> None:
    client = own.client()
    futures = client.map(abs, range(20))
    total = client.submit(sum, futures)
    assert total.result(WAIT) == 190
    found = as_json("top", *where(own))
    assert found["futures"]["realized"] == 21 and len(found["workers"]) == 1
    assert "21 realized" in command("top", *where(own)).stdout
    table = command("workers", *where(own)).stdout
    assert re.search(r"\d (GiB|MiB)", table), "sizes are for people"
    trace = json.loads(command("timeline", *where(own)).stdout)
    check_schema(trace)
    kinds = [event["ph"] for event in trace["traceEvents"]]
    assert (kinds.count("X"), kinds.count("s"), kinds.count("f")) == (21, 20, 20)
    target = tmp_path / "trace.json"
    summary = as_json("timeline", "-o", str(target), *where(own))
    assert summary["futures"] == 21 and summary["events"] == len(json.loads(target.read_text())["traceEvents"])
    assert command("timeline", "-o", str(tmp_path / "no" / "where"), *where(own), code=1).stderr.startswith("error: ")


def test_a_timeline_of_many_futures_tells_how_far_it_is_and_reads_no_more_than_its_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db, space = open_database("memory:"), ClusterSpace("demo")
    specs = [dm.FutureSpec(code=b"x", name=str(at)) for at in range(1_200)]
    for begin in range(0, len(specs), 200):
        run(db, dm.submit_futures, space, specs[begin : begin + 200])
    told: list[str] = []
    pages: list[int] = []

    class Status:
        def __enter__(self) -> Status:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, text: str) -> None:
            told.append(text)

    class Quiet:
        def __init__(self, **_: object) -> None: ...

        def status(self, text: str) -> Status:
            return Status()

    def listed(tr: Any, space: Any, after: Any, limit: int, **options: Any) -> Any:
        pages.append(limit)
        return dm.list_futures(tr, space, after, limit, **options)

    monkeypatch.setattr("rich.console.Console", Quiet)
    monkeypatch.setattr(timeline_command, "list_futures", listed)
    found = timeline_command._newest(db, space, 700)
    assert [info.name for info in found] == [str(at) for at in range(500, 1_200)]
    assert told[-1] == "reading futures: 700"
    assert len(told) == len(pages) > 1


def test_a_worker_has_metrics(own: Any) -> None:
    client = own.client()
    client.gather(client.map(abs, range(10)), timeout=WAIT)
    line = json.loads(own.workers[0].line)
    url = f"http://127.0.0.1:{line['metrics_port']}"
    label = f'cluster="{own.name}",worker="{line["address"]}"'

    def page() -> str:
        with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text: str = answer.read().decode()
            return text

    until(lambda: f'mainspring_worker_tasks_total{{outcome="realized",{label}}} 10\n' in page())
    assert f"mainspring_worker_slots{{{label}}} 2\n" in page()
    for line in page().splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) mainspring_\w+ .+|mainspring_\w+\{[^{}]*\} [0-9.e+-]+", line), line
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}/other", timeout=WAIT)
    error.value.close()
    assert error.value.code == 404
    from fdb_schema import ClusterSpace
    from futures_worker.metrics import cluster_metrics

    text = render(cluster_metrics(open_database(own.url), ClusterSpace(own.name)))
    assert f'mainspring_futures{{state="realized",cluster="{own.name}"}} 10\n' in text


def test_whoever_looks_makes_no_database(tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    for name in ("ls", "workers", "top", "timeline"):
        done = command(name, "--db", f"embedded:{typo}", code=4)
        assert str(typo) in done.stderr and done.stderr.startswith("error: there is no database")
        assert not typo.exists()
    typo.mkdir()
    command("ls", "--db", f"embedded:{typo}", code=4)
    assert list(typo.iterdir()) == []


def test_metrics_escape_and_refuse() -> None:
    assert render([Metric("a_total", "Lines\nand \\", "counter").add(2, name='say "x"\n')]) == (
        '# HELP a_total Lines\\nand \\\\\n# TYPE a_total counter\na_total{name="say \\"x\\"\\n"} 2\n'
    )
    for wrong in ([Metric("a b", "x")], [Metric("a", "x"), Metric("a", "x")]):
        with pytest.raises(ValueError, match="name of a metric"):
            render(wrong)

    def broken() -> list[Metric]:
        raise RuntimeError("not now")

    server = MetricsServer(broken)
    try:
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/metrics", timeout=WAIT)
        error.value.close()
        assert error.value.code == 503
        with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/healthz", timeout=WAIT) as answer:
            assert answer.read() == b"ok\n"
    finally:
        server.close()


def test_sizes_and_ids_are_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536 << 20, 5 << 40)] == ["0 B", "1023 B", "1 KiB", "1.5 GiB", "5 TiB"]
    assert dashed("lost 0189000000007000800000000000abcd now") == "lost 01890000-0000-7000-8000-00000000abcd now"
