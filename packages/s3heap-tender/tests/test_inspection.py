"""What people ask: describe, metrics, what is next, summaries, and the command."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fdb_schema import open_database
from fdb_schema.clock import ClockReading
from idempotent_txn import run as run_transaction
from s3heap_tender import Heap, HeapStore, SysDb, Tender, export_parquet, fsck, metrics
from s3heap_tender.claims import outbox
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.cli import common, main
from s3heap_tender.cli.moments import Moments
from s3heap_tender.export import ExportError
from s3heap_tender.inspection import next_due


def why(bench: Any, id: Any) -> str:
    return " / ".join(bench.sysdb.describe(id).reasons)


def test_describe_says_why_a_task_is_not_running(quick: Any) -> None:
    sysdb = quick.sysdb
    id = sysdb.create_task("p", "t", cadence=60, min_records=3, max_wait=600, max_attempts=1).id
    assert "not on the heap yet: is a tender running?" in why(quick, id)
    quick.tend()
    assert "a scheduler will start it" in why(quick, id)
    quick.clock.sleep(30)
    assert "is a scheduler running" in why(quick, id)
    claim = sysdb.claim(sysdb.get(id))
    assert sysdb.describe(id).reasons == ()
    sysdb.finish(claim)
    assert "waits for a write" in why(quick, id)
    quick.write("p")
    assert "tender has not swept" in why(quick, id)
    quick.tend()
    assert "1 of 3 records" in why(quick, id)
    quick.write("p", 2)
    quick.tend()
    assert "cadence allows the next start in 60.5 s" in why(quick, id)
    sysdb.pause(id)
    assert "paused" in why(quick, id)
    sysdb.resume(id)
    quick.clock.sleep(61)
    sysdb.fail(sysdb.claim(sysdb.get(id)), "disk full")
    assert "failed 1 time (disk full): redrive" in why(quick, id)
    found = sysdb.describe(id)
    assert (found.dead_letters, found.log_end, found.unread) == ((2,), 3, 3)


def test_describe_names_the_back_off(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, backoff=30.0)
    quick.sysdb.fail(quick.sysdb.claim(task), "busy")
    assert "its last run failed (busy)" in why(quick, task.id)


def test_metrics_say_how_far_behind_the_system_is(quick: Any) -> None:
    empty = metrics(quick.sysdb, quick.heap)
    assert (empty.outbox_depth, empty.dirty_partitions, empty.active, empty.oldest_due_age) == (0, 0, 0, 0.0)
    for number in range(3):
        quick.sysdb.create_task("p", f"t{number}", cadence=0)
    quick.clock.sleep(10)
    behind = metrics(quick.sysdb, quick.heap)
    assert (behind.outbox_depth, behind.active) == (3, 3)
    assert behind.oldest_due_age == pytest.approx(10, abs=0.01)
    quick.tend()
    quick.settle(lambda task, gen, epoch: None, seconds=3)
    quick.write("p")
    later = metrics(quick.sysdb, quick.heap)
    assert (later.outbox_depth, later.dirty_partitions, later.starts, later.finishes) == (0, 1, 3, 3)
    assert later.dirty_lag >= 0
    assert later.requests["put"] >= 1


def test_a_start_long_after_its_due_is_a_missed_deadline(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=1)
    quick.tend()
    quick.clock.sleep(300)
    quick.settle(lambda task, gen, epoch: None, seconds=2)
    assert metrics(quick.sysdb).missed_deadlines == 1


def test_a_dead_letter_is_listed_and_redriven_by_the_command(tmp_path: Path) -> None:
    run = Command(tmp_path)
    with SysDb(open_database(f"embedded:{tmp_path / '.mainspring'}"), sessions=LocalSessions()) as sysdb:
        task = sysdb.create_task("p", "t", cadence=0, max_attempts=1)
        sysdb.fail(sysdb.claim(task), "disk full")
    [letter] = json.loads(run("dlq", "--json"))
    assert (letter["task"], letter["gen"], letter["error"]) == (str(task.id), 1, "disk full")
    assert "disk full" in run("dlq")
    assert json.loads(run("redrive", str(task.id), "1", "--json"))["dead"] is False
    assert json.loads(run("dlq", "--json")) == []


def test_next_is_what_starts_next(quick: Any) -> None:
    for number, cadence in enumerate((30, 10, 20)):
        quick.sysdb.finish(quick.sysdb.claim(quick.sysdb.create_task("p", f"t{number}", cadence=cadence)))
    quick.write("p")
    quick.tend()
    assert [task.cadence for task in next_due(quick.sysdb, 2)] == [10, 20]
    assert [item.task for item in quick.heap.peek(2)] == [task.id for task in next_due(quick.sysdb, 2)]
    assert quick.heap.peek(before=quick.clock.value / 1e6 + 15)[0].due == quick.clock.value / 1e6 + 10
    assert quick.heap.peek(before=quick.clock.value / 1e6 + 5) == []


def test_summary_and_buckets_count_what_is_there(quick: Any) -> None:
    for number in range(5):
        quick.sysdb.create_task("p", f"t{number}", cadence=0)
    quick.tend()
    found = quick.heap.summary()
    assert (found.items, found.due, sum(found.by_shard.values())) == (5, 5, 5)
    assert found.buckets == len(quick.heap.buckets()) <= 2
    assert fsck(quick.heap, quick.sysdb).clean


def test_done_items_are_on_the_heap_and_not_due(quick: Any) -> None:
    tasks = [quick.sysdb.create_task("p", f"t{number}", cadence=0) for number in range(3)]
    quick.tend()
    for task in tasks[:2]:
        quick.sysdb.finish(quick.sysdb.claim(task))
    found = quick.heap.summary()
    assert (found.items, found.due) == (3, 1)
    assert [item.task for item in quick.heap.peek()] == [tasks[2].id]


def test_a_clock_that_stands_still_is_said_instead_of_times_that_never_come(quick: Any) -> None:
    sysdb = quick.sysdb
    id = sysdb.create_task("p", "t", cadence=60).id
    sysdb.finish(sysdb.claim(sysdb.get(id)))
    sysdb.run_now(id)
    assert "cadence allows the next start in" in why(quick, id)

    def written(seconds_ago: float) -> None:
        reading = ClockReading(quick.clock.value, int((time.time() - seconds_ago) * 1e6), 1)
        run_transaction(quick.db, lambda tr: tr.set(quick.clock.key, reading.encode()))

    written(1)
    assert "cadence allows the next start in" in why(quick, id)
    written(600)
    told = why(quick, id)
    assert told.startswith("nobody moves the cluster clock (")
    assert told.endswith(" s to go): is a tender running?")
    quick.clock.sleep(120)
    sysdb.tick()
    written(600)
    assert why(quick, id) == "nobody moves the cluster clock: is a tender running?"
    quick.tend()
    written(600)
    assert why(quick, id) == "nobody moves the cluster clock: is a scheduler running?"


def test_a_change_says_that_nobody_will_start_the_task(quick: Any, capsys: pytest.CaptureFixture[str]) -> None:
    id = quick.sysdb.create_task("p", "t", cadence=60).id
    common.show_task(quick.sysdb, quick.sysdb.run_now(id), as_json=False)
    assert "nobody" not in capsys.readouterr().err
    reading = ClockReading(quick.clock.value, int((time.time() - 600) * 1e6), 1)
    run_transaction(quick.db, lambda tr: tr.set(quick.clock.key, reading.encode()))
    common.show_task(quick.sysdb, quick.sysdb.run_now(id), as_json=False)
    assert capsys.readouterr().err == "→ nobody moves the cluster clock: is a tender running?\n"


def test_idle_tasks_cost_no_heap_item_and_no_request(quick: Any) -> None:
    for number in range(30):
        quick.sysdb.create_task("p", f"t{number}", cadence=0)
    quick.settle(lambda task, gen, epoch: None, seconds=3)
    quick.clock.sleep(120)
    quick.heap.prune()
    assert quick.heap.summary().items == 0
    scheduler = quick.new_scheduler(lambda task, gen, epoch: None)
    scheduler.turn()  # the first look lists every shard
    before = dict(quick.heap.io.requests)
    for _ in range(10):
        quick.tend()
        scheduler.turn()
    assert quick.heap.io.requests == before


def test_paused_tasks_on_the_heap_are_looked_at_once_a_second(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [quick.sysdb.create_task("p", f"t{number}", cadence=0) for number in range(5)]
    quick.tend()
    for task in tasks:
        quick.sysdb.pause(task.id)
    for number in range(10):  # due, and not on the heap: their shards are looked at again and again
        quick.sysdb.create_task("q", f"t{number}", cadence=0)
    scheduler = quick.new_scheduler(lambda task, gen, epoch: None)
    looks: list[int] = []
    may = outbox.read_rows

    def counted(tr: Any, at: Any, ids: Any) -> Any:
        looks.append(len(ids))
        return may(tr, at, ids)

    monkeypatch.setattr(outbox, "read_rows", counted)
    for _ in range(10):
        assert scheduler.turn().started == 0
        quick.clock.sleep(0.09)
    assert sum(looks) == 5
    for task in tasks:
        quick.sysdb.resume(task.id)
    quick.clock.sleep(5)
    assert scheduler.turn().started == 5


@pytest.mark.parametrize("beside", [False, True])
def test_a_paused_task_whose_scheduler_is_dead_costs_no_listing(quick: Any, beside: bool) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    quick.sysdb.claim(task)
    quick.sysdb.pause(task.id)
    quick.sysdb.sessions.close()  # it died
    sysdb = quick.new_sysdb()
    scheduler = quick.new_scheduler(lambda task, gen, epoch: None, sysdb)
    if beside:  # another one's run in the same shard is taken over all the same
        other = sysdb.create_task("p", "u", cadence=0, id=UUID(int=task.id.int ^ 1 << 60))
        quick.tend()
        dead = quick.new_sysdb()
        dead.claim(other)
        dead.sessions.close()
    started = 0
    for _ in range(3):
        started += scheduler.turn().started
        scheduler._runs_looked, scheduler._alive = float("-inf"), {}
        quick.clock.sleep(1)
    assert started == beside
    before = dict(scheduler.heap.io.requests)
    for _ in range(5):
        assert scheduler.turn().started == 0
        scheduler._runs_looked, scheduler._alive = float("-inf"), {}
        quick.clock.sleep(1)
    assert scheduler.heap.io.requests == before
    sysdb.resume(task.id)
    scheduler._runs_looked = float("-inf")
    quick.clock.sleep(5)
    assert scheduler.turn().started == 1


def test_a_due_scan_reads_an_object_once_and_again_only_when_it_changed(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    quick.heap.peek()
    before = dict(quick.heap.io.requests)
    for _ in range(5):
        quick.heap.peek()
    assert quick.heap.io.requests["get"] == before["get"]


class Command:
    """The command as a shell would run it in a directory, in this process: starting Python costs more than what it does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *words: str, code: int = 0) -> str:
        output, errors = io.StringIO(), io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        patched = pytest.MonkeyPatch.context()
        with patched as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            patch.chdir(self.directory)
            patch.setattr(sys, "argv", ["s3heap-tender", *words])
            with pytest.raises(SystemExit) as ended:
                main()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        assert ended.value.code == code, (words, ended.value.code, errors.getvalue())
        return output.getvalue() if code in (0, 1) else errors.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ("tasks",),
        ("describe", str(UUID(int=1))),
        ("next",),
        ("dlq",),
        ("peek",),
        ("buckets",),
        ("summary",),
        ("fsck",),
        ("export", "heap.parquet"),
    ],
    ids=lambda words: words[0],
)
def test_a_look_at_a_mistyped_path_exits_4_and_makes_no_database(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = Command(tmp_path)(*words, "--db", "embedded:./typo", code=4)
    assert f"there is no database at {tmp_path / 'typo'}" in told
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_shows_and_ends_a_task(tmp_path: Path) -> None:
    run = Command(tmp_path)
    made = json.loads(run("create", "orders", "index", "--cadence", "5", "--json"))
    id = made["id"]
    assert [row["id"] for row in json.loads(run("tasks", "--json"))] == [id]
    assert json.loads(run("describe", id, "--json"))["reasons"]
    [soon] = json.loads(run("next", "--json"))
    assert (soon["name"], -60 < soon["due_in"] < 1) == ("index", True)
    assert abs((datetime.fromisoformat(soon["due_at"]) - datetime.now(UTC)).total_seconds()) < 60
    assert " s ago" in run("tasks") or "in 0.0 s" in run("tasks")
    assert f"{datetime.now():%Y-}" in run("next")
    assert "cluster clock" in run("describe", id)
    assert json.loads(run("pause", id, "--json"))["paused"] is True
    assert json.loads(run("resume", id, "--json"))["paused"] is False
    assert json.loads(run("run-now", id, "--json"))["gen"] == 1
    assert json.loads(run("backfill", id, "2", "--json"))["pending_runs"] == 2
    assert json.loads(run("summary", "--json"))["outbox_depth"] == 1
    assert json.loads(run("dlq", "--json")) == []
    assert json.loads(run("fsck", "--json"))["clean"] is True
    assert json.loads(run("prune", "--dry-run", "--json"))[0]["pruned"] == 0
    assert json.loads(run("peek", "--json")) == json.loads(run("buckets", "--json")) == []
    assert json.loads(run("delete", id, "--json")) == {"task": id, "deleted": True}
    assert "was deleted" in run("describe", id, code=3)


def test_the_command_runs_commands_and_shows_what_they_printed(tmp_path: Path) -> None:
    run = Command(tmp_path)
    id = json.loads(run("create", "orders", "index", "--cadence", "5", "--json"))["id"]
    services = []
    with (tmp_path / "log").open("wb") as log:
        for words in (("tend",), ("schedule", "--", "sh", "-c", "echo generation $S3HEAP_GEN is done")):
            words = (sys.executable, "-m", "s3heap_tender", *words)
            services.append(subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log))
    try:
        deadline = time.monotonic() + 60
        while "generation 1 is done" not in (shown := run("describe", id)):
            assert time.monotonic() < deadline, (shown, (tmp_path / "log").read_text())
    finally:
        for service in services:
            service.terminate()
        for service in services:
            assert service.wait(60) == 0
    assert "generation 1 printed at its end:\n  generation 1 is done\n" in shown
    assert json.loads(run("describe", id, "--json"))["output"] == "generation 1 is done\n"
    assert "index" in (tmp_path / "log").read_text()


