"""Heap: what is due, on an object store, ordered by time. Always behind the sysdb, never the truth."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fdb_schema import NewerFormatError
from s3heap_tender import tending
from s3heap_tender.errors import ConflictError, CorruptObjectError
from s3heap_tender.heap_io import Content, HeapIO, decoded
from s3heap_tender.heap_values import Bucket, PruneStats, Summary
from s3heap_tender.items import HeapItem, due_of
from s3heap_tender.meta import open_meta
from s3heap_tender.naming import META_KEY, PROBE_PREFIX, QUARANTINE_PREFIX, ObjectName, shard_prefix
from s3heap_tender.outbox import Verdict
from s3heap_tender.records import Task
from s3heap_tender.stores.port import ObjectStore, StoredObject
from s3heap_tender.sysdb import SysDb
from s3heap_tender.transitions import read_counter
from s3heap_tender.writer import LINGER_SECONDS, MAX_OBJECT_ITEMS, ShardWriter

T = TypeVar("T")
U = TypeVar("U")


class Heap:
    """The heap of one sysdb on one store. Safe to share between threads; other processes may use the same store.

    Args:
        store: a `HeapStore`.
        sysdb: whose items these are; a heap made for another sysdb is refused.
        bucket_seconds: length of a bucket of a new heap, 60 by default; a heap that exists keeps its own.
        threads: requests at once; 0 runs everything in the calling thread.

    Raises:
        HeapMismatchError: the store holds the heap of another sysdb, or one cut differently.
    """

    def __init__(
        self,
        store: ObjectStore,
        sysdb: SysDb,
        *,
        bucket_seconds: int | None = None,
        threads: int = 16,
        linger: float = LINGER_SECONDS,
        max_object_items: int = MAX_OBJECT_ITEMS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bucket_seconds is not None and bucket_seconds < 1:
            raise ValueError(f"bucket_seconds must be 1 or more, not {bucket_seconds}")
        self.store = store
        self.sysdb = sysdb
        self.io = HeapIO(store, sysdb.trace, self._read_version, writer=secrets.token_bytes(8), sleep=sleep)
        self.bucket_seconds = open_meta(store, sysdb, bucket_seconds)
        self.shards = sysdb.shards
        self._linger = linger
        self._max_items = max_object_items
        self._writers: dict[int, ShardWriter] = {}
        self._writers_lock = threading.Lock()
        self._cache: dict[str, Content] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3heap") if threads else None
        self.unreadable: dict[str, str] = {}  # key → why, of objects that the last look could not read
        self.corrupt: dict[str, str] = {}  # those of them that no release can read

    def close(self) -> None:
        """End this heap's threads; the store stays open."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def __enter__(self) -> Heap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def writer(self, shard: int) -> ShardWriter:
        """This process's writer of a shard."""
        with self._writers_lock:
            found = self._writers.get(shard)
            if found is None:
                found = self._writers[shard] = ShardWriter(
                    self.io, shard, linger=self._linger, max_items=self._max_items
                )
            return found

    def own(self, shard: int, epoch: int) -> ShardWriter:
        """Write the shard as its owner from now on; `epoch` is the lease's token."""
        with self._writers_lock:
            self._writers[shard] = writer = ShardWriter(
                self.io, shard, epoch=epoch, owner=True, linger=self._linger, max_items=self._max_items
            )
            return writer

    def disown(self, shard: int) -> None:
        """Write the shard as anybody may, from now on."""
        with self._writers_lock:
            self._writers.pop(shard, None)

    def push(self, items: HeapItem | Task | Iterable[HeapItem | Task]) -> dict[HeapItem, int]:
        """Put items on the heap; returns each with the start of the bucket it went to, once all have landed.

        A bucket is never in the past: max(of the due time, of now, the shard's boundary). Pushing again is harmless.
        """
        listed = [items] if isinstance(items, (HeapItem, Task)) else list(items)
        by_shard: dict[int, list[HeapItem]] = {}
        shard_of = self.sysdb.layout.shard_of
        for entry in listed:
            item = entry.item if isinstance(entry, Task) else entry
            by_shard.setdefault(shard_of(item.task), []).append(item)
        self.sysdb.tick()
        now, boundaries = self._floors(sorted(by_shard))
        placed: dict[HeapItem, int] = {}
        writes: list[tuple[int, int, list[bytes]]] = []
        for shard, group in by_shard.items():
            floor = max(now, boundaries[shard])
            by_bucket: dict[int, list[bytes]] = {}
            for item in group:
                placed[item] = bucket = max(self._floor(item.due_ms // 1000), floor)
                by_bucket.setdefault(bucket, []).append(item.pack())
            writes.extend((shard, bucket, records) for bucket, records in by_bucket.items())
        self._each(lambda write: self.writer(write[0]).push(write[1], write[2]), writes)
        return placed

    # reading

    def names(self, shard: int | None = None, *, before: int | None = None) -> list[ObjectName]:
        """Names of the heap's objects in the order of their buckets: of one shard or all, of buckets before a time."""
        shards = range(self.shards) if shard is None else (shard,)
        found = [name for listed in self._each(lambda s: self._list(s, before), shards) for name, _ in listed]
        return sorted(found, key=lambda name: (name.bucket, name.shard, name.part))

    def scan(self, before: int | None = None, shards: Sequence[int] | None = None) -> Iterator[Content]:
        """Contents of the objects of buckets that start before `before`, oldest first, one bucket time after another.

        A listing tells which objects changed since they were last read here; only those are read again. An object that
        can't be read is left out and noted in `unreadable`.
        """
        wanted = range(self.shards) if shards is None else shards
        listed = [entry for found in self._each(lambda s: self._list(s, before), wanted) for entry in found]
        known = {name.key for name, _ in listed}
        for key, cached in list(self._cache.items()):
            name = cached.name
            if name.shard in wanted and (before is None or name.bucket < before) and key not in known:
                self._cache.pop(key, None)
        for key in list(self.unreadable):
            lost = ObjectName.parse(key)
            if lost is None or (lost.shard in wanted and (before is None or lost.bucket < before) and key not in known):
                self._readable_again(key)
        listed.sort(key=lambda entry: (entry[0].bucket, entry[0].shard, entry[0].part))
        at = 0
        while at < len(listed):
            bucket = listed[at][0].bucket
            group = []
            while at < len(listed) and listed[at][0].bucket == bucket:
                group.append(listed[at])
                at += 1
            for content in self._each(lambda entry: self._read(entry[0], entry[1]), group):
                if content is not None:
                    yield content

    def peek(self, limit: int = 100, before: float | None = None) -> list[HeapItem]:
        """At most `limit` live items in the order of their due times; `before` (seconds of the cluster clock) leaves
        out what is due then or later.

        Items of tasks the sysdb never had are left out.
        """
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        cut = None if before is None else int(before * 1000)
        found: list[HeapItem] = []
        group: list[bytes] = []
        bucket: int | None = None
        # Up to the current bucket an item may lie later than its due time says: it was pushed late.
        current = self._floor(self.sysdb.now_micro() // 1_000_000)
        for content in self.scan(None if before is None else int(before) + 1):
            if bucket is not None and content.name.bucket > bucket:
                found.extend(self._first_live(group, limit))
                group = []
                if len(found) >= limit and content.name.bucket > current:
                    break
            bucket = content.name.bucket
            group.extend(r for r in content.records if cut is None or due_of(r) < cut)
        found.extend(self._first_live(group, limit))
        return sorted(set(found), key=lambda item: (item.due_ms, item))[:limit]

    def _first_live(self, records: list[bytes], limit: int) -> list[HeapItem]:
        """The first live items of a bucket; no more rows are read than it takes to find them."""
        records.sort(key=lambda record: record[40:48])
        found: list[HeapItem] = []
        for at in range(0, len(records), 1000):
            found.extend(self.live(records[at : at + 1000]))
            if len(found) >= limit:
                break
        return found

    def live(self, records: Sequence[bytes]) -> list[HeapItem]:
        """The items among packed records that are not done."""
        items = [HeapItem.unpack(record) for record in records]
        return [
            item for item, verdict in zip(items, self.sysdb.verdicts(items), strict=True) if verdict is Verdict.LIVE
        ]

    def buckets(self) -> list[Bucket]:
        """The heap's objects, oldest first."""
        sizes = {}
        for shard in range(self.shards):
            for listed in self.io.list(shard_prefix(shard)):
                sizes[listed.key] = listed.size
        counts = {content.name.key: len(content.records) for content in self.scan()}
        names = sorted(
            (name for key in sizes if (name := ObjectName.parse(key)) is not None),
            key=lambda name: (name.bucket, name.shard, name.part),
        )
        return [Bucket(n.key, n.shard, n.bucket, n.part, sizes[n.key], counts.get(n.key, 0)) for n in names]

    def summary(self) -> Summary:
        """Totals over the whole heap; done items count until they are pruned."""
        now_ms = int(self.sysdb.now() * 1000)
        items = due = 0
        by_shard: dict[int, int] = {}
        names: list[ObjectName] = []
        for content in self.scan():
            names.append(content.name)
            items += len(content.records)
            due += sum(1 for record in content.records if due_of(record) <= now_ms)
            by_shard[content.name.shard] = by_shard.get(content.name.shard, 0) + len(content.records)
        starts = [name.bucket for name in names]
        return Summary(
            items,
            due,
            len(names),
            min(starts, default=None),
            max(starts, default=None),
            by_shard,
            tuple(sorted(self.unreadable)),
        )

    # pruning

    def prune(
        self,
        limit: int | None = None,
        *,
        shards: Sequence[int] | None = None,
        past_only: bool = False,
        dry_run: bool = False,
    ) -> PruneStats:
        """Remove done items, oldest objects first, at most `limit` objects; delete empty objects below the boundary.

        The boundary is raised to the current bucket first, so nothing is pushed any more to what is deleted.
        `past_only` leaves out buckets that start after the current one.
        """
        self.sysdb.tick()
        total = PruneStats()
        wanted = range(self.shards) if shards is None else shards
        seen = 0
        for shard in wanted:
            boundary = self._boundary(shard, raise_it=not dry_run)
            before = None if not past_only else self.sysdb.now_micro() // 1_000_000 + 1
            for name in self.names(shard, before=before):
                if limit is not None and seen >= limit:
                    return total
                seen += 1
                total += self._prune_object(name, name.bucket < boundary, dry_run)
        return total

    def _prune_object(self, name: ObjectName, may_delete: bool, dry_run: bool) -> PruneStats:
        unknown = 0

        def keep(records: list[bytes]) -> set[bytes]:
            nonlocal unknown
            found = self.sysdb.verdicts([HeapItem.unpack(record) for record in records])
            unknown = sum(verdict is Verdict.UNKNOWN for verdict in found)
            return {record for record, verdict in zip(records, found, strict=True) if verdict is not Verdict.DONE}

        try:
            if dry_run:
                content = self.io.load(name, known=self._cache.get(name.key))
                records = [] if content is None else content.records
                kept = keep(records)
                return PruneStats(len(records) - len(kept), len(kept), unknown=unknown)
            removed, retained, what = self.writer(name.shard).rewrite(name, keep, may_delete, self._cache.get(name.key))
        except ConflictError:
            return PruneStats(conflicts=1)
        except (CorruptObjectError, NewerFormatError) as error:
            self._note_unreadable(name.key, error)
            return PruneStats(unreadable=(name.key,))
        return PruneStats(removed, retained, what == "deleted", what in ("rewritten", "emptied"), 0, unknown)

    def quarantine(self, key: str, reason: str) -> str | None:
        """Move an object that can't be read aside, bytes and all; returns its new key, None where it changed meanwhile.

        What was on it and is still needed comes back by the tender's reconciliation.
        """
        found = self.store.get(key)
        if not isinstance(found, StoredObject):
            self._readable_again(key)
            return None
        name = ObjectName.parse(key)
        if name is not None:
            with contextlib.suppress(CorruptObjectError):
                decoded(name, found)
                self._readable_again(key)  # what was read before was damaged on its way here
                return None
        # Named by its content, so that one who died half-way is continued, and bytes are never overwritten.
        moved_to = f"{QUARANTINE_PREFIX}{key}-{hashlib.blake2b(found.body, digest_size=8).hexdigest()}"
        with contextlib.suppress(ConflictError):
            self.io.put_aside(moved_to, found.body)
        try:
            self.io.remove(key, found.etag)
        except ConflictError:
            return None
        self._cache.pop(key, None)
        self._readable_again(key)
        if name is not None:
            tending.note_quarantined(self.sysdb, name.shard, key, reason, moved_to)
            self.writer(name.shard).forget_all()
        return moved_to

    def foreign(self) -> list[str]:
        """Keys under the heap's prefix that are none of the heap's."""
        return [
            listed.key
            for listed in self.io.list("")
            if listed.key != META_KEY
            and not listed.key.startswith((QUARANTINE_PREFIX, PROBE_PREFIX))
            and ((name := ObjectName.parse(listed.key)) is None or name.shard >= self.shards)
        ]

    # parts

    def _floor(self, seconds: int) -> int:
        return seconds - seconds % self.bucket_seconds

    def _floors(self, shards: Sequence[int]) -> tuple[int, dict[int, int]]:
        """The current bucket, and each shard's boundary, as of one read version."""
        keys = self.sysdb.layout.keys

        def body(tr: Any, _at: Any) -> dict[int, int]:
            return {shard: read_counter(tr, keys.boundary(shard)) for shard in shards}

        boundaries = self.sysdb.read(body)
        return self._floor(self.sysdb.now_micro() // 1_000_000), boundaries

    def _boundary(self, shard: int, *, raise_it: bool) -> int:
        current = self._floor(self.sysdb.now_micro() // 1_000_000)
        if not raise_it:
            return self._floors([shard])[1][shard]
        return tending.raise_boundary(self.sysdb, shard, current)

    def _list(self, shard: int, before: int | None) -> list[tuple[ObjectName, str]]:
        end = None if before is None else ObjectName(shard, self._floor(before - 1) + self.bucket_seconds).key
        return [
            (name, listed.etag)
            for listed in self.io.list(shard_prefix(shard), before=end)
            if (name := ObjectName.parse(listed.key)) is not None
        ]

    def _read(self, name: ObjectName, etag: str) -> Content | None:
        known = self._cache.get(name.key)
        if known is not None and known.etag == etag:
            return known
        try:
            content = self.io.load(name, known=known)
        except (CorruptObjectError, NewerFormatError) as error:
            self._note_unreadable(name.key, error)
            return None
        if content is None:
            self._cache.pop(name.key, None)
            return None
        self._cache[name.key] = content
        self._readable_again(name.key)
        return content

    def _readable_again(self, key: str) -> None:
        self.unreadable.pop(key, None)
        self.corrupt.pop(key, None)

    def _note_unreadable(self, key: str, error: Exception) -> None:
        self._cache.pop(key, None)
        self.unreadable[key] = str(error)
        if isinstance(error, CorruptObjectError):
            self.corrupt[key] = str(error)

    def _each(self, work: Callable[[T], U], over: Iterable[T]) -> list[U]:
        """`work` on each, at once where there are threads; the first error is raised after all have ended."""
        todo = list(over)
        if self._pool is None or len(todo) < 2:
            return [work(entry) for entry in todo]
        futures = [self._pool.submit(work, entry) for entry in todo]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def _read_version(self) -> int:
        return self.sysdb.read(lambda tr, _at: int(tr.get_read_version().wait()))
