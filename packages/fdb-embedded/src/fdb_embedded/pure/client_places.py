"""Where a read of FoundationDB's client is: a segment of what was written over a part of what is known of the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from .. import errors
from ..errors import Code
from .keys import Row
from .known import EMPTY, UNKNOWN, VALUE, Part
from .write_map import CLEARED, DEPENDENT, INDEPENDENT, UNMODIFIED, Segment, value_over

_KINDS: Final = {
    UNMODIFIED: (UNKNOWN, EMPTY, VALUE),
    CLEARED: (EMPTY, EMPTY, EMPTY),
    INDEPENDENT: (VALUE, VALUE, VALUE),
    DEPENDENT: (UNKNOWN, VALUE, VALUE),
}


@dataclass(slots=True)
class Selector:
    """A key and an offset; `or_equal` is taken into the key."""

    key: bytes
    offset: int

    @property
    def is_plain(self) -> bool:
        """First greater or equal: the key itself is the border."""
        return self.offset == 1


@dataclass(slots=True)
class Limits:
    """Rows and bytes that may still be read; None is no limit."""

    rows: int | None
    size: int | None
    least: int = 1

    def reached(self) -> bool:
        return self.rows == 0 or (self.size == 0 and self.least == 0)

    def decrement(self, key: bytes, value: bytes) -> None:
        self.least = max(0, self.least - 1)
        if self.rows is not None:
            self.rows -= 1
        if self.size is not None:
            self.size = max(0, self.size - 8 - len(key) - len(value))


@dataclass(slots=True)
class Found:
    """Rows, whether there are more, and whether the beginning or the end of all keys was come to."""

    rows: list[Row] = field(default_factory=list)
    more: bool = False
    to_begin: bool = False
    through_end: bool = False


Ask = Callable[[Selector, Selector, Limits, bool], Found]
"""Reads a range of the snapshot alone, both selectors resolved there."""


class Reads(Protocol):
    """Whose places they are."""

    @property
    def bypass(self) -> bool: ...
    @property
    def edge(self) -> bytes: ...
    def at(self, key: bytes) -> At: ...
    def before(self, key: bytes) -> At: ...


class At:
    """A place: a segment of the writes over a part of what is known (the client's RYWIterator)."""

    __slots__ = ("part", "reads", "segment")

    def __init__(self, reads: Reads, segment: Segment, part: Part) -> None:
        self.reads = reads
        self.segment = segment
        self.part = part

    @property
    def begin(self) -> bytes:
        return max(self.segment.begin, self.part.begin)

    @property
    def end(self) -> bytes:
        return min(self.segment.end, self.part.end)

    @property
    def unreadable(self) -> bool:
        return self.segment.unreadable

    @property
    def kind(self) -> int:
        if self.segment.unreadable and not self.reads.bypass:
            raise Code(errors.ACCESSED_UNREADABLE)
        return _KINDS[self.segment.kind][self.part.kind]

    def same(self, other: At) -> bool:
        return self.begin == other.begin

    def next(self) -> At:
        return self.reads.at(self.end)

    def previous(self) -> At:
        return self.reads.before(self.begin)

    def row(self) -> Row | None:
        """The row here; None for a key that a conditional clear has left without a value."""
        if self.segment.unreadable and not self.reads.bypass:
            raise Code(errors.ACCESSED_UNREADABLE)
        segment, part = self.segment, self.part
        if segment.kind == UNMODIFIED:
            assert part.value is not None
            return part.begin, part.value
        independent = segment.entry.cleared or not segment.entry.depends
        value = value_over(segment.entry.stack, None if independent or part.kind == EMPTY else part.value)
        return None if value is None else (segment.begin, value)


def skip_unknown(it: At, end: At, most: int) -> tuple[At, int]:
    """Over what is known of single keys, to the last unknown place before what is known of more (skipUncached)."""
    begin, until = it.begin, it.end
    singles = 0
    while not it.same(end) and most > 0:
        most -= 1
        if it.unreadable or it.kind == EMPTY:
            if it.unreadable or until != begin + b"\0":
                break
            singles += 1
        else:
            begin = until
        it = it.next()
        until = it.end
    while it.unreadable or it.kind != UNKNOWN:
        it = it.previous()
    return it, singles


def skip_unknown_back(it: At, end: At, most: int) -> tuple[At, int]:
    begin, until = it.begin, it.end
    singles = 0
    while not it.same(end) and most > 0:
        most -= 1
        if it.unreadable or it.kind == EMPTY:
            if it.unreadable or until != begin + b"\0":
                break
            singles += 1
        else:
            until = begin
        it = it.previous()
        begin = it.begin
    while it.unreadable or it.kind != UNKNOWN:
        it = it.next()
    return it, singles


def count_unknown(it: At, most: int) -> int:
    """How many single keys that are known to be empty follow, before what is known of more (countUncached)."""
    begin, until = it.begin, it.end
    singles = 0
    while most > 0 and until < it.reads.edge:
        if it.unreadable or it.kind == EMPTY:
            if it.unreadable or until != begin + b"\0":
                return singles
            singles += 1
            if singles >= most:
                return most
        else:
            begin = until
        it = it.next()
        until = it.end
    return singles


def count_unknown_back(it: At, most: int) -> int:
    begin, until = it.begin, it.end
    singles = 0
    while most > 0 and begin > b"":
        if it.unreadable or it.kind == EMPTY:
            if it.unreadable or until != begin + b"\0":
                return singles
            singles += 1
            if singles >= most:
                return most
        else:
            until = begin
        it = it.previous()
        begin = it.begin
    return singles
