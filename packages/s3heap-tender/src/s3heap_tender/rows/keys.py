"""Every key of the sysdb, as key → value lines, under (cluster, "s3heap").

    (…, "config")                      → {id, shards}, msgpack: identity of this sysdb, number of shards
    (…, "heap", url)                   → the length of its buckets (s, decimal): where this sysdb's heap is, or was seen
    (…, "task", task)                  → TaskRow
    (…, "payload", task)               → the caller's bytes, as given
    (…, "output", task)                → RunOutput: the end of what the last run printed
    (…, "part", partition, task)       → ""
    (…, "name", partition, name)       → task id
    (…, "active", shard, task)         → "": the task is scheduled or running
    (…, "due", shard, ms, task)        → "": scheduled, neither paused nor dead, may start then
    (…, "run", shard, task)            → session of the run
    (…, "done", shard, ms, task)       → due ms (8) of an item of the task that is done; its bucket may be deleted once then is past
    (…, "bell", shard)                 → versionstamp (10) of the last write or intent
    (…, "pushed", shard)               → versionstamp (10) of the last push
    (…, "intent", shard, task)         → generation (8) due ms (8) partition (16) versionstamp (10): to be pushed
    (…, "log", partition)              → end of the partition's log, u64 little endian: records written so far
    (…, "again", partition)            → writes said to end the log below its known end, u64 little endian
    (…, "dirty", shard, partition)     → versionstamp (10) of the last write
    (…, "boundary", shard)             → start of the oldest bucket that may be written, seconds, u64 little endian
    (…, "tomb", task)                  → partition (16) deleted at (8, µs, big endian): what is left of it on the heap is done
    (…, "dlq", task, generation)       → DeadLetterRow
    (…, "quarantine", shard, key)      → {reason, moved_to}, msgpack: an object that couldn't be read
    (…, "stats", name)                 → counter, u64 little endian
    (…, "trace", partition)            → traceparent of the last write that was traced

A partition and a task are UUIDs, stored as 16 bytes; times are µs of the cluster clock unless said otherwise.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID

from fdb_schema import ClusterSpace
from s3heap_tender.errors import StrayKeyError

SUBSPACE: Final = "s3heap"
FORMAT: Final = 2  # 2: due, run and done rows, without which nothing would be looked at
STAMP_BYTES: Final = 10
_STAMP_HERE: Final = b"\x00" * STAMP_BYTES


class HeapKeys:
    """Packs and unpacks the keys above."""

    def __init__(self, space: ClusterSpace) -> None:
        self.space = space
        base = self._base = space[SUBSPACE]
        self.config: bytes = base.pack(("config",))
        self._heaps = base["heap"]
        self._tasks = base["task"]
        self._payloads = base["payload"]
        self._outputs = base["output"]
        self._parts = base["part"]
        self._names = base["name"]
        self._active = base["active"]
        self._due = base["due"]
        self._runs = base["run"]
        self._done = base["done"]
        self._bells = base["bell"]
        self._pushed = base["pushed"]
        self._intents = base["intent"]
        self._logs = base["log"]
        self._agains = base["again"]
        self._dirty = base["dirty"]
        self._boundaries = base["boundary"]
        self._tombs = base["tomb"]
        self._dlq = base["dlq"]
        self._quarantine = base["quarantine"]
        self._stats = base["stats"]
        self._traces = base["trace"]

    def heap(self, url: str) -> bytes:
        return _b(self._heaps.pack((url,)))

    def heaps_range(self) -> tuple[bytes, bytes]:
        return _range(self._heaps)

    def heap_of(self, key: bytes) -> str:
        [url] = self._read(key, "heap")
        return str(url)

    def task(self, task: UUID) -> bytes:
        return _b(self._tasks.pack((task.bytes,)))

    def trace(self, partition: UUID) -> bytes:
        return _b(self._traces.pack((partition.bytes,)))

    def payload(self, task: UUID) -> bytes:
        return _b(self._payloads.pack((task.bytes,)))

    def output(self, task: UUID) -> bytes:
        return _b(self._outputs.pack((task.bytes,)))

    def part(self, partition: UUID, task: UUID) -> bytes:
        return _b(self._parts.pack((partition.bytes, task.bytes)))

    def name(self, partition: UUID, name: str) -> bytes:
        return _b(self._names.pack((partition.bytes, name)))

    def active(self, shard: int, task: UUID) -> bytes:
        return _b(self._active.pack((shard, task.bytes)))

    def due(self, shard: int, ms: int, task: UUID) -> bytes:
        return _b(self._due.pack((shard, ms, task.bytes)))

    def run(self, shard: int, task: UUID) -> bytes:
        return _b(self._runs.pack((shard, task.bytes)))

    def done(self, shard: int, ms: int, task: UUID) -> bytes:
        return _b(self._done.pack((shard, ms, task.bytes)))

    def bell(self, shard: int) -> bytes:
        return _b(self._bells.pack((shard,)))

    def pushed(self, shard: int) -> bytes:
        return _b(self._pushed.pack((shard,)))

    def due_range(self, shard: int | None = None) -> tuple[bytes, bytes]:
        return _range(self._due if shard is None else self._due[shard])

    def run_range(self, shard: int | None = None) -> tuple[bytes, bytes]:
        return _range(self._runs if shard is None else self._runs[shard])

    def done_range(self, shard: int | None = None) -> tuple[bytes, bytes]:
        return _range(self._done if shard is None else self._done[shard])

    def due_of(self, key: bytes) -> tuple[int, UUID]:
        """When the task of a `due` key may start, in ms, and the task."""
        _, ms, task = self._read(key, "due")
        return ms, task

    def done_of(self, key: bytes) -> tuple[int, UUID]:
        """From when on the bucket of a `done` key's item may be deleted, in ms, and the task."""
        _, ms, task = self._read(key, "done")
        return ms, task

    def intent(self, shard: int, task: UUID) -> bytes:
        return _b(self._intents.pack((shard, task.bytes)))

    def log(self, partition: UUID) -> bytes:
        return _b(self._logs.pack((partition.bytes,)))

    def again(self, partition: UUID) -> bytes:
        return _b(self._agains.pack((partition.bytes,)))

    def dirty(self, shard: int, partition: UUID) -> bytes:
        return _b(self._dirty.pack((shard, partition.bytes)))

    def boundary(self, shard: int) -> bytes:
        return _b(self._boundaries.pack((shard,)))

    def tomb(self, task: UUID) -> bytes:
        return _b(self._tombs.pack((task.bytes,)))

    def dead_letter(self, task: UUID, gen: int) -> bytes:
        return _b(self._dlq.pack((task.bytes, gen)))

    def quarantine(self, shard: int, key: str) -> bytes:
        return _b(self._quarantine.pack((shard, key)))

    def stat(self, name: str) -> bytes:
        return _b(self._stats.pack((name,)))

    def tasks_range(self) -> tuple[bytes, bytes]:
        return _range(self._tasks)

    def part_range(self, partition: UUID) -> tuple[bytes, bytes]:
        return _range(self._parts[partition.bytes])

    def active_range(self, shard: int | None = None) -> tuple[bytes, bytes]:
        return _range(self._active if shard is None else self._active[shard])

    def intent_range(self, shard: int | None = None) -> tuple[bytes, bytes]:
        return _range(self._intents if shard is None else self._intents[shard])

    def dirty_range(self, shard: int | None = None) -> tuple[bytes, bytes]:
        return _range(self._dirty if shard is None else self._dirty[shard])

    def dlq_range(self, task: UUID | None = None) -> tuple[bytes, bytes]:
        return _range(self._dlq if task is None else self._dlq[task.bytes])

    def quarantine_range(self) -> tuple[bytes, bytes]:
        return _range(self._quarantine)

    def tomb_range(self) -> tuple[bytes, bytes]:
        return _range(self._tombs)

    def stats_range(self) -> tuple[bytes, bytes]:
        return _range(self._stats)

    def stat_of(self, key: bytes) -> str:
        [name] = self._read(key, "stats")
        return str(name)

    def task_of(self, key: bytes) -> UUID:
        """The task of a key whose last element is one."""
        task: UUID = self._read(key, "task", "part", "active", "intent", "due", "run", "tomb")[-1]
        return task

    def partition_of(self, key: bytes) -> UUID:
        """The partition of a `dirty` key."""
        _, partition = self._read(key, "dirty")
        found: UUID = partition
        return found

    def dead_letter_of(self, key: bytes) -> tuple[UUID, int]:
        task, gen = self._read(key, "dlq")
        return task, gen

    def quarantined_of(self, key: bytes) -> tuple[int, str]:
        shard, name = self._read(key, "quarantine")
        return shard, name

    def _read(self, key: bytes, *kinds: str) -> list[Any]:
        """The elements of a key of one of these kinds. Raises StrayKeyError for one that nothing here wrote."""
        try:
            parts = self._base.unpack(key)
            if parts[0] not in kinds or self._base.pack(parts) != key:
                raise ValueError(f"it isn't one of {' or '.join(kinds)}")
            return [_ELEMENTS[kind](part) for kind, part in zip(_FORMS[parts[0]], parts[1:], strict=True)]
        except (ValueError, TypeError, IndexError, struct.error, RecursionError) as error:
            raise StrayKeyError(f"key {key!r} of the sysdb is none that a release wrote: {error}") from error


