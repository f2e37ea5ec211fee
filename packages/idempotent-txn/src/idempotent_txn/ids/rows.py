"""The rows that keep idempotency ids, byte by byte as FoundationDB writes them.

    prefix version(8, BE) index_high(1) → protocol_version(8, LE) timestamp(8, LE) (n(1) id(n) index_low(1))*

`version` is the commit's, so that the oldest ids are found easily; `index_high` and each id's `index_low` together are
its place in the commit batch (0 to 65535), so that the whole versionstamp can be told. At most 256 ids share a row.
`timestamp` is the unix time in seconds, for people to read: age is judged by version.

A row that is written in user space (strategy `ids`) gets its version from the commit that writes it, as a versionstamp,
which is ten bytes: its key has the low byte of the index as well, for all of the row's ids.

    prefix version(8, BE) index(2, BE)  → the same value; each id's `index_low` is 0
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from idempotent_txn.attempts.outcome import Committed

PROTOCOL_VERSION: Final = 0x0FDB00B073000000
"""FoundationDB 7.3's, whose format this is."""

_HEAD: Final = struct.Struct("<Qq")
MAX_IDS_PER_ROW: Final = 256


class RowError(ValueError):
    """Bytes that aren't a row of idempotency ids."""


@dataclass(frozen=True, slots=True)
class IdRow:
    """One row, decoded."""

    version: int
    timestamp: int
    """Unix time in seconds, for display."""
    ids: tuple[tuple[bytes, int], ...]
    """Each id with its batch index."""

    def find(self, id: bytes) -> Committed | None:
        """The commit of `id`, where it is in this row."""
        for found, index in self.ids:
            if found == id:
                return committed(self.version, index)
        return None


def committed(version: int, batch_index: int) -> Committed:
    """The answer for a version and batch index."""
    return Committed(version, batch_index, version.to_bytes(8, "big") + batch_index.to_bytes(2, "big"))


def row_key(prefix: bytes, version: int, batch_index: int) -> bytes:
    """The key of the row of a commit version and the high byte of `batch_index`."""
    return prefix + version.to_bytes(8, "big") + bytes([batch_index >> 8])


def row_value(ids: Iterable[tuple[bytes, int]], timestamp: int, protocol_version: int = PROTOCOL_VERSION) -> bytes:
    """The value of a row of `(id, batch index)` pairs that share a high byte."""
    parts = [_HEAD.pack(protocol_version, timestamp)]
    for id, index in ids:
        parts += (bytes([len(id)]), id, bytes([index & 0xFF]))
    return b"".join(parts)


def decode_row(prefix: bytes, key: bytes, value: bytes) -> IdRow:
    """Parse a row of either form.

    Raises:
        RowError: it is none.
    """
    place = key[len(prefix) :]
    if not key.startswith(prefix) or len(place) not in (9, 10):
        raise RowError(f"{key!r} is no key of a row of idempotency ids")
    if len(value) < _HEAD.size:
        raise RowError(f"the row of idempotency ids at {key!r} has only {len(value)} bytes")
    version = int.from_bytes(place[:8], "big")
    high = place[8] << 8
    low = place[9] if len(place) == 10 else None
    _, timestamp = _HEAD.unpack_from(value)
    ids: list[tuple[bytes, int]] = []
    at = _HEAD.size
    while at < len(value):
        end = at + 1 + value[at]
        if end >= len(value):
            raise RowError(f"the row of idempotency ids at {key!r} ends within an id (at byte {at} of {len(value)})")
        ids.append((value[at + 1 : end], high | (value[end] if low is None else low)))
        at = end + 1
    return IdRow(version, timestamp, tuple(ids))


def encode_row(prefix: bytes, row: IdRow) -> list[tuple[bytes, bytes]]:
    """`row` as FoundationDB writes it: one key and value per high byte of the batch index."""
    by_high: dict[int, list[tuple[bytes, int]]] = {}
    for id, index in row.ids:
        by_high.setdefault(index >> 8, []).append((id, index))
    return [
        (row_key(prefix, row.version, high << 8), row_value(ids, row.timestamp))
        for high, ids in sorted(by_high.items())
    ]


def without_id(value: bytes, id: bytes) -> bytes | None:
    """A row's value without `id`; None where no other id is left; `value` itself where `id` isn't in it."""
    kept = [value[: _HEAD.size]]
    found = False
    at = _HEAD.size
    while at < len(value):
        end = at + 1 + value[at]
        if value[at + 1 : end] == id:
            found = True
        else:
            kept.append(value[at : end + 1])
        at = end + 1
    if not found:
        return value
    return b"".join(kept) if len(kept) > 1 else None


def decode_expired_version(value: bytes | None) -> int:
    """The version up to which ids may be gone: ours (8 bytes, little-endian), or FoundationDB's own record.

    FoundationDB writes a flatbuffer: the root table's field 0 is a table whose field 0 is the version.
    """
    if not value:
        return 0
    if len(value) == 8:
        return int.from_bytes(value, "little", signed=True)
    try:
        record = _field(value, int.from_bytes(value[:4], "little"), 0)
        if record is None:
            return 0
        at = _field(value, record + int.from_bytes(value[record : record + 4], "little"), 0)
        return 0 if at is None else int.from_bytes(value[at : at + 8], "little", signed=True)
    except (IndexError, struct.error) as error:
        raise RowError(f"the expired version of idempotency ids can't be read from {value!r}") from error


def encode_expired_version(version: int) -> bytes:
    """The value that says that ids of commits up to `version` may be gone."""
    return version.to_bytes(8, "little", signed=True)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where field `number` of the flatbuffer table at `table` is; None where it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else None
