"""What an operator sees and may ask for: dead schedulers, names, the heap's place, cancellation, times."""

from __future__ import annotations

import contextvars
import threading
import time
import uuid
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fdb_schema import open_database
from s3heap_tender import (
    Heap,
    HeapMismatchError,
    HeapStore,
    ReadUpTo,
    Scheduler,
    keep_output,
    memoized_trigger,
    metrics,
    run_is_cancelled,
    subprocess_trigger,
)
from s3heap_tender.cli.common import task_row
from s3heap_tender.cli.moments import Moments
from s3heap_tender.runs import running
from s3heap_tender.runs.run_context import enter_run
from s3heap_tender.runs.triggers import TriggerError
from s3heap_tender.stores.bucket import BucketStore


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_run_whose_scheduler_died_says_so_and_counts_as_late(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    other = bench.new_sysdb()
    other.claim(task)
    assert bench.sysdb.describe(task.id).reasons == ()
    assert metrics(bench.sysdb).orphaned == 0
    other.close()
    bench.clock.sleep(100)
    [reason] = bench.sysdb.describe(task.id).reasons
    assert "its scheduler is gone" in reason
    found = metrics(bench.sysdb)
    assert (found.running, found.orphaned) == (1, 1)
    assert found.oldest_due_age >= 100


def test_a_partition_keeps_its_name(bench: Any) -> None:
    named = bench.sysdb.create_task("orders/eu", "t", cadence=0)
    nameless = bench.sysdb.create_task(uuid.uuid4(), "t", cadence=0)
    assert named.partition_name == "orders/eu"
    assert {task.id: task.partition_name for task in bench.sysdb.tasks()} == {named.id: "orders/eu", nameless.id: ""}
    printed: list[str] = []
    trigger = subprocess_trigger(["sh", "-c", 'test "$S3HEAP_PARTITION_NAME" = orders/eu'])
    bench.sysdb.delete(nameless.id)
    bench.settle(lambda *args: printed.append(str(trigger(*args))), seconds=1)
    assert bench.sysdb.get(named.id).last_error == ""
    assert printed == ["None"]


def test_a_heap_is_not_begun_elsewhere_by_mistake(quick: Any, tmp_path: Path) -> None:
    right, wrong = HeapStore(f"file:{tmp_path / 'heap'}"), HeapStore(f"file:{tmp_path / 'haep'}")
    other = type(quick)(open_database(f"memory:{uuid.uuid4().hex}"))
    sysdb = type(other.sysdb)(other.db, "elsewhere", sessions=other.sysdb.sessions, clock=other.clock)
    Heap(right, sysdb, may_move=False).close()
    with pytest.raises(HeapMismatchError, match="holds no heap; that of the cluster 'elsewhere' is at file:"):
        Heap(wrong, sysdb, may_move=False)
    Heap(right, sysdb, may_move=False).close()
    right.delete("meta", if_match=right.get("meta").etag)  # type: ignore[union-attr]
    Heap(right, sysdb, may_move=False).close()  # a bucket that was emptied is the heap's place still
    Heap(wrong, sysdb).close()


@pytest.fixture
def started(quick: Any) -> Any:
    """A scheduler with threads, and a task that is on the heap."""
    made: list[Scheduler] = []

    def start(trigger: Any, **options: Any) -> Any:
        overlap = options.pop("overlap", "cancel_other")
        task = quick.sysdb.create_task("p", "t", cadence=0, overlap=overlap, backoff=0.1)
        quick.tend()
        scheduler = Scheduler(quick.heap, quick.sysdb, trigger, concurrency=1, **options)
        made.append(scheduler)
        scheduler.turn()
        return task, scheduler

    yield start
    for scheduler in made:
        scheduler.stop()


def test_a_run_that_is_overlapped_is_cancelled_and_the_next_starts(quick: Any, started: Any) -> None:
    futures: list[Future[Any]] = []

    def trigger(task: Any, gen: int, epoch: int) -> Any:
        futures.append(Future())
        return futures[-1]

    task, scheduler = started(trigger)
    until(lambda: futures, "the first run")
    quick.sysdb.run_now(task.id)
    quick.tend()
    quick.clock.sleep(1)
    scheduler._runs.watch()
    until(lambda: futures[0].cancelled(), "the first run's end")
    until(lambda: not scheduler.running, "its thread's end")
    quick.clock.sleep(6)
    scheduler.turn()
    until(lambda: len(futures) == 2, "the second run")
    futures[1].set_result(None)
    assert scheduler.drain(20)
    assert quick.sysdb.get(task.id).state == "waiting"
    assert scheduler.totals.lost == 1


def test_a_command_whose_run_is_overlapped_is_killed(quick: Any, started: Any, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    task, scheduler = started(
        subprocess_trigger(["sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"])
    )
    until(pid.exists, "the command")
    quick.sysdb.run_now(task.id)
    scheduler._runs.watch()
    assert scheduler.drain(20)
    with pytest.raises(ProcessLookupError):
        __import__("os").kill(int(pid.read_text()), 0)
    assert quick.sysdb.get(task.id).gen == 2


def test_a_run_that_takes_too_long_is_cancelled_and_has_failed(quick: Any, started: Any) -> None:
    seen = threading.Event()

    def trigger(task: Any, gen: int, epoch: int) -> None:
        while not run_is_cancelled():
            time.sleep(0.005)
        seen.set()
        raise RuntimeError("cancelled")

    task, scheduler = started(trigger, timeout=0.05)
    until(lambda: scheduler._runs.watch() or seen.is_set(), "the trigger to be told")
    assert scheduler.drain(20)
    after = quick.sysdb.get(task.id)
    assert (after.state, after.attempt) == ("scheduled", 1)
    assert "ran longer than 0.05 s" in after.last_error


def test_a_run_that_ignores_its_cancellation_is_left_behind(
    quick: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAVE_SECONDS", 0.05)
    go = threading.Event()
    ended = threading.Event()

    def trigger(task: Any, gen: int, epoch: int) -> None:
        if epoch == 1:
            go.wait(30)
            ended.set()

    task, scheduler = started(trigger, timeout=0.05)
    until(lambda: scheduler._runs.watch() or not scheduler.running, "the run to be left behind")
    assert "ran longer" in quick.sysdb.get(task.id).last_error
    quick.tend()
    quick.clock.sleep(10)
    scheduler.turn()
    assert scheduler.drain(20)
    assert quick.sysdb.get(task.id).state == "waiting"
    go.set()
    assert ended.wait(20)
    assert quick.sysdb.get(task.id).completion_offset == 0
    assert quick.violations() == []


def test_what_a_run_that_was_left_behind_says_changes_nothing_of_the_run_that_followed(
    quick: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAVE_SECONDS", 0.05)
    go = {1: threading.Event(), 2: threading.Event()}
    said = {1: ReadUpTo(3), 2: ReadUpTo(1)}

    def trigger(task: Any, gen: int, epoch: int) -> Any:
        go[epoch].wait(30)
        keep_output(f"run {epoch}")
        return said[epoch]

    task, scheduler = started(trigger, timeout=0.05)
    until(lambda: scheduler._runs.watch() or not scheduler.running, "the run to be left behind")
    scheduler._runs.timeout = None
    quick.write("p", 3)
    quick.tend()
    quick.clock.sleep(10)
    scheduler.turn()
    until(lambda: quick.sysdb.get(task.id).epoch == 2, "the run that follows")
    threads = [thread for thread in threading.enumerate() if thread.name == "s3heap-run"]
    go[1].set()
    until(lambda: sum(thread.is_alive() for thread in threads) < len(threads), "the one left behind to end")
    now = quick.sysdb.get(task.id)
    assert (now.state, now.epoch, now.completion_offset) == ("running", 2, 0)
    assert len(scheduler._runs) == 1
    go[2].set()
    assert scheduler.drain(20)
    after = quick.sysdb.describe(task.id)
    assert after.task.completion_offset == 1, "the rest is still to be read"
    assert (after.task.gen, after.task.state) == (2, "scheduled")
    assert after.output == "run 2"
    assert quick.violations(drained=False) == []


class Waiting:
    """What a trigger returns, to be waited for."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.over = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
        self.over.set()

    def result(self) -> None:
        self.over.wait(30)


def test_what_another_scheduler_waits_for_is_not_cancelled_by_the_one_that_lost_it(quick: Any, started: Any) -> None:
    future = Waiting()
    task, scheduler = started(lambda *args: future)
    until(lambda: any(run.outcome is future for run in scheduler._runs._under_way.values()), "the future")
    stopped = quick.sysdb.sessions  # its process stood still for so long that it was taken for dead
    with stopped._lock:
        stopped._ended.add(stopped.session)
    other = quick.new_sysdb()
    claim = other.claim(other.get(task.id))
    scheduler._runs.watch()
    assert not future.cancelled.is_set(), "the other's run would fail"
    other.finish(claim)
    future.over.set()
    assert scheduler.drain(20)
    after = other.get(task.id)
    assert (after.state, after.epoch, after.last_error) == ("waiting", 2, "")


def test_a_deleted_task_has_its_future_cancelled(quick: Any, started: Any) -> None:
    future = Waiting()
    task, scheduler = started(lambda *args: future)
    until(lambda: any(run.outcome is future for run in scheduler._runs._under_way.values()), "the future")
    quick.sysdb.delete(task.id)
    scheduler._runs.watch()
    assert future.cancelled.is_set()
    assert scheduler.drain(20)


def test_a_memoized_run_that_takes_too_long_has_its_invocation_cancelled(quick: Any, started: Any) -> None:
    class Runner:
        cancelled: tuple[Any, ...] = ()
        over = threading.Event()

        def call(self, *args: Any) -> None:
            assert self.over.wait(30)
            raise RuntimeError("cancelled")

        def cancel(self, *args: Any) -> bool:
            self.cancelled = args
            self.over.set()
            return True

    runner = Runner()
    task, scheduler = started(memoized_trigger(runner, print), timeout=0.05)
    until(lambda: scheduler._runs.watch() or runner.over.is_set(), "the invocation to be cancelled")
    assert scheduler.drain(20)
    assert runner.cancelled == (print, task.id, 1, 0)
    assert "ran longer than 0.05 s" in quick.sysdb.get(task.id).last_error


def test_a_run_that_is_cancelled_before_its_invocation_began_leaves_none_that_goes_on(
    quick: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAVE_SECONDS", 0.05)

    class Runner:
        cancelled = 0
        called, begun, over = threading.Event(), threading.Event(), threading.Event()

        def call(self, *args: Any) -> None:
            self.called.set()
            assert self.begun.wait(30)
            assert self.over.wait(30)

        def cancel(self, *args: Any) -> bool:
            self.cancelled += 1
            if self.begun.is_set():
                self.over.set()
            self.begun.set()  # its lock is had just after this look at it
            return self.over.is_set()

    runner = Runner()
    _, scheduler = started(memoized_trigger(runner, print), timeout=0.05)
    assert runner.called.wait(20)
    until(lambda: scheduler._runs.watch() or not scheduler.running, "the run to be left behind")
    assert runner.over.is_set()


def test_a_run_that_is_cancelled_before_its_invocation_began_begins_none(bench: Any) -> None:
    class Runner:
        called = 0

        def call(self, *args: Any) -> None:
            self.called += 1

        def cancel(self, *args: Any) -> bool:
            return False

    runner, over = Runner(), threading.Event()
    task = bench.sysdb.create_task("p", "t")

    def run() -> None:
        enter_run(over, lambda waits: waits.cancel())
        over.set()
        with pytest.raises(TriggerError, match="before its invocation began"):
            memoized_trigger(runner, print)(task, 1, 1)

    contextvars.copy_context().run(run)
    assert runner.called == 0


def test_a_fault_of_the_database_leaves_no_claim_with_a_run_that_is_left_behind(
    quick: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAVE_SECONDS", 0.05)
    go = threading.Event()
    fail, faults = quick.sysdb.fail, [OSError(28, "No space left on device")]

    def once(*args: Any, **options: Any) -> None:
        if faults:
            raise faults.pop()
        fail(*args, **options)

    monkeypatch.setattr(quick.sysdb, "fail", once)
    task, scheduler = started(lambda task, gen, epoch: go.wait(30) if epoch == 1 else None, timeout=0.05)

    def look() -> bool:
        try:
            scheduler._runs.watch()
        except OSError:
            assert not faults
        return not scheduler.running

    until(look, "the run to be left behind")
    assert "ran longer" in quick.sysdb.get(task.id).last_error
    assert not quick.sysdb.knows(task.id)
    go.set()


@pytest.mark.parametrize(
    ("environment", "given", "region"),
    [
        ({}, None, None),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, None, "eu-west-1"),
        ({"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-west-1"}, None, "eu-central-1"),
        ({"AWS_REGION": "eu-central-1"}, "ap-south-1", "ap-south-1"),
    ],
)
def test_the_region_is_the_environments(
    environment: dict[str, str], given: str | None, region: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    used: list[Any] = []

    class Noting(BucketStore):
        def _connect(self, endpoint_url: Any, access_key: Any, secret_key: Any, region: Any, connections: int) -> None:
            used.append(region)

    Noting("bucket", "prefix", region=given)  # type: ignore[abstract]
    assert used == [region]


def test_what_a_request_returns_has_its_payload(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0, payload=b"what to run", max_attempts=1)
    sysdb = bench.sysdb
    assert [found.payload for found in sysdb.tasks()] == [b"what to run"]
    assert [found.payload for found in sysdb.tasks("p")] == [b"what to run"]
    for request in (sysdb.pause, sysdb.resume, sysdb.run_now, lambda id: sysdb.backfill(id, 1)):
        assert request(task.id).payload == b"what to run"
    sysdb.fail(sysdb.claim(sysdb.get(task.id)), "no")
    assert sysdb.redrive(task.id, 1).payload == b"what to run"


def test_running_a_dead_letter_now_tries_it_again(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0, max_attempts=1)
    bench.tend()
    bench.sysdb.fail(bench.sysdb.claim(task), "no")
    assert bench.sysdb.get(task.id).dead
    after = bench.sysdb.run_now(task.id)
    assert (after.dead, after.attempt) == (False, 2)
    assert bench.sysdb.dead_letters() == []
    assert bench.settle(lambda *args: None, seconds=2) == 1
    assert bench.violations() == []


def test_the_last_start_is_shown_by_the_wall_clock(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.finish(bench.sysdb.claim(task))
    after = bench.sysdb.get(task.id)
    assert after.started_wall is not None
    later = datetime.fromtimestamp(after.started_wall + 3600, UTC)  # and no service has moved the cluster clock since
    row = task_row(after, Moments(bench.sysdb.now(), later))
    assert row["last_start_in"] == pytest.approx(-3600)


def test_overdue_runs_are_spread_again_after_an_outage(quick: Any) -> None:
    tasks = [quick.sysdb.create_task(f"p{number}", "t", cadence=0, jitter=100) for number in range(40)]
    quick.settle(lambda *args: None, seconds=3)
    for task in tasks:
        quick.write(task.partition)
    quick.tend()
    quick.clock.sleep(3600)
    started: list[int] = []
    scheduler = quick.new_scheduler(lambda *args: None)
    for _ in range(120):
        started.append(scheduler.turn().started)
        quick.clock.sleep(1)
    assert sum(started) == 40
    assert max(started) <= 6
    assert {quick.sysdb.get(task.id).state for task in tasks} == {"waiting"}
