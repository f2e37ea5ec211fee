"""The tender's side of the sysdb, as functions over `tr`: intents, dirty markers, boundaries, verdicts on items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any
from uuid import UUID

from fdb_schema import get_many, read_range
from s3heap_tender import core
from s3heap_tender.items import HeapItem
from s3heap_tender.keys import STAMP_BYTES
from s3heap_tender.records import Dirty, Intent, TaskRow, Tombstone
from s3heap_tender.transitions import Layout, read_counter


class Verdict(Enum):
    """What the sysdb knows of an item."""

    LIVE = "live"
    DONE = "done"
    UNKNOWN = "unknown"  # neither a task nor a tombstone: never removed


def read_intents(tr: Any, at: Layout, shard: int, after: UUID | None, limit: int) -> list[Intent]:
    """Pending pushes of a shard, at most `limit`, of the tasks after `after`."""
    begin, end = at.keys.intent_range(shard)
    if after is not None:
        begin = at.keys.intent(shard, after) + b"\x00"
    found = []
    for key, value in read_range(tr, begin, end, limit=limit, snapshot=True):
        gen, due_ms = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:16], "big")
        partition = UUID(bytes=bytes(value[16 : len(value) - STAMP_BYTES]))
        found.append(Intent(HeapItem(partition, at.keys.task_of(key), gen, due_ms), shard, bytes(value)))
    return found


def clear_intents(tr: Any, at: Layout, shard: int, pushed: Sequence[tuple[Intent, int]]) -> int:
    """The end of B2 → B1: clear exactly the intents that were read, given the bucket each was pushed to.

    A bucket below the boundary may be deleted unseen, so its intent stays; a newer intent stays because its bytes
    differ. Returns how many were below the boundary.
    """
    boundary = read_counter(tr, at.keys.boundary(shard), snapshot=False)
    late = 0
    for intent, bucket in pushed:
        if bucket < boundary:
            late += 1
            continue
        tr.compare_and_clear(at.keys.intent(shard, intent.item.task), intent.value)
    return late


def raise_boundary(tr: Any, at: Layout, shard: int, bucket: int) -> int:
    """Forbid pushes to buckets that start before `bucket`; returns the boundary, which never goes down."""
    key = at.keys.boundary(shard)
    found = read_counter(tr, key, snapshot=False)
    if bucket <= found:
        return found
    tr.set(key, bucket.to_bytes(8, "little"))
    return bucket


def read_dirty(tr: Any, at: Layout, shard: int, after: UUID | None, limit: int) -> list[Dirty]:
    """Dirty partitions of a shard, at most `limit`, after the partition `after`."""
    begin, end = at.keys.dirty_range(shard)
    if after is not None:
        begin = at.keys.dirty(shard, after) + b"\x00"
    return [
        Dirty(at.keys.partition_of(key), shard, bytes(value))
        for key, value in read_range(tr, begin, end, limit=limit, snapshot=True)
    ]


def read_tombstones(tr: Any, at: Layout, after: UUID | None, limit: int) -> list[Tombstone]:
    """Tombstones of all shards, at most `limit`, of the tasks after `after`."""
    begin, end = at.keys.tomb_range()
    if after is not None:
        begin = at.keys.tomb(after) + b"\x00"
    return [
        Tombstone(at.keys.task_of(key), int.from_bytes(value[16:24], "big"), bytes(value))
        for key, value in read_range(tr, begin, end, limit=limit, snapshot=True)
    ]


def read_rows(tr: Any, at: Layout, tasks: Sequence[UUID]) -> list[TaskRow | None]:
    """Rows of `tasks`, in their order, by snapshot."""
    values = get_many(tr, [at.keys.task(task) for task in tasks], snapshot=True)
    return [None if value is None else TaskRow.decode(bytes(value)) for value in values]


def verdicts(tr: Any, at: Layout, items: Sequence[HeapItem]) -> list[Verdict]:
    """What to make of each item, in their order. Both facts that make an item done are permanent."""
    rows = read_rows(tr, at, [item.task for item in items])
    gone = [item.task for item, row in zip(items, rows, strict=True) if row is None]
    tombs = dict(zip(gone, get_many(tr, [at.keys.tomb(task) for task in gone], snapshot=True), strict=True))
    found = []
    for item, row in zip(items, rows, strict=True):
        if row is None:
            found.append(Verdict.UNKNOWN if tombs[item.task] is None else Verdict.DONE)
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
    return [at.keys.task_of(key) for key, _ in read_range(tr, begin, end, limit=limit, snapshot=True)]


def pending_intents(tr: Any, at: Layout, tasks: Iterable[UUID]) -> list[bool]:
    """Whether each task has an intent, by snapshot."""
    keys = [at.keys.intent(at.shard_of(task), task) for task in tasks]
    return [value is not None for value in get_many(tr, keys, snapshot=True)]
