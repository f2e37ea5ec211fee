"""Which keys a process watches, in the form in which committers ask: bits of a table, and prefixes.

A key has four bits of a Bloom filter, found by a checksum that all processes compute alike. The process counts for itself how many
of its keys have each bit, so a key is withdrawn by itself: no bit of another key is ever cleared, not even for a moment.

Who cleared a range asks whether a watched key may lie in it. For that there are a few prefixes, one of which each watched key begins with.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Protocol
from zlib import crc32

TABLE = 32768
"""Bytes of a table: of ten thousand keys it takes one in some 2,500 that aren't watched for one that is."""
PREFIXES = 64
PREFIX_BYTES = 60
PLENTY = 255  # a bit that so many keys have isn't counted any more, and stays

_MIX = 0x9E3779B97F4A7C15F39CC0605CEDC835
_LAST_BIT = TABLE * 8 - 1

Place = tuple[int, int, int, int, int, int, int, int]
"""Four bytes of a table, each with the mask of a bit."""


def place_of(key: bytes) -> Place:
    """Where a key's bits are. The same in all processes: a change is one of the page's layout."""
    mixed = crc32(key) * _MIX
    first, second = mixed >> 40 & _LAST_BIT, mixed >> 64 & _LAST_BIT
    third, fourth = mixed >> 88 & _LAST_BIT, mixed >> 112 & _LAST_BIT
    return (
        *(first >> 3, 1 << (first & 7), second >> 3, 1 << (second & 7)),
        *(third >> 3, 1 << (third & 7), fourth >> 3, 1 << (fourth & 7)),
    )


class Told(Protocol):
    """Where the others look what a process watches: its slot (`slots`)."""

    def set_bit(self, at: int, mask: int) -> None: ...
    def clear_bit(self, at: int, mask: int) -> None: ...
    def set_prefixes(self, prefixes: list[bytes]) -> None: ...
    def set_watching(self, watching: bool) -> None: ...


class Prefixes:
    """At most `PREFIXES` byte strings, sorted, none of which begins another."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def covers(self, key: bytes) -> bool:
        """Whether a key begins with one of them: then it is the one before it in their order."""
        at = bisect.bisect_right(self.all, key)
        return at > 0 and key.startswith(self.all[at - 1])

    def add(self, key: bytes) -> None:
        """Cover one more key, which isn't covered yet: by itself, or by what it has in common with others."""
        self._put(key[:PREFIX_BYTES])
        if len(self.all) > PREFIXES:  # half of them is made room for, so that few keys cost this
            for common in sorted(map(_common, self.all, self.all[1:]), key=len, reverse=True):
                if not self.covers(common):
                    self._put(common)
                if len(self.all) <= PREFIXES // 2:
                    break

    def _put(self, prefix: bytes) -> None:
        at = bisect.bisect_left(self.all, prefix)
        end = at
        while end < len(self.all) and self.all[end].startswith(prefix):
            end += 1
        self.all[at:end] = [prefix]


def _common(one: bytes, other: bytes) -> bytes:
    """What two keys, neither of which begins with the other, have in common."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:at]
    return min(one, other, key=len)


def may_hold(prefixes: Iterable[bytes], begin: bytes, end: bytes) -> bool:
    """Whether a key of [begin, end) may begin with one of the prefixes."""
    return any(prefix < end and (begin <= prefix or begin.startswith(prefix)) for prefix in prefixes)


class Interest:
    """The keys that a process has told the others of. Under one lock. An interrupt leaves too many bits set at the worst."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Place] = {}  # told of in full: noted last, forgotten first
        self._order: list[bytes] = []  # all of `keys`, sorted; perhaps more
        self._counts = bytearray()
        self._prefixes = Prefixes()
        self._unsaid = False  # the prefixes have changed, and not everybody was told
        self._withdrawn = 0  # since the prefixes were found

    def tell(self, slots: Told, key: bytes) -> None:
        """From now on commits that write the key are told to this process."""
        if key in self.keys:
            return
        counts = self._counts = self._counts or bytearray(TABLE * 8)
        place = place_of(key)
        for at, mask in zip(place[::2], place[1::2], strict=True):
            bit = (at << 3) + mask.bit_length() - 1
            counts[bit] = min(counts[bit] + 1, PLENTY)
            slots.set_bit(at, mask)
        if not self._prefixes.covers(key):
            self._unsaid = True
            self._prefixes.add(key)
        if self._unsaid:
            slots.set_prefixes(self._prefixes.all)
            self._unsaid = False
        slots.set_watching(True)
        at = bisect.bisect_left(self._order, key)
        if self._order[at : at + 1] != [key]:
            self._order.insert(at, key)
        self.keys[key] = place

    def withdraw(self, slots: Told, key: bytes) -> None:
        """The key isn't watched any more."""
        place = self.keys.pop(key, None)
        if place is None:
            return
        at = bisect.bisect_left(self._order, key)
        if self._order[at : at + 1] == [key]:
            del self._order[at]
        counts = self._counts
        for at, mask in zip(place[::2], place[1::2], strict=True):
            bit = (at << 3) + mask.bit_length() - 1
            if counts[bit] == PLENTY:
                continue
            counts[bit] -= 1
            if not counts[bit]:
                slots.clear_bit(at, mask)
        self._withdrawn += 1
        if not self.keys or self._withdrawn > len(self.keys) + PREFIXES:
            self._find_prefixes(slots)

    def _find_prefixes(self, slots: Told) -> None:
        fresh = Prefixes()
        for key in self.keys:
            if not fresh.covers(key):
                fresh.add(key)
        self._unsaid = True
        self._prefixes = fresh
        slots.set_prefixes(fresh.all)
        self._unsaid = False
        self._withdrawn = 0
        slots.set_watching(bool(self.keys))

    def between(self, begin: bytes, end: bytes) -> list[bytes]:
        """The keys of [begin, end), perhaps with some that were withdrawn."""
        return self._order[bisect.bisect_left(self._order, begin) : bisect.bisect_left(self._order, end)]
