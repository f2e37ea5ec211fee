"""Sorted lists of disjoint ranges of keys: looking something up in one, or changing it, doesn't step through it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[bytes, bytes]
_BEYOND = b"\xff\xff\xff\xff"  # no range ends behind it


def _first(ranges: list[Range], key: bytes) -> int:
    """The index of the first range that ends behind `key`."""
    at = bisect_right(ranges, (key, _BEYOND))
    return at - 1 if at and ranges[at - 1][1] > key else at


def overlapping(ranges: list[Range], begin: bytes, end: bytes) -> list[Range]:
    """The ranges that have a key in [begin, end)."""
    return ranges[_first(ranges, begin) : bisect_left(ranges, (end,))]


def insert(ranges: list[Range], begin: bytes, end: bytes) -> None:
    """Add [begin, end), joined with what it overlaps or touches."""
    low = _first(ranges, begin)
    if low and ranges[low - 1][1] == begin:
        low -= 1
    high = bisect_right(ranges, (end, _BEYOND))
    if low < high:
        begin = min(begin, ranges[low][0])
        end = max(end, ranges[high - 1][1])
    ranges[low:high] = [(begin, end)]


def difference(ranges: list[Range], others: list[Range]) -> list[Range]:
    """What is in `ranges` and not in `others`, both sorted and disjoint."""
    if not others:
        return ranges
    found = []
    at, count = 0, len(others)
    for begin, end in ranges:
        while at < count and others[at][1] <= begin:
            at += 1
        next_one = at
        while next_one < count and others[next_one][0] < end:
            low, high = others[next_one]
            if begin < low:
                found.append((begin, low))
            begin = high
            if begin >= end:
                break
            next_one += 1
        at = next_one
        if begin < end:
            found.append((begin, end))
    return found


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Sorted, disjoint ranges that cover the same keys."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def covers(ranges: list[Range], key: bytes) -> bool:
    """Whether sorted, disjoint ranges contain `key`."""
    at = bisect_right(ranges, key, key=_begin)
    return at > 0 and key < ranges[at - 1][1]


def _begin(item: Range) -> bytes:
    return item[0]


def touched(ranges: list[Range], begin: bytes, end: bytes) -> bool:
    """Whether any of sorted, disjoint ranges has a part in [begin, end)."""
    at = bisect_left(ranges, end, key=_begin)
    return at > 0 and begin < ranges[at - 1][1]
