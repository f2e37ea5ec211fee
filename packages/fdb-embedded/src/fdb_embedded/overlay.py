"""What a transaction has written and not committed: read-your-writes over any source of rows.

An entry of `writes` is one of
    bytes                the value is known
    None                 the key is known to be cleared
    Stack                operations on a value that isn't known (`depends`), or unreadable because of a versionstamp
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from . import atomics, errors
from .conflict import Range, covers
from .errors import Code
from .keys import Row


class Stack:
    """Operations stacked on one key: (operation, operand), oldest first.

    `depends` says that the value needs the stored one, `unknown` that a read conflicts all the same, and `hidden` that a
    stamped key has come over the operations so far: the C client forgets them but for the commit.
    """

    __slots__ = ("depends", "hidden", "operations", "unknown", "unreadable")

    def __init__(self, depends: bool) -> None:
        self.operations: list[tuple[int, bytes]] = []
        self.depends = depends
        self.unreadable = self.hidden = self.unknown = False

    def push(self, operation: int, operand: bytes) -> None:
        self.operations.append((operation, operand))
        plain = operation in (atomics.SET, atomics.SET_VERSIONSTAMPED_VALUE)
        if self.hidden:
            self.hidden = False
            self.unknown = not plain
        elif self.unreadable and self.depends:
            self.unknown = True  # what is unreadable keeps its first operation, and with it the conflict
        if plain:
            self.depends = False
            del self.operations[:-1]
        if operation == atomics.SET_VERSIONSTAMPED_VALUE:
            self.unreadable = True

    def fold(self, base: bytes | None, stamp: bytes | None = None) -> bytes | None:
        """The value over `base`; without a stamp, stamped operations count as plain sets."""
        value = base
        for operation, operand in self.operations:
            if operation == atomics.SET_VERSIONSTAMPED_VALUE:
                value = operand if stamp is None else atomics.place_stamp(operand, stamp)
            else:
                value = atomics.apply(operation, value, operand)
        return value


Entry = bytes | Stack | None


StampedKey = tuple[bytes, bytes, bytes]
"""`(anchor, parameter, value)`: the anchor is the parameter with the lowest stamp, where the C client keeps the write."""


class Overlay:
    """Uncommitted writes. `writes` wins over `clears` (sorted, disjoint); `unreadable` are ranges of stamped keys."""

    __slots__ = ("_fresh", "_order", "clears", "stamped_keys", "unreadable", "writes")

    def __init__(self) -> None:
        self.writes: dict[bytes, Entry] = {}
        self.clears: list[Range] = []
        self.unreadable: list[Range] = []
        self.stamped_keys: list[StampedKey] = []
        self._order: list[bytes] | None = None
        self._fresh = 0

    def __bool__(self) -> bool:
        return bool(self.writes or self.clears or self.unreadable)

    def order(self) -> list[bytes]:
        """The written keys, sorted."""
        order = self._order
        if order is None or self._fresh != len(self.writes):
            order = self._order = sorted(self.writes)
            self._fresh = len(order)
        return order

    def clear_range(self, begin: bytes, end: bytes) -> list[bytes]:
        """Clear [begin, end); returns the keys whose entries it replaced."""
        gone: list[bytes] = []
        if self.writes:
            if len(self.writes) < 64 and self._order is None:
                gone = [key for key in list(self.writes) if begin <= key < end]
            else:
                order = self.order()
                gone = order[bisect.bisect_left(order, begin) : bisect.bisect_left(order, end)]
            for key in gone:
                del self.writes[key]
            if gone:
                self._order = None
        if self.stamped_keys:
            self.stamped_keys = [item for item in self.stamped_keys if not begin <= item[0] < end]
        if self.unreadable:
            self.unreadable = [piece for item in self.unreadable for piece in subtract(item, begin, end)]
        clears = self.clears
        low = bisect.bisect_left(clears, begin, key=_end)
        high = bisect.bisect_right(clears, end, key=_begin)
        if low < high:
            begin = min(begin, clears[low][0])
            end = max(end, clears[high - 1][1])
        clears[low:high] = [(begin, end)]
        return gone

    def hide(self, begin: bytes, end: bytes) -> None:
        """Make [begin, end) unreadable, with what was written there before: a stamped key may come to lie on it."""
        self.unreadable.append((begin, end))
        for key in [key for key in list(self.writes) if begin <= key < end]:
            entry = self.writes[key]
            if not isinstance(entry, Stack):
                stack = self.writes[key] = Stack(depends=False)
                if entry is not None:
                    stack.push(atomics.SET, entry)
                entry = stack
            entry.unreadable = entry.hidden = True

    def cleared(self, key: bytes) -> bool:
        return covers(self.clears, key)

    def known(self, key: bytes) -> bool:
        """Whether the key's value doesn't depend on the database."""
        entry = self.writes.get(key, _MISSING)
        if entry is not _MISSING:
            return not (isinstance(entry, Stack) and entry.depends)
        return covers(self.clears, key)

    def unknown_parts(self, begin: bytes, end: bytes) -> list[Range]:
        """The parts of [begin, end) whose contents depend on the database."""
        parts = [(begin, end)]
        clears = self.clears
        for hidden in self.unreadable:  # a stamped key makes unknown again what was cleared where it may fall
            clears = [part for item in clears for part in subtract(item, *hidden)]
        low = bisect.bisect_right(clears, begin, key=_end)
        for low_key, high_key in clears[low:]:
            if low_key >= end:
                break
            tail_begin, tail_end = parts.pop()
            if tail_begin < low_key:
                parts.append((tail_begin, low_key))
            if high_key < tail_end:
                parts.append((high_key, tail_end))
            else:
                break
        for anchor, _, _ in self.stamped_keys:  # a write that doesn't depend on what is stored
            parts = [piece for part in parts for piece in subtract(part, anchor, anchor + b"\0")]
        if not self.writes:
            return parts
        order = self.order()
        out: list[Range] = []
        for low_key, high_key in parts:
            at = low_key
            for key in order[bisect.bisect_left(order, low_key) : bisect.bisect_left(order, high_key)]:
                entry = self.writes[key]
                if isinstance(entry, Stack) and (entry.depends or entry.hidden or entry.unknown):
                    continue
                if at < key:
                    out.append((at, key))
                at = key + b"\0"
            if at < high_key:
                out.append((at, high_key))
        return out

    def first_unreadable(self, begin: bytes, end: bytes, reverse: bool) -> Range | None:
        """The first unreadable part of [begin, end) in reading order."""
        hits = [(max(low, begin), min(high, end)) for low, high in self.unreadable if low < end and begin < high]
        if not hits:
            return None
        return max(hits, key=_end) if reverse else min(hits)

    def merge(
        self, begin: bytes, end: bytes, reverse: bool, rows: Callable[[bytes, bytes], Iterator[Row]]
    ) -> Iterator[Row]:
        """The rows of [begin, end) with the overlay applied to `rows(begin, end)`; raises `Code` 1036."""
        stop: Range | None = None
        if self.unreadable:
            stop = self.first_unreadable(begin, end, reverse)
            if stop is not None:
                if reverse:
                    begin = stop[1]
                else:
                    end = stop[0]
        if begin < end:
            yield from self._merge(begin, end, reverse, rows)
        if stop is not None:
            raise Code(errors.ACCESSED_UNREADABLE)

    def _merge(
        self, begin: bytes, end: bytes, reverse: bool, rows: Callable[[bytes, bytes], Iterator[Row]]
    ) -> Iterator[Row]:
        order = self.order() if self.writes else []
        own = order[bisect.bisect_left(order, begin) : bisect.bisect_left(order, end)]
        if reverse:
            own.reverse()
        source = rows(begin, end)
        at, count = 0, len(own)
        row = next(source, None)
        clears = self.clears
        while row is not None or at < count:
            key = own[at] if at < count else None
            if row is not None and (key is None or (row[0] > key if reverse else row[0] < key)):
                if not clears or not covers(clears, row[0]):
                    yield row
                row = next(source, None)
                continue
            assert key is not None
            at += 1
            base = None
            if row is not None and row[0] == key:
                base = None if covers(clears, key) else row[1]
                row = next(source, None)
            entry = self.writes.get(key)
            if isinstance(entry, Stack):
                if entry.unreadable:
                    raise Code(errors.ACCESSED_UNREADABLE)
                entry = entry.fold(base)
            if entry is not None:
                yield key, entry


class _Missing:
    pass


_MISSING = _Missing()


def _begin(item: Range) -> bytes:
    return item[0]


def _end(item: Range) -> bytes:
    return item[1]


def subtract(item: Range, begin: bytes, end: bytes) -> list[Range]:
    """The parts of `item` outside [begin, end)."""
    low, high = item
    if high <= begin or end <= low:
        return [item]
    parts = []
    if low < begin:
        parts.append((low, begin))
    if end < high:
        parts.append((end, high))
    return parts
