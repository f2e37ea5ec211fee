"""Where a FoundationDB key lives in LMDB, which takes keys of 1 to 511 bytes and no others.

    key, 1 to 510 bytes          -> value                 as it is
    key[:511]                    -> stem                  a node: all keys of 511 bytes or more so begun, which lie at
    stem key[511:]               -> value                 as any other key does: of 511 bytes or more it is cut at a node
    \\xff\\xff\\x00 empty          -> value of the empty key
    \\xff\\xff\\x00 L number(8, BE) is a stem, which one node names; behind a node is one row at the least
    \\xff\\xff\\x00 ...            -> the engine's own records (format, clock, ...)
    \\xff\\xff\\x01 version(8, BE) -> commit record; the last key of the tree, so its version is the database's

Order is kept: any other key compares with a node as with the 511 bytes that all behind it share.
"""

from __future__ import annotations

from typing import Any

from ..errors import DamagedDatabase

DIRECT = 510
NODE = 511
META = b"\xff\xff\x00"
EMPTY = META + b"empty"
FORMAT = META + b"format"
CLOCK = META + b"clock"
IDENTITY = META + b"identity"
JOURNAL = META + b"journal"
LOG = b"\xff\xff\x01"
LOG_END = b"\xff\xff\x02"
STEMS = META + b"L"
STEM = len(STEMS) + 8

KEY_LIMIT = 10_000
SYSTEM_KEY_LIMIT = 30_000
READ_KEY_LIMIT = KEY_LIMIT + 8
"""The client leaves room for the prefix of a tenant in keys that it reads, clears and conflicts on."""

Row = tuple[bytes, bytes]


def key_limit(key: bytes) -> int:
    """As many bytes as a key can have that is read, cleared or conflicted on."""
    return SYSTEM_KEY_LIMIT if key.startswith(b"\xff") else READ_KEY_LIMIT


def clipped(key: bytes) -> bytes:
    """The end of a range, no longer than it takes to say the same of keys that can exist."""
    return key if len(key) <= READ_KEY_LIMIT else key[: key_limit(key) + 1]


def log_key(version: int) -> bytes:
    """The key of the commit record of `version`."""
    return LOG + version.to_bytes(8, "big")


def stem_of(node: bytes, value: bytes) -> bytes:
    """The stem that is the value of a node. Raises `DamagedDatabase`."""
    if len(value) != STEM or not value.startswith(STEMS):
        raise DamagedDatabase(f"the node of long keys {node!r:.40} is garbled")
    return value


def _below(txn: Any, node: bytes) -> bytes | None:
    """The stem of the rows behind a node; None where there are none."""
    value = txn.get(node)
    return None if value is None else stem_of(node, value)


def has_rows(txn: Any, stem: bytes) -> bool:
    """Whether any key begins with `stem`."""
    cursor = txn.cursor()
    return cursor.set_range(stem) and cursor.key().startswith(stem)  # type: ignore[no-any-return]


def narrowed(low: bytes, high: bytes, node: bytes, stem: bytes) -> tuple[bytes, bytes]:
    """The part of [low, high) that lies behind a node, in the keys of its rows."""
    return (
        stem + low[NODE:] if low.startswith(node) else stem,
        stem + high[NODE:] if high.startswith(node) else _following(stem),
    )


def _following(stem: bytes) -> bytes:
    """The stem with the next number: the end of the keys that begin with `stem`."""
    return STEMS + (int.from_bytes(stem[len(STEMS) :], "big") + 1).to_bytes(8, "big")


def _unused(txn: Any) -> bytes:
    """A stem greater than any that has rows."""
    cursor = txn.cursor()
    if cursor.prev() if cursor.set_range(STEMS + b"\xff" * 8) else cursor.last():
        key: bytes = cursor.key()
        if key.startswith(STEMS):
            return _following(key[:STEM])
    return STEMS + bytes(8)


def get(txn: Any, key: bytes) -> bytes | None:
    """The value of any key of 0 to 30,000 bytes in an LMDB transaction."""
    while len(key) > DIRECT:
        stem = _below(txn, key[:NODE])
        if stem is None:
            return None
        key = stem + key[NODE:]
    found: bytes | None = txn.get(key or EMPTY)
    return found


def put(txn: Any, key: bytes, value: bytes) -> None:
    """Store a key of any length."""
    new = b""
    while len(key) > DIRECT:
        node = key[:NODE]
        stem = _below(txn, node)
        if stem is None:
            stem = new = _following(new) if new else _unused(txn)
            txn.put(node, stem)
        key = stem + key[NODE:]
    txn.put(key or EMPTY, value)


def delete(txn: Any, key: bytes) -> None:
    """Remove a key of any length; a missing key is fine."""
    nodes = []
    while len(key) > DIRECT:
        node = key[:NODE]
        stem = _below(txn, node)
        if stem is None:
            return
        nodes.append(node)
        key = stem + key[NODE:]
    txn.delete(key or EMPTY)
    while nodes and not has_rows(txn, key[:STEM]):
        key = nodes.pop()
        txn.delete(key)


def delete_range(txn: Any, begin: bytes, end: bytes) -> None:
    """Remove all keys of [begin, end)."""
    if begin >= end:
        return
    if not begin:
        txn.delete(EMPTY)
    _delete_between(txn, begin or b"\x00", end)


def _delete_between(txn: Any, low: bytes, high: bytes) -> None:
    cursor = txn.cursor()
    if not cursor.set_range(low[:NODE]):
        return
    while (key := cursor.key()) and key < high:
        if len(key) == NODE:
            stem = stem_of(key, cursor.value())
            _delete_between(txn, *narrowed(low, high, key, stem))
            cursor.set_key(key)
            if has_rows(txn, stem):
                if not cursor.next():
                    return
                continue
        if not cursor.delete():
            return
