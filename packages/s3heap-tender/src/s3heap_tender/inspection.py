"""What operators ask: how far behind is the system, what runs next, is anything wrong with the heap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError, unpack
from s3heap_tender.claims import index, outbox
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.heap import Heap
from s3heap_tender.objects.heap_values import PruneStats
from s3heap_tender.rows import core
from s3heap_tender.rows.items import HeapItem, due_of
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.records import MICROSECONDS, Task, TaskRow, task_of
from s3heap_tender.rows.states import State
from s3heap_tender.upkeep.reconciling import reconcile_shard

_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far behind the system is. Ages are seconds of the cluster clock, 0 where nothing waits."""

    oldest_due_age: float  # of scheduled tasks that may start, and since their start of runs whose scheduler is gone
    dirty_lag: float  # age of the oldest swept-for marker, by commit versions
    dirty_partitions: int
    outbox_depth: int
    cursor_lag: float  # age of the oldest boundary: how long no prune went by
    active: int  # tasks scheduled or running
    running: int
    starts: int
    retakes: int
    finishes: int
    failures: int
    dead_letters: int
    missed_deadlines: int
    conflicts: int  # lost conditions of tenders' writes to the store
    requests: dict[str, int]  # of this process's heap, by kind
    orphaned: int = 0  # runs whose scheduler is gone, as far as this process can tell


def metrics(sysdb: SysDbBase, heap: Heap | None = None) -> Metrics:
    """Reads every marker and intent and counts the keys of what is scheduled or runs, page by page, by snapshot."""
    keys = sysdb.layout.keys
    sysdb.tick()
    now = sysdb.now_micro()
    boundaries = sysdb.read(lambda tr, at: [outbox.read_boundary(tr, at, shard) for shard in range(at.shards)])
    markers = intents = active = 0
    oldest_due = now
    oldest_marker: int | None = None
    runs: list[tuple[UUID, str]] = []
    _, looked = sysdb.read(partial(index.look, runs=True), range(sysdb.shards))
    for shard, there in looked.items():
        runs.extend(there.runs)
        if there.due is not None:
            oldest_due = min(oldest_due, there.due * 1000)
        after: UUID | None = None
        while page := sysdb.read(outbox.read_dirty, shard, after, _PAGE):
            markers += len(page)
            stamps = [int.from_bytes(marker.value[:8], "big") for marker in page]
            oldest_marker = min(stamps) if oldest_marker is None else min(oldest_marker, *stamps)
            after = page[-1].partition
        after = None
        while found := sysdb.read(outbox.read_intents, shard, after, _PAGE):
            intents += len(found)
            after = found[-1].item.task
        after = None
        while tasks := sysdb.read(outbox.active_tasks, shard, after, _PAGE):
            active += len(tasks)
            after = tasks[-1]
    orphans = _orphans(sysdb, runs)
    for at in range(0, len(orphans), _PAGE):
        for row in sysdb.read(outbox.read_rows, orphans[at : at + _PAGE]):
            if isinstance(row, TaskRow) and row.state is State.RUNNING:
                oldest_due = min(oldest_due, row.last_start)
    version = sysdb.read(lambda tr, _at: int(tr.get_read_version().wait()))
    begin, end = keys.stats_range()
    rows = sysdb.read(lambda tr, _at: read_known(tr, begin, end, 0, keys.stat_of))
    stats = {name: int.from_bytes(value, "little") for name, _, value in rows}
    requests = {} if heap is None else dict(heap.io.requests)
    return Metrics(
        oldest_due_age=(now - oldest_due) / MICROSECONDS,
        dirty_lag=0.0 if oldest_marker is None else max(0, version - oldest_marker) / MICROSECONDS,
        dirty_partitions=markers,
        outbox_depth=intents,
        cursor_lag=max(0.0, now / MICROSECONDS - min(boundaries)),
        active=active,
        running=len(runs),
        starts=stats.get("starts", 0),
        retakes=stats.get("retakes", 0),
        finishes=stats.get("finishes", 0),
        failures=stats.get("failures", 0),
        dead_letters=stats.get("dead_letters", 0),
        missed_deadlines=stats.get("missed_deadlines", 0),
        conflicts=stats.get("conflicts", 0),
        requests=requests,
        orphaned=len(orphans),
    )


