"""Futures in the order of their submission, the newest first, also those whose ids a key names.

An id begins with the time it was made at, so that the order of ids is that of times; one that a key names lies anywhere,
nearly always behind all those. The first `PLACED` of these are put where they belong by the time of their submission;
where there are more, the others come at the end.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator
from typing import Any, Final

from fdb_datamodel import ClusterSpace, FutureInfo
from futures_worker.operations.finding import PAGE, Filter, walk

PLACED: Final = 2_000
_AHEAD_MS: Final = 24 * 3_600_000  # a clock that made an id may be so far ahead of this one


def newest_first(
    database: Any, space: ClusterSpace, like: Filter, after: bytes | None = None, page: int = PAGE
) -> Iterator[FutureInfo]:
    """All futures that are like this, or those that follow `after`, as `walk` yields them."""
    bound = _from(time.time_ns() // 1_000_000 + _AHEAD_MS)
    behind = _behind(database, space, like, bound, page)
    placed = sorted(itertools.islice(behind, PLACED), key=_order, reverse=True)
    begin = bound
    if after is not None and after <= bound:
        placed, begin = [one for one in placed if _order(one) < _order_of(after)], after
    elif after is not None:
        shown = next((at for at, one in enumerate(placed) if one.id == after), None)
        if shown is None:
            yield from _behind(database, space, like, bound, page, after)
            return
        begin = min(bound, _from(_order(placed[shown])[0] + 1))
        placed = placed[shown + 1 :]
    timed = walk(database, space, like, begin, newest_first=True, page=page)
    in_order = [((_order(one), one) for one in placed), ((_order_of(one.id), one) for one in timed)]
    yield from (one for _, one in heapq.merge(*in_order, key=lambda pair: pair[0], reverse=True))
    yield from behind


def _behind(
    database: Any, space: ClusterSpace, like: Filter, bound: bytes, page: int, after: bytes | None = None
) -> Iterator[FutureInfo]:
    """Those whose ids lie behind every time there was."""
    found = walk(database, space, like, after, newest_first=True, page=page, until=bound)
    return itertools.takewhile(lambda one: one.id > bound, found)


def _order(info: FutureInfo) -> tuple[int, bytes]:
    """Of one that lies behind: when it was submitted, by the wall clock."""
    return info.wall_us // 1000, info.id


def _order_of(id: bytes) -> tuple[int, bytes]:
    """Of one whose id begins with a time."""
    return int.from_bytes(id[:6], "big"), id


def _from(ms: int) -> bytes:
    """The least id that begins with a time."""
    return (ms << 80).to_bytes(16, "big")
