"""How large a range is, and where it can be split, told by LMDB's tree: by the pages on the way to its ends and a few between them.

The pages are read from the file, by the layout of LMDB 0.9 (`seal` reads the first two of it, too):

    meta page     at 94 depth(2), at 128 root(8), at 144 transaction(8)
    page          at 10 flags(2), at 12 lower(2); at 16 offsets(2) of nodes, up to `lower`
    branch node   page(6) key size(2) key     the first has no key: it is less than all
    leaf node     value size(4) flags(2) key size(2) key value

A transaction of LMDB is open meanwhile, so that none of them is used again. What looks otherwise is `Unknown`: then the rows are counted.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterator
from typing import Any

_BRANCH, _LEAF = 0x01, 0x02
_NODES = 16
_NODE = struct.Struct("=HHHH")
_NEWEST = struct.Struct("=94xH32xQ8xQ")
_HEADER = struct.Struct("=10xHH")
SAMPLES = 16
"""So many pages are looked at for those of one level that lie between the ends."""


class Unknown(Exception):
    """The pages don't tell."""


class Tree:
    """The tree that an open LMDB transaction shows, if nobody has committed since it began. Raises `Unknown`."""

    def __init__(self, file: int, page_size: int, txn: Any) -> None:
        self._fd = file
        self._size = page_size
        number = txn.id()
        metas = [os.pread(self._fd, _NEWEST.size, at) for at in (0, self._size)]
        found = [_NEWEST.unpack(meta) for meta in metas if len(meta) == _NEWEST.size]
        # The other one has to be older, so that this one isn't being written.
        if len(found) < 2 or max(item[2] for item in found) != number or found[0][2] == found[1][2]:
            raise Unknown
        self._depth, self._root, _ = max(found, key=lambda item: item[2])
        if not 0 < self._depth < 32:
            raise Unknown

    def _page(self, number: int) -> tuple[list[bytes], list[int]]:
        """The keys of a page, and of each the page below or, of a leaf, the bytes of its row."""
        page = os.pread(self._fd, self._size, number * self._size)
        try:
            flags, lower = _HEADER.unpack_from(page)
            keys, values = [], []
            for (at,) in struct.iter_unpack("=H", page[_NODES:lower]):
                low, middle, high, length = _NODE.unpack_from(page, at)
                keys.append(page[at + 8 : at + 8 + length])
                if flags & _BRANCH:
                    values.append(low | middle << 16 | high << 32)
                else:
                    values.append((low | middle << 16) + length)
        except struct.error:
            raise Unknown from None
        if not keys or not flags & (_BRANCH | _LEAF):
            raise Unknown
        return keys, values

    def size(self, begin: bytes, end: bytes) -> int:
        """About how many bytes the rows of [begin, end) have."""
        return round(self._within(self._root, self._depth, begin, end))

    def _within(self, page: int, depth: int, begin: bytes | None, end: bytes | None) -> float:
        if begin is None and end is None:
            return self._whole(page, depth, SAMPLES)
        keys, values = self._page(page)
        if depth == 1:
            low = 0 if begin is None else bisect.bisect_left(keys, begin)
            return sum(values[low : len(keys) if end is None else bisect.bisect_left(keys, end)])
        first = 0 if begin is None else bisect.bisect_right(keys, begin, 1) - 1
        last = max(first, len(keys) - 1 if end is None else bisect.bisect_left(keys, end, 1) - 1)
        if first == last:
            return self._within(values[first], depth - 1, begin, end)
        size = self._within(values[first], depth - 1, begin, None) + self._within(values[last], depth - 1, None, end)
        return size + self._together(values[first + 1 : last], depth - 1, SAMPLES)

    def _whole(self, page: int, depth: int, samples: int) -> float:
        """The bytes of all rows below a page."""
        _, values = self._page(page)
        return sum(values) if depth == 1 else self._together(values, depth - 1, samples)

    def _together(self, pages: list[int], depth: int, samples: int) -> float:
        """The bytes below pages of one level, of which some are looked at."""
        step = max(1, len(pages) // samples)
        looked_at = pages[step // 2 :: step]
        if not looked_at:
            return 0.0
        below = max(2, samples // 2)
        return sum(self._whole(page, depth, below) for page in looked_at) * len(pages) / len(looked_at)

    def parts(self, begin: bytes, end: bytes, most: float) -> Iterator[tuple[bytes, float]]:
        """(first key, bytes) of parts of [begin, end), in order: single rows, or more of them with about `most` bytes together."""
        yield from self._parts(self._root, self._depth, begin, end, most)

    def _parts(self, page: int, depth: int, begin: bytes, end: bytes, most: float) -> Iterator[tuple[bytes, float]]:
        keys, values = self._page(page)
        if depth == 1:
            yield from ((key, size) for key, size in zip(keys, values, strict=True) if begin <= key < end)
            return
        first = bisect.bisect_right(keys, begin, 1) - 1
        last = max(first, bisect.bisect_left(keys, end, 1) - 1)
        between = values[first + 1 : last]
        leaf = self._together(between, 1, SAMPLES) / len(between) if between and depth == 2 else 0.0
        for at in range(first, last + 1):
            if first < at < last:
                size = leaf or self._whole(values[at], depth - 1, 2)
                if size <= most:
                    yield keys[at], size
                    continue
            yield from self._parts(values[at], depth - 1, begin, end, most)