def _orphans(sysdb: SysDbBase, runs: Sequence[tuple[UUID, str]]) -> list[UUID]:
    """The tasks whose run's session is gone."""
    gone = {}
    for session in {session for _, session in runs}:
        try:
            gone[session] = sysdb.read(lambda tr, _at, s=session: sysdb.sessions.why_gone(tr, s)) is not None
        except (RecordError, ValueError):
            gone[session] = False  # nobody can say
    return [task for task, session in runs if gone[session]]


def next_due(sysdb: SysDbBase, limit: int = 10) -> list[Task]:
    """The scheduled tasks that start next, from the sysdb alone, soonest first."""
    found: list[tuple[int, Task]] = []
    for shard in range(sysdb.shards):
        after: UUID | None = None
        while tasks := sysdb.read(outbox.active_tasks, shard, after, _PAGE):
            for id, row in zip(tasks, sysdb.read(outbox.read_rows, tasks), strict=True):
                if isinstance(row, TaskRow) and row.state is State.SCHEDULED and not row.paused and not row.dead:
                    found.append((core.earliest_start(row), task_of(id, row)))
            found = sorted(found, key=lambda entry: (entry[0], entry[1].id))[:limit]
            after = tasks[-1]
    return [task for _, task in found]


@dataclass(frozen=True, slots=True)
class Findings:
    """What `fsck` found, and with `repair` mended."""

    missing: int  # items the sysdb needs and the heap lacks: pushed again
    prunable: PruneStats  # done items: removed
    unknown: tuple[HeapItem, ...]  # of tasks the sysdb never had: left where they are
    unreadable: dict[str, str]  # objects; corrupt ones are moved aside
    foreign: tuple[str, ...]  # keys under the prefix that are none of the heap's: left where they are
    overdue: int  # items due for over a minute
    moved: dict[str, str]  # unreadable object → where it was moved
    repaired: bool

    @property
    def clean(self) -> bool:
        """Nothing is missing, unreadable, unknown or foreign; done items are normal."""
        return not (self.missing or self.unknown or self.unreadable or self.foreign)


def fsck(heap: Heap, sysdb: SysDbBase, *, repair: bool = False) -> Findings:
    """Compare heap and sysdb. Changes nothing unless `repair`, which then does what a tender would do in time."""
    sysdb.tick()
    now_ms = sysdb.now_micro() // 1000
    unknown: list[HeapItem] = []
    overdue = 0
    for content in heap.scan():
        items = [HeapItem.unpack(record) for record in content.records]
        verdicts = heap.sysdb.verdicts(items)
        unknown.extend(i for i, verdict in zip(items, verdicts, strict=True) if verdict is outbox.Verdict.UNKNOWN)
        overdue += sum(
            verdict is outbox.Verdict.LIVE and due_of(record) < now_ms - 60_000
            for record, verdict in zip(content.records, verdicts, strict=True)
        )
    unreadable = dict(heap.unreadable)
    moved: dict[str, str] = {}
    if repair:
        for key, reason in list(heap.corrupt.items()):
            there = heap.quarantine(key, reason)
            if there is not None:
                moved[key] = there
    missing = sum(reconcile_shard(heap, heap.sysdb, shard, dry_run=not repair) for shard in range(sysdb.shards))
    pruned = heap.prune(dry_run=not repair)
    return Findings(missing, pruned, tuple(sorted(unknown)), unreadable, tuple(heap.foreign()), overdue, moved, repair)


def quarantined(sysdb: SysDbBase) -> list[dict[str, Any]]:
    """Objects that could not be read: shard, key, reason, and where their bytes went."""
    keys = sysdb.layout.keys
    begin, end = keys.quarantine_range()
    rows = sysdb.read(lambda tr, _at: read_known(tr, begin, end, 0, keys.quarantined_of))
    found = []
    for (shard, name), _, value in rows:
        found.append({"shard": shard, "key": name, **unpack(value)})
    return found
