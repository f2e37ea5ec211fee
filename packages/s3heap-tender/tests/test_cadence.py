"""G1 where a run begins later than its claim says: the next keeps its cadence from the moment at which the trigger is called."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from fdb_schema import ClusterClock, ClusterSpace, open_database
from s3heap_tender import Backoff, ClaimLostError, ClaimRefusedError, SysDb, failpoints
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.rows import core
from s3heap_tender.rows.core import TICK
from s3heap_tender.rows.settings import new_row
from s3heap_tender.runs import running


def slow(bench: Any, seconds: dict[str, list[float]]) -> None:
    """The n-th commit of each name takes as long as is said of it; those after the last take no time."""

    def wait(name: str) -> None:
        rest = seconds.get(name.removeprefix("sysdb.").removesuffix(".after"), []) if name.endswith(".after") else []
        if rest:
            bench.clock.sleep(rest.pop(0))

    failpoints.observe(wait)


def begun(bench: Any, task: Any, runs: int = 2) -> list[int]:
    """When each generation's trigger was called, in µs, where each run is cancelled in favour of another."""
    moments: list[int] = []

    def trigger(task: Any, gen: int, epoch: int) -> None:
        moments.append(bench.clock.value)
        if len(moments) < runs:
            bench.sysdb.run_now(task.id)

    bench.settle(trigger, seconds=30, step=0.01)
    assert len(moments) == runs
    return moments


@pytest.mark.parametrize(
    "seconds",
    [
        {"claim": [1.5]},
        {"claim": [1.5], "begin": [0.4]},
        {"claim": [0.6] * 9, "begin": [0.6] * 9},  # the database is slow for good
        {"claim": [1.5], "begin": [0.6, 1.5, 0.2]},
    ],
    ids=str,
)
def test_a_run_that_began_late_and_was_cancelled_is_a_later_start_for_the_cadence(
    quick: Any, seconds: dict[str, list[float]]
) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=1, overlap="cancel_other")
    slow(quick, seconds)
    first, second, third = begun(quick, task, runs=3)
    assert second - first >= 1_000_000
    assert third - second >= 1_000_000
    assert quick.violations() == []


@pytest.mark.parametrize("settle", ["finish", "fail"])
def test_a_run_that_began_late_and_ended_is_a_later_start_for_the_cadence(quick: Any, settle: str) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=3)
    quick.tend()
    slow(quick, {"claim": [1.5]})
    claim = quick.sysdb.claim(task)
    began = quick.clock.value
    assert claim.started * 1e6 == began
    assert claim.task.last_start == claim.started
    quick.sysdb.finish(claim) if settle == "finish" else quick.sysdb.fail(claim, "no")
    assert quick.sysdb.get(task.id).last_start == claim.started
    assert quick.violations(drained=False) == []


def test_a_run_that_began_long_after_its_claim_is_a_later_start_for_the_cadence(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=3, overlap="cancel_other")
    enter = running.enter_run

    def slowly(*args: Any) -> None:
        quick.clock.sleep(0.6)
        enter(*args)

    monkeypatch.setattr(running, "enter_run", slowly)
    first, second = begun(quick, task)
    assert second - first >= 3_000_000
    assert quick.violations() == []


def test_a_claim_that_was_lost_before_its_run_began_begins_none(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, overlap="cancel_other")
    quick.tend()

    def lose(name: str) -> None:
        if name == "sysdb.claim.after":
            failpoints.disarm()
            quick.clock.sleep(1.5)
            quick.sysdb.run_now(task.id)

    failpoints.observe(lose)
    with pytest.raises(ClaimRefusedError) as refusal:
        quick.sysdb.claim(task)
    assert refusal.value.reason == "superseded"
    assert not quick.sysdb.knows(task.id)
    ran: list[int] = []
    quick.settle(lambda _task, gen, _epoch: ran.append(gen), seconds=5)
    assert ran == [2]
    assert quick.violations() == []


def test_a_claim_that_was_lost_between_claim_and_call_fails_nothing(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, overlap="cancel_other")
    quick.tend()
    enter = running.enter_run

    def lose(*args: Any) -> None:
        monkeypatch.undo()
        quick.clock.sleep(1.5)
        quick.sysdb.run_now(task.id)
        enter(*args)

    monkeypatch.setattr(running, "enter_run", lose)
    ran: list[int] = []
    scheduler = quick.new_scheduler(lambda _task, gen, _epoch: ran.append(gen))
    report = scheduler.turn()
    assert (report.lost, report.failed, ran) == (1, 0, [])
    quick.tend()
    scheduler.turn()
    assert ran == [2]
    assert quick.violations() == []


