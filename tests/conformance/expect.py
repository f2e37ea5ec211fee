"""Expectations that many conformance tests share: error codes, conflicts, the conflict ranges of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fdb_schema import fdb_error_code

READ_CONFLICTS = b"\xff\xff/transaction/read_conflict_range/"
WRITE_CONFLICTS = b"\xff\xff/transaction/write_conflict_range/"
CONFLICTING_KEYS = b"\xff\xff/transaction/conflicting_keys/"

NOT_COMMITTED = 1020
TOO_OLD = 1007
CANCELLED = 1025
TIMED_OUT = 1031
UNREADABLE = 1036
INVALID_OPERATION = 2000
OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
USED_DURING_COMMIT = 2017
TRANSACTION_TOO_LARGE = 2101
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103

WAIT = 60.0
"""Seconds after which something that must happen is taken not to happen."""


@contextmanager
def fdb_error(code: int) -> Iterator[None]:
    """The block must end with the FoundationDB error of this code."""
    with pytest.raises(Exception) as caught:
        yield
    found = fdb_error_code(caught.value)
    if found is None:
        raise caught.value
    assert found == code, f"error {found} ({caught.value!r}) where {code} was expected"


@contextmanager
def suppress_error(code: int) -> Iterator[None]:
    """The block may end with the FoundationDB error of this code, where both answers are right."""
    try:
        yield
    except Exception as error:
        if fdb_error_code(error) != code:
            raise


def commit_code(tr: Any) -> int:
    """Commit and return 0, or the code of the error."""
    try:
        tr.commit().wait()
    except Exception as error:
        code = fdb_error_code(error)
        if code is None:
            raise
        return code
    return 0


def conflicts(db: Any, reads: Callable[[Any], object], writes: Callable[[Any], object]) -> bool:
    """Whether a transaction that `reads`, then writes elsewhere, is refused after another one `writes` in between."""
    reader = db.create_transaction()
    reader.get_read_version().wait()
    reads(reader)
    reader[b"\xf0elsewhere"] = b""
    writer = db.create_transaction()
    writes(writer)
    writer.commit().wait()
    code = commit_code(reader)
    assert code in (0, NOT_COMMITTED), code
    return code == NOT_COMMITTED


def _ranges(tr: Any, space: bytes) -> list[tuple[bytes, bytes]]:
    ranges: list[tuple[bytes, bytes]] = []
    begin: bytes | None = None
    for kv in tr.get_range(space, space + b"\xff\xff"):
        key, value = bytes(kv.key)[len(space) :], bytes(kv.value)
        if value == b"1" and begin is None:
            begin = key
        elif value == b"0" and begin is not None:
            ranges.append((begin, key))
            begin = None
    if begin is not None:
        ranges.append((begin, b"\xff\xff"))
    return ranges


def read_conflict_ranges(tr: Any) -> list[tuple[bytes, bytes]]:
    """The coalesced ranges whose change would refuse the transaction."""
    return _ranges(tr, READ_CONFLICTS)


def write_conflict_ranges(tr: Any) -> list[tuple[bytes, bytes]]:
    """The coalesced ranges that the transaction would change, for the readers of them."""
    return _ranges(tr, WRITE_CONFLICTS)


def pairs(rows: Any) -> list[tuple[bytes, bytes]]:
    """Rows of a range read as plain tuples."""
    return [(bytes(kv.key), bytes(kv.value)) for kv in rows]


def keys(rows: Any) -> list[bytes]:
    """Keys of a range read."""
    return [bytes(kv.key) for kv in rows]


def value(tr: Any, key: bytes) -> bytes | None:
    """The value of a key as plain bytes, `None` where it is absent."""
    found = tr.get(key)
    found = found.wait() if hasattr(found, "wait") else found
    return bytes(found) if found is not None and found.present() else None
