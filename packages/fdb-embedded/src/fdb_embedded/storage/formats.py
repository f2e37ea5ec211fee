"""The format of a database: a newer one is refused, an older one is converted where nobody else has the database open.

1   processes took LMDB's own slots of readers
2   all keys of 511 bytes or more with one beginning of 511 were one row: (bytes of the rest(4), of the value(4), rest, value)*
3   as in keys.py
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Any

import msgpack

from ..errors import DamagedDatabase, NewerFormat
from ..pure import keys
from ..pure.keys import Row

FORMAT = 3
_LONG_KEYS = keys.META + b"long"  # in formats 1 and 2 there once such a key was written
_SIZES = Struct("<II")


def format_of(txn: Any, path: Path | None) -> int:
    """The format that the store at `path` has, 0 where it has none yet. Raises `NewerFormat` and `DamagedDatabase`."""
    data = txn.get(keys.FORMAT)
    if data is None:
        return 0
    try:
        found: int = msgpack.unpackb(data)["format"]
    except Exception as error:
        raise DamagedDatabase(f"{path}: the format record can't be read") from error
    if found > FORMAT:
        raise NewerFormat(
            f"{path}: the database has format {found}, this fdb-embedded knows {FORMAT}; upgrade fdb-embedded"
        )
    return found


def note_format(txn: Any) -> None:
    """Say that the store has this format."""
    txn.put(keys.FORMAT, msgpack.packb({"format": FORMAT}))


def convert(txn: Any, path: Path | None) -> None:
    """Make a store of an older format one of this, in one write transaction. Raises `DamagedDatabase`."""
    if txn.delete(_LONG_KEYS):
        names = [key for key in txn.cursor().iternext(True, False) if len(key) == keys.NODE]
        for name in names:
            rows = _rows(name, txn.get(name), path)
            txn.delete(name)
            for key, value in rows:
                keys.put(txn, key, value)
    note_format(txn)


def _rows(name: bytes, data: bytes, path: Path | None) -> list[Row]:
    rows = []
    at = 0
    while at + _SIZES.size <= len(data):
        rest, value = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        rows.append((name + data[at : at + rest], data[at + rest : at + rest + value]))
        at += rest + value
    if at != len(data):
        raise DamagedDatabase(
            f"{path}: the rows with keys that begin with {name!r:.40} are cut or garbled, so the database can't be converted to format "
            f"{FORMAT}; restore it from a dump or a copy, or dump it with the release that wrote it"
        )
    return rows
