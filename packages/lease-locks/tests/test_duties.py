"""Duties: one process at a time does each, a failure is noted and tried again, a dead one is succeeded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdb_schema import open_database
from idempotent_txn import run
from lease_locks import AbandonedLeases, Duties, Duty, LeaseManager, duty_reports
from lease_locks.duties import PREFIX, DutyReport

DEADLINE = 60.0


def wait_until(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


class Serving:
    """`Duties.run` in a thread, for as long as a `with` block lasts."""

    def __init__(self, locks: LeaseManager, *duties: Duty) -> None:
        self.duties = Duties(locks, duties, standby=0.5)
        self.thread = threading.Thread(target=self.duties.run)

    def __enter__(self) -> Serving:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.duties.stop()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


def test_of_two_processes_one_does_a_duty_and_the_other_takes_over(any_url: str) -> None:
    db = open_database(any_url)
    done: list[str] = []
    with LeaseManager(db) as one, LeaseManager(db) as two:
        first = Serving(one, Duty("sweep", 0.05, lambda: done.append("one") or 1))  # type: ignore[func-returns-value]
        second = Serving(two, Duty("sweep", 0.05, lambda: done.append("two") or 1))  # type: ignore[func-returns-value]
        with second:
            with first:
                wait_until(lambda: len(done) >= 4)
                assert len(set(done)) == 1
                (lease,) = one.list(PREFIX)
                assert lease.name == "duty/sweep"
            wait_until(lambda: "two" in done)
    report = duty_reports(db, one.space.cluster)["sweep"]
    assert report.rounds == report.done == len(done)
    assert (report.last, report.failures) == (1, 0)
    assert LeaseManager(db).list(PREFIX) == []


def test_a_failing_duty_is_noted_and_keeps_no_other_from_its_work(any_url: str) -> None:
    db = open_database(any_url)
    well = threading.Event()
    worked: list[int] = []

    def sometimes() -> int:
        if not well.is_set():
            raise OSError("the disk is full")
        return 3

    with LeaseManager(db) as locks:
        with Serving(locks, Duty("bad", 0.02, sometimes), Duty("good", 0.02, lambda: worked.append(1) or 0)):  # type: ignore[func-returns-value]
            wait_until(lambda: (r := duty_reports(db, locks.space.cluster).get("bad")) and r.failures >= 2)
            assert "the disk is full" in duty_reports(db, locks.space.cluster)["bad"].error
            wait_until(lambda: len(worked) >= 3)
            well.set()
            wait_until(lambda: duty_reports(db, locks.space.cluster)["bad"].done >= 3)
        last = duty_reports(db, locks.space.cluster)["bad"]
    assert (last.failures, last.error) == (0, "")


def test_a_duty_that_fails_for_days_keeps_its_longest_pause(any_url: str) -> None:
    db = open_database(any_url)
    tries: list[int] = []

    def fail() -> int:
        tries.append(1)
        raise OSError("the store is down")

    with LeaseManager(db) as locks:
        key = locks.space.cluster["duty"].pack(("bad",))
        run(db, lambda tr: tr.set(key, DutyReport(failures=2_000).encode()), strategy="off")
        served = Serving(locks, Duty("bad", 10.0, fail), Duty("good", 0.05, lambda: 1))
        with served:
            wait_until(lambda: duty_reports(db, locks.space.cluster)["bad"].failures > 2_000)
            good = duty_reports(db, locks.space.cluster).get("good", DutyReport()).rounds
            wait_until(lambda: duty_reports(db, locks.space.cluster).get("good", DutyReport()).rounds > good + 20)
            (lease,) = locks.list(PREFIX + "bad")
            assert lease.name == PREFIX + "bad"  # held all the time
    assert len(tries) == 1


def test_a_duty_whose_lease_was_lost_in_its_pause_is_not_done(any_db: Any) -> None:
    begun: list[int] = []
    with LeaseManager(any_db) as locks, LeaseManager(any_db) as other:
        sweep = Duty("sweep", 0.3, lambda: begun.append(1) or 0)  # type: ignore[func-returns-value]
        with Serving(locks, sweep), contextlib.ExitStack() as held:
            wait_until(lambda: duty_reports(any_db, locks.space.cluster))
            other.force_release(PREFIX + "sweep", reason="test")
            held.enter_context(other.lock(PREFIX + "sweep"))
            before = len(begun)
            wait_until(lambda: other.list(PREFIX)[0].waiters)  # the pause is over
            assert len(begun) == before


def test_two_duties_of_one_name_are_refused(any_db: Any) -> None:
    duty = Duty("one", 1.0, int)
    with pytest.raises(ValueError, match="two duties have one name"):
        Duties(LeaseManager(any_db), [duty, duty])


HOLDER = """
import sys, time
from lease_locks import LeaseManager
locks = LeaseManager(sys.argv[1]); lease = locks.acquire("of the dead"); print("held", flush=True); time.sleep(600)
"""


def test_a_lease_of_the_dead_that_nobody_takes_is_ended_late_and_not_early(shared_url: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, shared_url], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        now = [0.0]
        with LeaseManager(shared_url) as locks:
            abandoned = AbandonedLeases(locks, after=100.0, monotonic=lambda: now[0])
            assert abandoned.clear() == 0
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert abandoned.clear() == 0  # found dead for the first time
            now[0] = 99.0
            assert abandoned.clear() == 0
            assert locks.read("of the dead") is not None
            now[0] = 101.0
            assert abandoned.clear() == 1
            assert locks.read("of the dead") is None
            assert [event.kind for event in locks.history("of the dead")] == ["acquired", "stolen"]
            lease = locks.acquire("of the dead", timeout=0)
            now[0] = 1e6
            assert abandoned.clear() == 0  # a living holder's stays
            assert lease.held
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
