"""Schedulers that stop: what they leave goes on elsewhere, also in their own process, and holds up nobody meanwhile."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from fdb_schema import open_database
from s3heap_tender import Heap, HeapStore, RunStoppedError, Scheduler, SysDb
from s3heap_tender.claims.sessions import LocalSessions


def by_the_clock(bench: Any, trigger: Any) -> Scheduler:
    return Scheduler(bench.heap, bench.sysdb, trigger, concurrency=0, monotonic=bench.clock.monotonic)


def test_a_run_that_was_ended_by_a_stop_is_made_again_by_the_next_scheduler_of_the_process(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()

    def stopped(*_: Any) -> None:
        raise RunStoppedError("its scheduler stops")

    by_the_clock(quick, stopped).turn()
    assert quick.sysdb.get(task.id).state == "running"
    ran: list[int] = []
    later = by_the_clock(quick, lambda task, gen, epoch: ran.append(task.attempt))
    later.turn()
    assert ran == [0], "the same attempt, which did not fail"
    assert quick.violations() == []


def test_a_run_that_could_not_be_settled_before_a_stop_is_made_again_by_the_next_scheduler_of_the_process(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    first = by_the_clock(quick, lambda *_: first.stop())

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(quick.sysdb, "finish", away)
        with pytest.raises(ConnectionError):
            first.turn()
    ran: list[int] = []
    by_the_clock(quick, lambda task, gen, epoch: ran.append(gen)).turn()
    assert ran == [1]
    assert quick.violations() == []


class Share:
    """A share of the shards, until it is given back."""

    def __init__(self) -> None:
        self.given_back = threading.Event()

    def shards(self) -> dict[int, int]:
        return {0: 1}

    def step_down(self, shard: int) -> None: ...

    def close(self) -> None:
        self.given_back.set()


@pytest.mark.timeout(60)
def test_a_scheduler_that_waits_for_its_runs_to_end_keeps_no_shard_from_others() -> None:
    sysdb = SysDb(open_database(f"memory:stopping-{uuid.uuid4().hex}"), shards=1, sessions=LocalSessions())
    heap = Heap(HeapStore("memory:"), sysdb, threads=0, linger=0)
    heap.push(sysdb.create_task("p", "t", cadence=0))
    share, runs, end = Share(), threading.Event(), threading.Event()

    def trigger(*_: Any) -> None:
        runs.set()
        end.wait(30)

    scheduler = Scheduler(heap, sysdb, trigger, ownership=share)
    service = threading.Thread(target=scheduler.run)
    service.start()
    try:
        assert runs.wait(30)
        scheduler.stop()
        assert share.given_back.wait(30)
        assert scheduler.running == 1
    finally:
        end.set()
        service.join(30)
    assert scheduler.running == 0
