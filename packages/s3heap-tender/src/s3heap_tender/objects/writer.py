"""One shard's writer: keeps the buckets it writes in memory and puts many pushes into one conditional write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from fdb_schema import NewerFormatError
from fdb_schema.forks import goes_on_in_children
from s3heap_tender.errors import ConflictError, CorruptObjectError, DuplicateWriterError, StoreUnavailableError
from s3heap_tender.objects.heap_io import ATTEMPTS, Content, HeapIO
from s3heap_tender.rows.naming import MAX_PARTS, ObjectName, bucket_prefix

LINGER_SECONDS: Final = 0.02
GROUP_ITEMS: Final = 500
MAX_OBJECT_ITEMS: Final = 4096
_KEPT_BUCKETS: Final = 256


class _Group:
    """Pushes to one bucket that will share a write."""

    __slots__ = ("count", "done", "error", "full", "records")

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.count = 0
        self.full = threading.Event()
        self.done = threading.Event()
        self.error: BaseException | None = None


class ShardWriter:
    """Writes of one shard by one process. Safe to call from many threads.

    As `owner` (the holder of the shard's lease, `epoch` its token) the first lost condition raises
    `DuplicateWriterError`: another process writes here. Otherwise a lost condition means reload and try again.
    """

    def __init__(
        self,
        io: HeapIO,
        shard: int,
        *,
        epoch: int = 0,
        owner: bool = False,
        linger: float = LINGER_SECONDS,
        max_items: int = MAX_OBJECT_ITEMS,
    ) -> None:
        self.io = io
        self.shard = shard
        self.epoch = epoch
        self.owner = owner
        self._linger = linger
        self._max_items = max_items
        self._open: dict[int, Content] = {}  # by bucket: its last part
        self._groups: dict[int, _Group] = {}
        self._queue_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._last_commit: dict[int, float] = {}

    def push(self, bucket: int, records: Sequence[bytes]) -> None:
        """Put `records` on the heap in `bucket`; returns once the write that holds them is known to have landed.

        Always writes, also where the records are there already: a pruner that judged them before loses its condition.
        """
        mine = _Group()
        try:
            with self._queue_lock:
                group = self._groups.setdefault(bucket, mine)
                group.records.extend(records)
                group.count += len(records)
                if group.count >= GROUP_ITEMS:
                    group.full.set()
            if group is mine:
                self._lead(bucket, group)
        except BaseException as error:
            # Wherever it was interrupted: who joined meanwhile is told, and who comes later leads a group of his own.
            with self._queue_lock:
                if self._groups.get(bucket) is mine:
                    del self._groups[bucket]
            mine.error = error
            raise
        finally:
            mine.done.set()
        group.done.wait()
        if group.error is not None:
            raise group.error

    def _lead(self, bucket: int, group: _Group) -> None:
        rest = self._linger - (time.monotonic() - self._last_commit.get(bucket, float("-inf")))
        if rest > 0:
            group.full.wait(rest)
        with self._write_lock:
            with self._queue_lock:
                del self._groups[bucket]
            if len(self._last_commit) > _KEPT_BUCKETS:
                self._last_commit.clear()
            self._last_commit[bucket] = time.monotonic()
            self._commit(bucket, group.records)

    def _commit(self, bucket: int, records: list[bytes]) -> None:
        fresh = list(dict.fromkeys(records))
        for start in range(0, len(fresh), self._max_items):
            self._commit_chunk(bucket, fresh[start : start + self._max_items])

    def _commit_chunk(self, bucket: int, records: list[bytes]) -> None:
        for attempt in range(ATTEMPTS):
            content = self._content(bucket, len(records))
            known = set(content.records)
            merged = content.records + [record for record in records if record not in known]
            try:
                self._keep(bucket, self.io.put(content, merged, epoch=self.epoch, why="push"))
                return
            except ConflictError as error:
                self._open.pop(bucket, None)
                if self.owner:
                    raise DuplicateWriterError(
                        f"shard {self.shard}: another process wrote {content.name.key}; its owner (epoch {self.epoch}) "
                        f"steps down"
                    ) from error
                if attempt == ATTEMPTS - 1:
                    raise
                self.io.pause(attempt)
            except BaseException:
                self._open.pop(bucket, None)
                raise
        raise StoreUnavailableError(f"shard {self.shard}: bucket {bucket} could not be written")

    def _content(self, bucket: int, room: int) -> Content:
        """The bucket's part that has room for `room` more records."""
        content = self._open.pop(bucket, None)
        if content is None:
            content = self._last_part(bucket)
        else:
            self._open[bucket] = content  # the last used is the last to be forgotten
        if content.etag is not None and len(content.records) + room > self._max_items:
            content = self._next_part(content)
        return content

    def _last_part(self, bucket: int) -> Content:
        parts = [ObjectName.parse(listed.key) for listed in self.io.list(bucket_prefix(self.shard, bucket))]
        name = max((part for part in parts if part is not None), default=None)
        if name is None:
            return Content(ObjectName(self.shard, bucket), None, [])
        try:
            found = self.io.load(name)
        except (CorruptObjectError, NewerFormatError):
            # Never written over: what it held may still be read by someone. The next part takes the new items.
            return self._next_part(Content(name, "", []))
        return Content(name, None, []) if found is None else found

    def _next_part(self, content: Content) -> Content:
        name = content.name
        if name.part + 1 >= MAX_PARTS:
            raise StoreUnavailableError(f"shard {self.shard}: bucket {name.bucket} is full ({MAX_PARTS} objects)")
        return Content(ObjectName(name.shard, name.bucket, name.part + 1), None, [])

    def _keep(self, bucket: int, content: Content) -> None:
        self._open.pop(bucket, None)
        self._open[bucket] = content
        while len(self._open) > _KEPT_BUCKETS:
            self._open.pop(next(iter(self._open)))

    def known(self, name: ObjectName) -> Content | None:
        """The object as this writer last wrote it; None where it doesn't know."""
        content = self._open.get(name.bucket)
        return content if content is not None and content.name == name else None

    def rewrite(
        self,
        name: ObjectName,
        keep: Callable[[list[bytes]], Collection[bytes]],
        may_delete: bool,
        known: Content | None = None,
        *,
        current: bool = False,
    ) -> tuple[int, int, str]:
        """Drop the records that `keep(records)` leaves out, under one condition: the object is as it was when judged.

        `current` says that a listing has just shown `known` to be what is there, so that it needs no other read.
        Returns (removed, retained, what was done: "kept", "rewritten", "emptied" or "deleted"). Raises `ConflictError`.
        """
        with self._write_lock:
            content = known if current else self.io.load(name, known=known)
            if content is None:
                return 0, 0, "kept"
            kept = set(keep(content.records))
            removed = len(content.records) - len(kept)
            if not kept and may_delete:
                self._forget(name)
                self.io.delete(content)
                return removed, 0, "deleted"
            if not removed:
                return 0, len(kept), "kept"
            self._forget(name)
            self.io.put(content, [r for r in content.records if r in kept], epoch=self.epoch, why="prune")
            return removed, len(kept), "rewritten" if kept else "emptied"

    def _forget(self, name: ObjectName) -> None:
        known = self._open.get(name.bucket)
        if known is not None and known.name == name:
            del self._open[name.bucket]

    def forget_all(self) -> None:
        """Drop what is known of the shard's objects; the next push reads them again."""
        with self._write_lock:
            self._open.clear()


class Writers:
    """This process's writers, one for each shard it writes. Safe to call from many threads."""

    def __init__(self, io: HeapIO, linger: float, max_items: int) -> None:
        self._io = io
        self._linger = linger
        self._max_items = max_items
        self._writers: dict[int, ShardWriter] = {}
        self._lock = threading.Lock()
        goes_on_in_children(self)

    def after_fork(self) -> None:
        """See `fdb_schema.forks`. The child owns no shard, and no push of the parent's will land here: its writers are new."""
        self._writers, self._lock = {}, threading.Lock()

    def of(self, shard: int) -> ShardWriter:
        """The writer of a shard."""
        with self._lock:
            found = self._writers.get(shard)
            if found is None:
                found = self._writers[shard] = ShardWriter(
                    self._io, shard, linger=self._linger, max_items=self._max_items
                )
            return found

    def own(self, shard: int, epoch: int) -> ShardWriter:
        """Write the shard as its owner from now on."""
        with self._lock:
            self._writers[shard] = writer = ShardWriter(
                self._io, shard, epoch=epoch, owner=True, linger=self._linger, max_items=self._max_items
            )
            return writer

    def disown(self, shard: int) -> None:
        """Write the shard as anybody may, from now on."""
        with self._lock:
            self._writers.pop(shard, None)

    def known(self, name: ObjectName) -> Content | None:
        """The object as it was last written here; None where that isn't known."""
        with self._lock:
            writer = self._writers.get(name.shard)
        return None if writer is None else writer.known(name)
