"""The writes of a transaction as FoundationDB's client keeps them: its `WriteMap`, segment by segment.

Most transactions are read through their overlay alone. This map is made for those in which the outcome of a read depends on
how the client cuts its writes into segments: where versionstamps have made ranges unreadable, and where a conditional clear
has left a key that counts though it has no value.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from . import atomics

END: Final = b"\xff\xff"
AFTER_END: Final = b"\xff\xff\x00"

UNMODIFIED, CLEARED, INDEPENDENT, DEPENDENT = range(4)

CONFLICT_COST: Final = 24
"""What the client counts for a conflict range beside its keys."""
MUTATION_COST: Final = 44
"""What it counts for a mutation beside its key and value."""

Operation: TypeAlias = tuple[int, bytes | None]
"""(type, operand); a set of None is a key that is known to have no value."""

_INDEPENDENT: Final = frozenset({atomics.SET, atomics.SET_VERSIONSTAMPED_KEY, atomics.SET_VERSIONSTAMPED_VALUE})
_STAMPED: Final = frozenset({atomics.SET_VERSIONSTAMPED_KEY, atomics.SET_VERSIONSTAMPED_VALUE})
_OF_ONE_SIZE: Final = frozenset(
    {
        atomics.ADD,
        atomics.OR,
        atomics.XOR,
        atomics.MAX,
        atomics.MIN,
        atomics.MIN_V2,
        *_STAMPED,
        atomics.COMPARE_AND_CLEAR,
    }
)
"""Operations of which two on one key are one only where their operands are of one size."""


def coalesce(existing: Operation, operation: Operation) -> Operation:
    """One operation that does what the two do."""
    kind, operand = operation
    assert operand is not None
    if kind == atomics.SET or kind == atomics.SET_VERSIONSTAMPED_VALUE:
        return operation
    return existing[0], atomics.apply(kind, existing[1], operand)


def coalesce_over(stack: tuple[Operation, ...], operation: Operation) -> tuple[Operation, ...]:
    """A stack of operations on one key with one more on it."""
    top = stack[-1]
    kind, operand = operation
    if top[0] == kind and kind != atomics.COMPARE_AND_CLEAR:
        if kind in _OF_ONE_SIZE and top[1] is not None and len(top[1]) != len(operand or b""):
            return (*stack, operation)
        return (*stack[:-1], coalesce(top, operation))
    if top[0] != atomics.SET and kind != atomics.SET:
        return (*stack, operation)
    return (*stack[:-1], coalesce(top, operation))


def value_over(stack: tuple[Operation, ...], stored: bytes | None) -> bytes | None:
    """The value that a stack of operations makes of the stored one."""
    if len(stack) == 1 and stack[0][0] in _INDEPENDENT:
        return stack[0][1]
    current: Operation = (atomics.SET, stored)
    for operation in stack:
        current = operation if operation[1] is None else coalesce(current, operation)
    return current[1]


@dataclass(frozen=True, slots=True)
class Entry:
    """A key at which the map changes: what was written there, and what holds from behind it to the next entry."""

    key: bytes
    stack: tuple[Operation, ...] = ()
    cleared: bool = False  # what follows
    following_conflict: bool = False
    conflict: bool = False  # the key itself
    following_unreadable: bool = False
    unreadable: bool = False

    @property
    def depends(self) -> bool:
        return bool(self.stack) and self.stack[0][0] not in _INDEPENDENT


class Segment:
    """A written key (`offset` False) or the unmodified or cleared range behind an entry."""

    __slots__ = ("at", "map", "offset")

    def __init__(self, map: WriteMap, key: bytes) -> None:
        """The segment that contains `key`."""
        self.map = map
        self.at = bisect.bisect_right(map.keys, key) - 1
        entry = map.entries[self.at]
        self.offset = not entry.stack or entry.key != key

    @classmethod
    def before(cls, map: WriteMap, key: bytes) -> Segment:
        """The segment that ends at `key`, where one does; else the one that `key` lies within."""
        made = cls.__new__(cls)
        made.map = map
        made.at = bisect.bisect_left(map.keys, key) - 1
        entry = map.entries[made.at]
        made.offset = not entry.stack or entry.key + b"\0" != key
        return made

    @property
    def entry(self) -> Entry:
        return self.map.entries[self.at]

    @property
    def begin(self) -> bytes:
        entry = self.entry
        return entry.key + b"\0" if self.offset and entry.stack else entry.key

    @property
    def end(self) -> bytes:
        return self.map.keys[self.at + 1] if self.offset else self.entry.key + b"\0"

    @property
    def kind(self) -> int:
        entry = self.entry
        if self.offset:
            return CLEARED if entry.cleared else UNMODIFIED
        return DEPENDENT if entry.depends else INDEPENDENT

    @property
    def conflict(self) -> bool:
        return self.entry.following_conflict if self.offset else self.entry.conflict

    @property
    def unreadable(self) -> bool:
        return self.entry.following_unreadable if self.offset else self.entry.unreadable

    @property
    def needs_read(self) -> bool:
        """Whether what is stored matters here: then a read conflicts."""
        entry = self.entry
        return not entry.cleared if self.offset else entry.depends and not entry.cleared

    @property
    def at_entry(self) -> bool:
        return not self.offset or not self.entry.stack

    def next(self) -> Segment:
        """The segment that follows."""
        return Segment(self.map, self.end)


class WriteMap:
    """Entries in the order of their keys. Each method is the client's of that name."""

    def __init__(self) -> None:
        self.keys: list[bytes] = [b"", END, AFTER_END]
        self.entries: list[Entry] = [Entry(key) for key in self.keys]
        self._sent = 0  # bytes of what the client has given to the commit before a stamped key hid it

    def segments(self, begin: bytes, end: bytes) -> list[Segment]:
        """The segments that [begin, end) touches."""
        found = [Segment(self, begin)]
        while found[-1].end < end:
            found.append(found[-1].next())
        return found

    def size(self) -> int:
        """Bytes of the mutations and write conflict ranges that these writes are committed as."""
        return self._sent + self._size_of(b"", END)

    def _size_of(self, begin: bytes, end: bytes) -> int:
        total = 0
        clear: bytes | None = None  # where a range that is cleared begins, and one that conflicts
        conflict: bytes | None = None
        for segment in self.segments(begin, end):
            at = max(begin, segment.begin)
            if clear is None and segment.kind == CLEARED:
                clear = at
            elif clear is not None and segment.kind != CLEARED:
                total += len(clear) + len(at) + MUTATION_COST
                clear = None
            if conflict is None and segment.conflict:
                conflict = at
            elif conflict is not None and not segment.conflict:
                total += len(conflict) + len(at) + CONFLICT_COST
                conflict = None
            if not segment.offset:
                for _, operand in segment.entry.stack:  # without an operand it is a clear of that key
                    total += len(at) + (len(at) + 1 if operand is None else len(operand)) + MUTATION_COST
        if clear is not None:
            total += len(clear) + len(end) + MUTATION_COST
        if conflict is not None:
            total += len(conflict) + len(end) + CONFLICT_COST
        return total

    def _insert(self, entry: Entry) -> None:
        at = bisect.bisect_left(self.keys, entry.key)
        if self.keys[at] == entry.key:
            self.entries[at] = entry
        else:
            self.keys.insert(at, entry.key)
            self.entries.insert(at, entry)

    def _remove(self, begin: bytes, end: bytes) -> None:
        low, high = bisect.bisect_left(self.keys, begin), bisect.bisect_left(self.keys, end)
        del self.keys[low:high], self.entries[low:high]

    def mutate(self, key: bytes, kind: int, operand: bytes, conflict: bool) -> None:
        """A set or an atomic operation; without `conflict` one that is there stays."""
        it = Segment(self, key)
        entry = it.entry
        depends = kind not in _INDEPENDENT
        was_unreadable = it.unreadable
        flags = (
            entry.cleared,
            entry.following_conflict,
            conflict or it.conflict,
            entry.following_unreadable,
            was_unreadable or kind in _STAMPED,
        )
        operation = (kind, operand)
        if entry.key != key:
            if it.kind == CLEARED and depends:
                self._insert(Entry(key, coalesce_over(((atomics.SET, None),), operation), True, *flags[1:]))
            else:
                self._insert(Entry(key, (operation,), *flags))
        elif not was_unreadable and not depends and kind != atomics.SET_VERSIONSTAMPED_KEY:
            self._insert(Entry(key, (operation,), *flags))
        else:
            if not entry.stack and it.kind == CLEARED and depends:
                stack = coalesce_over(((atomics.SET, None),), operation)
            elif not flags[4] and entry.stack:
                stack = coalesce_over(entry.stack, operation)
            else:
                stack = (*entry.stack, operation)
            self._insert(replace(entry, stack=stack, conflict=flags[2], unreadable=flags[4]))

    def clear(self, begin: bytes, end: bytes, conflict: bool) -> None:
        """Clear [begin, end)."""
        if not conflict:
            self._clear_quietly(begin, end)
            return
        it = Segment(self, begin)
        insert_begin = it.kind != CLEARED or not it.conflict or it.unreadable
        it = self._at_end(it, end)
        insert_end = (it.kind == UNMODIFIED or not it.conflict or it.unreadable) and (
            not it.at_entry or it.begin != end
        )
        joins = it.kind == CLEARED and it.begin == end and it.conflict and not it.unreadable
        tail = Entry(end, (), it.kind == CLEARED, it.conflict, it.conflict, it.unreadable, it.unreadable)
        self._remove(begin if insert_begin else begin + b"\0", end + b"\0" if joins else end)
        if insert_begin:
            self._insert(Entry(begin, (), True, True, True))
        if insert_end:
            self._insert(tail)

    @staticmethod
    def _at_end(it: Segment, end: bytes) -> Segment:
        if it.end == end:
            return it.next()
        return Segment(it.map, end) if it.end < end else it

    def hide(self, begin: bytes, end: bytes) -> None:
        """Make [begin, end) unreadable, and forget what was written there: a stamped key may come to lie on it."""
        self._sent += self._size_of(begin, end)
        it = Segment(self, begin)
        insert_begin = it.kind != UNMODIFIED or it.conflict or not it.unreadable
        it = self._at_end(it, end)
        insert_end = (it.kind == CLEARED or it.conflict or not it.unreadable) and (not it.at_entry or it.begin != end)
        joins = it.kind == UNMODIFIED and it.begin == end and not it.conflict and it.unreadable
        tail = Entry(end, (), it.kind == CLEARED, it.conflict, it.conflict, it.unreadable, it.unreadable)
        self._remove(begin if insert_begin else begin + b"\0", end + b"\0" if joins else end)
        if insert_begin:
            self._insert(Entry(begin, (), False, False, False, True, True))
        if insert_end:
            self._insert(tail)

    def add_conflict(self, begin: bytes, end: bytes) -> None:
        """A write conflict on [begin, end)."""
        it = Segment(self, begin)
        entry = it.entry
        changed: list[Entry] = []
        if not entry.following_conflict or not entry.conflict:
            changed.append(
                Entry(
                    begin,
                    () if it.offset else entry.stack,
                    entry.cleared,
                    True,
                    True,
                    entry.following_unreadable,
                    entry.unreadable,
                )
            )
        while it.end < end:
            it = it.next()
            entry = it.entry
            if it.at_entry and (not entry.following_conflict or not entry.conflict):
                changed.append(replace(entry, following_conflict=True, conflict=True))
        entry = it.entry
        if not entry.following_conflict or not entry.conflict:
            it = it.next()
            if not it.at_entry or it.begin != end:
                changed.append(
                    Entry(end, (), entry.cleared, False, False, entry.following_unreadable, entry.unreadable)
                )
        for item in changed:
            self._insert(item)

    def _clear_quietly(self, begin: bytes, end: bytes) -> None:
        it = Segment(self, begin)
        insert_begin = it.kind != CLEARED or it.unreadable
        last = conflicted = it.conflict
        borders: list[bytes] = []
        if insert_begin:
            borders.append(begin)
        else:
            conflicted = not conflicted
        while it.end < end:
            it = it.next()
            if last != it.conflict:
                borders.append(it.begin)
                last = it.conflict
        if it.end == end:
            it = it.next()
        entry = it.entry
        insert_end = ((it.kind == UNMODIFIED or it.unreadable) and (not it.at_entry or it.begin != end)) or (
            entry.conflict and not entry.following_conflict and it.begin == end and not it.at_entry
        )
        joins = it.kind == CLEARED and it.begin == end and it.conflict == last and not it.unreadable
        tail = Entry(end, (), it.kind == CLEARED, it.conflict, it.conflict, it.unreadable, it.unreadable)
        self._remove(begin if insert_begin else begin + b"\0", end + b"\0" if joins else end)
        for border in borders:
            self._insert(Entry(border, (), True, conflicted, conflicted))
            conflicted = not conflicted
        if insert_end:
            self._insert(tail)


Write: TypeAlias = Callable[[WriteMap], None]
"""One write of a transaction, to be made in its map."""
