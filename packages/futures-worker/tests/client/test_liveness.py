"""Death is a heartbeat that stood still for a whole TTL of an observer who was watching all the time."""

from __future__ import annotations

from fdb_datamodel import WorkerId, WorkerSighting
from futures_worker.liveness import WorkerObserver

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
