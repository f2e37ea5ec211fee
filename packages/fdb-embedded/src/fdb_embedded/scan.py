"""Reading ranges of an LMDB transaction: whole runs of rows without a Python step per row."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from .keys import BUCKET, EMPTY, Row, unpack_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator


def scan(txn: Any, begin: bytes, end: bytes, limit: int, reverse: bool, long_keys: bool) -> list[Row]:
    """At most `limit` rows of [begin, end), from its begin or, with `reverse`, from its end."""
    if begin >= end or limit <= 0:
        return []
    if long_keys:
        return list(islice(_expanded(txn, begin, end, reverse), limit))
    cursor = txn.cursor()
    if not reverse:
        rows: list[Row] = []
        if not begin:
            value = txn.get(EMPTY)
            if value is not None:
                rows.append((b"", value))
                limit -= 1
            begin = b"\x00"
        if cursor.set_range(begin):
            # (end,) > (key, value) exactly when end > key: the comparison runs in C
            rows += islice(takewhile((end,).__gt__, cursor.iternext(True, True)), limit)
        return rows
    rows = []
    if cursor.prev() if cursor.set_range(end) else cursor.last():
        rows = list(islice(takewhile((begin or b"\x00",).__le__, cursor.iterprev(True, True)), limit))
    if not begin and len(rows) < limit:
        value = txn.get(EMPTY)
        if value is not None:
            rows.append((b"", value))
    return rows


def _expanded(txn: Any, begin: bytes, end: bytes, reverse: bool) -> Iterator[Row]:
    """The same rows, with buckets of long keys taken apart."""
    cursor = txn.cursor()
    first = begin[:BUCKET] or b"\x00"
    if not reverse:
        if not begin:
            value = txn.get(EMPTY)
            if value is not None:
                yield b"", value
        if not cursor.set_range(first):
            return
        for key, value in cursor.iternext(True, True):
            if key >= end:
                return
            if len(key) < BUCKET:
                if key >= begin:
                    yield key, value
                continue
            for suffix, member in unpack_bucket(value):
                whole = key + suffix
                if whole >= end:
                    return
                if whole >= begin:
                    yield whole, member
        return
    found = cursor.set_range(end[:BUCKET])
    if not (found and len(cursor.key()) == BUCKET and cursor.key() < end):
        found = cursor.prev() if found else cursor.last()
    if found:
        for key, value in cursor.iterprev(True, True):
            if key < first:
                break
            if len(key) < BUCKET:
                if key < begin:
                    break
                if key < end:
                    yield key, value
                continue
            for suffix, member in reversed(unpack_bucket(value)):
                whole = key + suffix
                if begin <= whole < end:
                    yield whole, member
    if not begin:
        value = txn.get(EMPTY)
        if value is not None:
            yield b"", value
