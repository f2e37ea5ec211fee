"""Writes, as far as tasks have to know of them: the end of a partition's log, what moves it, and what depends on it.

Functions over `tr`; none opens a transaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from fdb_schema import get_many
from s3heap_tender.claims import index
from s3heap_tender.rows.keys import stamped
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import TaskRow


def record_write(tr: Any, at: Layout, partition: UUID, records: int) -> None:
    """A write of `records` records: the log's end moves and the partition is dirty. Never conflicts with another write."""
    tr.add(at.keys.log(partition), records.to_bytes(8, "little"))
    _mark(tr, at, partition)


def _mark(tr: Any, at: Layout, partition: UUID) -> None:
    shard = at.shard_of(partition)
    tr.set_versionstamped_value(at.keys.dirty(shard, partition), stamped(b""))
    index.ring(tr, at, shard)


def mark_dirty(tr: Any, at: Layout, partition: UUID, offset: int) -> int:
    """A write that is visible already and ended the log at `offset`. Returns the log's end as it was known before.

    An offset below that is told late, or the log was made anew: nobody can tell, so the write is counted, and causes a run.
    Where the end passed it only while this transaction ran, a run that starts then sees the write.
    """
    end = read_counter(tr, at.keys.log(partition))
    if offset < end:
        tr.add(at.keys.again(partition), (1).to_bytes(8, "little"))
    else:
        tr.max(at.keys.log(partition), offset.to_bytes(8, "little"))
    _mark(tr, at, partition)
    return end


def seeing(tr: Any, at: Layout, row: TaskRow) -> tuple[TaskRow, int]:
    """The row with the writes of its partition that it has to know of, and the log's end; by snapshot."""
    tail, again = log_of(tr, at, row.partition)
    return row if row.again == again else replace(row, again=again), tail


def log_of(tr: Any, at: Layout, partition: UUID) -> tuple[int, int]:
    """The end of a partition's log, and how many writes were said to lie below it; by snapshot, side by side."""
    values = get_many(tr, [at.keys.log(partition), at.keys.again(partition)], snapshot=True)
    return number_of(values[0] or b""), number_of(values[1] or b"")


def depend_on_no_write(tr: Any, at: Layout, row: TaskRow) -> None:
    """Only what lets a task wait depends on no write having come meanwhile; what goes on does not."""
    tr.add_read_conflict_key(at.keys.log(row.partition))
    tr.add_read_conflict_key(at.keys.again(row.partition))


def read_counter(tr: Any, key: bytes, *, snapshot: bool = True) -> int:
    """A little-endian counter; 0 where it was never written."""
    return number_of((tr.snapshot if snapshot else tr).get(key).value or b"")


def number_of(data: bytes) -> int:
    """The number that a counter's bytes are: what is beyond its 64 bits would fit into no row."""
    return int.from_bytes(data[:8], "little")
