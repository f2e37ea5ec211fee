"""The heap beside the sysdb, a shard at a time: what the one needs and the other lacks is pushed again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from s3heap_tender.claims import outbox, tending
from s3heap_tender.heap import Heap
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import MICROSECONDS, TaskRow, item_of
from s3heap_tender.rows.states import State
from s3heap_tender.sysdb import SysDb

_PAGE: Final = 500


def reconcile_shard(heap: Heap, sysdb: SysDb, shard: int, *, dry_run: bool = False) -> int:
    """Ask for a push of every item of a shard that the sysdb needs and the heap lacks; returns how many.

    Rows and intents are read first: an item without an intent was on the heap before, so a later look must find it.
    One that lies in another bucket than it was pushed to is as good as none: whoever may write to the store put it there.
    """
    needed: list[HeapItem] = []
    after: UUID | None = None
    while True:
        items, after = sysdb.read(_without_intent, shard, after)
        needed.extend(items)
        if after is None:
            break
    if not needed:
        return 0
    found: dict[bytes, set[int]] = {}  # item → the buckets that it lies in
    wanted = {item.pack() for item in needed}
    for content in heap.scan(shards=[shard]):
        for record in wanted.intersection(content.records):
            found.setdefault(record, set()).add(content.name.bucket)
    current = heap.bucket_of(sysdb.now_micro() // MICROSECONDS)
    missing = [item for item in needed if not _in_place(heap, item, found.get(item.pack(), ()), current)]
    if dry_run or not missing:
        return len(missing)
    return tending.reconcile(sysdb, missing)


def _in_place(heap: Heap, item: HeapItem, buckets: Iterable[int], current: int) -> bool:
    """Whether a scheduler finds an item that lies in these buckets: from that of its due time on, and not in the future."""
    due = heap.bucket_of(item.due_ms // 1000)
    return any(due <= bucket <= max(due, current) for bucket in buckets)


def _without_intent(tr: object, at: Layout, shard: int, after: UUID | None) -> tuple[list[HeapItem], UUID | None]:
    """A page of the items that are on the heap or missing there, and the task to go on after."""
    tasks = outbox.active_tasks(tr, at, shard, after, _PAGE)
    rows = outbox.read_rows(tr, at, tasks)
    intents = outbox.pending_intents(tr, at, tasks)
    found = [
        item_of(task, row)
        for task, row, intent in zip(tasks, rows, intents, strict=True)
        if isinstance(row, TaskRow) and row.state is not State.WAITING and not intent
    ]
    return found, tasks[-1] if len(tasks) == _PAGE else None
