"""Rows of the sysdb in pages, past keys that no release wrote: such a key ends nothing, and hides none behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fdb_schema import read_range
from s3heap_tender.errors import StrayKeyError

_PAGE_PAST_STRAYS: Final = 256

_T = TypeVar("_T")


def read_known(
    tr: Any, begin: bytes, end: bytes, limit: int, read: Callable[[bytes], _T], *, reverse: bool = False
) -> list[tuple[_T, bytes, bytes]]:
    """(what `read` makes of the key, key, value) of at most `limit` rows (0: all), by snapshot."""
    found: list[tuple[_T, bytes, bytes]] = []
    page = limit
    while True:
        rows = read_range(tr, begin, end, limit=page, reverse=reverse, snapshot=True)
        for key, value in rows:
            with contextlib.suppress(StrayKeyError):
                found.append((read(bytes(key)), bytes(key), bytes(value)))
        if not page or len(rows) < page or len(found) >= limit:
            return found[:limit] if limit else found
        last = bytes(rows[-1][0])
        begin, end = (begin, last) if reverse else (last + b"\x00", end)
        page = max(page, _PAGE_PAST_STRAYS)
