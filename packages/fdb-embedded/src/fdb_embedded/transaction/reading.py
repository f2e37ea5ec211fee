"""Reads of a transaction: through its overlay, at its read version, and the conflict ranges they leave. They raise `Code` at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from .. import errors
from ..errors import Code
from ..pure import range_conflicts
from ..pure.client_places import Selector
from ..pure.keys import READ_KEY_LIMIT, Row, clipped, key_limit
from ..pure.overlay import Overlay, Stack
from ..pure.ranges import Range
from ..pure.write_map import CONFLICT_COST
from . import client_view, read_conflicts, special_keys
from .read_version import snapshot_of
from .state import METADATA_VERSION, TransactionState


def get(tr: TransactionState, key: bytes, snapshot: bool) -> bytes | None:
    """The value of `key`, or None."""
    if key >= b"\xff\xff":
        tr.check_special()
        if key < b"\xff\xff\xff":
            return special_keys.get(tr, key)
    if tr.deferred or tr.committing or tr.dead or tr.options.timeout:
        tr.check()
    if key >= b"\xff":
        special = _system_get(tr, key)
        if special is not None:
            return special[0]
    if len(key) > READ_KEY_LIMIT and len(key) > key_limit(key):
        return None
    overlay = _overlay_for(tr, snapshot)
    if overlay is not None:
        if tr.history is not None and overlay.hides(key):
            try:
                return client_view.get(tr, key, snapshot)
            except Code as error:
                raise tr.read_failed(error.code) from None
        entry = overlay.writes.get(key, overlay)  # the overlay itself stands for "nothing"
        if entry is not overlay:
            if not isinstance(entry, Stack):
                return entry  # type: ignore[return-value]
            if not entry.depends:
                return entry.fold(None)
            return entry.fold(_read_point(tr, key, snapshot))
        if overlay.clears and overlay.cleared(key):
            return None
    return _read_point(tr, key, snapshot)


def _system_get(tr: TransactionState, key: bytes) -> tuple[bytes | None] | None:
    """The value of a system's key that isn't stored as others are, else None; raises where the key may not be read."""
    if key >= tr.limit_key() and key != METADATA_VERSION:
        raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
    try:
        return special_keys.system_get(tr, key)
    except Code as error:
        raise tr.read_failed(error.code) from None


def _overlay_for(tr: TransactionState, snapshot: bool) -> Overlay | None:
    """The overlay that a read sees, or None when it sees only the database."""
    overlay = tr.overlay
    if not overlay or tr.options.ryw_disabled or (snapshot and tr.options.snapshot_ryw <= 0):
        return None
    return overlay


def get_many(tr: TransactionState, wanted: list[bytes], snapshot: bool) -> list[bytes | None]:
    """The values of many keys, as one `get` each."""
    if tr.overlay or not wanted or max(wanted) >= b"\xff" or not min(wanted) or max(map(len, wanted)) > 510:
        return [get(tr, key, snapshot) for key in wanted]
    tr.check()
    snap = tr.snap or snapshot_of(tr)
    _saw(tr, *wanted)
    if not snapshot:
        size = 2 * sum(map(len, wanted)) + (1 + CONFLICT_COST) * len(wanted)
        if tr.options.ryw_disabled:
            tr.uncounted += size
        else:
            tr.approximate += size
        read_conflicts.insert_points(tr, wanted)
    try:
        return snap.get_many(wanted, tr)
    except Code as error:
        raise tr.read_failed(error.code) from None


def _read_point(tr: TransactionState, key: bytes, snapshot: bool) -> bytes | None:
    snap = tr.snap or snapshot_of(tr)
    if not snapshot:
        if tr.options.ryw_disabled:
            tr.uncounted += 2 * len(key) + 1 + CONFLICT_COST
        else:
            tr.approximate += 2 * len(key) + 1 + CONFLICT_COST
        points = tr.read_points
        if points is None:
            points = set()
            if tr.read_points is None:  # as in `_first_points`, which costs a call
                tr.read_points = points
            else:
                points = tr.read_points
        points.add(key)
    seen = tr.seen
    if seen is None:
        seen = []
        if tr.seen is None:
            tr.seen = seen
        else:
            seen = tr.seen
    seen.append(key)
    try:
        return snap.get(key, tr)
    except Code as error:
        raise tr.read_failed(error.code) from None


def _saw(tr: TransactionState, *what: bytes | Range) -> None:
    """Note keys and ranges of which the snapshot's contents are known from now on."""
    seen = tr.seen
    if seen is None:
        seen = _first_seen(tr)
    seen.extend(what)


def _first_seen(tr: TransactionState) -> list[bytes | Range]:
    fresh: list[bytes | Range] = []
    seen = tr.seen
    if seen is None:
        tr.seen = seen = fresh
    return seen


