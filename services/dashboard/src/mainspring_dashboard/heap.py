"""The heap's part of the page: tasks and their cadence from the sysdb, and the buckets where the store is known."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from fdb_schema import ClusterSpace, MainspringError
from idempotent_txn import run
from s3heap_tender import Heap, HeapStore, SysDb, Task, metrics
from s3heap_tender.inspection import next_due
from s3heap_tender.keys import HeapKeys

NEXT: Final = 25
BUCKETS: Final = 200
PATIENCE_SECONDS: Final = 2.0


class HeapBusyError(MainspringError):
    """The store still has not answered who asked before."""


class HeapView:
    """Looks at a cluster's heap without making one where there is none. Methods block, one at a time."""

    def __init__(self, db: Any, cluster: str, store: str | None, endpoint_url: str | None) -> None:
        self._db = db
        self._cluster = cluster
        self._store = store
        self._endpoint = endpoint_url
        self._lock = threading.Lock()
        self._sysdb: SysDb | None = None
        self._heap: Heap | None = None
        self._opened: HeapStore | None = None

    def read(self) -> dict[str, Any]:
        """`present`, the lag figures, the tasks that start next, dead letters, and with a store its buckets by start."""
        # A store that hangs would else hold one thread after another, until none is left for the rest of the page.
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise HeapBusyError(f"the store {self._store} has not answered the question before: try again later")
        try:
            sysdb = self._open()
            if sysdb is None:
                return {"present": False}
            now = sysdb.now()
            found: dict[str, Any] = {
                "present": True,
                "lag": asdict(metrics(sysdb, self._heap)),
                "next": [_task(task, now) for task in next_due(sysdb, NEXT)],
                "dead_letters": [
                    {"task": str(letter.task), "gen": letter.gen, "error": letter.error}
                    for letter, _ in zip(sysdb.dead_letters(), range(NEXT), strict=False)
                ],
                "store": self._store,
                "buckets": None,
                "error": None,
            }
            if self._store is not None:
                try:
                    found["buckets"] = self._buckets(sysdb, now)
                except (MainspringError, OSError) as error:
                    found["error"] = str(error)  # the store is down; what the database says is shown nevertheless
            return found
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let go of the store; one that is being asked and does not answer is left to the end of the process."""
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            return
        try:
            for part in (self._heap, self._opened, self._sysdb):
                if part is not None:
                    part.close()
            self._heap = self._opened = self._sysdb = None
        finally:
            self._lock.release()

    def _open(self) -> SysDb | None:
        if self._sysdb is None:
            key = HeapKeys(ClusterSpace(self._cluster)).config
            if run(self._db, lambda tr: tr.snapshot.get(key).value, strategy="off") is None:
                return None
            self._sysdb = SysDb(self._db, self._cluster)
        return self._sysdb

    def _buckets(self, sysdb: SysDb, now: float) -> list[dict[str, Any]]:
        assert self._store is not None
        if self._heap is None:
            self._opened = self._opened or HeapStore(self._store, endpoint_url=self._endpoint)
            self._heap = Heap(self._opened, sysdb)
        return by_start([(one.start, one.items, one.size) for one in self._heap.buckets()], now)[:BUCKETS]


def by_start(buckets: Sequence[tuple[int, int, int]], now: float) -> list[dict[str, Any]]:
    """(start, items, bytes) of objects → one row per start, oldest first; `in` is seconds from `now` until it is due."""
    rows: dict[int, dict[str, Any]] = {}
    for start, items, size in buckets:
        row = rows.setdefault(start, {"start": start, "in": start - now, "objects": 0, "items": 0, "bytes": 0})
        row["objects"] += 1
        row["items"] += items
        row["bytes"] += size
    return [rows[start] for start in sorted(rows)]


def _task(task: Task, now: float) -> dict[str, Any]:
    return {
        "id": str(task.id),
        "name": task.name,
        "partition": str(task.partition),
        "state": task.state,
        "gen": task.gen,
        "due_in": task.due - now,
        "cadence": task.cadence,
        "attempt": task.attempt,
        "last_error": task.last_error,
    }
