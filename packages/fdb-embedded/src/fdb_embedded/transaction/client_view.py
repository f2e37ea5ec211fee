"""The part of a transaction that is read as FoundationDB's client reads it, segment by segment (`client_reads`).

It is made when a selector has an offset, or once the transaction has used a versionstamp or a conditional clear; all other
reads go straight through the overlay, and so do reads of single keys then that such a write has not touched. From then on the
transaction notes its writes, in their order, for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

from ..engine.snapshot import Snapshot
from ..pure import atomics
from ..pure.client_places import Found, Limits, Selector
from ..pure.client_reads import ClientReads
from ..pure.keys import clipped
from ..pure.overlay import Stack
from ..pure.ranges import Range
from ..pure.write_map import DEPENDENT, END, UNMODIFIED, Write, WriteMap
from . import read_conflicts
from .read_version import snapshot_of
from .state import TransactionState, View

P = ParamSpec("P")
R = TypeVar("R")

ROW_COST = 24
"""What a storage server counts for a row beside its bytes."""


def _copy_of_writes(tr: TransactionState) -> Write:
    """What the transaction has written so far, as one write; nothing of it is unreadable."""
    overlay = tr.overlay
    clears = list(overlay.clears)
    writes = {
        key: tuple(entry.operations) if isinstance(entry, Stack) else entry
        for key, entry in overlay.writes.copy().items()
    }
    ranges, points = list(tr.write_ranges), set(tr.write_points or ())
    quiet = set(tr.unconflicted or ())

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


def noted(tr: TransactionState) -> list[Write]:
    """The writes in their order: noted from now on, since reads depend on how the client cuts them into segments."""
    history = tr.history
    if history is None:
        tr.plain = False  # first: what another thread writes meanwhile is copied here or noted
        history = tr.own("history", [_copy_of_writes(tr)])
    return history


def _one_at_a_time(
    function: Callable[Concatenate[TransactionState, View, P], R],
) -> Callable[Concatenate[TransactionState, P], R]:
    """A function of a transaction and its view, for one thread at a time of those that share them."""

    @functools.wraps(function)
    def alone(tr: TransactionState, /, *arguments: P.args, **named: P.kwargs) -> R:
        view = tr.view or tr.own("view", View())
        with view.lock:
            return function(tr, view, *arguments, **named)

    return alone


def _writes(tr: TransactionState, view: View) -> WriteMap:
    """The transaction's writes."""
    history = tr.history
    if history is None:
        view.map = WriteMap()
        _copy_of_writes(tr)(view.map)
        return view.map
    if not view.written:
        view.map = WriteMap()
    for write in history[view.written :]:  # other threads may append meanwhile
        write(view.map)
        view.written += 1
    return view.map


def _reads(tr: TransactionState, view: View, snapshot: bool, bypass: bool = False) -> ClientReads:
    seen = tr.seen
    if seen is not None and len(seen) > view.seen:
        snap = snapshot_of(tr)
        for item in seen[view.seen :]:
            _know(tr, view, snap, item)
            view.seen += 1
    writes = None if snapshot and tr.options.snapshot_ryw <= 0 else _writes(tr, view)
    return ClientReads(writes, view.known, functools.partial(_ask, tr), tr.limit_key(), bypass)


def _know(tr: TransactionState, view: View, snap: Snapshot, item: bytes | tuple[bytes, bytes]) -> None:
    """What was read straight through the overlay."""
    if isinstance(item, bytes):
        value = snap.get(item, tr)
        view.known.insert(item, item + b"\0", [] if value is None else [(item, value)])
    else:
        view.known.insert(*item, list(snap.stream(*item, False, waiter=tr)))


def _ask(tr: TransactionState, begin: Selector, end: Selector, limits: Limits, reverse: bool) -> Found:
    """Rows of the snapshot alone."""
    snap = snapshot_of(tr)
    low, low_off = _place(tr, snap, begin)
    high, high_off = _place(tr, snap, end)
    found = Found(to_begin=low_off < 1, through_end=high_off > 1)
    if low < high:
        size = 0
        for row in snap.stream(low, high, reverse, limits.rows or 64, tr):
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


def _place(tr: TransactionState, snap: Snapshot, selector: Selector) -> tuple[bytes, int]:
    """A selector's key in the snapshot, and its offset there: other than 1 beyond the beginning or the end."""
    key, offset = selector.key, selector.offset
    if offset == 1:
        return key, 1
    if offset > 1:
        for found, _ in islice(snap.stream(key, END, False, offset, tr), offset):
            offset -= 1
            if not offset:
                return found, 1
        return END, offset
    for found, _ in islice(snap.stream(b"", key, True, 1 - offset, tr), 1 - offset):
        offset += 1
        if offset == 1:
            return found, 1
    return b"", offset


# --- what a transaction reads ---


@_one_at_a_time
def get(tr: TransactionState, view: View, key: bytes, snapshot: bool) -> bytes | None:
    """The value of a key."""
    reads = _reads(tr, view, snapshot, tr.options.bypass_unreadable)
    it = reads.at(key)
    if it.kind == 0:  # unknown
        snap = snapshot_of(tr)
        value = snap.get(key, tr)
        view.known.insert(key, key + b"\0", [] if value is None else [(key, value)])
        it = reads.at(key)
    row = it.row() if it.kind == 2 else None
    if not snapshot and (it.segment.kind == UNMODIFIED or it.segment.needs_read):
        read_conflicts.count(tr, key, key + b"\0")
        read_conflicts.insert_point(tr, key)
    return None if row is None else row[1]


@_one_at_a_time
def get_key(tr: TransactionState, view: View, key: bytes, offset: int, snapshot: bool) -> bytes:
    """The key of a selector, `or_equal` taken into the key."""
    found = _reads(tr, view, snapshot).get_key(Selector(clipped(key), offset))
    if not snapshot:
        if offset <= 0:
            add_conflict(tr, found, key)
        else:
            add_conflict(tr, key, found + b"\0")
    return found


@_one_at_a_time
def get_range(
    tr: TransactionState,
    view: View,
    begin: Selector,
    end: Selector,
    limit: int,
    target_bytes: int,
    snapshot: bool,
    reverse: bool,
) -> Found:
    """The rows between two selectors."""
    reads = _reads(tr, view, snapshot)
    limits = Limits(limit or None, target_bytes or None)
    found = (reads.backward if reverse else reads.forward)(begin, end, limits)
    if not snapshot:
        conflict = _range_back if reverse else _range_forward
        add_conflict(tr, *conflict(begin, end, found, tr.limit_key()))
    return found


@_one_at_a_time
def write_conflicts(tr: TransactionState, view: View, end: bytes) -> list[Range]:
    """What conflicts as written, up to `end`."""
    return [(segment.begin, segment.end) for segment in _writes(tr, view).segments(b"", end) if segment.conflict]


@_one_at_a_time
def size_of_writes(tr: TransactionState, view: View) -> int:
    """Bytes of the mutations and of what conflicts as written."""
    return _writes(tr, view).size()


@_one_at_a_time
def add_conflict(tr: TransactionState, view: View, begin: bytes, end: bytes) -> None:
    """A read conflict on [begin, end), but for what the transaction wrote itself."""
    if begin >= end:
        return
    for segment in _writes(tr, view).segments(begin, end):
        if segment.kind == UNMODIFIED or (segment.kind == DEPENDENT and segment.needs_read):
            low, high = max(begin, segment.begin), min(end, segment.end)
            if low < high:
                read_conflicts.count(tr, begin, end)
                read_conflicts.insert_part(tr, low, high)


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
