"""Writing a transaction's overlay into the store, inside the writer section."""

from __future__ import annotations

from typing import Any

from ..pure import keys
from ..pure.overlay import Entry, Stack
from ..sharing.shared import SharedPage
from ..storage.journal import Change, Changes
from .request import Commit

FEW = 3
"""So many writes cost less one by one than sorted and in one call."""


def apply_writes(txn: Any, member: Commit, stamp: bytes, page: SharedPage, changes: Changes | None) -> list[bytes]:
    """Write a member's overlay, noting it in `changes`; returns the keys that versionstamped keys have become."""
    overlay = member.overlay
    for begin, end in overlay.clears:
        keys.delete_range(txn, begin, end)
    writes = overlay.writes
    rows: list[Change] = []
    if len(writes) <= FEW:
        for key, entry in writes.items():
            if type(entry) is bytes and 0 < len(key) <= keys.DIRECT:  # as `_put`, without the calls
                txn.put(key, entry)
                rows.append((key, entry))
            else:
                rows.append((key, _put(txn, key, entry, stamp, page)))
    else:
        order = overlay.order()
        # the empty key sorts first; it and long keys need more than a put
        if order[0] and max(map(len, order)) <= keys.DIRECT:
            rows = _put_sorted(txn, order, writes, stamp, changes is not None)
        else:
            rows = [(key, _put(txn, key, writes[key], stamp, page)) for key in order]
    stamped: list[bytes] = []
    for key, value in overlay.stamped_rows(stamp) if overlay.stamped else ():
        rows.append((key, _put(txn, key, value, stamp, page)))
        stamped.append(key)
    if changes is not None:
        changes.cleared = overlay.clears
        changes.rows = rows
    return stamped


def _put_sorted(txn: Any, order: list[bytes], writes: dict[bytes, Entry], stamp: bytes, all_rows: bool) -> list[Change]:
    """Write rows of plain keys in one call; returns them, with the deleted ones (value None) if asked."""
    put: list[tuple[bytes, bytes]] = []
    gone: list[Change] = []
    for key in order:
        entry = writes[key]
        if isinstance(entry, Stack):
            entry = entry.fold(txn.get(key) if entry.depends else None, stamp)
        if entry is None:
            txn.delete(key)
            gone.append((key, None))
        else:
            put.append((key, entry))
    if put:
        txn.cursor().putmulti(put)
    return [*put, *gone] if all_rows else []


def _put(txn: Any, key: bytes, entry: Entry, stamp: bytes, page: SharedPage) -> bytes | None:
    """Write one row; returns its new value."""
    if isinstance(entry, Stack):
        entry = entry.fold(keys.get(txn, key) if entry.depends else None, stamp)
    if entry is None:
        keys.delete(txn, key)
        return None
    if len(key) > keys.DIRECT and not page.long_keys:
        page.set_long_keys()
    keys.put(txn, key, entry)
    return entry
