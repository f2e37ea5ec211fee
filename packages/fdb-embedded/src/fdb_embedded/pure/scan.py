"""Reading ranges of an LMDB transaction: whole runs of rows without a Python step per row."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from .keys import EMPTY, NODE, STEM, Row, narrowed, stem_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def scan(txn: Any, begin: bytes, end: bytes, limit: int, reverse: bool, long_keys: bool) -> list[Row]:
    """At most `limit` rows of [begin, end), from its begin or, with `reverse`, from its end."""
    if begin >= end or limit <= 0:
        return []
    if not begin:
        value = txn.get(EMPTY)
        first = [] if value is None else [(b"", value)]
        rest = scan(txn, b"\x00", end, limit, reverse, long_keys)
        return (rest + first if reverse else first + rest)[:limit]
    rows = list(islice(entries(txn, begin, end, reverse), limit))
    if long_keys and any(len(key) == NODE for key, _ in rows):
        return list(islice(_expanded(txn, begin, end, reverse), limit))
    return rows


def entries(txn: Any, low: bytes, high: bytes, reverse: bool) -> Iterator[Row]:
    """What LMDB holds of [low, high), nodes as they are; also the node behind which `low` lies."""
    cursor = txn.cursor()
    if not reverse:
        found = cursor.set_range(low[:NODE])
        # (high,) > (key, value) exactly when high > key: the comparison runs in C
        return takewhile((high,).__gt__, cursor.iternext(True, True)) if found else iter(())
    found = cursor.prev() if cursor.set_range(high) else cursor.last()
    return takewhile((low[:NODE],).__le__, cursor.iterprev(True, True)) if found else iter(())


def _expanded(txn: Any, low: bytes, high: bytes, reverse: bool) -> Iterator[Row]:
    """The rows of [low, high), with those behind nodes in their places."""
    prefix, cut = b"", 0  # a row at `key` is that of `prefix + key[cut:]`
    opened = entries(txn, low, high, reverse)
    above = []
    while True:
        for key, value in opened:
            if len(key) < NODE:
                yield prefix + key[cut:], value
                continue
            above.append((prefix, cut, low, high, opened))
            prefix, cut = prefix + key[cut:], STEM
            low, high = narrowed(low, high, key, stem_of(key, value))
            opened = entries(txn, low, high, reverse)
            break
        else:
            if not above:
                return
            prefix, cut, low, high, opened = above.pop()
