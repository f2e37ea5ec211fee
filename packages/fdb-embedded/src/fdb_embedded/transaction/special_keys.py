"""Keys that are answered rather than stored: those under `\\xff\\xff`, and rows that idempotency ids on the log stand for.

\\xff\\xff/transaction/read_conflict_range/ key   -> 1 where a range of read conflicts begins, 0 where it ends
\\xff\\xff/transaction/write_conflict_range/ key  -> the same of write conflicts
\\xff\\xff/transaction/conflicting_keys/ key      -> the same of what made the last commit fail (option 712)
\\xff\\xff/status/json, \\xff\\xff/cluster_file_path, \\xff\\xff/connection_string, \\xff\\xff/cluster_id
"""

from __future__ import annotations

from collections.abc import Callable

from .. import errors
from ..engine import status
from ..errors import Code
from ..pure import atomics, idempotency
from ..pure.keys import Row, clipped
from ..pure.ranges import Range, merge_ranges
from . import client_view
from .read_version import lowest_stamp, snapshot_of
from .state import TransactionState

BEGIN = b"\xff\xff"
END = b"\xff\xff\xff"
TRANSACTION = b"\xff\xff/transaction/"
READ_CONFLICTS = TRANSACTION + b"read_conflict_range/"
WRITE_CONFLICTS = TRANSACTION + b"write_conflict_range/"
CONFLICTING = TRANSACTION + b"conflicting_keys/"
# modules: prefix ranges that one read must not cross (unless relaxed)
MODULES = tuple(
    (b"\xff\xff/" + name, b"\xff\xff/" + (name[:-1] + b"0" if name.endswith(b"/") else name + b"\x00"))
    for name in (
        b"actor_lineage/",
        b"actor_profiler_conf/",
        b"cluster_file_path",
        b"cluster_id",
        b"configuration/",
        b"connection_string",
        b"error_message",
        b"global_config/",
        b"management/",
        b"metrics/",
        b"status/json",
        b"tracing/",
        b"transaction/",
        b"worker_interfaces/",
    )
)


def _module(key: bytes) -> Range | None:
    for begin, end in MODULES:
        if begin <= key < end:
            return begin, end
    return None


def _boundaries(prefix: bytes, ranges: list[Range]) -> list[Row]:
    """A range map as rows: 1 at each begin, 0 at each end."""
    rows: dict[bytes, bytes] = {}
    for begin, end in merge_ranges(ranges):
        rows[prefix + begin] = b"1"
        rows[prefix + end] = b"0"
    return sorted(rows.items())


def read_conflicts(transaction: TransactionState) -> list[Range]:
    """What the transaction has read, as ranges. They are told once all its reads have ended, and well."""
    transaction.expire()
    if transaction.dead or transaction.read_error:
        raise Code(transaction.dead or transaction.read_error)
    return [*transaction.read_ranges, *((key, key + b"\0") for key in list(transaction.read_points or ()))]


def write_conflicts(transaction: TransactionState) -> list[Range]:
    """What the transaction writes, as ranges; a stamped key stands for all keys that it may become."""
    if transaction.history is not None and not transaction.options.ryw_disabled:
        ranges = client_view.write_conflicts(transaction, BEGIN)
    else:
        points = list(transaction.written_points(transaction.overlay.writes))
        ranges = [*transaction.write_ranges, *((key, key + b"\0") for key in points)]
    stamp = transaction.stamp
    parameters = list(transaction.stamped_parameters or ())
    lowest = lowest_stamp(transaction) if parameters else b""
    for parameter in parameters:
        at = atomics.stamp_offset(parameter)
        head, tail = parameter[:at], parameter[at + 10 : -4]
        if stamp is not None:
            ranges.append((head + stamp + tail, head + stamp + tail + b"\0"))
            continue
        high = min(head + b"\xff" * 10 + tail + b"\0", transaction.limit_key())
        if head + lowest + tail < high:
            ranges.append((head + lowest + tail, high))
    return ranges


def _conflicting(transaction: TransactionState) -> list[Range]:
    return list(transaction.conflicts or ())


def _single(key: bytes, answer: Callable[[TransactionState], bytes]) -> Callable[[TransactionState], list[Row]]:
    return lambda transaction: [(key, answer(transaction))]


_ANSWERS: tuple[tuple[bytes, Callable[[TransactionState], list[Row]]], ...] = (
    (b"\xff\xff/cluster_file_path", _single(b"\xff\xff/cluster_file_path", lambda t: status.location(t.engine))),
    (b"\xff\xff/cluster_id", _single(b"\xff\xff/cluster_id", lambda t: status.cluster_id(t.engine))),
    (b"\xff\xff/connection_string", _single(b"\xff\xff/connection_string", lambda t: status.connection(t.engine))),
    (b"\xff\xff/status/json", _single(b"\xff\xff/status/json", lambda t: status.status_json(t.engine))),
    (CONFLICTING, lambda t: _boundaries(CONFLICTING, _conflicting(t))),
    (READ_CONFLICTS, lambda t: _boundaries(READ_CONFLICTS, read_conflicts(t))),
    (WRITE_CONFLICTS, lambda t: _boundaries(WRITE_CONFLICTS, write_conflicts(t))),
)


