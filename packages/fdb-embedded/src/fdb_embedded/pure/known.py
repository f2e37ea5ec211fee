"""What a transaction has read of its snapshot, as FoundationDB's client keeps it: its `SnapshotCache`.

Ranges that are known, with their rows. Between them the contents are unknown, and a read that comes there asks for them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final

from .keys import Row

END: Final = b"\xff\xff"
AFTER_END: Final = b"\xff\xff\x00"

UNKNOWN, EMPTY, VALUE = range(3)


class _Known:
    __slots__ = ("begin", "end", "keys", "values")

    def __init__(self, begin: bytes, end: bytes, rows: Iterable[Row]) -> None:
        self.begin = begin
        self.end = end
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        for key, value in rows:
            self.keys.append(key)
            self.values.append(value)


class Part:
    """A row, a range without rows, or one of which nothing is known."""

    __slots__ = ("begin", "end", "kind", "value")

    def __init__(self, kind: int, begin: bytes, end: bytes, value: bytes | None = None) -> None:
        self.kind = kind
        self.begin = begin
        self.end = end
        self.value = value


class Known:
    """The known ranges, disjoint and in order."""

    def __init__(self) -> None:
        self._begins: list[bytes] = [END]
        self._ranges: list[_Known] = [_Known(END, AFTER_END, ())]

    def containing(self, key: bytes) -> Part:
        """The part in which `key` lies."""
        at = bisect.bisect_right(self._begins, key) - 1
        low = b"" if at < 0 else self._ranges[at].end
        if at < 0 or key >= low:
            return Part(UNKNOWN, low, self._begins[at + 1])
        known = self._ranges[at]
        keys = known.keys
        index = bisect.bisect_left(keys, key)
        if index < len(keys) and keys[index] == key:
            return Part(VALUE, key, key + b"\0", known.values[index])
        begin = keys[index - 1] + b"\0" if index else known.begin
        return Part(EMPTY, begin, keys[index] if index < len(keys) else known.end)

    def before(self, key: bytes) -> Part:
        """The part that ends at `key`, where one does; else the one that `key` lies within."""
        at = bisect.bisect_left(self._begins, key) - 1
        low = b"" if at < 0 else self._ranges[at].end
        if at < 0 or key > low:
            return Part(UNKNOWN, low, self._begins[at + 1])
        known = self._ranges[at]
        keys = known.keys
        index = bisect.bisect_left(keys, key) - 1
        if index >= 0 and keys[index] + b"\0" == key:
            return Part(VALUE, keys[index], key, known.values[index])
        begin = keys[index] + b"\0" if index >= 0 else known.begin
        return Part(EMPTY, begin, keys[index + 1] if index + 1 < len(keys) else known.end)

    def insert(self, begin: bytes, end: bytes, rows: list[Row]) -> None:
        """What [begin, end) holds, which are these rows."""
        if begin >= end:
            return
        at = bisect.bisect_right(self._begins, begin) - 1
        if at >= 0 and begin < self._ranges[at].end and self._begins[at] != begin:
            begin = self._ranges[at].end
        at = bisect.bisect_right(self._begins, end) - 1
        if at >= 0 and end < self._ranges[at].end:
            end = self._begins[at]
        if begin >= end:
            return
        low, high = bisect.bisect_left(self._begins, begin), bisect.bisect_left(self._begins, end)
        kept = [row for row in rows if begin <= row[0] < end]
        self._begins[low:high] = [begin]
        self._ranges[low:high] = [_Known(begin, end, kept)]

    def contiguous(self, key: bytes, until: bytes) -> list[Row]:
        """The rows from `key`, which is one, up to `until`, in its known range."""
        known = self._ranges[bisect.bisect_right(self._begins, key) - 1]
        low, high = bisect.bisect_left(known.keys, key), bisect.bisect_left(known.keys, until)
        return list(zip(known.keys[low:high], known.values[low:high], strict=True))

    def contiguous_back(self, key: bytes, since: bytes) -> list[Row]:
        """The rows from `since` to `key`, which is one, in its known range."""
        known = self._ranges[bisect.bisect_right(self._begins, key) - 1]
        low, high = bisect.bisect_left(known.keys, since), bisect.bisect_right(known.keys, key)
        return list(zip(known.keys[low:high], known.values[low:high], strict=True))
