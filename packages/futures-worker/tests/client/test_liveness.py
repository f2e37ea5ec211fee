"""Death is a heartbeat that stood still for a whole TTL of an observer who was watching all the time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fdb_datamodel import (
    ClusterSpace,
    Heartbeat,
    TrialCommits,
    WorkerId,
    WorkerInfo,
    WorkerSighting,
    WorkerStatus,
    beat_session,
    heartbeat,
    register_worker,
    session_sightings,
    sightings,
)
from fdb_datamodel.collector import Collector
from fdb_schema import open_database, process_start
from futures_worker.liveness import TTL_SECONDS, Caretaker, WorkerObserver, find_dead, process_space, worker_gone
from idempotent_txn import run

A = WorkerId("127.0.0.1", 1, b"a" * 16)
B = WorkerId("127.0.0.1", 2, b"b" * 16)


def test_a_counter_that_stands_still_for_a_ttl_means_death() -> None:
    observer = WorkerObserver(ttl=5.0)
    for second in range(5):
        seen = [WorkerSighting(A, 7), WorkerSighting(B, second)]
        assert observer.observe(seen, float(second)) == []
    assert observer.observe([WorkerSighting(A, 7), WorkerSighting(B, 5)], 5.0) == [WorkerSighting(A, 7)]


def test_a_late_beat_starts_a_new_window() -> None:
    observer = WorkerObserver(ttl=5.0)
    for second in range(5):
        observer.observe([WorkerSighting(A, 7)], float(second))
    assert observer.observe([WorkerSighting(A, 8)], 5.0) == []
    assert observer.observe([WorkerSighting(A, 8)], 7.0) == []


def test_an_observer_that_stalled_judges_nobody() -> None:
    observer = WorkerObserver(ttl=5.0)
    observer.observe([WorkerSighting(A, 7)], 0.0)
    assert observer.observe([WorkerSighting(A, 7)], 100.0) == []
    assert observer.observe([WorkerSighting(A, 7)], 102.0) == []
    assert observer.observe([WorkerSighting(A, 7)], 104.0) == []
    assert observer.observe([WorkerSighting(A, 7)], 105.0) == [WorkerSighting(A, 7)]


def test_a_new_incarnation_is_another_worker() -> None:
    observer = WorkerObserver(ttl=5.0)
    for second in range(5):
        observer.observe([WorkerSighting(A, 7)], float(second))
    again = WorkerId(A.ip, A.port, b"c" * 16)
    assert observer.observe([WorkerSighting(again, 7)], 5.0) == []


def started(pid: int) -> int:
    found = process_start(pid)
    assert found is not None
    return found[0]


def test_a_process_that_is_certainly_gone_is_dead_at_once() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    info = WorkerInfo(pid=process.pid, boot_id=process_space(), pid_start=started(process.pid))
    status = WorkerStatus(A, info, None)
    observer = WorkerObserver(ttl=5.0)
    try:
        assert find_dead(observer, [status], 0.0) == []
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: nobody has asked how it ended
        assert find_dead(observer, [status], 0.1) == [WorkerSighting(A, 0)]
    finally:
        process.kill()
        process.communicate()
    assert find_dead(observer, [status], 0.2) == [WorkerSighting(A, 0)]


def test_of_a_process_elsewhere_nothing_is_known() -> None:
    gone = WorkerInfo(pid=2**22 + 1, boot_id=process_space())
    assert worker_gone(gone)
    assert not worker_gone(WorkerInfo(pid=2**22 + 1, boot_id="another boot/pid:[1]"))
    assert not worker_gone(WorkerInfo(pid=2**22 + 1, boot_id=process_space().partition("/")[0] + "/pid:[1]"))
    assert not worker_gone(WorkerInfo(pid=2**22 + 1))
    assert not worker_gone(WorkerInfo(boot_id=process_space()))


def test_a_process_that_took_over_the_pid_is_not_the_worker() -> None:
    mine = WorkerInfo(pid=os.getpid(), boot_id=process_space(), pid_start=started(os.getpid()))
    assert not worker_gone(mine)
    earlier = WorkerInfo(pid=os.getpid(), boot_id=process_space(), pid_start=started(os.getpid()) - 1)
    assert worker_gone(earlier)


class Door:
    """Commits are made while it is open."""

    def __init__(self) -> None:
        self.open = True
        self.under_way = False

    def begin(self) -> bool:
        begun, self.under_way = not self.under_way, True
        return begun

    def made(self) -> bool:
        if self.open:
            self.under_way = False
        return self.open


def test_silence_counts_only_where_a_commit_was_made_in_the_midst_of_it() -> None:
    door = Door()
    observer = WorkerObserver(5.0, door)
    lives, dead = WorkerSighting(A, 7), WorkerSighting(B, 7)
    observer.observe([lives, dead], 0.0)
    door.open = False
    for second in range(1, 60):
        assert observer.observe([lives, dead], float(second)) == []
    door.open = True
    assert observer.observe([lives, dead], 60.0) == [], "it had no time to beat"
    lives = WorkerSighting(A, 8)
    assert [observer.observe([lives, dead], 60.0 + second) for second in (1.0, 2.0)] == [[], [dead]]
    door.open = False
    assert observer.observe([lives, dead], 63.0) == [dead], "what is known remains"


def test_of_each_silence_the_midst_is_looked_at() -> None:
    observer = WorkerObserver(5.0, Door())
    late = WorkerSighting(B, 1)
    for second in range(5):
        assert observer.observe([WorkerSighting(A, 7), *([late] if second > 2 else [])], float(second)) == []
    assert [observer.observe([WorkerSighting(A, 7), late], float(second)) for second in (5, 6, 7, 8)] == [
        *[[WorkerSighting(A, 7)]] * 3,
        [WorkerSighting(A, 7), late],
    ]


@contextmanager
def no_commits(path: Path) -> Iterator[None]:
    """As while a process is stopped in the midst of a commit, or while its disk stalls."""
    held = os.open(path / "writer.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(held)


def test_nobody_is_dead_whom_the_database_kept_from_beating(tmp_path: Path) -> None:
    db, space = open_database(f"embedded:{tmp_path / 'db'}"), ClusterSpace("c")
    run(db, register_worker, space, A, WorkerInfo())
    run(db, heartbeat, space, A, Heartbeat(counter=1))
    run(db, beat_session, space, b"s" * 16, 1)
    watching = Caretaker(db, space)
    now = 0.0
    collector = Collector(db, space, session_ttl=TTL_SECONDS, clock=lambda: now)

    def look() -> tuple[list[WorkerId], int]:
        nonlocal now
        now += TTL_SECONDS / 5
        return watching.look(now), collector.look_at_sessions()

    look()
    with no_commits(tmp_path / "db"):
        assert [look() for _ in range(15)] == [([], 0)] * 15, "and no look waits"
    assert watching._observer._writes is not None
    while not watching._observer._writes.made():
        pass
    look()
    run(db, heartbeat, space, A, Heartbeat(counter=2))
    run(db, beat_session, space, b"s" * 16, 2)
    assert [look() for _ in range(5)] == [([], 0)] * 5
    assert len(run(db, sightings, space)) == len(run(db, session_sightings, space)) == 1
    found = [look() for _ in range(3)]
    assert [one for dead, _ in found for one in dead] == [A]
    assert sum(sessions for _, sessions in found) == 1, "and who is silent though it can beat is dead"


def test_a_trial_commit_changes_nothing() -> None:
    db, space = open_database("memory:"), ClusterSpace("c")
    trial = TrialCommits(db, space)
    assert not trial.made()
    assert trial.begin()
    while not trial.made():
        pass
    assert list(db.create_transaction().get_range(b"", b"\xff")) == []
