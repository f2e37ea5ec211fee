"""Heap: what is due, on an object store, ordered by time. Always behind the sysdb, never the truth."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from fdb_schema import NewerFormatError
from s3heap_tender.claims import outbox
from s3heap_tender.claims.outbox import Verdict
from s3heap_tender.errors import (
    DuplicateWriterError,
    HeapTenderError,
    StoreError,
    StoreUnavailableError,
)
from s3heap_tender.objects.contents import MOST_UNANSWERED, Contents
from s3heap_tender.objects.heap_io import Content, HeapIO
from s3heap_tender.objects.heap_values import Bucket, PruneStats, Summary
from s3heap_tender.objects.meta import open_meta
from s3heap_tender.objects.pruning import Pruning
from s3heap_tender.objects.quarantining import quarantined
from s3heap_tender.objects.writer import LINGER_SECONDS, MAX_OBJECT_ITEMS, ShardWriter, Writers
from s3heap_tender.rows.items import RECORD_BYTES, HeapItem, due_of
from s3heap_tender.rows.naming import LAST_BUCKET, META_KEY, PROBE_PREFIX, QUARANTINE_PREFIX, ObjectName, shard_prefix
from s3heap_tender.rows.records import Task
from s3heap_tender.stores.port import MOST_BYTES, ObjectStore
from s3heap_tender.sysdb import SysDb

T = TypeVar("T")
U = TypeVar("U")
READ_AHEAD: Final = 32


class Heap:
    """The heap of one sysdb on one store. Safe to share between threads; other processes may use the same store.

    Args:
        store: a `HeapStore`.
        sysdb: whose items these are; a heap made for another sysdb is refused.
        bucket_seconds: length of a bucket of a new heap, 60 by default; a heap that exists keeps its own.
        may_move: make a heap where the store holds none, though the sysdb has one elsewhere.
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
        may_move: bool = True,
        threads: int = 16,
        linger: float = LINGER_SECONDS,
        max_object_items: int = MAX_OBJECT_ITEMS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bucket_seconds is not None and bucket_seconds < 1:
            raise ValueError(f"bucket_seconds must be 1 or more, not {bucket_seconds}")
        if not 1 <= max_object_items <= MOST_BYTES // 2 // RECORD_BYTES:
            raise ValueError(
                f"max_object_items must be 1 to {MOST_BYTES // 2 // RECORD_BYTES:,}, not {max_object_items}"
            )
        self.store = store
        self.sysdb = sysdb
        self.io = HeapIO(store, sysdb.trace, self._read_version, writer=secrets.token_bytes(8), sleep=sleep)
        self.bucket_seconds = open_meta(store, sysdb, bucket_seconds, may_move)
        self.shards = sysdb.shards
        self._writers = Writers(self.io, linger, max_object_items)
        self._contents = Contents(self.io, self.bucket_seconds, self._writers.known)
        self._pruning = Pruning(sysdb, self._contents, self._writers)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3heap") if threads else None
        self._process = os.getpid()
        self.unreadable = self._contents.unreadable
        self.corrupt = self._contents.corrupt

    def close(self) -> None:
        """End this heap's threads; the store stays open."""
        if self._pool is not None and os.getpid() == self._process:  # a forked child has none of the threads
            self._pool.shutdown(wait=True)

    def __enter__(self) -> Heap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def writer(self, shard: int) -> ShardWriter:
        """This process's writer of a shard."""
        return self._writers.of(shard)

    def own(self, shard: int, epoch: int) -> ShardWriter:
        """Write the shard as its owner from now on; `epoch` is the lease's token."""
        return self._writers.own(shard, epoch)

    def disown(self, shard: int) -> None:
        """Write the shard as anybody may, from now on."""
        self._writers.disown(shard)

    def push(self, items: HeapItem | Task | Iterable[HeapItem | Task]) -> dict[HeapItem, int]:
        """Put items on the heap; returns each with the start of the bucket it went to, once all have landed.

        A bucket is never in the past: max(of the due time, of now, the shard's boundary). Pushing again is harmless.
        """
        placed, faults = self.place([items] if isinstance(items, (HeapItem, Task)) else items)
        if faults:
            raise faults[0]
        return placed

    def place(self, items: Iterable[HeapItem | Task]) -> tuple[dict[HeapItem, int], list[Exception]]:
        """`push` that tells what landed from what did not: one object that can't be written holds up its own items only.

        Returns the items that landed, and why the others did not.
        """
        by_shard: dict[int, list[HeapItem]] = {}
        shard_of = self.sysdb.layout.shard_of
        for entry in items:
            item = entry.item if isinstance(entry, Task) else entry
            by_shard.setdefault(shard_of(item.task), []).append(item)
        placed: dict[HeapItem, int] = {}
        faults: list[Exception] = []
        if not by_shard:
            return placed, faults
        self.sysdb.tick()
        now, boundaries = self._floors(sorted(by_shard))
        writes: dict[tuple[int, int], list[HeapItem]] = {}
        for shard, group in by_shard.items():
            floor = max(now, boundaries[shard])
            for item in group:
                bucket = max(self.bucket_of(item.due_ms // 1000), floor)
                if bucket > LAST_BUCKET:
                    faults.append(
                        HeapTenderError(f"task {item.task} is due beyond what a heap can hold: {item.due_ms} ms")
                    )
                    continue
                writes.setdefault((shard, bucket), []).append(item)

        def write(where: tuple[int, int]) -> None:
            unanswered = sum(isinstance(fault, StoreUnavailableError) for fault in faults)
            if unanswered >= MOST_UNANSWERED:
                return  # the store answers nobody: what is left comes again
            key = ObjectName(*where).key
            try:
                self.writer(where[0]).push(where[1], [item.pack() for item in writes[where]])
            except (HeapTenderError, NewerFormatError) as error:
                faults.append(error)
                self._contents.note_unanswered(key, error)
            else:
                placed.update(dict.fromkeys(writes[where], where[1]))
                self._contents.unanswered.discard(key)

        self._each(write, sorted(writes, key=lambda where: ObjectName(*where).key in self._contents.unanswered))
        # Whoever lost a condition as the owner of a shard has to know that first.
        faults.sort(key=lambda fault: not isinstance(fault, DuplicateWriterError))
        return placed, faults

    # reading

    def names(self, shard: int | None = None, *, before: int | None = None) -> list[ObjectName]:
        """Names of the heap's objects in the order of their buckets: of one shard or all, of buckets before a time."""
        shards = range(self.shards) if shard is None else (shard,)
        found = [name for listed in self._each(lambda s: self._contents.list(s, before), shards) for name, _ in listed]
        return sorted(found, key=lambda name: (name.bucket, name.shard, name.part))

    def scan(
        self,
        before: int | None = None,
        shards: Sequence[int] | None = None,
        *,
        faults: dict[int | str, StoreError] | None = None,
        since: Mapping[int, int] | None = None,
    ) -> Iterator[Content]:
        """Contents of the objects of buckets that start before `before`, oldest first, one bucket time after another.

        `since` gives, for shards of which no more is wanted, a time (seconds) before whose bucket nothing is looked at.

        A listing tells which objects changed since they were last read here; only those are read again. An object that
        can't be read is left out and noted in `unreadable`. Where `faults` is given, a shard that the store does not list
        and an object that it does not serve are left out too, and noted there; else they raise.
        """
        asked = range(self.shards) if shards is None else shards
        floors = {shard: self.bucket_of((since or {}).get(shard, 0)) for shard in asked}
        found = dict(zip(asked, self._each(lambda s: self._listed(s, before, floors[s], faults), asked), strict=True))
        wanted = {shard for shard, entries in found.items() if entries is not None}

        def gone(name: ObjectName) -> bool:
            there = (
                name.shard in wanted and floors[name.shard] <= name.bucket and (before is None or name.bucket < before)
            )
            return there and name.key not in known

        listed = [entry for entries in found.values() for entry in entries or ()]
        known = {name.key for name, _ in listed}
        self._contents.forget(gone, floors)
        listed.sort(key=lambda entry: (entry[0].bucket, entry[0].shard, entry[0].part))
        at = 0
        while at < len(listed):
            group: list[tuple[ObjectName, str]] = []
            # Whole buckets, and enough of them that the requests go out side by side.
            while at < len(listed) and (len(group) < READ_AHEAD or listed[at][0].bucket == group[-1][0].bucket):
                group.append(listed[at])
                at += 1
            for content in self._each(lambda entry: self._served(entry[0], entry[1], faults), group):
                if content is not None:
                    yield content

    def peek(self, limit: int = 100, before: float | None = None) -> list[HeapItem]:
        """At most `limit` live items in the order of their due times; `before` (seconds of the cluster clock) leaves
        out what is due then or later.

        Items of tasks the sysdb never had are left out.
        """
        if limit < 1:
            raise ValueError(f"limit must be 1 or more, not {limit}")
        if before is not None and not math.isfinite(before):
            raise ValueError(f"before is a time in seconds of the cluster clock, not {before!r}")
        if before is not None and before > LAST_BUCKET:
            before = None
        cut = None if before is None else int(before * 1000)
        found: list[HeapItem] = []
        group: list[bytes] = []
        bucket: int | None = None
        # Up to the current bucket an item may lie later than its due time says: it was pushed late.
        current = self.bucket_of(self.sysdb.now_micro() // 1_000_000)
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
        """Totals over the whole heap: done items are on it until they are pruned, and aren't due."""
        now_ms = int(self.sysdb.now() * 1000)
        items = due = 0
        by_shard: dict[int, int] = {}
        names: list[ObjectName] = []
        for content in self.scan():
            names.append(content.name)
            items += len(content.records)
            past = [HeapItem.unpack(record) for record in content.records if due_of(record) <= now_ms]
            due += self.sysdb.verdicts(past).count(Verdict.LIVE)
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
        return self._pruning.prune(limit, range(self.shards) if shards is None else shards, past_only, dry_run)

    def prune_done(self, shard: int, limit: int = 1000, *, thorough: bool = False) -> tuple[PruneStats, int]:
        """Remove the items of a shard that the sysdb notes as done, of buckets that are past; `limit` notes at a time.

        Costs a listing from the first bucket on in which such an item may lie (`thorough`: from the first there is), and
        what is written: an object is read only where it changed since it was last read here, and the rows only of tasks
        that are noted. Notes of what may lie in an object that can't be read are not settled. Returns what was done, and how
        many notes are settled.
        """
        return self._pruning.prune_done(shard, limit, thorough)

    def quarantine(self, key: str, reason: str) -> str | None:
        """Move an object that can't be read aside, bytes and all; returns its new key, None where it changed meanwhile.

        One that is larger than any of the heap's is removed, and "" returned: somebody put it in the place of one.
        What was on it and is still needed comes back by the tender's reconciliation.
        """
        return quarantined(self.sysdb, self._contents, self._writers, key, reason)

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

    @property
    def serial(self) -> bool:
        """Whether everything runs in the calling thread."""
        return self._pool is None

    def bucket_of(self, seconds: int) -> int:
        """The start of the bucket of a time, in seconds of the cluster clock."""
        return self._contents.floor(seconds)

    def _floors(self, shards: Sequence[int]) -> tuple[int, dict[int, int]]:
        """The current bucket, and each shard's boundary, as of one read version."""

        def body(tr: Any, at: Any) -> dict[int, int]:
            return {shard: outbox.read_boundary(tr, at, shard) for shard in shards}

        boundaries = self.sysdb.read(body)
        return self.bucket_of(self.sysdb.now_micro() // 1_000_000), boundaries

    def _listed(
        self, shard: int, before: int | None, since: int, faults: dict[int | str, StoreError] | None
    ) -> list[tuple[ObjectName, str]] | None:
        try:
            return self._contents.list(shard, before, since)
        except StoreError as error:
            if faults is None:
                raise
            faults[shard] = error
            return None

    def _served(self, name: ObjectName, etag: str, faults: dict[int | str, StoreError] | None) -> Content | None:
        try:
            return self._contents.read(name, etag)
        except StoreError as error:
            if faults is None:
                raise
            faults[name.key] = error
            return None

    def _each(self, work: Callable[[T], U], over: Iterable[T]) -> list[U]:
        """`work` on each, at once where there are threads; the first error is raised after all have ended."""
        todo = list(over)
        # In a forked child the pool's threads are the parent's: they would never come to it.
        if self._pool is None or len(todo) < 2 or os.getpid() != self._process:
            return [work(entry) for entry in todo]
        futures = [self._pool.submit(work, entry) for entry in todo]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def _read_version(self) -> int:
        return self.sysdb.read(lambda tr, _at: int(tr.get_read_version().wait()))
