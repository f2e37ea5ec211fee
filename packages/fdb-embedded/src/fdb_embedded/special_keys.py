"""Keys that are answered rather than stored: those under `\\xff\\xff`, and rows that idempotency ids on the log stand for.

\\xff\\xff/transaction/read_conflict_range/ key   -> 1 where a range of read conflicts begins, 0 where it ends
\\xff\\xff/transaction/write_conflict_range/ key  -> the same of write conflicts
\\xff\\xff/transaction/conflicting_keys/ key      -> the same of what made the last commit fail (option 712)
\\xff\\xff/status/json, \\xff\\xff/cluster_file_path, \\xff\\xff/connection_string, \\xff\\xff/cluster_id
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import atomics, errors, idempotency, status
from .conflict import Range, merge_ranges
from .errors import Code
from .keys import Row

if TYPE_CHECKING:
    from .reading import Reading
    from .writing import Writing

BEGIN = b"\xff\xff"
END = b"\xff\xff\xff"
TRANSACTION = b"\xff\xff/transaction/"
READ_CONFLICTS = TRANSACTION + b"read_conflict_range/"
WRITE_CONFLICTS = TRANSACTION + b"write_conflict_range/"
CONFLICTING = TRANSACTION + b"conflicting_keys/"
# modules: prefix ranges that one read must not cross (unless relaxed)
MODULES = (
    (b"\xff\xff/cluster_file_path", b"\xff\xff/cluster_file_path\x00"),
    (b"\xff\xff/cluster_id", b"\xff\xff/cluster_id\x00"),
    (b"\xff\xff/connection_string", b"\xff\xff/connection_string\x00"),
    (b"\xff\xff/error_message", b"\xff\xff/error_message\x00"),
    (b"\xff\xff/management/", b"\xff\xff/management0"),
    (b"\xff\xff/metrics/", b"\xff\xff/metrics0"),
    (b"\xff\xff/status/json", b"\xff\xff/status/json\x00"),
    (TRANSACTION, b"\xff\xff/transaction0"),
    (b"\xff\xff/worker_interfaces/", b"\xff\xff/worker_interfaces0"),
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


def read_conflicts(transaction: Reading) -> list[Range]:
    """What the transaction has read, as ranges."""
    return [*transaction.read_ranges, *((key, key + b"\0") for key in transaction.read_points or ())]


def write_conflicts(transaction: Reading) -> list[Range]:
    """What the transaction writes, as ranges; a stamped key stands for all keys that it may become."""
    ranges = [*transaction.write_ranges, *((key, key + b"\0") for key in transaction.written_points())]
    lowest = transaction.lowest_stamp() if transaction.overlay.stamped_keys else b""
    for _, parameter, _ in transaction.overlay.stamped_keys:
        at = atomics.stamp_offset(parameter)
        head, tail = parameter[:at], parameter[at + 10 : -4]
        ranges.append((head + lowest + tail, head + b"\xff" * 10 + tail + b"\0"))
    return ranges


def _conflicting(transaction: Reading) -> list[Range]:
    return list(transaction.conflicts or ())


def _single(key: bytes, answer: Callable[[Reading], bytes]) -> Callable[[Reading], list[Row]]:
    return lambda transaction: [(key, answer(transaction))]


_ANSWERS: tuple[tuple[bytes, Callable[[Reading], list[Row]]], ...] = (
    (b"\xff\xff/cluster_file_path", _single(b"\xff\xff/cluster_file_path", lambda t: status.location(t.engine))),
    (b"\xff\xff/cluster_id", _single(b"\xff\xff/cluster_id", lambda t: status.cluster_id(t.engine))),
    (b"\xff\xff/connection_string", _single(b"\xff\xff/connection_string", lambda t: status.connection(t.engine))),
    (b"\xff\xff/status/json", _single(b"\xff\xff/status/json", lambda t: status.status_json(t.engine))),
    (CONFLICTING, lambda t: _boundaries(CONFLICTING, _conflicting(t))),
    (READ_CONFLICTS, lambda t: _boundaries(READ_CONFLICTS, read_conflicts(t))),
    (WRITE_CONFLICTS, lambda t: _boundaries(WRITE_CONFLICTS, write_conflicts(t))),
)


def _rows(transaction: Reading, begin: bytes, end: bytes) -> list[Row]:
    found: list[Row] = []
    for prefix, answer in _ANSWERS:
        if prefix < end and begin < prefix + b"\xff\xff\xff":
            found += (row for row in answer(transaction) if begin <= row[0] < end)
    return sorted(found)


def get(transaction: Reading, key: bytes) -> bytes | None:
    """The value of a key under `\\xff\\xff`; raises `Code` 2113 where there is none to ask."""
    if _module(key) is None:
        raise Code(errors.SPECIAL_KEYS_NO_MODULE_FOUND)
    rows = _rows(transaction, key, key + b"\0")
    return rows[0][1] if rows else None


def get_range(
    transaction: Reading,
    begin: tuple[bytes, bool, int],
    end: tuple[bytes, bool, int],
    limit: int,
    reverse: bool,
) -> list[Row]:
    """The rows between two selectors under `\\xff\\xff`."""
    module = _module(begin[0])
    if not transaction.options.special_relaxed:
        if module is None:
            raise Code(errors.SPECIAL_KEYS_NO_MODULE_FOUND)
        if not module[0] <= end[0] <= module[1]:
            raise Code(errors.SPECIAL_KEYS_CROSS_MODULE_READ)
    low_edge, high_edge = module if module is not None else (BEGIN, END)
    if transaction.options.special_relaxed:
        low_edge, high_edge = BEGIN, END
    known = [key for key, _ in _rows(transaction, low_edge, high_edge)]

    def resolve(selector: tuple[bytes, bool, int]) -> bytes:
        key, or_equal, offset = selector
        if or_equal:
            key += b"\0"
        if offset == 1:
            return key
        at = sum(1 for name in known if name < key) + offset - 1
        if at < 0:
            return low_edge
        return known[at] if at < len(known) else high_edge

    rows = _rows(transaction, resolve(begin), resolve(end))
    if reverse:
        rows.reverse()
    return rows[:limit] if limit else rows


def set(transaction: Writing, key: bytes, value: bytes) -> None:
    """Nothing under `\\xff\\xff` can be written here."""
    _refuse(transaction)


def clear(transaction: Writing, begin: bytes, end: bytes) -> None:
    """Nothing under `\\xff\\xff` can be cleared here."""
    _refuse(transaction)


def _refuse(transaction: Writing) -> None:
    allowed = transaction.options.special_writes
    transaction._defer(errors.SPECIAL_KEYS_NO_WRITE_MODULE_FOUND if allowed else errors.SPECIAL_KEYS_WRITE_DISABLED)


def system_get(transaction: Reading, key: bytes) -> tuple[bytes | None] | None:
    """The answer for a system key that isn't (only) stored, in a tuple; None when the key is like any other."""
    if key.startswith(idempotency.IDS):
        rows = transaction._begin().rows(key, key + b"\0", 1, False)
        return (rows[0][1] if rows else None,)
    return None
