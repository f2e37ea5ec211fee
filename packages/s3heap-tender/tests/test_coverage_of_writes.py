"""Every write causes its run: through retakes of runs that go on, odd results of triggers, and odd ends of runs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Any

import pytest

import idempotent_txn
from fdb_schema import RecordError
from s3heap_tender import ClaimRefusedError, ReadUpTo, Scheduler, SysDb, memoized_trigger


class Memo:
    """A runner that makes each call once for all processes, as a memoizing runner does, and notes what each call read."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.read: dict[Any, int] = {}

    def call(self, function: Any, *args: Any) -> Any:
        if args not in self.read:
            self.read[args] = self.bench.sysdb.log_end("p")
        return function(*args)


def test_a_retake_covers_what_the_first_claim_saw_and_no_more(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.write("p")
    bench.tend()
    memo = Memo(bench)
    first = bench.sysdb.claim(task)
    memo.call(lambda *args: None, task.id, first.gen, first.attempt)  # it runs on a worker, and its scheduler is killed
    bench.sysdb.sessions.close()
    bench.write("p", 2)
    bench.sysdb = other = bench.new_sysdb()
    bench.heap = bench.new_heap(other)
    bench.tender = type(bench.tender)(bench.heap, other)
    bench.settle(memoized_trigger(memo, lambda *args: None), seconds=5)
    assert max(memo.read.values()) == 3, "the two writes after the kill were read by no run"
    assert other.get(task.id).completion_offset == 3
    assert bench.violations() == []


def test_a_retake_tells_its_run_the_log_end_of_the_first_claim(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.write("p")
    bench.sysdb.claim(task)
    bench.sysdb.sessions.close()
    bench.write("p")
    other = bench.new_sysdb()
    again = other.claim(task)
    assert (again.epoch, again.upto_offset) == (2, 1)
    other.finish(again)
    after = other.get(task.id)
    assert (after.state, after.gen, after.completion_offset) == ("scheduled", 2, 1)


@pytest.mark.parametrize("result", [0, 1, 10**9, True, "upto=9"])
def test_a_result_that_is_no_offset_is_not_taken_for_one(quick: Any, result: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.write("p", 3)

    def trigger(task: Any, gen: int, epoch: int) -> Any:
        if gen == 1:
            quick.write("p", 2)  # after the run has read
        return result

    assert quick.settle(trigger, seconds=5) == 2
    after = quick.sysdb.get(task.id)
    assert (after.state, after.completion_offset) == ("waiting", 5)


async def later(task: Any, gen: int, epoch: int) -> None:
    raise AssertionError("nobody runs it")


def one_by_one(task: Any, gen: int, epoch: int) -> Any:
    yield task


@pytest.mark.parametrize("trigger", [later, one_by_one])
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_trigger_whose_code_never_ran_has_covered_nothing(quick: Any, trigger: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, max_attempts=1)
    quick.write("p", 3)
    quick.settle(trigger, seconds=2)
    after = quick.sysdb.get(task.id)
    assert (after.dead, after.completion_offset) == (True, 0)
    assert "whose code has not run" in quick.sysdb.dead_letters(task.id)[0].error


def test_a_run_for_which_there_is_no_thread_is_started_later(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    ran: list[int] = []
    scheduler = Scheduler(quick.heap, quick.sysdb, lambda task, gen, epoch: ran.append(gen), concurrency=2)
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "s3heap-run":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        report = scheduler.turn()
    assert (report.started, len(report.errors), scheduler.running) == (0, 1, 0)
    assert scheduler.turn().started == 1
    assert scheduler.drain(30)
    assert ran == [1]
    assert quick.sysdb.get(task.id).state == "waiting"


def test_an_offset_of_its_own_type_says_how_far_a_run_read(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.write("p", 3)

    def trigger(task: Any, gen: int, epoch: int) -> ReadUpTo:
        return ReadUpTo(2 if gen == 1 else 3)

    assert quick.settle(trigger, seconds=5) == 2
    with pytest.raises(ValueError, match="count of records"):
        ReadUpTo(-1)


def test_a_write_below_the_known_end_of_its_log_causes_a_run_and_is_said(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.mark_dirty("p", 100)
    bench.settle(lambda *args: None, seconds=3)
    assert bench.sysdb.get(task.id).completion_offset == 100
    gen = bench.sysdb.get(task.id).gen
    with caplog.at_level(logging.WARNING):
        bench.sysdb.mark_dirty("p", 1)  # the topic was made anew
    assert "below its known end 100" in caplog.text
    bench.settle(lambda *args: None, seconds=3)
    assert bench.sysdb.get(task.id).gen == gen + 1
    bench.sysdb.mark_dirty("p", 2)
    bench.settle(lambda *args: None, seconds=3)
    assert (bench.sysdb.get(task.id).gen, bench.sysdb.get(task.id).state) == (gen + 2, "waiting")
    assert bench.violations() == []


def test_a_write_below_the_known_end_during_a_run_causes_another(bench: Any) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.mark_dirty("p", 100)
    claim = bench.sysdb.claim(task)
    bench.sysdb.mark_dirty("p", 1)
    bench.tend()
    bench.sysdb.finish(claim)
    assert bench.sysdb.get(task.id).state == "scheduled"


@pytest.mark.parametrize("end", [1, 200], ids=["below the end", "beyond it"])
def test_a_finish_conflicts_with_a_write_that_it_did_not_see(bench: Any, end: int) -> None:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.mark_dirty("p", 100)
    claim = bench.sysdb.claim(task)
    from s3heap_tender.claims import transitions

    tries = 0

    def body(tr: Any) -> None:
        nonlocal tries
        tries += 1
        transitions.finish(tr, bench.sysdb.layout, task.id, claim.gen, claim.epoch, None)
        if tries == 1:
            bench.sysdb.mark_dirty("p", end)
            if end > 100:
                bench.tend()  # it is running: the sweep leaves it to its finish

    idempotent_txn.run(bench.db, body)
    assert tries == 2
    assert bench.sysdb.get(task.id).state == "scheduled"


def test_a_sweep_leaves_the_marker_of_a_write_that_it_did_not_see(bench: Any) -> None:
    bench.sysdb.create_task("p", "t", cadence=0)
    bench.sysdb.mark_dirty("p", 1)
    from s3heap_tender.claims import outbox, transitions

    def markers() -> Any:
        return [
            one for shard in range(bench.sysdb.shards) for one in bench.sysdb.read(outbox.read_dirty, shard, None, 10)
        ]

    (marker,) = markers()
    tr = bench.db.create_transaction()
    transitions.sweep(tr, bench.sysdb.layout, marker, None, 10)
    bench.sysdb.mark_dirty("p", 2)
    tr.commit().wait()
    (left,) = markers()
    assert left.value != marker.value


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def leave() -> None:
    sys.exit(3)


def cancel() -> None:
    raise asyncio.CancelledError


def half_a_character() -> None:
    raise ValueError("\ud800")


def unsayable() -> None:
    raise Unsayable


@pytest.mark.parametrize("end", [leave, cancel, half_a_character, unsayable])
@pytest.mark.parametrize("concurrency", [0, 2])
def test_a_run_that_ends_oddly_has_failed_and_runs_again(quick: Any, end: Any, concurrency: int) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, backoff=0)
    quick.tend()
    ran: list[int] = []

    def trigger(task: Any, gen: int, epoch: int) -> None:
        ran.append(epoch)
        if len(ran) == 1:
            end()

    scheduler = type(quick.new_scheduler(trigger))(quick.heap, quick.sysdb, trigger, concurrency=concurrency)
    scheduler.turn()
    assert scheduler.drain(10)
    after = quick.sysdb.get(task.id)
    assert (after.state, after.attempt) == ("scheduled", 1)
    assert after.last_error
    quick.tend()
    quick.clock.sleep(1)
    scheduler.turn()
    assert scheduler.drain(10)
    assert (len(ran), quick.sysdb.get(task.id).state) == (2, "waiting")


def test_output_that_no_encoding_holds_is_kept_as_far_as_it_can_be(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.sysdb.finish(quick.sysdb.claim(task), output="a\ud800b")
    assert quick.sysdb.describe(task.id).output == "a?b"


def test_a_claim_of_this_session_that_nobody_knows_of_is_taken_over(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    commit = quick.sysdb.commit

    def unanswered(name: str, *args: Any) -> Any:
        commit(name, *args)
        raise ConnectionError("the answer was lost")

    quick.sysdb.commit = unanswered
    with pytest.raises(ConnectionError):
        quick.sysdb.claim(task)
    quick.sysdb.commit = commit
    assert quick.sysdb.get(task.id).state == "running"
    assert quick.settle(lambda *args: None, seconds=2) == 1
    assert quick.sysdb.get(task.id).state == "waiting"
    assert quick.violations() == []


def test_a_claim_that_its_holder_still_knows_is_not_taken_over_by_its_own_session(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    claim = quick.sysdb.claim(task)
    with pytest.raises(ClaimRefusedError, match="is running in session"):
        quick.sysdb.claim(task)
    same_session = SysDb(quick.db, quick.cluster, sessions=quick.sysdb.sessions, clock=quick.clock)
    with pytest.raises(ClaimRefusedError, match="is running in session"):
        same_session.claim(task)
    assert quick.settle(lambda *args: None, seconds=2) == 0
    quick.sysdb.finish(claim)


def test_a_claim_that_cannot_be_settled_is_given_up_and_its_run_made_again(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    finish = quick.sysdb.finish

    def refuse(*args: Any, **options: Any) -> None:
        raise RecordError("a row is in the way")

    monkeypatch.setattr(quick.sysdb, "finish", refuse)
    scheduler = quick.new_scheduler(lambda *args: None)
    with pytest.raises(RecordError):
        scheduler.turn()
    monkeypatch.setattr(quick.sysdb, "finish", finish)
    monkeypatch.setattr("s3heap_tender.runs.running.GIVEN_UP_SECONDS", 0.0)
    assert scheduler.turn().finished == 1
    assert quick.sysdb.get(task.id).state == "waiting"
