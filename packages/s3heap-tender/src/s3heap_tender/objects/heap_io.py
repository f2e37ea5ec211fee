"""One conditional operation at a time: failpoints around it, its outcome made certain, a trace line after it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fdb_schema.forks import goes_on_in_children
from s3heap_tender import failpoints
from s3heap_tender.errors import ConflictError, CorruptObjectError, OutcomeUnknownError, StoreUnavailableError
from s3heap_tender.rows.items import HeapItem, ObjectHeader, decode_object, encode_object
from s3heap_tender.rows.naming import ObjectName
from s3heap_tender.stores.port import Listed, NotModified, ObjectStore, StoredObject, list_from
from s3heap_tender.trace import Trace, items_view

ATTEMPTS: Final = 6
FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 2.0
PATIENCE_SECONDS: Final = 30.0


class Content:
    """An object's records as one writer or reader knows them, with the ETag they were read or written under."""

    __slots__ = ("etag", "name", "records")

    def __init__(self, name: ObjectName, etag: str | None, records: list[bytes]) -> None:
        self.name = name
        self.etag = etag  # None: the object does not exist
        self.records = records  # packed, in order


class HeapIO:
    """The heap's only way to its store. Retries what may be retried; never repeats a write whose outcome is open."""

    def __init__(
        self,
        store: ObjectStore,
        trace: Trace,
        read_version: Callable[[], int],
        *,
        writer: bytes,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        patience: float = PATIENCE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.trace = trace
        self.writer = writer
        self._read_version = read_version
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._patience = patience
        self._monotonic = monotonic
        self._sequence = 0
        self._lock = threading.Lock()
        self.requests: dict[str, int] = {"list": 0, "get": 0, "not_modified": 0, "put": 0, "delete": 0, "conflict": 0}
        goes_on_in_children(self)

    def after_fork(self) -> None:
        """See `fdb_schema.forks`."""
        self._lock = threading.Lock()

    def pause(self, attempt: int) -> None:
        """Wait before try `attempt` + 1: exponential, with full jitter."""
        self._sleep(self._rng.random() * min(LONGEST_DELAY, FIRST_DELAY * 2**attempt))

    def list(self, prefix: str, *, before: str | None = None, since: str | None = None) -> Iterator[Listed]:
        """Objects in the order of their keys."""
        self._count("list")
        failpoints.hit("heap.list.before")
        yield from list_from(self.store, prefix, before=before, since=since)
        failpoints.hit("heap.list.after")

    def load(self, name: ObjectName, *, known: Content | None = None) -> Content | None:
        """The object's content; `known` itself where it still has that ETag; None where there is no object.

        Raises `CorruptObjectError`, `NewerFormatError`.
        """
        failpoints.hit("heap.get.before")
        self._count("get")
        found = self.store.get(name.key, if_none_match=None if known is None else known.etag)
        failpoints.hit("heap.get.after")
        if found is None:
            return None
        if isinstance(found, NotModified):
            self._count("not_modified")
            return known
        return decoded(name, found)

    def put(self, content: Content, records: Iterable[bytes], *, epoch: int, why: str) -> Content:
        """Replace the content by `records`, if the object still is what `content` says. Raises `ConflictError`."""
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
        name = content.name
        header = ObjectHeader(name.shard, name.bucket, name.part, epoch, sequence, self.writer)
        ordered = sorted(records)
        body = encode_object(header, ordered)
        v0 = self._read_version() if self.trace.enabled else 0
        failpoints.hit("heap.put.before")
        self._count("put")
        etag = self._settle_put(name.key, body, content.etag)
        failpoints.hit("heap.put.after")
        written = Content(name, etag, ordered)
        if self.trace.enabled:
            old, new = set(content.records), set(ordered)
            self.trace.line(
                "heap.put",
                why=why,
                key=name.key,
                prev=content.etag,
                etag=etag,
                added=items_view(map(HeapItem.unpack, sorted(new - old))),
                removed=items_view(map(HeapItem.unpack, sorted(old - new))),
                v0=v0,
                v1=self._read_version(),
            )
        return written

    def delete(self, content: Content) -> None:
        """Delete the object, if it still is what `content` says. Raises `ConflictError`."""
        assert content.etag is not None
        v0 = self._read_version() if self.trace.enabled else 0
        failpoints.hit("heap.delete.before")
        self._count("delete")
        self._settle_delete(content.name.key, content.etag)
        failpoints.hit("heap.delete.after")
        if self.trace.enabled:
            self.trace.line(
                "heap.delete",
                key=content.name.key,
                prev=content.etag,
                removed=items_view(map(HeapItem.unpack, content.records)),
                v0=v0,
                v1=self._read_version(),
            )

    def put_aside(self, key: str, body: bytes) -> None:
        """Write bytes that are no object of the heap's, under a key of their own. Raises `ConflictError`: they are there."""
        failpoints.hit("heap.put_aside.before")
        self._count("put")
        self._settle_put(key, body, None)
        failpoints.hit("heap.put_aside.after")

    def remove(self, key: str, etag: str) -> None:
        """Delete what can't be read, its bytes being kept elsewhere. Raises `ConflictError`."""
        failpoints.hit("heap.remove.before")
        self._count("delete")
        self._settle_delete(key, etag)
        failpoints.hit("heap.remove.after")

    def _settle_put(self, key: str, body: bytes, if_match: str | None) -> str:
        """Write, and where the answer was lost read again until it is known whether the write landed.

        A store that never answers is given up after `patience` seconds and the request under way: the caller comes again.
        """
        end = self._monotonic() + self._patience
        for attempt in range(ATTEMPTS):
            try:
                return self.store.put(key, body, if_match=if_match)
            except ConflictError:
                # A lost answer of an earlier try is a conflict with oneself.
                found = self.store.get(key) if attempt else None
                if isinstance(found, StoredObject) and found.body == body:
                    return found.etag
                self._count("conflict")
                raise
            except StoreUnavailableError as error:
                if attempt == ATTEMPTS - 1 or self._monotonic() >= end:
                    raise
                self.pause(attempt)
                if isinstance(error, OutcomeUnknownError):
                    found = self._read_again(key, end)
                    if isinstance(found, StoredObject) and found.body == body:
                        return found.etag
                    if (found.etag if isinstance(found, StoredObject) else None) != if_match:
                        self._count("conflict")
                        raise ConflictError(
                            f"object {key} was written by another while its own write was open"
                        ) from error
                # Not landed; should it land late, its condition fails against the next try or that one's against it.
        raise AssertionError

    def _settle_delete(self, key: str, etag: str) -> None:
        end = self._monotonic() + self._patience
        for attempt in range(ATTEMPTS):
            try:
                self.store.delete(key, if_match=etag)
                return
            except ConflictError:
                if attempt and self.store.get(key) is None:
                    return
                self._count("conflict")
                raise
            except StoreUnavailableError as error:
                if attempt == ATTEMPTS - 1 or self._monotonic() >= end:
                    raise
                self.pause(attempt)
                if isinstance(error, OutcomeUnknownError) and self._read_again(key, end) is None:
                    return

    def _read_again(self, key: str, end: float) -> StoredObject | None:
        for attempt in range(ATTEMPTS):
            try:
                found = self.store.get(key)
            except StoreUnavailableError:
                if attempt == ATTEMPTS - 1 or self._monotonic() >= end:
                    raise
                self.pause(attempt)
            else:
                assert not isinstance(found, NotModified)
                return found
        raise AssertionError

    def _count(self, what: str) -> None:
        self.requests[what] += 1


def decoded(name: ObjectName, found: StoredObject) -> Content:
    """The content of an object that was read. Raises `CorruptObjectError`, `NewerFormatError`."""
    header, records = decode_object(name.key, found.body)
    if (header.shard, header.bucket, header.part) != (name.shard, name.bucket, name.part):
        raise CorruptObjectError(
            f"heap object {name.key} says it is shard {header.shard}, bucket {header.bucket}, part {header.part}: "
            f"it was copied or renamed",
            key=name.key,
        )
    return Content(name, found.etag, records)


def due_records(records: Sequence[bytes], before_ms: int) -> list[bytes]:
    """Packed records due at or before `before_ms`."""
    limit = before_ms.to_bytes(8, "big")
    return [record for record in records if record[40:48] <= limit]
