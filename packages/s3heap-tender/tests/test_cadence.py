"""G1 where a run begins later than its claim says: the next keeps its cadence from the moment at which the trigger is called."""

from __future__ import annotations

from typing import Any

import pytest

from s3heap_tender import ClaimLostError, ClaimRefusedError, SysDb, failpoints, running
from s3heap_tender.core import TICK


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
        {"claim": [0.4] * 9, "begin": [0.4] * 9},  # the database is slow for good
        {"claim": [1.5], "begin": [0.3, 1.5, 0.2]},
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
    slow(quick, {"claim": [1.5], "begin": [0.4, 0.4]})
    claim = quick.sysdb.claim(task)
    assert claim.leeway > 0.4
    quick.sysdb.sessions.close()
    other: SysDb = quick.new_sysdb()
    retaken = other.claim(claim.task)
    with pytest.raises(ClaimLostError):
        quick.sysdb.finish(claim)
    other.fail(retaken, "no")
    after = other.get(task.id)
    assert after.due >= claim.started + claim.leeway + task.cadence


def test_a_run_that_begins_at_once_stores_nothing_more(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    names: list[str] = []

    def at_most_a_tick(name: str) -> None:
        names.append(name)
        if name == "sysdb.claim.after":
            quick.clock.sleep(TICK / 1e6)

    failpoints.observe(at_most_a_tick)
    assert quick.settle(lambda *_: None, seconds=3) == 1
    assert "sysdb.claim.after" in names
    assert "sysdb.begin.before" not in names