def _uuid(part: object) -> UUID:
    if type(part) is not bytes:
        raise TypeError(f"{part!r} is no id")
    return UUID(bytes=part)


def _number(part: object) -> int:
    if type(part) is not int or not 0 <= part < 1 << 63:
        raise TypeError(f"{part!r} is no number")
    return part


def _text(part: object) -> str:
    if type(part) is not str:
        raise TypeError(f"{part!r} is no text")
    return part


_ELEMENTS: Final = {"uuid": _uuid, "number": _number, "text": _text}
_FORMS: Final = {
    "heap": ("text",),
    "task": ("uuid",),
    "part": ("uuid", "uuid"),
    "active": ("number", "uuid"),
    "due": ("number", "number", "uuid"),
    "run": ("number", "uuid"),
    "done": ("number", "number", "uuid"),
    "intent": ("number", "uuid"),
    "dirty": ("number", "uuid"),
    "tomb": ("uuid",),
    "dlq": ("uuid", "number"),
    "quarantine": ("number", "text"),
    "stats": ("text",),
}


def stamped(value: bytes) -> bytes:
    """The parameter of `set_versionstamped_value` that stores `value` followed by the commit's versionstamp."""
    return value + _STAMP_HERE + len(value).to_bytes(4, "little")


def _b(key: Any) -> bytes:
    return bytes(key)


def _range(subspace: Any) -> tuple[bytes, bytes]:
    span = subspace.range()
    return bytes(span.start), bytes(span.stop)
