"""Counting futures cheaply: one small record of each, by pages or by id, for whoever shows totals and rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fdb_schema import ClusterSpace, Transaction

from .changes import Changes, FutureRows
from .elements import encode_id
from .errors import DamagedFutureError
from .pages import after_future, read_futures
from .space import ARGS, CLAIM, CODE, DUE, FAILURE, LATEST_RESULT
from .states import FutureState

_ROWS_OF_ANY_FUTURE = 64  # more than a future can have: a page always holds a whole one
_NAMES = (CODE, ARGS, FAILURE, CLAIM, LATEST_RESULT, DUE)


class Counted(NamedTuple):
    """What a count needs of a future. Wall times are µs since 1970 and for people; 0 where it hasn't happened."""

    id: bytes
    state: FutureState
    submitted_us: int
    started_us: int  # of the latest attempt
    ended_us: int


def census_page(
    tr: Transaction, space: ClusterSpace, after: bytes | None = None, rows: int = 5000
) -> tuple[list[Counted], bytes | None]:
    """The futures in about `rows` rows (64 at least) after the id `after`, by id, and where the next page starts.

    None: nothing follows. By snapshot.
    """
    rows = max(rows, _ROWS_OF_ANY_FUTURE)
    ch = Changes(tr, space)
    base = ch.keys.futures
    begin = after_future(ch, encode_id(after)) if after is not None else base
    page = read_futures(ch, begin, base + b"\xff", rows)
    return _count(ch, page.futures), page.futures[-1].id if page.more and page.futures else None


def recount(tr: Transaction, space: ClusterSpace, ids: Sequence[bytes]) -> list[Counted]:
    """The same of certain futures, by snapshot; those that are unknown or deleted are left out."""
    ch = Changes(tr, space)
    encoded = [encode_id(one) for one in ids]
    values = ch.get_many([ch.keys.future(e, name) for e in encoded for name in _NAMES], True)
    futures = []
    for at, (one, e) in enumerate(zip(ids, encoded, strict=True)):
        mine = values[at * len(_NAMES) : (at + 1) * len(_NAMES)]
        futures.append(FutureRows(one, e, {n: v for n, v in zip(_NAMES, mine, strict=True) if v is not None}))
    return _count(ch, futures)


def _count(ch: Changes, futures: Sequence[FutureRows]) -> list[Counted]:
    counted = []
    for f in futures:
        if CODE in f.rows:
            try:
                counted.append(_count_one(ch, f))
            except DamagedFutureError:  # it is failed where somebody meets it who may write
                counted.append(Counted(f.id, FutureState.failed, f.submitted, 0, 0))
    return counted


def _count_one(ch: Changes, f: FutureRows) -> Counted:
    submitted = f.submitted
    claim = f.claim
    started = claim[2] if claim is not None else 0
    if f.failed:
        failure = f.failure
        return Counted(f.id, FutureState.failed, submitted, started, failure.wall_us if failure else 0)
    if f.realized:
        result = f.result
        return Counted(f.id, FutureState.realized, submitted, started, result.wall_us if result else 0)
    if f.claimed:
        return Counted(f.id, FutureState.claimed, submitted, started, 0)
    waits = f.backing_off or (bool(f.dependencies) and _has_edges(ch, f.e))
    return Counted(f.id, FutureState.waiting if waits else FutureState.unclaimed, submitted, 0, 0)


def _has_edges(ch: Changes, e: bytes) -> bool:
    return bool(ch.read_ids(ch.keys.dependencies + e, limit=1, snapshot=True))
