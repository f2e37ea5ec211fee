"""A set of keys made of half-open ranges: the brute-force bookkeeping of the model."""

from __future__ import annotations

from collections.abc import Iterator

Range = tuple[bytes, bytes]


class RangeSet:
    """Disjoint, sorted, coalesced ranges `[begin, end)`."""

    def __init__(self, ranges: list[Range] | None = None) -> None:
        self.ranges: list[Range] = []
        for begin, end in ranges or ():
            self.add(begin, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def copy(self) -> RangeSet:
        new = RangeSet()
        new.ranges = list(self.ranges)
        return new

    def add(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        kept = []
        for low, high in self.ranges:
            if high < begin or end < low:
                kept.append((low, high))
            else:
                begin, end = min(begin, low), max(end, high)
        self.ranges = sorted([*kept, (begin, end)])

    def remove(self, begin: bytes, end: bytes) -> None:
        if begin >= end:
            return
        kept = []
        for low, high in self.ranges:
            if high <= begin or end <= low:
                kept.append((low, high))
                continue
            if low < begin:
                kept.append((low, begin))
            if end < high:
                kept.append((end, high))
        self.ranges = kept

    def __contains__(self, key: bytes) -> bool:
        return any(begin <= key < end for begin, end in self.ranges)

    def within(self, begin: bytes, end: bytes) -> RangeSet:
        """The part of the set inside `[begin, end)`."""
        new = RangeSet()
        new.ranges = [(max(b, begin), min(e, end)) for b, e in self.ranges if max(b, begin) < min(e, end)]
        return new

    def intersects(self, other: RangeSet) -> bool:
        return any(max(a, c) < min(b, d) for a, b in self.ranges for c, d in other.ranges)