def test_a_command_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    told = Command(tmp_path)("schedule", "nosuchcmd", code=2)
    assert told == "error: command not found: 'nosuchcmd' can't be run\n"


def test_a_name_in_the_place_of_an_id_is_told_where_the_ids_are(tmp_path: Path) -> None:
    told = " ".join(Command(tmp_path)("describe", "index", code=2).split())
    assert (
        "'index' is no id of a task: give a UUID, or four digits or more of its beginning, as `s3heap-tender ls` lists"
        in told
    )


def test_a_task_is_named_by_partition_and_name(tmp_path: Path) -> None:
    run = Command(tmp_path)
    ids = [
        json.loads(run("create", partition, name, "--json"))["id"]
        for partition, name in (("orders/eu", "index"), ("orders", "mail"), ("a", "b/c"), ("a/b", "c"))
    ]
    assert json.loads(run("describe", "orders/eu/index", "--json"))["id"] == ids[0]
    assert json.loads(run("pause", "orders/mail", "--json"))["paused"]
    assert "no task is named 'orders/nothing'" in run("pause", "orders/nothing", code=3)
    assert "no task is named" in run("describe", "//orders//mail/", code=3)
    several = run("delete", "a/b/c", code=2)
    assert ids[2] in several and ids[3] in several
    run("delete", "orders/mail")
    assert "no task is named" in run("describe", "orders/mail", code=3)