def test_a_later_start_that_cannot_be_stored_leaves_the_claim_to_whoever_comes_next(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()

    def away(name: str) -> None:
        if name == "sysdb.claim.after":
            quick.clock.sleep(1.5)
        if name == "sysdb.begin.before":
            failpoints.disarm()
            raise ConnectionError("the database is away")

    failpoints.observe(away)
    ran: list[int] = []
    scheduler = quick.new_scheduler(lambda _task, gen, _epoch: ran.append(gen))
    with pytest.raises(ConnectionError):
        scheduler.turn()
    assert ran == []
    quick.clock.sleep(1)
    scheduler.turn()
    assert ran == [1]
    assert quick.sysdb.stats().get("failures", 0) == 0
    assert quick.violations() == []


def test_a_run_that_is_taken_over_while_it_may_still_begin_counts_as_the_later_of_the_two(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=1)
    quick.tend()
    slow(quick, {"claim": [1.5], "begin": [0.6, 0.6]})
    claim = quick.sysdb.claim(task)
    assert claim.leeway > 0.6
    quick.sysdb.sessions.close()
    other: SysDb = quick.new_sysdb()
    retaken = other.claim(claim.task)
    with pytest.raises(ClaimLostError):
        quick.sysdb.finish(claim)
    other.fail(retaken, "no")
    after = other.get(task.id)
    assert after.due == pytest.approx(claim.started + claim.leeway + task.cadence, abs=0.002)


def test_a_run_that_begins_at_once_stores_nothing_more(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    names: list[str] = []

    def at_most_two_ticks(name: str) -> None:
        names.append(name)
        if name == "sysdb.claim.after":
            quick.clock.sleep(2 * TICK / 1e6)

    failpoints.observe(at_most_two_ticks)
    assert quick.settle(lambda *_: None, seconds=3) == 1
    assert "sysdb.claim.after" in names
    assert "sysdb.begin.before" not in names


class Machines:
    """Services of one cluster whose monotonic clocks a test moves; each has its own part in the cluster clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.db = open_database(f"memory:machines-{uuid.uuid4().hex}")
        self.looks = 0
        self.look_seconds = 0.0

    def monotonic(self) -> float:
        return self.now

    def service(self) -> SysDb:
        machines = self

        class Clock(ClusterClock):
            def advance(self, tr: Any) -> int:
                machines.looks += 1
                machines.now += machines.look_seconds
                return super().advance(tr)

        clock = Clock(ClusterSpace("c"), monotonic=self.monotonic, wall=self.monotonic)
        return SysDb(self.db, "c", shards=1, sessions=LocalSessions(), clock=clock, monotonic=self.monotonic)


def test_a_start_on_a_row_that_another_wrote_keeps_the_cadence() -> None:
    """The row of the clock may be older than the look that finds it changed, and the claim's commit takes its time too."""
    machines = Machines()
    here, there = machines.service(), machines.service()
    task = here.create_task("p", "t", cadence=1, overlap="cancel_other")
    for _ in range(4):
        machines.now += 0.5
        there.tick()
        here.tick()
    for seconds, service in ((0.3, there), (0.2, here), (0.06, there), (0.44, here)):
        machines.now += seconds
        service.tick()
    machines.now += 0.24

    def slow(name: str) -> None:
        if name == "sysdb.claim.after":
            failpoints.disarm()
            machines.now += 0.24
            there.tick()  # it knows how old its row was

    failpoints.observe(slow)
    here.claim(task)
    began = machines.now
    following = here.run_now(task.id)
    while (there.describe(task.id).not_before or 0) > there.now():
        machines.now += 0.01
    there.claim(following)
    assert machines.now - began >= 1


def test_who_waited_for_a_slow_look_at_the_clock_makes_none_of_its_own() -> None:
    machines = Machines()
    sysdb = machines.service()
    machines.look_seconds = 0.3
    machines.now += 1
    machines.looks = 0
    for _ in range(8):
        sysdb.tick()
    assert machines.looks == 1


def test_a_generation_never_gets_a_due_time_back() -> None:
    """A pruner that was stopped between its judgement and its write would take the item for the one that it judged."""
    task = uuid.UUID(int=1)
    row = replace(new_row("p", "t", 0.0, 1, None, 0.0, Backoff(0.0), 5, "buffer_one", "once", b""), due=5_000_000)
    row = core.requested(row, 3_000_000)
    assert row.due == 3_000_000
    row = core.failed(task, core.claimed(row, "s", 0, 3_000_000), "", 5_000_000)
    assert row.due == 5_001_000