def _rows(transaction: TransactionState, begin: bytes, end: bytes) -> list[Row]:
    found: list[Row] = []
    for prefix, answer in _ANSWERS:
        if prefix < end and begin < prefix + b"\xff\xff":
            found += (row for row in answer(transaction) if begin <= row[0] < end)
    return sorted(found)


def get(transaction: TransactionState, key: bytes) -> bytes | None:
    """The value of a key under `\\xff\\xff`; raises `Code` 2113 where there is none to ask."""
    if key == BEGIN:
        return None
    rows = get_range(transaction, (key, False, 1), (key + b"\0", False, 1), 0, False)
    return rows[0][1] if rows else None


def get_range(
    transaction: TransactionState,
    begin: tuple[bytes, bool, int],
    end: tuple[bytes, bool, int],
    limit: int,
    reverse: bool,
) -> list[Row]:
    """The rows between two selectors under `\\xff\\xff`."""
    (begin_key, begin_equal, begin_offset), (end_key, end_equal, end_offset) = begin, end
    begin_key, end_key = clipped(begin_key), clipped(end_key)
    # As in the client, no key comes after the first of these.
    begin_key += b"\0" if begin_equal and begin_key != BEGIN else b""
    end_key += b"\0" if end_equal and end_key != BEGIN else b""
    if begin_offset >= end_offset and begin_key >= end_key:
        return []
    edges = BEGIN, END
    if not transaction.options.special_relaxed:
        module = _module(begin_key)
        if not (module or _gap(begin_key))[0] <= end_key <= (module or _gap(begin_key))[1]:
            raise Code(errors.SPECIAL_KEYS_CROSS_MODULE_READ)
        if module is None:
            raise Code(errors.SPECIAL_KEYS_NO_MODULE_FOUND)
        edges = module
    low, low_offset = _place(transaction, begin_key, begin_offset, *edges)
    high, high_offset = _place(transaction, end_key, end_offset, *edges)
    if (low_offset >= high_offset and low >= high) or low == edges[1] or high == edges[0]:
        return []
    rows = _rows(transaction, low, high)
    if reverse:
        rows.reverse()
    return rows[:limit] if limit else rows


def _gap(key: bytes) -> Range:
    """The range between two modules in which `key` lies."""
    low = max((end for _, end in MODULES if end <= key), default=BEGIN)
    return low, min((begin for begin, _ in MODULES if begin > key), default=END)


def _place(
    transaction: TransactionState, key: bytes, offset: int, low_edge: bytes, high_edge: bytes
) -> tuple[bytes, int]:
    """A selector's key, and what is left of its offset at an edge: one place after another is asked, as far as need be."""
    if offset < 1:
        for prefix, answer in reversed(_ANSWERS):
            if not low_edge <= prefix < key:
                continue
            rows = [name for name, _ in answer(transaction) if name < key]
            if len(rows) >= 1 - offset:
                return rows[offset - 1], 1
            offset += len(rows)
        return low_edge, offset
    for prefix, answer in _ANSWERS:
        if offset == 1 or not prefix < high_edge or key >= prefix + b"\xff\xff":
            continue
        rows = [name for name, _ in answer(transaction) if name >= key]
        if len(rows) >= offset:
            return rows[offset - 1], 1
        offset -= len(rows)
        key = rows[-1] + b"\0" if rows else key
    return (key, 1) if offset == 1 else (high_edge, offset)


def set(transaction: TransactionState, key: bytes, value: bytes) -> None:
    """Nothing under `\\xff\\xff` can be written here."""
    _refuse(transaction)


def clear(transaction: TransactionState, begin: bytes, end: bytes) -> None:
    """Nothing under `\\xff\\xff` can be cleared here."""
    if begin < end or not transaction.options.special_writes:
        _refuse(transaction)


def _refuse(transaction: TransactionState) -> None:
    allowed = transaction.options.special_writes
    transaction.defer(errors.SPECIAL_KEYS_NO_WRITE_MODULE_FOUND if allowed else errors.SPECIAL_KEYS_WRITE_DISABLED)


def system_get(transaction: TransactionState, key: bytes) -> tuple[bytes | None] | None:
    """The answer for a system key that isn't (only) stored, in a tuple; None when the key is like any other."""
    if key.startswith(idempotency.IDS):
        rows = snapshot_of(transaction).rows(key, key + b"\0", 1, False, transaction)
        return (rows[0][1] if rows else None,)
    return None
