"""The tender's side of the sysdb, as functions over `tr`: intents, dirty markers, boundaries, verdicts on items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError, get_many, read_clock
from s3heap_tender.claims import index
from s3heap_tender.claims.writes import read_counter
from s3heap_tender.rows import core
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.keys import STAMP_BYTES
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import MICROSECONDS, Dirty, Intent, TaskRow, Tombstone

INTENT_BYTES: Final = 32 + STAMP_BYTES
NO_PARTITION: Final = UUID(int=0)


class Verdict(Enum):
    """What the sysdb knows of an item."""

    LIVE = "live"
    DONE = "done"
    UNKNOWN = "unknown"  # neither a task nor a tombstone: never removed
    UNREADABLE = "unreadable"  # the task's row can't be read: never removed, and every other item goes on


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In the place of a row that can't be read."""

    task: UUID
    why: str

    def __str__(self) -> str:
        return f"task {self.task} has a row that can't be read and is left alone: {self.why}"


def read_intents(tr: Any, at: Layout, shard: int, after: UUID | None, limit: int) -> list[Intent]:
    """Pending pushes of a shard, at most `limit`, of the tasks after `after`."""
    begin, end = at.keys.intent_range(shard)
    if after is not None:
        begin = at.keys.intent(shard, after) + b"\x00"
    found = []
    for task, _, value in read_known(tr, begin, end, limit, at.keys.task_of):
        if len(value) == INTENT_BYTES:
            gen, due_ms = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:16], "big")
            item = HeapItem(UUID(bytes=bytes(value[16:32])), task, gen, due_ms)
        else:
            item = HeapItem(NO_PARTITION, task, 0, 0)  # done for ever: it goes, and a reconciliation asks anew
        found.append(Intent(item, shard, value))
    return found


def clear_intents(tr: Any, at: Layout, shard: int, pushed: Sequence[tuple[Intent, int]]) -> int:
    """The end of B2 → B1: clear exactly the intents that were read, given the bucket each was pushed to.

    A bucket below the boundary may be deleted unseen, so its intent stays; a newer intent stays because its bytes
    differ. Returns how many were below the boundary.
    """
    boundary = read_boundary(tr, at, shard, snapshot=False)
    now = read_clock(tr, at.keys.space)
    values = get_many(tr, [at.keys.intent(shard, intent.item.task) for intent, _ in pushed], snapshot=True)
    late = 0
    for (intent, bucket), value in zip(pushed, values, strict=True):
        if bucket < boundary:
            late += 1
            continue
        tr.compare_and_clear(at.keys.intent(shard, intent.item.task), intent.value)
        if value != intent.value:
            # What was pushed may have been over by then: nothing else would tell the pruner of it.
            index.note_done(tr, at, intent.item.task, intent.item.due_ms, now)
    index.ring_pushed(tr, at, shard)
    return late


def read_boundary(tr: Any, at: Layout, shard: int, *, snapshot: bool = True) -> int:
    """The start of the oldest bucket of a shard that may be written; 0 where the row holds none.

    Boundaries are raised to the current bucket, so one that is yet to come is damage: it would send every push to its far
    bucket, where no scheduler looks.
    """
    found = read_counter(tr, at.keys.boundary(shard), snapshot=snapshot)
    return found if found * MICROSECONDS <= read_clock(tr, at.keys.space) else 0


def raise_boundary(tr: Any, at: Layout, shard: int, bucket: int) -> int:
    """Forbid pushes to buckets that start before `bucket`; returns the boundary, which never goes down."""
    found = read_boundary(tr, at, shard, snapshot=False)
    if bucket <= found:
        return found
    tr.set(at.keys.boundary(shard), bucket.to_bytes(8, "little"))
    return bucket


def read_dirty(tr: Any, at: Layout, shard: int, after: UUID | None, limit: int) -> list[Dirty]:
    """Dirty partitions of a shard, at most `limit`, after the partition `after`."""
    begin, end = at.keys.dirty_range(shard)
    if after is not None:
        begin = at.keys.dirty(shard, after) + b"\x00"
    rows = read_known(tr, begin, end, limit, at.keys.partition_of)
    return [Dirty(partition, shard, value) for partition, _, value in rows]


def read_tombstones(tr: Any, at: Layout, after: UUID | None, limit: int) -> list[Tombstone]:
    """Tombstones of all shards, at most `limit`, of the tasks after `after`."""
    begin, end = at.keys.tomb_range()
    if after is not None:
        begin = at.keys.tomb(after) + b"\x00"
    rows = read_known(tr, begin, end, limit, at.keys.task_of)
    return [Tombstone(task, int.from_bytes(value[16:24], "big"), value) for task, _, value in rows]


def row_of(task: UUID, value: bytes | None) -> TaskRow | Unreadable | None:
    """The row that these bytes are."""
    if value is None:
        return None
    try:
        return TaskRow.decode(bytes(value))
    except RecordError as error:
        return Unreadable(task, str(error))


def read_rows(tr: Any, at: Layout, tasks: Sequence[UUID]) -> list[TaskRow | Unreadable | None]:
    """Rows of `tasks`, in their order, by snapshot."""
    values = get_many(tr, [at.keys.task(task) for task in tasks], snapshot=True)
    return [row_of(task, value) for task, value in zip(tasks, values, strict=True)]


def verdicts(tr: Any, at: Layout, items: Sequence[HeapItem]) -> list[Verdict]:
    """What to make of each item, in their order. Both facts that make an item done are permanent."""
    rows = read_rows(tr, at, [item.task for item in items])
    gone = [item.task for item, row in zip(items, rows, strict=True) if row is None]
    tombs = dict(zip(gone, get_many(tr, [at.keys.tomb(task) for task in gone], snapshot=True), strict=True))
    found = []
    for item, row in zip(items, rows, strict=True):
        if row is None:
            found.append(Verdict.UNKNOWN if tombs[item.task] is None else Verdict.DONE)
        elif isinstance(row, Unreadable):
            found.append(Verdict.UNREADABLE)
        elif item.gen > row.gen:
            found.append(Verdict.UNKNOWN)
        else:
            found.append(Verdict.DONE if core.is_done(row, item) else Verdict.LIVE)
    return found


def active_tasks(tr: Any, at: Layout, shard: int, after: UUID | None, limit: int) -> list[UUID]:
    """Tasks of a shard that are scheduled or running, at most `limit`, after `after`."""
    begin, end = at.keys.active_range(shard)
    if after is not None:
        begin = at.keys.active(shard, after) + b"\x00"
    return [task for task, _, _ in read_known(tr, begin, end, limit, at.keys.task_of)]


def active_rows(
    tr: Any, at: Layout, shard: int, after: UUID | None, limit: int
) -> list[tuple[UUID, TaskRow | Unreadable | None]]:
    """The same, each with its row."""
    tasks = active_tasks(tr, at, shard, after, limit)
    return list(zip(tasks, read_rows(tr, at, tasks), strict=True))


def pending_intents(tr: Any, at: Layout, tasks: Iterable[UUID]) -> list[bool]:
    """Whether each task has an intent, by snapshot."""
    keys = [at.keys.intent(at.shard_of(task), task) for task in tasks]
    return [value is not None for value in get_many(tr, keys, snapshot=True)]
