"""Where a FoundationDB key lives in LMDB, which takes keys of 1 to 511 bytes and no others.

    key, 1 to 510 bytes          -> value                            as it is
    key[:511]                    -> [(rest of the key, value), ...]  a bucket: all keys of 511 bytes or more so begun
    \\xff\\xff\\x00 empty          -> value of the empty key
    \\xff\\xff\\x00 ...            -> the engine's own records (format, clock, ...)
    \\xff\\xff\\x01 version(8, BE) -> commit record; the last key of the tree, so its version is the database's

Order is kept: any other key compares with a bucket as with the 511 bytes that all its members share.
"""

from __future__ import annotations

import bisect
from struct import Struct
from typing import Any

DIRECT = 510
BUCKET = 511
META = b"\xff\xff\x00"
EMPTY = META + b"empty"
FORMAT = META + b"format"
CLOCK = META + b"clock"
LONG_KEYS = META + b"long"
IDENTITY = META + b"identity"
JOURNAL = META + b"journal"
LOG = b"\xff\xff\x01"
LOG_END = b"\xff\xff\x02"

Row = tuple[bytes, bytes]
_PAIR = Struct("<II")


def log_key(version: int) -> bytes:
    """The key of the commit record of `version`."""
    return LOG + version.to_bytes(8, "big")


def pack_bucket(rows: list[Row]) -> bytes:
    """Serialize a bucket's sorted (suffix, value) rows."""
    out = []
    for suffix, value in rows:
        out.append(_PAIR.pack(len(suffix), len(value)))
        out.append(suffix)
        out.append(value)
    return b"".join(out)


def unpack_bucket(data: bytes) -> list[Row]:
    """The sorted (suffix, value) rows of a bucket."""
    rows = []
    at, end = 0, len(data)
    while at < end:
        n, m = _PAIR.unpack_from(data, at)
        at += 8
        rows.append((data[at : at + n], data[at + n : at + n + m]))
        at += n + m
    return rows


def get(txn: Any, key: bytes) -> bytes | None:
    """The value of any key of 0 to 30,000 bytes in an LMDB transaction."""
    if 0 < len(key) <= DIRECT:
        found: bytes | None = txn.get(key)
        return found
    if not key:
        return txn.get(EMPTY)  # type: ignore[no-any-return]
    data = txn.get(key[:BUCKET])
    if data is not None:
        suffix = key[BUCKET:]
        for name, value in unpack_bucket(data):
            if name == suffix:
                return value
    return None


def put(txn: Any, key: bytes, value: bytes) -> None:
    """Store a key of any length."""
    if 0 < len(key) <= DIRECT:
        txn.put(key, value)
        return
    if not key:
        txn.put(EMPTY, value)
        return
    data = txn.get(key[:BUCKET])
    suffix = key[BUCKET:]
    rows = [row for row in unpack_bucket(data) if row[0] != suffix] if data is not None else []
    bisect.insort(rows, (suffix, value))
    txn.put(key[:BUCKET], pack_bucket(rows))


def delete(txn: Any, key: bytes) -> None:
    """Remove a key of any length; a missing key is fine."""
    if 0 < len(key) <= DIRECT:
        txn.delete(key)
        return
    if not key:
        txn.delete(EMPTY)
        return
    data = txn.get(key[:BUCKET])
    if data is None:
        return
    suffix = key[BUCKET:]
    rows = [row for row in unpack_bucket(data) if row[0] != suffix]
    if rows:
        txn.put(key[:BUCKET], pack_bucket(rows))
    else:
        txn.delete(key[:BUCKET])


def delete_range(txn: Any, begin: bytes, end: bytes) -> None:
    """Remove all keys of [begin, end)."""
    if begin >= end:
        return
    if not begin:
        txn.delete(EMPTY)
    cursor = txn.cursor()
    if not cursor.set_range(begin[:BUCKET] or b"\x00"):
        return
    while True:
        key = cursor.key()
        if not key or key >= end:
            return
        if len(key) < BUCKET:
            if not cursor.delete():
                return
            continue
        rows = unpack_bucket(cursor.value())
        kept = [row for row in rows if not begin <= key + row[0] < end]
        if not kept:
            if not cursor.delete():
                return
            continue
        if len(kept) != len(rows):
            txn.put(key, pack_bucket(kept))
            cursor.set_key(key)
        if not cursor.next():
            return
