"""Death is a heartbeat that stood still for a whole TTL of an observer who was watching all the time."""

from __future__ import annotations

import os
import subprocess
import sys

from fdb_datamodel import WorkerId, WorkerInfo, WorkerSighting, WorkerStatus
from fdb_schema import process_start
from futures_worker.liveness import WorkerObserver, find_dead, process_space, worker_gone

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
