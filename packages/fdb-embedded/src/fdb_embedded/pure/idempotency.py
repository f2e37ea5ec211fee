"""Idempotency ids kept natively: on the commit record first, then in FoundationDB's own rows.

    \\xff\\x02/idmp/ version(8, BE) batch index >> 8 (1)  -> protocol version(8) time(8, LE) (length(1) id index & 255 (1))*

An id lies on its commit's record for as long as the log keeps it. When the record is trimmed, an id that must last (option
504 alone, or a commit whose caller never got its answer) spills to a row; an automatic one (505) that was answered ends.
Reads of the rows' range show both, so a reader needs to know one format only; and who changes a row, to expire an id before
that, changes what is on the log as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import DamagedDatabase
from . import keys
from .conflict import WITHOUT_IDS, pack_record, unpack_record
from .keys import LOG, LOG_END, Row, log_key
from .ranges import Range
from .scan import entries

IDS = b"\xff\x02/idmp/"
IDS_END = b"\xff\x02/idmp0"
EXPIRED_VERSION = b"\xff\x02/idmpExpiredVersion"
SELF_CONFLICT = b"\xff/SC/"
PROTOCOL = (0x0FDB00B073000000).to_bytes(8, "little")
SPILLED = keys.META + b"spilled"
VALUE_LIMIT = 100_000

Id = tuple[bytes, int, int]  # (id, index in the batch, 1 when it ends once its commit was answered)


def rows_of(version: int, ids: Iterable[Id], seconds: int) -> list[Row]:
    """The rows of the ids of one commit version."""
    groups: dict[int, list[bytes]] = {}
    for name, index, _ in ids:
        groups.setdefault(index >> 8, []).append(bytes((len(name),)) + name + bytes((index & 255,)))
    head = PROTOCOL + seconds.to_bytes(8, "little", signed=True)
    return [(row_key(version, high << 8), head + b"".join(parts)) for high, parts in sorted(groups.items())]


def row_key(version: int, index: int) -> bytes:
    """The key of the row of a commit version and the high byte of a batch index."""
    return IDS + version.to_bytes(8, "big") + bytes((index >> 8,))


def parse_row(key: bytes, value: bytes) -> list[tuple[bytes, int, int]]:
    """The (id, version, batch index) of a row. Raises `DamagedDatabase`."""
    if len(key) < len(IDS) + 9:
        raise DamagedDatabase(f"{key!r:.80} is no key of a row of idempotency ids")
    version = int.from_bytes(key[len(IDS) : len(IDS) + 8], "big")
    high = key[len(IDS) + 8] << 8
    found = []
    at = 16
    while at < len(value):
        size = value[at]
        if at + 1 + size >= len(value):
            raise DamagedDatabase(f"the row of idempotency ids at {key!r:.80} ends within an id")
        found.append((value[at + 1 : at + 1 + size], version, high | value[at + 1 + size]))
        at += 2 + size
    return found


def spilled_to(txn: Any) -> int:
    """Up to which version the log's lasting ids are rows as well, in a database that an earlier release has changed."""
    data = txn.get(SPILLED)
    return int.from_bytes(data, "big") if data is not None else 0


def logged(txn: Any, since: int, until: int, reverse: bool = False) -> Iterator[tuple[int, list[Id], int]]:
    """(version, ids, seconds) of the commit records in [since, until] that carry ids, the newest first with `reverse`."""
    spilled = spilled_to(txn)
    for version, data in _records(txn, since, until, reverse):
        _, _, ids, seconds = unpack_record(data)
        if version <= spilled:
            ids = [item for item in ids if item[2]]
        if ids:
            yield version, ids, seconds


def _records(txn: Any, since: int, until: int, reverse: bool = False) -> Iterator[tuple[int, bytes]]:
    """(version, commit record) of those in [since, until] that carry ids."""
    stop = min(log_key(until) + b"\0", LOG_END) if until < 1 << 63 else LOG_END
    for key, data in entries(txn, log_key(max(0, since)), stop, reverse):
        if data[0] != WITHOUT_IDS:
            yield int.from_bytes(key[len(LOG) :], "big"), data


def log_rows(txn: Any, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Row]:
    """The rows of [begin, end) that ids on the log stand for, from its begin or, with `reverse`, from its end: `limit` and few more."""
    low = max(begin, IDS)
    high = min(end, IDS_END)
    if low >= high:
        return []
    found: list[Row] = []
    for version, ids, seconds in logged(txn, *_versions(low, high), reverse):
        rows = [row for row in rows_of(version, ids, seconds) if low <= row[0] < high]
        found += reversed(rows) if reverse else rows
        if len(found) >= limit:
            break
    return found


def _versions(low: bytes, high: bytes) -> tuple[int, int]:
    """The first and the last version whose rows may lie in [low, high), a part of the rows' range."""
    since = int.from_bytes(low[len(IDS) : len(IDS) + 8].ljust(8, b"\0"), "big")
    until = (1 << 63) if high == IDS_END else int.from_bytes(high[len(IDS) : len(IDS) + 8].ljust(8, b"\xff"), "big")
    return since, until


def merge_rows(stored: list[Row], virtual: list[Row]) -> list[Row]:
    """Rows by key; two of one key hold the ids of both."""
    merged = dict(stored)
    for key, value in virtual:
        before = merged.get(key)
        merged[key] = value if before is None else before + value[16:]
    return sorted(merged.items())


def spill(txn: Any, version: int, ids: Iterable[Id], seconds: int) -> None:
    """Write the rows of lasting ids, in a write transaction."""
    _store(txn, rows_of(version, [item for item in ids if not item[2]], seconds))


def _store(txn: Any, rows: list[Row]) -> None:
    for key, value in rows:
        before = txn.get(key)
        txn.put(key, value if before is None else before + value[16:])


def take_from_log(txn: Any, spans: Iterable[Range]) -> None:
    """Move the ids whose rows lie in `spans` from the log to the rows: somebody is about to change these.

    All of them, automatic ones too: whoever clears a row, or takes an id out of it, doesn't find it there any more.
    """
    spilled = spilled_to(txn)
    for begin, end in spans:
        low, high = max(begin, IDS), min(end, IDS_END)
        if low >= high:
            continue
        for version, data in list(_records(txn, *_versions(low, high))):
            points, ranges, ids, seconds = unpack_record(data)
            taken: list[Id] = []
            kept: list[Id] = []
            for item in ids:
                (taken if low <= row_key(version, item[1]) < high else kept).append(item)
            if taken:
                txn.put(log_key(version), pack_record(points, ranges, kept, seconds))
                _store(txn, rows_of(version, [item for item in taken if item[2] or version > spilled], seconds))


def find(txn: Any, name: bytes, since: int) -> tuple[int, int] | None:
    """The (version, batch index) with which an id was committed at `since` or later, or None."""
    for version, ids, _ in logged(txn, since, 1 << 63):
        for found, index, _ in ids:
            if found == name:
                return version, index
    cursor = txn.cursor()
    if cursor.set_range(IDS + max(0, since).to_bytes(8, "big")):
        for key, value in cursor.iternext(True, True):
            if key >= IDS_END:
                break
            for found, version, index in parse_row(key, value):
                if found == name:
                    return version, index
    return None
