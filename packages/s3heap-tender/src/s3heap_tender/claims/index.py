"""What tells services where there is work, so that nothing that waits costs a look: rows kept with every change of a task.

    due    a scheduled task that is neither paused nor dead, by the moment it may start: a shard's first row says when
           its listing is worth a request
    run    a running task and its session: where a scheduler died, its runs are found without reading the heap
    done   an item that is needed no more, by the moment from which its bucket may be deleted
    bell   the shard's last write or intent, which its tender watches
    pushed the shard's last push, which schedulers watch

The rows are hints. A task's own row decides; a reconciliation mends what a release without them left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from fdb_schema import clear_many, get_many, read_ahead, read_clock
from s3heap_tender.rows import core
from s3heap_tender.rows.keys import stamped
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import TaskRow
from s3heap_tender.rows.states import State

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ShardLook:
    """What there is to do for a shard, as one transaction saw it. Times are ms of the cluster clock."""

    dirty: bool = False
    intents: bool = False
    due: int | None = None  # when the first scheduled task may start
    last_due: int | None = None  # the last such moment that has come
    next_due: int | None = None  # the first that has not
    done: int | None = None  # from when on the first done item's bucket may be deleted
    pushed: bytes = b""  # changes with every push
    runs: tuple[tuple[UUID, str], ...] = ()  # tasks that run, and the session of each


def entry(at: Layout, task: UUID, row: TaskRow | None) -> tuple[bytes, bytes] | None:
    """The row of the index that a task in this state has."""
    if row is None or row.state is State.WAITING:
        return None
    shard = at.shard_of(task)
    if row.state is State.RUNNING:
        return at.keys.run(shard, task), row.session.encode()
    if row.paused or row.dead:
        return None
    return at.keys.due(shard, -(-core.earliest_start(row) // 1000), task), b""


def changed(tr: Any, at: Layout, task: UUID, before: TaskRow | None, after: TaskRow | None, now: int) -> None:
    """Keep the index with a task's row; `now` is the cluster clock in µs."""
    old, new = entry(at, task, before), entry(at, task, after)
    if old is not None and (new is None or old[0] != new[0]):
        tr.clear(old[0])
    if new is not None and new != old:
        tr.set(*new)
    if before is not None and before.state is not State.WAITING:
        due_ms = before.due // 1000
        if after is None or before.gen < after.live_gen or (before.gen, before.due) != (after.gen, after.due):
            note_done(tr, at, task, due_ms, now)


def note_done(tr: Any, at: Layout, task: UUID, due_ms: int, now: int) -> None:
    """An item is done: it lies in the bucket of its due time, or in a later one up to the current bucket."""
    tr.byte_min(at.keys.done(at.shard_of(task), max(due_ms, now // 1000), task), due_ms.to_bytes(8, "big"))


def ring(tr: Any, at: Layout, shard: int) -> None:
    """There is something for the shard's tender. Never conflicts."""
    tr.set_versionstamped_value(at.keys.bell(shard), stamped(b""))


def ring_pushed(tr: Any, at: Layout, shard: int) -> None:
    """There is something for schedulers on the shard's heap."""
    tr.set_versionstamped_value(at.keys.pushed(shard), stamped(b""))


def look(tr: Any, at: Layout, shards: Sequence[int], *, runs: bool) -> tuple[int, dict[int, ShardLook]]:
    """The cluster clock in µs, and what there is to do for each shard: a few rows of each, by snapshot.

    `runs` reads what runs, too.
    """
    keys = at.keys
    now = read_clock(tr, keys.space)
    firsts = {
        shard: [
            keys.dirty_range(shard),
            keys.intent_range(shard),
            keys.due_range(shard),
            keys.done_range(shard),
        ]
        for shard in shards
    }
    ahead = read_ahead(tr, [(begin, end, 1) for ranges in firsts.values() for begin, end in ranges])
    stamps = get_many(tr, [keys.pushed(shard) for shard in shards], snapshot=True)
    found = {}
    for shard, stamp in zip(shards, stamps, strict=True):
        of_dirty, of_intents, of_due, of_done = firsts[shard]
        due, done = _first(tr, *of_due, keys.due_of), _first(tr, *of_done, keys.done_of)
        due_ms = None if due is None else due[0]
        last, following = None, due_ms
        if due_ms is not None and due_ms <= now // 1000:
            begin, end = keys.due_range(shard)
            cut = keys.due(shard, now // 1000 + 1, UUID(int=0))
            last, following = (
                None if first is None else first[0]
                for first in (
                    _first(tr, begin, cut, keys.due_of, reverse=True),
                    _first(tr, cut, end, keys.due_of),
                )
            )
        found[shard] = ShardLook(
            _first(tr, *of_dirty, keys.partition_of) is not None,
            _first(tr, *of_intents, keys.task_of) is not None,
            due_ms,
            last,
            following,
            None if done is None else done[0],
            b"" if stamp is None else bytes(stamp),
            _runs(tr, at, shard) if runs else (),
        )
    del ahead
    return now, found


def _first(tr: Any, begin: bytes, end: bytes, read: Callable[[bytes], _T], *, reverse: bool = False) -> _T | None:
    rows = read_known(tr, begin, end, 1, read, reverse=reverse)
    return rows[0][0] if rows else None


def _runs(tr: Any, at: Layout, shard: int) -> tuple[tuple[UUID, str], ...]:
    begin, end = at.keys.run_range(shard)
    rows = read_known(tr, begin, end, 0, at.keys.task_of)
    return tuple((task, value.decode(errors="replace")) for task, _, value in rows)


def read_done(
    tr: Any, at: Layout, shard: int, before_ms: int, limit: int, after: bytes | None = None
) -> list[tuple[bytes, UUID, int]]:
    """Done items of a shard whose buckets lie before a time, after a row's key: each row's key, its task, and the due time
    (ms) before whose bucket its items don't lie.
    """
    begin, end = at.keys.done_range(shard)
    begin = begin if after is None else after + b"\x00"
    end = min(end, at.keys.done(shard, before_ms, UUID(int=0)))
    rows = read_known(tr, begin, end, limit, at.keys.done_of) if begin < end else []
    return [(key, task, min(ms, int.from_bytes(value, "big"))) for (ms, task), key, value in rows]


def clear_done(tr: Any, at: Layout, keys: Sequence[bytes]) -> None:
    """What is off the heap needs no note."""
    clear_many(tr, keys)


def entries(tr: Any, at: Layout, shard: int, after: bytes | None, limit: int) -> list[tuple[bytes, bytes, UUID]]:
    """A page of a shard's `due` and `run` rows, after a key: key, value, task."""
    found: list[tuple[bytes, bytes, UUID]] = []
    for begin, end in sorted((at.keys.due_range(shard), at.keys.run_range(shard))):
        if after is not None:
            begin = max(begin, after + b"\x00")
        if begin < end and len(found) < limit:
            rows = read_known(tr, begin, end, limit - len(found), at.keys.task_of)
            found.extend((key, value, task) for task, key, value in rows)
    return found


def mend(tr: Any, at: Layout, task: UUID, row: TaskRow | None, found: Sequence[bytes]) -> None:
    """Make a task's index rows what its row says, given the keys that were found."""
    right = entry(at, task, row)
    for key in found:
        if right is None or key != right[0]:
            tr.clear(key)
    if right is not None:
        tr.set(*right)
