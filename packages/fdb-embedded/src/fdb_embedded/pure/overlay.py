"""What a transaction has written and not committed: read-your-writes over any source of rows.

An entry of `writes` is one of
    bytes                the value is known
    None                 the key is known to be cleared
    Stack                operations on a value that isn't known (`depends`), or that has a versionstamp
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from itertools import islice

from . import atomics
from .keys import Row
from .ranges import Range, covers, difference, insert, overlapping
from .write_map import Operation, coalesce_over

_Folded = tuple[list[tuple[int, bytes]], bytes | None, int, bytes | None]
"""Operations, the value below them, how many of them make the value that is last."""


class Stack:
    """Operations stacked on one key: (operation, operand), oldest first.

    `depends` says that the value needs the stored one, `unreadable` that it has a versionstamp, which nobody knows yet.
    """

    __slots__ = ("_folded", "depends", "operations", "unreadable")

    def __init__(self, depends: bool) -> None:
        self._folded: _Folded | None = None
        self.operations: list[tuple[int, bytes]] = []
        self.depends = depends
        self.unreadable = False

    def push(self, operation: int, operand: bytes) -> None:
        self.operations.append((operation, operand))
        if operation in (atomics.SET, atomics.SET_VERSIONSTAMPED_VALUE):
            self.depends = False
            self.operations = self.operations[-1:]
        if operation == atomics.SET_VERSIONSTAMPED_VALUE:
            self.unreadable = True

    def operands(self) -> list[bytes]:
        """The operands that a commit carries: the client makes one operation of two alike, where that can be done.

        Of what has no versionstamp: of the rest the client keeps more than what matters for the value (`WriteMap`).
        """
        stack: tuple[Operation, ...] = ()
        for operation in self.operations:
            stack = coalesce_over(stack, operation) if stack else (operation,)
        return [operand or b"" for _, operand in stack]

    def fold(self, base: bytes | None, stamp: bytes | None = None) -> bytes | None:
        """The value over `base`; without a stamp, stamped operations count as plain sets."""
        operations, folded = self.operations, self._folded
        at, value = 0, base
        if stamp is None and folded is not None and folded[0] is operations and folded[1] == base:
            _, _, at, value = folded  # what was read before, of which only the later operations are missing
        later = operations[at:]
        for operation, operand in later:
            if operation == atomics.SET_VERSIONSTAMPED_VALUE:
                value = operand if stamp is None else atomics.place_stamp(operand, stamp)
            else:
                value = atomics.apply(operation, value, operand)
        if stamp is None:
            self._folded = operations, base, at + len(later), value
        return value


Entry = bytes | Stack | None


StampedKey = tuple[bytes, bytes, bytes]
"""`(anchor, parameter, value)`: the anchor is the parameter with the lowest stamp, where the C client keeps the write."""

_changing = threading.RLock()
"""Held while what is sorted is changed or looked at: threads may share a transaction. What sets a key alone doesn't take it,
so `writes` may grow at any moment: it is never stepped through, but copied in one call.
"""

_new = object.__new__

FEW = 16  # one part in so many of new keys is put in its place; more of them are sorted with the rest


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _changing
    _changing = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Overlay:
    """Uncommitted writes. `writes` wins over `clears` (sorted, disjoint). What versionstamps hide is read by way of a `ClientView`.

    No operation costs more for what other operations have left elsewhere, but for the move of a list's end.
    """

    __slots__ = ("_anchors", "_fresh", "_hidden", "_order", "_sent", "_stamped", "clears", "writes")

    def __init__(self) -> None:
        self.writes: dict[bytes, Entry] = {}
        self.clears: list[Range] = []
        self._stamped: dict[int, StampedKey] = {}
        self._anchors: list[tuple[bytes, int]] = []  # sorted: (anchor, key of `_stamped`)
        self._sent: list[
            StampedKey | Range
        ] = []  # stamped keys that are committed first, and what was cleared after them
        self._hidden: list[Range] = []  # sorted, disjoint: where there has been a versionstamp, or a conditional clear
        self._order: list[bytes] | None = None
        self._fresh = 0  # how many keys are in `_order`: the first ones of `writes`

    def __bool__(self) -> bool:
        return bool(self.writes or self.clears or self._stamped or self._sent)

    @property
    def stamped(self) -> bool:
        """Whether there are stamped keys."""
        return bool(self._stamped or self._sent)

    def copy(self) -> Overlay:
        """The same writes, which no later call changes."""
        copy = _new(Overlay)
        with _changing:
            copy.writes = self.writes.copy()
            copy.clears = self.clears.copy() if self.clears else []
            copy._stamped = self._stamped.copy() if self._stamped else {}
            copy._anchors = self._anchors.copy() if self._anchors else []
            copy._sent = self._sent.copy() if self._sent else []
        copy._hidden = []  # that is of no account for what is committed
        copy._order = None
        copy._fresh = 0
        return copy

    def hide(self, begin: bytes, end: bytes) -> None:
        """What is read in [begin, end) depends from now on on how the client has it, whatever is written there."""
        with _changing:
            insert(self._hidden, begin, end)

    def hides(self, key: bytes) -> bool:
        """Whether a key's value can't be told from here: a versionstamp may lie on it, or operations do."""
        if isinstance(self.writes.get(key), Stack):
            return True
        with _changing:
            return covers(self._hidden, key)

    def stamped_rows(self, stamp: bytes) -> list[Row]:
        """What the stamped keys become with `stamp`, in the order in which the client commits them: where two become the
        same key the later one stays, and a range that was cleared after one was sent takes it away."""
        with _changing:
            items = [*self._sent, *(self._stamped[number] for _, number in self._anchors)]
        rows: list[Row] = []
        cleared: list[Range] = []
        for item in reversed(items):
            if len(item) == 2:
                insert(cleared, *item)
                continue
            key = atomics.place_stamp(item[1], stamp)
            if not cleared or not covers(cleared, key):
                rows.append((key, item[2]))
        rows.reverse()
        return rows

    def order(self) -> list[bytes]:
        """The written keys, sorted."""
        with _changing:
            order = self._order
            fresh = self._written_since() if order is not None else None
            if order is None or fresh is None:
                order = self._order = sorted(self.writes)
            elif len(fresh) * FEW < len(order):
                for key in fresh:
                    bisect.insort(order, key)
            else:
                order += fresh
                order.sort()
            self._fresh = len(order)
            return order

    def _written_since(self) -> list[bytes] | None:
        """The keys that are in `writes` and not in `_order`; None where another thread writes at this moment."""
        count = len(self.writes)
        if count <= self._fresh:
            return [] if count == self._fresh else None
        try:
            fresh = list(islice(reversed(self.writes), count - self._fresh))
        except RuntimeError:
            return None
        return fresh if count == len(self.writes) else None

    def written_in(self, begin: bytes, end: bytes) -> list[bytes]:
        """The written keys of [begin, end), sorted."""
        with _changing:
            order = self.order()
            return order[bisect.bisect_left(order, begin) : bisect.bisect_left(order, end)]

    def clear_range(self, begin: bytes, end: bytes) -> list[bytes]:
        """Clear [begin, end); returns the keys whose entries it replaced."""
        gone: list[bytes] = []
        with _changing:
            if self.writes:
                if len(self.writes) < 64 and self._order is None:
                    gone = [key for key in list(self.writes) if begin <= key < end]
                else:
                    order = self.order()
                    low, high = bisect.bisect_left(order, begin), bisect.bisect_left(order, end)
                    gone = order[low:high]
                    del order[low:high]
                    self._fresh = len(order)
                for key in gone:
                    self.writes.pop(key, None)
            self.uncover(begin, end)
            if self._sent:
                self._sent.append((begin, end))
            insert(self.clears, begin, end)
        return gone

    def uncover(self, begin: bytes, end: bytes) -> None:
        """What is in [begin, end) is written anew: stamped keys whose place is there are gone."""
        if self._stamped:
            self._take(begin, end)

    def _take(self, begin: bytes, end: bytes) -> list[StampedKey]:
        """Remove the stamped keys whose place is in [begin, end), and return them in the order of their places."""
        with _changing:
            anchors = self._anchors
            low, high = bisect.bisect_left(anchors, (begin,)), bisect.bisect_left(anchors, (end,))
            taken = [self._stamped.pop(number) for _, number in anchors[low:high]]
            del anchors[low:high]
            return taken

    def stamp(self, item: StampedKey, begin: bytes, end: bytes) -> None:
        """Write a stamped key, which hides [begin, end): what was written there is committed before all the rest."""
        with _changing:
            if self._stamped:
                self._sent += self._take(begin, end)
            number = next(_numbers)
            self._stamped[number] = item
            bisect.insort(self._anchors, (item[0], number))

    def send(self, item: StampedKey) -> None:
        """Write a stamped key that is committed in its turn, as all is where a transaction doesn't read its own writes."""
        with _changing:
            self._sent.append(item)

    def cleared(self, key: bytes) -> bool:
        with _changing:
            return covers(self.clears, key)

    def known(self, key: bytes) -> bool:
        """Whether the key's value doesn't depend on the database."""
        entry = self.writes.get(key, _MISSING)
        if entry is not _MISSING:
            return not (isinstance(entry, Stack) and entry.depends)
        return self.cleared(key)

    def known_before(self, end: bytes) -> bool:
        """Whether what comes last before `end` doesn't depend on the database."""
        if end.endswith(b"\0") and self.known(end[:-1]):
            return True
        with _changing:
            at = bisect.bisect_left(self.clears, (end,)) - 1
            return at >= 0 and self.clears[at][1] >= end

    def unknown_parts(self, begin: bytes, end: bytes) -> list[Range]:
        """The parts of [begin, end) whose contents depend on the database."""
        with _changing:
            parts = difference([(begin, end)], overlapping(self.clears, begin, end))
            if not self.writes:
                return parts
            out: list[Range] = []
            for low, high in parts:
                at = low
                for key in self.written_in(low, high):
                    entry = self.writes.get(key)
                    if at < key:
                        out.append((at, key))
                    at = key + b"\0"
                    if isinstance(entry, Stack) and entry.depends:
                        out.append((key, at))  # by itself, as the client counts it
                if at < high:
                    out.append((at, high))
        return out

    def merge(
        self, begin: bytes, end: bytes, reverse: bool, rows: Callable[[bytes, bytes], Iterator[Row]]
    ) -> Iterator[Row]:
        """The rows of [begin, end) with the overlay applied to `rows(begin, end)`."""
        own = self.written_in(begin, end) if self.writes else []
        with _changing:
            clears = overlapping(self.clears, begin, end)
        if reverse:
            own.reverse()
        source = rows(begin, end)
        at, count = 0, len(own)
        row = next(source, None)
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
                entry = entry.fold(base)
            if entry is not None:
                yield key, entry


class _Missing:
    pass


_MISSING = _Missing()
_numbers = itertools.count()
