"""What can't be read is put aside, bytes and all, so that its place is free for what is still needed of it."""

from __future__ import annotations

import contextlib
import hashlib

from s3heap_tender.claims import tending
from s3heap_tender.errors import ConflictError, CorruptObjectError, OversizedObjectError
from s3heap_tender.objects.contents import Contents
from s3heap_tender.objects.heap_io import decoded
from s3heap_tender.objects.writer import Writers
from s3heap_tender.rows.naming import QUARANTINE_PREFIX, ObjectName
from s3heap_tender.stores.port import MOST_BYTES, StoredObject
from s3heap_tender.sysdb import SysDb


def quarantined(sysdb: SysDb, contents: Contents, writers: Writers, key: str, reason: str) -> str | None:
    """Put an object aside; its new key, "" where it was removed, None where it changed meanwhile."""
    name = ObjectName.parse(key)
    try:
        found = contents.io.store.get(key)
    except OversizedObjectError:
        for listed in contents.io.list(key):
            if listed.key == key and listed.size > MOST_BYTES:
                return _put_away(sysdb, contents, writers, key, listed.etag, reason, "")
        return None
    if not isinstance(found, StoredObject):
        contents.readable_again(key)
        return None
    if name is not None:
        with contextlib.suppress(CorruptObjectError):
            decoded(name, found)
            contents.readable_again(key)  # what was read before was damaged on its way here
            return None
    # Named by its content, so that one who died half-way is continued, and bytes are never overwritten.
    moved_to = f"{QUARANTINE_PREFIX}{key}-{hashlib.blake2b(found.body, digest_size=8).hexdigest()}"
    with contextlib.suppress(ConflictError):
        contents.io.put_aside(moved_to, found.body)
    return _put_away(sysdb, contents, writers, key, found.etag, reason, moved_to)


def _put_away(
    sysdb: SysDb, contents: Contents, writers: Writers, key: str, etag: str, reason: str, moved_to: str
) -> str | None:
    try:
        contents.io.remove(key, etag)
    except ConflictError:
        return None
    contents.drop(key)
    contents.readable_again(key)
    name = ObjectName.parse(key)
    if name is not None:
        tending.note_quarantined(sysdb, name.shard, key, reason, moved_to)
        writers.of(name.shard).forget_all()
    return moved_to