def test_a_scheduler_that_is_stopped_kills_what_outlives_its_grace(tmp_path: Path) -> None:
    run = Command(tmp_path)
    id = json.loads(run("create", "orders", "index", "--json"))["id"]
    pid = tmp_path / "pid"
    with SysDb(open_database(f"embedded:{tmp_path / '.mainspring'}"), sessions=LocalSessions()) as sysdb:
        heap = Heap(HeapStore(f"file:{tmp_path / 'heap'}"), sysdb)
        Tender(heap, sysdb).turn()
        heap.close()
    words = ("schedule", "--grace", "0.1", "--", "sh", "-c", f"echo $$ > {pid}; sleep 600")
    service = subprocess.Popen((sys.executable, "-m", "s3heap_tender", *words), cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        service.terminate()
        assert service.wait(60) == 0
    finally:
        service.kill()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    after = json.loads(run("describe", id, "--json"))
    assert (after["attempt"], after["last_error"]) == (0, "")  # another scheduler goes on with the same attempt


def test_the_heap_is_exported_to_parquet(quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    tasks = [quick.sysdb.create_task("p", f"t{number}", cadence=0) for number in range(5)]
    quick.tend()
    quick.sysdb.delete(tasks[0].id)
    file = tmp_path / "heap.parquet"
    file.write_bytes(b"an older export")
    assert export_parquet(quick.heap, file) == 5
    found = parquet.read_table(file)
    rows = {row["task"]: row for row in found.to_pylist()}
    assert set(rows) == {str(task.id) for task in tasks}
    assert [rows[str(task.id)]["verdict"] for task in tasks] == ["done", "live", "live", "live", "live"]
    one = rows[str(tasks[1].id)]
    assert (one["gen"], one["due_ms"], one["partition"]) == (1, tasks[1].item.due_ms, str(tasks[1].partition))
    assert one["object"] in {bucket.key for bucket in quick.heap.buckets()}
    assert found.schema.metadata[b"s3heap.sysdb"] == str(quick.sysdb.id).encode()
    with pytest.raises(ExportError, match="can't be written"):
        export_parquet(quick.heap, tmp_path / "absent" / "x.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heap.parquet"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"pip install pyarrow"):
        export_parquet(quick.heap, file)


def test_an_empty_heap_is_exported_too(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    open_database(f"embedded:{tmp_path}/.mainspring")
    run = Command(tmp_path)
    assert json.loads(run("export", "heap.parquet", "--json")) == {"file": "heap.parquet", "items": 0, "unreadable": []}
    damaged = "0000-19700101T000000Z-000"
    (tmp_path / "heap" / damaged).write_bytes(bytes(100))
    assert json.loads(run("export", "heap.parquet", "--json"))["unreadable"] == [damaged]
    assert parquet.read_table(tmp_path / "heap.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "in 0.0 s"),
        (-3.25, "3.2 s ago"),
        (185, "in 3 min 5 s"),
        (-7260, "2 h 1 min ago"),
        (200_000, "in 2 d 7 h"),
    ],
)
def test_times_are_shown_as_people_read_them(seconds: float, text: str) -> None:
    assert Moments.relative(seconds) == text


def test_a_time_of_the_cluster_clock_is_shown_as_this_machines() -> None:
    moments = Moments(100.0, datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert moments.fields("due", 160.5) == {"due_in": 60.5, "due_at": "2030-01-02T03:05:05.500Z"}
    assert moments.fields("due", None) == {"due_in": None, "due_at": None}
    assert "in 60.5 s, " in moments.text(160.5)
    assert "(cluster clock 160.500 s)" in moments.text(160.5)


def test_the_commands_exit_codes_say_what_went_wrong(tmp_path: Path) -> None:
    run = Command(tmp_path)
    assert "max_wait" in run("create", "p", "t", "--min-records", "5", code=2)
    assert "no task" in run("pause", "00000000-0000-0000-0000-000000000001", code=3)
    assert "unknown scheme" in run("peek", "--store", "gs://x", code=2)
    assert "error" in run("tasks", "--db", "fdb:/none/fdb.cluster", code=4)
    trace = tmp_path / "trace"
    trace.write_text("nonsense\n")
    assert json.loads(run("check", str(trace), "--json", code=1))[0]["kind"] == "format"
    assert json.loads(run("check", str(trace), "--follow", "0.1", "--json", code=1))[0]["kind"] == "format"
    trace.write_text("")
    run("check", str(trace))
    assert "can't be read" in run("check", str(tmp_path / "absent"), code=2)
