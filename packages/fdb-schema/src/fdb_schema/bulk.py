"""Many rows by one call, on any engine.

The embedded engine moves a row in half a microsecond through its bulk methods and in three through the binding's
single ones; the official client has only the single ones, whose reads are started together before any is awaited.
The choice is made by asking for the method, once per type of transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fdb_schema.engine import Transaction

_TYPES: dict[type, bool] = {}


def _has_bulk(tr: Any) -> bool:
    kind = type(tr)
    known = _TYPES.get(kind)
    if known is None:
        known = _TYPES[kind] = hasattr(kind, "set_many") and hasattr(kind, "read_range")
    return known


def set_many(tr: Transaction, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Set every (key, value) of `items`, as so many `tr.set` would."""
    if _has_bulk(tr):
        tr.set_many(items)  # type: ignore[attr-defined]
        return
    put = tr.set
    for key, value in items:
        put(key, value)


def clear_many(tr: Transaction, keys: Iterable[bytes]) -> None:
    """Clear every key of `keys`, as so many `tr.clear` would."""
    if _has_bulk(tr):
        tr.clear_many(keys)  # type: ignore[attr-defined]
        return
    clear = tr.clear
    for key in keys:
        clear(key)


def get_many(tr: Transaction, keys: Sequence[bytes], snapshot: bool = False) -> list[bytes | None]:
    """Values of `keys`, in their order, None where there is none; reads run in parallel."""
    if _has_bulk(tr):
        values: list[bytes | None] = tr.get_many(keys, snapshot)  # type: ignore[attr-defined]
        return values
    get = tr.snapshot.get if snapshot else tr.get
    pending = [get(key) for key in keys]
    return [value.value for value in pending]


def read_range(
    tr: Transaction,
    begin: bytes,
    end: bytes,
    *,
    limit: int = 0,
    reverse: bool = False,
    snapshot: bool = False,
) -> list[tuple[bytes, bytes]]:
    """Rows of [begin, end) as (key, value), at most `limit` where it isn't 0, from the end where `reverse`."""
    if _has_bulk(tr):
        rows: list[tuple[bytes, bytes]] = tr.read_range(begin, end, limit, reverse, snapshot)  # type: ignore[attr-defined]
        return rows
    reader = tr.snapshot if snapshot else tr
    # -2: want_all of the binding's StreamingMode, the fewest round trips for a bounded read.
    return [(row.key, row.value) for row in reader.get_range(begin, end, limit, reverse, -2)]


def read_ahead(tr: Transaction, ranges: Iterable[tuple[bytes, bytes, int]]) -> list[Any]:
    """Start reading ranges (begin, end, limit) that are about to be read one after another, so that they come together.

    The rows wait in the transaction's own cache, without a conflict range; the reads that follow find them there. Keep what
    is returned until then. An engine that answers at once has nothing to start.
    """
    if _has_bulk(tr):
        return []
    reader = tr.snapshot
    return [reader.get_range(begin, end, limit, False, -2) for begin, end, limit in ranges]


def read_version(tr: Transaction) -> int:
    """The transaction's read version, for comparing and storing; who will `set_read_version` it asks `get_read_version`.

    An engine that keeps everything a version shows for as long as that version may be asked for again is spared that.
    """
    peek = getattr(tr, "peek_read_version", None)
    return int(tr.get_read_version().wait() if peek is None else peek())


def add_read_conflict_keys(tr: Transaction, keys: Iterable[bytes]) -> None:
    """Make the transaction conflict with any commit that writes one of `keys`."""
    if _has_bulk(tr):
        tr.add_read_conflict_keys(keys)  # type: ignore[attr-defined]
        return
    add = tr.add_read_conflict_key
    for key in keys:
        add(key)