def _rows(tr: TransactionState, begin: bytes, end: bytes, reverse: bool, snapshot: bool, first: int) -> Iterator[Row]:
    """The rows of [begin, end) as this transaction sees them."""
    overlay = _overlay_for(tr, snapshot)
    if overlay is not None and tr.snap is None and not overlay.unknown_parts(begin, end):
        return overlay.merge(begin, end, reverse, lambda low, high: iter(()))  # without a read version
    snap = tr.snap or snapshot_of(tr)
    if overlay is None:
        return snap.stream(begin, end, reverse, first, tr)
    return overlay.merge(
        begin,
        end,
        reverse,
        lambda low, high: snap.stream(low, high, reverse, first, tr),
    )


def _resolve(tr: TransactionState, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> tuple[bytes, int]:
    """A selector's key, and its offset there: 1 where the key is found, else what is left beyond begin or end."""
    start = key + b"\0" if or_equal else key
    limit = tr.limit_key()
    if offset > 0:
        if start < limit:
            for found, _ in islice(_rows(tr, start, limit, False, snapshot, min(offset, 256)), offset):
                offset -= 1
                if not offset:
                    return found, 1
        return limit, offset
    for found, _ in islice(_rows(tr, b"", min(start, limit), True, snapshot, min(1 - offset, 256)), 1 - offset):
        if not found:
            break  # the empty key counts as the beginning
        offset += 1
        if offset == 1:
            return found, 1
    return b"", offset


def get_key(tr: TransactionState, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> bytes:
    """Resolve a key selector."""
    tr.check()
    if key > tr.limit_key():
        raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
    edge = clipped(key) + b"\0" if or_equal else clipped(key)
    if not edge and offset <= 0:
        tr.asked = True
        return b""  # before the beginning: nothing needs to be read for that
    try:
        if not tr.options.ryw_disabled and (tr.history is not None or tr.overlay or tr.cut):
            client_view.noted(tr)
            return client_view.get_key(tr, edge, offset, snapshot)
        found, _ = _resolve(tr, edge, False, offset, snapshot)
    except Code as error:
        raise tr.read_failed(error.code) from None
    if not tr.options.ryw_disabled:
        if tr.snap is None:
            tr.asked = True  # behind the last key: nothing was read for that
        else:
            _saw(tr, (edge, found + b"\0") if offset > 0 else (found, edge))
    if not snapshot:
        if offset <= 0:
            _add_read_range(tr, found, edge)
        else:
            _add_read_range(tr, edge, found + b"\0")
    return found


def get_range(
    tr: TransactionState,
    begin: tuple[bytes, bool, int],
    end: tuple[bytes, bool, int],
    limit: int,
    target_bytes: int,
    snapshot: bool,
    reverse: bool,
) -> tuple[list[Row], bool]:
    """Rows between two selectors and whether there are more; 0 means no limit, of rows or of bytes."""
    begin_key, begin_equal, begin_offset = begin
    end_key, end_equal, end_offset = end
    if b"\xff\xff" <= begin_key < b"\xff\xff\xff" and b"\xff\xff" <= end_key <= b"\xff\xff\xff":
        tr.check_special()
        if limit < 0:
            raise Code(errors.RANGE_LIMITS_INVALID)
        return special_keys.get_range(tr, begin, end, limit, reverse), False
    tr.check()
    edge = tr.limit_key()
    if begin_key > edge or end_key > edge:
        raise Code(errors.KEY_OUTSIDE_LEGAL_RANGE)
    if limit < 0:
        raise Code(errors.RANGE_LIMITS_INVALID)
    begin_key = clipped(begin_key + b"\0" if begin_equal else begin_key)
    end_key = clipped(end_key + b"\0" if end_equal else end_key)
    if begin_offset >= end_offset and begin_key >= end_key:
        return [], False
    read = _range_without_own if tr.options.ryw_disabled else _range
    try:
        return read(tr, begin_key, begin_offset, end_key, end_offset, limit, target_bytes, snapshot, reverse)
    except Code as error:
        raise tr.read_failed(error.code) from None


def _range(
    tr: TransactionState,
    begin_key: bytes,
    begin_offset: int,
    end_key: bytes,
    end_offset: int,
    limit: int,
    target_bytes: int,
    snapshot: bool,
    reverse: bool,
) -> tuple[list[Row], bool]:
    """As a transaction reads that sees what it wrote itself."""
    stepwise = tr.history is not None or begin_offset != 1 or end_offset != 1
    if not stepwise and tr.snap is None and tr.overlay:
        stepwise = _may_end_with_own(tr, begin_key, end_key, snapshot, reverse)
    if stepwise:
        if tr.overlay or tr.cut:
            client_view.noted(tr)
        begin, end = Selector(begin_key, begin_offset), Selector(end_key, end_offset)
        answer = client_view.get_range(tr, begin, end, limit, target_bytes, snapshot, reverse)
        return answer.rows, answer.more
    low, high = begin_key, end_key
    rows: list[Row] = []
    more = False
    if low < high and low < tr.limit_key():  # the client asks for nothing behind the end
        overlay = _overlay_for(tr, snapshot)
        if overlay is None and not target_bytes and limit:
            rows = (tr.snap or snapshot_of(tr)).rows(low, high, limit, reverse, tr)
            more = len(rows) >= limit
        else:
            rows, more = _collect(_rows(tr, low, high, reverse, snapshot, limit or 64), limit, target_bytes)
    if more and reverse:
        low = rows[-1][0]
    elif more:
        high = rows[-1][0] + b"\0"
    if tr.snap is not None:  # else all of it was known from the transaction's own writes
        _saw(tr, (low, high))
    if not snapshot:
        _add_read_range(tr, low, high)
    return rows, more


def _range_without_own(
    tr: TransactionState,
    begin_key: bytes,
    begin_offset: int,
    end_key: bytes,
    end_offset: int,
    limit: int,
    target_bytes: int,
    snapshot: bool,
    reverse: bool,
) -> tuple[list[Row], bool]:
    """As a transaction reads that sees the database only."""
    low, high = begin_key, end_key
    begin_at = end_at = 1
    if begin_offset != 1:
        low, begin_at = _resolve(tr, begin_key, False, begin_offset, snapshot)
    if end_offset != 1:
        high, end_at = _resolve(tr, end_key, False, end_offset, snapshot)
    if reverse and end_offset > 1:  # the client resolves this one by itself
        if not snapshot:
            _add_read_range(tr, end_key, high + b"\0")
        end_key, end_offset = high, 1
    rows: list[Row] = []
    more = False
    if low < high and limit and not target_bytes:
        rows = (tr.snap or snapshot_of(tr)).rows(low, high, limit, reverse, tr)
        more = len(rows) >= limit
    elif low < high:
        rows, more = _collect(_rows(tr, low, high, reverse, snapshot, limit or 64), limit, target_bytes)
    _saw(tr, low)
    if not snapshot:
        to_begin = begin_at < 1 and low < high and not (more and reverse)
        ends = (begin_key, begin_offset), (end_key, end_offset)
        _add_read_range(tr, *range_conflicts.plain(*ends, rows, more, to_begin, reverse))
        if not reverse and not more and end_at > 1:
            _add_read_range(tr, end_key, tr.limit_key())  # it went on into the system's keys
    return rows, more


def _may_end_with_own(tr: TransactionState, begin: bytes, end: bytes, snapshot: bool, reverse: bool) -> bool:
    """Whether a read comes first to what the transaction wrote, and ends there, without a read version, or goes on."""
    overlay = _overlay_for(tr, snapshot)
    if overlay is None or begin >= end:
        return False
    return (overlay.known_before(end) if reverse else overlay.known(begin)) and bool(overlay.unknown_parts(begin, end))


def _collect(source: Iterator[Row], limit: int, target_bytes: int) -> tuple[list[Row], bool]:
    if not target_bytes:
        rows = list(islice(source, limit)) if limit else list(source)
        return rows, bool(limit) and len(rows) >= limit
    rows = []
    size = 0
    for row in source:
        rows.append(row)
        size += len(row[0]) + len(row[1])
        if size >= target_bytes or len(rows) == limit:
            return rows, True
    return rows, False


def _add_read_range(tr: TransactionState, begin: bytes, end: bytes) -> None:
    """A read conflict, but for what this transaction wrote itself."""
    if begin >= end:
        return
    overlay = tr.overlay
    if (tr.history is not None or tr.cut) and not tr.options.ryw_disabled:
        client_view.noted(tr)
        client_view.add_conflict(tr, begin, end)
    elif (overlay.writes or overlay.clears) and not tr.options.ryw_disabled:
        for low, high in overlay.unknown_parts(begin, end):
            read_conflicts.count(tr, begin, end)
            read_conflicts.insert_part(tr, low, high)
    else:
        read_conflicts.count(tr, begin, end)
        read_conflicts.insert_range(tr, begin, end)


def add_read_conflict_range(tr: TransactionState, begin: bytes, end: bytes) -> None:
    if tr.deferred:
        return
    if tr.committing:
        tr.used_during_commit()
        tr.defer(errors.USED_DURING_COMMIT)
        return
    edge = tr.limit_key()
    if (begin > edge or end > edge) and not (begin == METADATA_VERSION and end == METADATA_VERSION + b"\0"):
        tr.defer(errors.KEY_OUTSIDE_LEGAL_RANGE)
        return
    begin, end = clipped(begin), clipped(end)
    if tr.options.ryw_disabled and begin < end:  # the client counts these, and not those of reads
        tr.approximate += len(begin) + len(end) + CONFLICT_COST
        read_conflicts.insert_range(tr, begin, end)
        return
    _add_read_range(tr, begin, end)


def add_read_conflict_keys(tr: TransactionState, keys: Iterable[bytes]) -> None:
    """A read conflict for each key."""
    keys = list(keys)
    overlay = tr.overlay
    touched = bool(overlay.clears or overlay.stamped) or not overlay.writes.keys().isdisjoint(keys)
    if tr.committing or touched or tr.cut or tr.history is not None or tr.options.ryw_disabled:
        for key in keys:
            add_read_conflict_range(tr, key, key + b"\0")
        return
    tr.approximate += 2 * sum(map(len, keys)) + (1 + CONFLICT_COST) * len(keys)
    read_conflicts.insert_points(tr, keys)
