"""A virtual cluster clock, and a sysdb, heap, tender and scheduler that run on it in the calling thread."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import idempotent_txn
from fdb_schema import ClusterSpace
from fdb_schema.clock import ClockReading
from s3heap_tender import Heap, HeapStore, Scheduler, SysDb, Task, Tender, history
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.trace import Trace


class VirtualClock:
    """Time that moves when a test says so; shared by the sysdbs of one database."""

    def __init__(self, cluster: str, start: float = 1000.0) -> None:
        self.key = ClusterSpace(cluster).clock_key
        self.value = int(start * 1e6)
        self._written = -1

    def advance(self, tr: Any) -> int:
        if self._written != self.value:
            tr.set(self.key, ClockReading(self.value).encode())
        return self.value

    def committed(self) -> bool:
        self._written = self.value
        return True

    def monotonic(self) -> float:
        return self.value / 1e6

    def sleep(self, seconds: float) -> None:
        self.value += int(seconds * 1e6)


class Bench:
    """One process's worth of everything, and the means to add more processes."""

    def __init__(self, db: Any, *, shards: int = 2, store: Any = None) -> None:
        self.db = db
        self.cluster = "c" + uuid.uuid4().hex[:8]
        self.clock = VirtualClock(self.cluster)
        self.lines: list[str] = []
        self.shards = shards
        self.store = store if store is not None else HeapStore("memory:")
        self.sysdb = self.new_sysdb()
        self.heap = self.new_heap(self.sysdb)
        self.tender = Tender(self.heap, self.sysdb)

    def new_sysdb(self) -> SysDb:
        return SysDb(
            self.db,
            self.cluster,
            shards=self.shards,
            sessions=LocalSessions(),
            clock=self.clock,
            trace=Trace(lines=self.lines),
            monotonic=self.clock.monotonic,
        )

    def new_heap(self, sysdb: SysDb, **options: Any) -> Heap:
        return Heap(self.store, sysdb, threads=0, linger=0, sleep=self.clock.sleep, **options)

    def new_scheduler(self, trigger: Callable[[Task, int, int], Any], sysdb: SysDb | None = None) -> Scheduler:
        sysdb = sysdb or self.sysdb
        heap = self.heap if sysdb is self.sysdb else self.new_heap(sysdb)
        return Scheduler(heap, sysdb, trigger, concurrency=0)

    def write(self, partition: Any, records: int = 1) -> None:
        idempotent_txn.run(self.db, lambda tr: self.sysdb.record_write(tr, partition, records))

    def tend(self) -> Any:
        report = self.tender.turn(prune=False, reconcile=False)
        assert report.errors == []
        return report

    def settle(self, trigger: Callable[[Task, int, int], Any], seconds: float = 300.0, step: float = 0.5) -> int:
        """Let virtual time pass with a tender and a scheduler at work; returns how many runs were started."""
        scheduler = self.new_scheduler(trigger)
        started = 0
        end = self.clock.value + int(seconds * 1e6)
        while self.clock.value < end:
            self.tender.turn(prune=False, reconcile=False)
            started += scheduler.turn().started
            self.clock.sleep(step)
        return started

    def violations(self, *, drained: bool = True) -> list[str]:
        return [str(found) for found in history.check(self.lines, drained=drained)]
