"""The heap's `meta` object: which sysdb it belongs to and how it is cut, written once and checked at every open.

The sysdb notes the bucket length too: two processes that cut a heap differently don't find each other's items, so whoever may
write to the store must not choose it.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgpack

from fdb_schema import NewerFormatError
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.errors import ConflictError, HeapMismatchError
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.naming import META_KEY
from s3heap_tender.stores.port import ObjectStore, StoredObject

META_FORMAT: Final = 1
BUCKET_SECONDS: Final = 60


def open_meta(store: ObjectStore, sysdb: SysDbBase, bucket_seconds: int | None, may_move: bool = True) -> int:
    """Write or check the `meta` object; returns the heap's bucket length, and lets the sysdb know where its heap is.

    Where `may_move` is false no heap is made of a sysdb that has one elsewhere. Raises `HeapMismatchError`.
    """
    before = _noted(sysdb, store.url)
    seconds = _open(store, sysdb, bucket_seconds, before, may_move)
    if seconds != before:
        _note(sysdb, store.url, seconds)
    return seconds


def known_heaps(sysdb: SysDbBase) -> list[str]:
    """The URLs at which this sysdb's heap was seen."""
    keys = sysdb.layout.keys
    begin, end = keys.heaps_range()
    return [url for url, _, _ in sysdb.read(lambda tr, _at: read_known(tr, begin, end, 0, keys.heap_of))]


def _noted(sysdb: SysDbBase, url: str) -> int | None:
    """The bucket length of the heap at a URL as the sysdb has it; None: it was never seen there, or by an earlier release."""
    value = sysdb.read(lambda tr, at: tr.get(at.keys.heap(url)).value)
    return int(bytes(value)) if value is not None and bytes(value).isdigit() else None


def _note(sysdb: SysDbBase, url: str, seconds: int) -> None:
    sysdb.read(lambda tr, at: tr.set(at.keys.heap(url), b"%d" % seconds))


def owner_of(store: ObjectStore) -> UUID | None:
    """The sysdb whose heap lies here; None where none does, or its `meta` object can't be read."""
    found = store.get(META_KEY)
    try:
        return UUID(bytes=msgpack.unpackb(found.body)["sysdb"]) if isinstance(found, StoredObject) else None
    except Exception:
        return None


def check_place(store: ObjectStore, sysdb: SysDbBase) -> None:
    """Whether this is where the sysdb's heap is, or it has none yet. Raises `HeapMismatchError`."""
    known = known_heaps(sysdb)
    if known and store.url not in known:
        raise HeapMismatchError(
            f"{store.url} holds no heap; that of the cluster {sysdb.cluster!r} is at {', '.join(known)}. Is the URL right? "
            f"To begin anew at {store.url}, start a tender with --new-heap: what is needed comes back from the sysdb"
        )


def _open(store: ObjectStore, sysdb: SysDbBase, bucket_seconds: int | None, before: int | None, may_move: bool) -> int:
    wanted = {
        "format": META_FORMAT,
        "bucket_seconds": bucket_seconds or before or BUCKET_SECONDS,
        "shards": sysdb.shards,
        "sysdb": sysdb.id.bytes,
    }
    found = store.get(META_KEY)
    if found is None:
        if not may_move:
            check_place(store, sysdb)
        try:
            store.put(META_KEY, msgpack.packb(wanted), if_match=None)
            return bucket_seconds or before or BUCKET_SECONDS
        except ConflictError:
            found = store.get(META_KEY)
    if not isinstance(found, StoredObject):
        raise HeapMismatchError(f"{store.url}: its meta object appeared and vanished; is something deleting the heap?")
    try:
        meta = msgpack.unpackb(found.body)
        format_, seconds, shards, owner = (meta[name] for name in ("format", "bucket_seconds", "shards", "sysdb"))
        if type(format_) is not int or type(seconds) is not int or seconds < 1 or type(owner) is not bytes:
            raise ValueError("its fields have other types")
        owner = UUID(bytes=owner)
    except Exception as error:
        raise HeapMismatchError(
            f"{store.url}: its meta object can't be read ({error!r:.120}); is this a heap?"
        ) from error
    if format_ > META_FORMAT:
        raise NewerFormatError(
            f"{store.url}: the heap has format {format_}, this release reads up to {META_FORMAT}: upgrade s3heap-tender"
        )
    if owner != sysdb.id:
        raise HeapMismatchError(
            f"{store.url} is the heap of another cluster, or of another database (of the sysdb {owner}), not of cluster "
            f"{sysdb.cluster!r} here ({sysdb.id}): give this one a heap of its own, use another prefix (--store, MAINSPRING_HEAP), "
            f"say {store.url}-{sysdb.cluster}"
        )
    if shards != sysdb.shards:
        raise HeapMismatchError(
            f"{store.url} has {shards} shards, its sysdb has {sysdb.shards}: one of them was replaced"
        )
    if bucket_seconds not in (None, seconds):
        raise HeapMismatchError(
            f"{store.url} has buckets of {seconds} s, not of {bucket_seconds} s: leave bucket_seconds out, or use another prefix"
        )
    if before not in (None, seconds):
        raise HeapMismatchError(
            f"{store.url}: its meta object says buckets of {seconds} s, and the heap has buckets of {before} s: somebody changed "
            f"it. Remove that object, and it is written anew"
        )
    return int(seconds)
