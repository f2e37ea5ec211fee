"""Rows whose key ends with a versionstamp, in its order: items, and places in a line."""

from __future__ import annotations

from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.forms import is_known
from fdb_schema import read_range


def stamped_rows(
    ch: Changes, subspace: str, prefix: bytes, count: int, *, end: bytes | None = None, last: bool = False
) -> list[tuple[bytes, bytes]]:
    """The first `count` rows before `end`, or the `last`, by snapshot. Keys that no release wrote are stepped over."""
    found: list[tuple[bytes, bytes]] = []
    begin, stop = prefix + b"\x33", end or prefix + b"\x34"
    while len(found) < count:
        rows = read_range(ch.tr, begin, stop, limit=count, reverse=last, snapshot=True)
        found += [row for row in rows if is_known(ch.keys, subspace, row[0])]
        if len(rows) < count:
            break
        begin, stop = (begin, rows[-1][0]) if last else (rows[-1][0] + b"\x00", stop)
    return found[:count]
