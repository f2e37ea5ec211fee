"""Dumps: a database as lines of JSON that any machine can load, complete or recognizably not.

{"fdb_embedded_dump": 1, "version": V}
{"k": "base64", "v": "base64"}
...
{"rows": N, "crc32": of all keys and values}

A row whose value begins with PRIVATE is a secret of the programs that use the database. It is left out unless it is asked for.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from ..errors import EmbeddedError, InvalidOption
from ..pure.scan import scan
from ..pure.versions import last_version

FORMAT = 1
PAGE_ROWS = 1000
BATCH_BYTES = 500_000
PRIVATE = b"mainspring:private\0"


def dump(
    engine: Any, begin: bytes, end: bytes, out: IO[str], progress: Callable[[int], None], *, private: bool = True
) -> int:
    """Write the rows of [begin, end) at one version, private ones too unless not `private`; returns how many."""
    rows = 0
    crc = 0
    with engine.store.reading() as txn:
        out.write(json.dumps({"fdb_embedded_dump": FORMAT, "version": last_version(txn)}) + "\n")
        while True:
            page = scan(txn, begin, end, PAGE_ROWS, False, engine.store.page.long_keys)
            for key, value in page:
                if not private and value.startswith(PRIVATE):
                    continue
                rows += 1
                crc = zlib.crc32(value, zlib.crc32(key, crc))
                line = {"k": base64.b64encode(key).decode(), "v": base64.b64encode(value).decode()}
                out.write(json.dumps(line) + "\n")
            progress(len(page))
            if len(page) < PAGE_ROWS:
                break
            begin = page[-1][0] + b"\0"
    out.write(json.dumps({"rows": rows, "crc32": crc}) + "\n")
    return rows


def read(source: IO[str]) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a dump; raises `InvalidOption` for what isn't one, and `EmbeddedError` at the end of a cut one."""
    first = source.readline()
    try:
        form = json.loads(first)["fdb_embedded_dump"]
        if type(form) is not int:
            raise TypeError("a format is a number")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidOption("the input isn't a dump: its first line doesn't say so") from None
    if form > FORMAT:
        raise InvalidOption(f"the dump has format {form}, this fdb-embedded knows {FORMAT}; upgrade fdb-embedded")
    rows = 0
    crc = 0
    for number, line in enumerate(source, 2):
        try:
            item = json.loads(line)
            if "rows" in item:
                if item["rows"] != rows or item["crc32"] != crc:
                    raise EmbeddedError(f"the dump is damaged: it says {item['rows']} rows, {rows} were read")
                return
            key, value = base64.b64decode(item["k"], validate=True), base64.b64decode(item["v"], validate=True)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EmbeddedError(f"the dump is damaged in line {number}") from None
        crc = zlib.crc32(value, zlib.crc32(key, crc))
        rows += 1
        yield key, value
    raise EmbeddedError(f"the dump is cut off after {rows} rows")


def load(database: Any, rows: Iterator[tuple[bytes, bytes]], progress: Callable[[int], None]) -> int:
    """Set rows in transactions of half a megabyte; returns how many."""
    count = 0
    batch: list[tuple[bytes, bytes]] = []
    size = 0

    def flush() -> None:
        transaction = database.create_transaction()
        while True:
            transaction.set_many(batch)
            try:
                transaction.commit().wait()
                break
            except Exception as error:
                if not hasattr(error, "code"):
                    raise
                transaction.on_error(error).wait()
        progress(len(batch))

    for key, value in rows:
        batch.append((key, value))
        size += len(key) + len(value)
        count += 1
        if size >= BATCH_BYTES:
            flush()
            batch, size = [], 0
    if batch:
        flush()
    return count
