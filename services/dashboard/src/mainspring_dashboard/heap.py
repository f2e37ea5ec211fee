"""The heap's part of the page: tasks and their cadence from the sysdb, and the buckets where the store is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar
from uuid import UUID

from fdb_schema import ClusterSpace, MainspringError
from idempotent_txn import run
from s3heap_tender import Heap, HeapStore, Metrics, SysDb, Task, TaskNotFoundError, metrics
from s3heap_tender.inspection import next_due
from s3heap_tender.rows.keys import HeapKeys

T = TypeVar("T")

NEXT: Final = 25
LOOKED: Final = 5_000  # tasks, for one page
BUCKETS: Final = 200
PATIENCE_SECONDS: Final = 2.0
LAGS_SECONDS: Final = 5.0
"""Behind by more than this, a heap is said to lag: services that live need a second or two."""


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
            lag, following, now = metrics(sysdb, self._heap), next_due(sysdb, NEXT), sysdb.now()
            found: dict[str, Any] = {
                "present": True,
                "lagging": lagging(lag, following, time.time()),
                "lag": asdict(lag),
                "next": [_task(task, now) for task in following],
                "dead_letters": [
                    {"task": str(letter.task), "name": letter.name, "gen": letter.gen, "error": letter.error}
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

    def task(self, id: UUID) -> dict[str, Any] | None:
        """One task and why it isn't running; None where there is none."""
        return self._with_sysdb(lambda sysdb: _described(sysdb, id))

    def tasks(self, after: UUID | None, text: str, limit: int) -> dict[str, Any]:
        """A page of tasks by id whose name, partition or last error has `text`, and after which id the next one starts.

        A page looks through at most `LOOKED` tasks; it may be short though more follow.
        """
        return self._with_sysdb(lambda sysdb: _listed(sysdb, after, text.casefold(), limit)) or {
            "tasks": [],
            "after": None,
        }

    def act(self, id: UUID, action: str) -> dict[str, Any]:
        """pause, resume or run a task; how it is now. Raises TaskNotFoundError, TransitionError."""

        def change(sysdb: SysDb) -> dict[str, Any]:
            act = {"pause": sysdb.pause, "resume": sysdb.resume, "run": sysdb.run_now}[action]
            return _task(act(id), sysdb.now())

        found = self._with_sysdb(change)
        if found is None:
            raise TaskNotFoundError(f"this cluster has no task {id}: it has no heap")
        return found

    def _with_sysdb(self, work: Callable[[SysDb], T]) -> T | None:
        """The answer; None where the cluster has no heap."""
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            raise HeapBusyError(f"the store {self._store} has not answered the question before: try again later")
        try:
            sysdb = self._open()
            return None if sysdb is None else work(sysdb)
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


def _described(sysdb: SysDb, id: UUID) -> dict[str, Any] | None:
    try:
        found = sysdb.describe(id)
    except TaskNotFoundError:
        return None
    return _task(found.task, found.now) | {
        "reasons": list(found.reasons),
        "unread": found.unread,
        "log_end": found.log_end,
        "not_before": None if found.not_before is None else found.not_before - found.now,
        "dead_letters": list(found.dead_letters),
        "output": found.output,
        "output_gen": found.output_gen,
        "max_attempts": found.task.max_attempts,
        "overlap": found.task.overlap,
        "catch_up": found.task.catch_up,
        "pending_runs": found.task.pending_runs,
    }


def _listed(sysdb: SysDb, after: UUID | None, wanted: str, limit: int) -> dict[str, Any]:
    now = sysdb.now()
    rows: list[dict[str, Any]] = []
    for looked, task in enumerate(sysdb.tasks(after=after), start=1):
        row = _task(task, now)
        if not wanted or any(
            wanted in str(row[field]).casefold() for field in ("id", "name", "partition", "last_error")
        ):
            rows.append(row)
        if len(rows) == limit or looked == LOOKED:
            return {"tasks": rows, "after": str(task.id)}
    return {"tasks": rows, "after": None}


def lagging(lag: Metrics, following: Sequence[Task], wall: float) -> list[dict[str, Any]]:
    """What is behind, the worst first: what, since (wall time, for people), what to do, and the task that waits longest."""
    found = []
    if lag.oldest_due_age > LAGS_SECONDS:
        name = following[0] if following else None
        task = None if name is None or lag.orphaned else {"id": str(name.id), "name": name.name}
        what = "runs whose scheduler is gone aren't taken over" if lag.orphaned else "what is due does not start"
        found.append((lag.oldest_due_age, what, "start a scheduler, or more of them: `mainspring scheduler`", task))
    if lag.dirty_partitions and lag.dirty_lag > LAGS_SECONDS:
        what = f"writes to {lag.dirty_partitions:,} partition{'s' * (lag.dirty_partitions > 1)} are not seen"
        found.append((lag.dirty_lag, what, "start a tender, or more of them: `mainspring tender`", None))
    found.sort(key=lambda one: one[0], reverse=True)
    return [{"what": what, "since": wall - age, "do": do, "task": task} for age, what, do, task in found]


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
        "partition": task.partition_name or str(task.partition),
        "paused": task.paused,
        "dead": task.dead,
        "started": task.started_wall,
        "state": task.state,
        "gen": task.gen,
        "due_in": task.due - now,
        "cadence": task.cadence,
        "attempt": task.attempt,
        "last_error": task.last_error,
    }
