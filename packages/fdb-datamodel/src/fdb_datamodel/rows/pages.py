"""Pages of whole futures, for whoever walks through all of them."""

from __future__ import annotations

from typing import NamedTuple

from fdb_datamodel.errors import StrayKeyError
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, split_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_schema import read_range


class FuturesPage(NamedTuple):
    """Futures in the order of their ids, keys between them that are no future's, and whether more follows the last."""

    futures: list[FutureRows]
    strays: list[bytes]
    more: bool


def read_futures(ch: Changes, begin: bytes, end: bytes, limit: int, *, newest_first: bool = False) -> FuturesPage:
    """The futures in about `limit` rows between two keys, by snapshot; whole ones, and one at least if there is any."""
    base = ch.keys.futures
    strays: list[bytes] = []
    while True:
        rows = read_range(ch.tr, begin, end, limit=limit, reverse=newest_first, snapshot=True)
        grouped: dict[bytes, dict[bytes, bytes]] = {}
        for key, value in rows:
            try:
                e, name = split_id(key, len(base))
            except StrayKeyError:
                strays.append(key)
            else:
                grouped.setdefault(e, {})[name] = value
        more = len(rows) == limit
        if not more or grouped:
            break
        begin, end = (begin, rows[-1][0]) if newest_first else (rows[-1][0] + b"\x00", end)
    if more and len(grouped) > 1:
        grouped.popitem()  # may be cut off: it begins the next page
    futures = [FutureRows(decode_id(e), e, named) for e, named in grouped.items()]
    if more and len(futures) == 1:
        futures = [ch.load(futures[0].id, snapshot=True)]
    return FuturesPage(futures, strays, more)


def after_future(ch: Changes, e: bytes) -> bytes:
    """Where the rows of the next future begin."""
    return ch.keys.futures + e + b"\xff"
