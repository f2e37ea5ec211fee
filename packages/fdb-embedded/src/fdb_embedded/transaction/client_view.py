"""The part of a transaction that is read as FoundationDB's client reads it, segment by segment (`client_reads`).

It is made when a selector has an offset, or once the transaction has used a versionstamp or a conditional clear; all other
reads go straight through the overlay. From then on the transaction notes its writes, in their order, for it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias, TypeVar

from ..pure import atomics
from ..pure.client_reads import ClientReads, Found, Limits, Selector
from ..pure.conflict import Range
from ..pure.keys import clipped
from ..pure.known import Known
from ..pure.overlay import Stack
from ..pure.write_map import DEPENDENT, END, UNMODIFIED, WriteMap

if TYPE_CHECKING:
    from ..engine.snapshot import Snapshot
    from .reading import Reading

P = ParamSpec("P")
R = TypeVar("R")

Write: TypeAlias = Callable[[WriteMap], None]
"""One write of a transaction, to be made in its map."""

ROW_COST = 24
"""What a storage server counts for a row beside its bytes."""


def copy_of_writes(transaction: Reading) -> Write:
    """What the transaction has written so far, as one write; nothing of it is unreadable."""
    overlay = transaction.overlay
    clears = list(overlay.clears)
    writes = {
        key: tuple(entry.operations) if isinstance(entry, Stack) else entry
        for key, entry in overlay.writes.copy().items()
    }
    ranges, points = list(transaction.write_ranges), set(transaction.write_points or ())
    quiet = set(transaction.unconflicted or ())

    def write(map: WriteMap) -> None:
        for begin, end in clears:
            map.clear(begin, end, False)
        for key, entry in writes.items():
            if entry is None:
                map.clear(key, key + b"\0", key not in quiet)
            elif isinstance(entry, bytes):
                map.mutate(key, atomics.SET, entry, key not in quiet)
            else:
                for kind, operand in entry:
                    map.mutate(key, kind, operand, key not in quiet)
        for begin, end in ranges:
            map.add_conflict(begin, end)
        for key in points:
            map.add_conflict(key, key + b"\0")

    return write


def _one_at_a_time(method: Callable[Concatenate[ClientView, P], R]) -> Callable[Concatenate[ClientView, P], R]:
    """A method for one thread at a time, of those that share the transaction."""

    @functools.wraps(method)
    def alone(self: ClientView, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self._reading:
            return method(self, *arguments, **named)

    return alone


class ClientView:
    """A transaction's writes and what it knows of its snapshot, as its client has them."""

    def __init__(self, transaction: Reading) -> None:
        # no cycle: a transaction that is dropped ends at once, and what was promised with it
        self._transaction = weakref.ref(transaction)
        self.known = Known()
        self._map = WriteMap()
        self._written = self._seen = 0  # of the transaction's lists
        self._reading = threading.RLock()

    @property
    def transaction(self) -> Reading:
        """Whose view it is; it calls, so it is there."""
        transaction = self._transaction()
        assert transaction is not None
        return transaction

    @property
    def map(self) -> WriteMap:
        """The transaction's writes."""
        transaction = self.transaction
        history = transaction.history
        if history is None:
            self._map = WriteMap()
            copy_of_writes(transaction)(self._map)
            return self._map
        if not self._written:
            self._map = WriteMap()
        for write in history[self._written :]:  # other threads may append meanwhile
            write(self._map)
            self._written += 1
        return self._map

    def _reads(self, snapshot: bool, bypass: bool = False) -> ClientReads:
        transaction = self.transaction
        seen = transaction.seen
        if seen is not None and len(seen) > self._seen:
            snap = transaction.snap or transaction._begin()
            for item in seen[self._seen :]:
                self._know(snap, item)
                self._seen += 1
        options = transaction.options
        writes = None if snapshot and options.snapshot_ryw <= 0 else self.map
        return ClientReads(writes, self.known, self._ask, transaction._limit_key(), bypass)

    def _know(self, snap: Snapshot, item: bytes | tuple[bytes, bytes]) -> None:
        """What was read straight through the overlay."""
        if isinstance(item, bytes):
            value = snap.get(item, self.transaction)
            self.known.insert(item, item + b"\0", [] if value is None else [(item, value)])
        else:
            self.known.insert(*item, list(snap.stream(*item, False, waiter=self.transaction)))

    def _ask(self, begin: Selector, end: Selector, limits: Limits, reverse: bool) -> Found:
        """Rows of the snapshot alone."""
        snap = self.transaction.snap or self.transaction._begin()
        low, low_off = self._place(snap, begin)
        high, high_off = self._place(snap, end)
        found = Found(to_begin=low_off < 1, through_end=high_off > 1)
        if low < high:
            size = 0
            for row in snap.stream(low, high, reverse, limits.rows or 64, self.transaction):
                found.rows.append(row)
                size += ROW_COST + len(row[0]) + len(row[1])
                if len(found.rows) == limits.rows or (
                    limits.size is not None and size >= limits.size and len(found.rows) >= limits.least
                ):
                    found.more = True
                    break
        if found.more and reverse:
            found.to_begin = False
        elif found.more:
            found.through_end = False
        return found

    def _place(self, snap: Snapshot, selector: Selector) -> tuple[bytes, int]:
        """A selector's key in the snapshot, and its offset there: other than 1 beyond the beginning or the end."""
        key, offset = selector.key, selector.offset
        if offset == 1:
            return key, 1
        if offset > 1:
            for found, _ in islice(snap.stream(key, END, False, offset, self.transaction), offset):
                offset -= 1
                if not offset:
                    return found, 1
            return END, offset
        for found, _ in islice(snap.stream(b"", key, True, 1 - offset, self.transaction), 1 - offset):
            offset += 1
            if offset == 1:
                return found, 1
        return b"", offset

    # --- what a transaction reads ---

    @_one_at_a_time
    def get(self, key: bytes, snapshot: bool) -> bytes | None:
        """The value of a key."""
        transaction = self.transaction
        reads = self._reads(snapshot, transaction.options.bypass_unreadable)
        it = reads.at(key)
        if it.kind == 0:  # unknown
            snap = transaction.snap or transaction._begin()
            value = snap.get(key, transaction)
            self.known.insert(key, key + b"\0", [] if value is None else [(key, value)])
            it = reads.at(key)
        row = it.row() if it.kind == 2 else None
        if not snapshot and (it.segment.kind == UNMODIFIED or it.segment.needs_read):
            transaction.count_conflict(key, key + b"\0")
            transaction._insert_point(key)
        return None if row is None else row[1]

    @_one_at_a_time
    def get_key(self, key: bytes, offset: int, snapshot: bool) -> bytes:
        """The key of a selector, `or_equal` taken into the key."""
        found = self._reads(snapshot).get_key(Selector(clipped(key), offset))
        if not snapshot:
            if offset <= 0:
                self.add_conflict(found, key)
            else:
                self.add_conflict(key, found + b"\0")
        return found

    @_one_at_a_time
    def get_range(
        self, begin: Selector, end: Selector, limit: int, target_bytes: int, snapshot: bool, reverse: bool
    ) -> Found:
        """The rows between two selectors."""
        reads = self._reads(snapshot)
        limits = Limits(limit or None, target_bytes or None)
        found = (reads.backward if reverse else reads.forward)(begin, end, limits)
        if not snapshot:
            conflict = _range_back if reverse else _range_forward
            self.add_conflict(*conflict(begin, end, found, self.transaction._limit_key()))
        return found

    @_one_at_a_time
    def write_conflicts(self, end: bytes) -> list[Range]:
        """What conflicts as written, up to `end`."""
        return [(segment.begin, segment.end) for segment in self.map.segments(b"", end) if segment.conflict]

    @_one_at_a_time
    def add_conflict(self, begin: bytes, end: bytes) -> None:
        """A read conflict on [begin, end), but for what the transaction wrote itself."""
        if begin >= end:
            return
        transaction = self.transaction
        for segment in self.map.segments(begin, end):
            if segment.kind == UNMODIFIED or (segment.kind == DEPENDENT and segment.needs_read):
                low, high = max(begin, segment.begin), min(end, segment.end)
                if low < high:
                    transaction.count_conflict(begin, end)
                    transaction._insert_read_part(low, high)


def _range_forward(begin: Selector, end: Selector, found: Found, edge: bytes) -> tuple[bytes, bytes]:
    """The conflict range of a range read (`RYWImpl::addConflictRange`)."""
    if begin.key < end.key:
        first, last = begin.key, begin.key if end.offset > 0 and found.more else end.key
    else:
        first, last = end.key, begin.key
    if found.to_begin and begin.offset <= 0:
        first = b""
    if found.through_end and end.offset > 0:
        last = edge
    if found.rows:
        if begin.offset <= 0:
            first = min(first, found.rows[0][0])
        if last <= found.rows[-1][0]:
            last = found.rows[-1][0] + b"\0"
    return first, last


def _range_back(begin: Selector, end: Selector, found: Found, edge: bytes) -> tuple[bytes, bytes]:
    if begin.key < end.key:
        first, last = end.key if begin.offset <= 1 and found.more else begin.key, end.key
    else:
        first, last = end.key, begin.key
    if found.to_begin and begin.offset <= 0:
        first = b""
    if found.through_end and end.offset > 0:
        last = edge
    if found.rows:
        first = min(first, found.rows[-1][0])
        if end.offset > 0 and last <= found.rows[0][0]:
            last = found.rows[0][0] + b"\0"
    return first, last
