"""What this process knows of the heap's objects: as it last read or wrote them, and which the store, or what is in them, refuses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fdb_schema import NewerFormatError
from s3heap_tender.errors import CorruptObjectError, StoreUnavailableError
from s3heap_tender.objects.heap_io import Content, HeapIO
from s3heap_tender.rows.naming import ObjectName, shard_prefix

MOST_UNANSWERED: Final = 3
MOST_REMEMBERED: Final = 1000
KEPT_BEHIND: Final = 50_000
"""Records, of buckets before those that are looked at, that are remembered: they may be gone without being seen to go."""


class Contents:
    """The contents of objects. `written` is what this process's writers know of one."""

    def __init__(self, io: HeapIO, bucket_seconds: int, written: Callable[[ObjectName], Content | None]) -> None:
        self.io = io
        self.bucket_seconds = bucket_seconds
        self._written = written
        self._cache: dict[str, Content] = {}
        self.unreadable: dict[str, str] = {}  # key → why, of objects that the last look could not read
        self.corrupt: dict[str, str] = {}  # those of them that no release can read
        # Objects whose last request the store did not answer: others come first, for a few of them end a round.
        self.unanswered: set[str] = set()

    def floor(self, seconds: int) -> int:
        """The start of the bucket of a time."""
        return seconds - seconds % self.bucket_seconds

    def list(self, shard: int, before: int | None, since: int = 0) -> list[tuple[ObjectName, str]]:
        """Objects of buckets that start before a time, from the bucket `since` on, each with its ETag."""
        end = None if before is None else ObjectName(shard, self.floor(before - 1) + self.bucket_seconds).key
        start = ObjectName(shard, since).key if since > 0 else None
        return [
            (name, listed.etag)
            for listed in self.io.list(shard_prefix(shard), before=end, since=start)
            if (name := ObjectName.parse(listed.key)) is not None
        ]

    def read(self, name: ObjectName, etag: str) -> Content | None:
        """The object that a listing shows under this ETag; None where it is gone, or can't be read, which is noted."""
        known = self._cache.get(name.key)
        if known is None or known.etag != etag:
            written = self._written(name)
            if written is not None and written.etag == etag:
                self._cache[name.key] = known = written
        if known is not None and known.etag == etag:
            return known
        try:
            content = self.io.load(name, known=known)
        except (CorruptObjectError, NewerFormatError) as error:
            self.note_unreadable(name.key, error)
            return None
        if content is None:
            self._cache.pop(name.key, None)
            return None
        self._cache[name.key] = content
        self.readable_again(name.key)
        return content

    def known(self, key: str) -> Content | None:
        """The object as it was last read or written, whatever it is now."""
        return self._cache.get(key)

    def drop(self, key: str) -> None:
        """Forget the object: it is gone, or another."""
        self._cache.pop(key, None)

    def forget(self, gone: Callable[[ObjectName], bool], floors: Mapping[int, int]) -> None:
        """Forget what is gone, and of what lies before the buckets `floors` all but so much, the newest first: whoever looks only at what
        follows sees none of that go."""
        for key, cached in list(self._cache.items()):
            if gone(cached.name):
                self._cache.pop(key, None)
        behind = [known for known in list(self._cache.values()) if known.name.bucket < floors.get(known.name.shard, 0)]
        kept = 0
        for known in sorted(behind, key=lambda known: known.name.bucket, reverse=True):
            kept += len(known.records) + 1
            if kept > KEPT_BEHIND:
                self._cache.pop(known.name.key, None)
        for key in list(self.unreadable):
            lost = ObjectName.parse(key)
            if lost is None or gone(lost):
                self.readable_again(key)

    def note_unanswered(self, key: str, error: Exception) -> None:
        """The store did not answer a request for the object, if that is the error."""
        if isinstance(error, StoreUnavailableError):
            if len(self.unanswered) >= MOST_REMEMBERED:
                self.unanswered.clear()
            self.unanswered.add(key)

    def readable_again(self, key: str) -> None:
        """The object was read, or is gone."""
        self.unreadable.pop(key, None)
        self.corrupt.pop(key, None)

    def note_unreadable(self, key: str, error: Exception) -> None:
        """What is in the object can't be read."""
        self._cache.pop(key, None)
        self.unreadable[key] = str(error)
        if isinstance(error, CorruptObjectError):
            self.corrupt[key] = str(error)
