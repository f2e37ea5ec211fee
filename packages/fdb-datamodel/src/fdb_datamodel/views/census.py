"""Counting futures cheaply: one small record of each, by pages or by id, for whoever shows totals and rates."""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import NamedTuple

from fdb_datamodel.errors import DamagedFutureError
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.pages import after_future, read_futures
from fdb_datamodel.rows.records import NO_SESSION
from fdb_datamodel.rows.space import ARGS, AWAY, CLAIM, CODE, DUE, FAILURE, LATEST_RESULT, LIMITS, NUM_ATTEMPTS, OPTIONS
from fdb_datamodel.rows.states import FutureState
from fdb_schema import ClusterSpace, Transaction

_ROWS_OF_ANY_FUTURE = 64  # more than a future can have: a page always holds a whole one
_NAMES = (CODE, ARGS, FAILURE, CLAIM, LATEST_RESULT, DUE, AWAY, LIMITS, OPTIONS, NUM_ATTEMPTS)


class Counted(NamedTuple):
    """What a count needs of a future. Wall times are µs since 1970 and for people; 0 where it hasn't happened.

    worker: `ip:port` of who has it, made its result, or had it when it failed; "" where nobody did. session: of who
    submitted it. dataset: as in `FutureSpec`.
    """

    id: bytes
    state: FutureState
    submitted_us: int
    started_us: int  # of the latest attempt
    ended_us: int
    name: str = ""
    worker: str = ""
    attempts: int = 0
    session: bytes = NO_SESSION
    dataset: bytes = b""


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
    submitted, name, claim = f.submitted, intern(f.name), f.claim  # whoever keeps many keeps few names
    whose = f.attempts, f.session, f.option("dataset")
    started, worker = (claim[2], intern(f"{claim[1].ip}:{claim[1].port}")) if claim is not None else (0, "")
    if f.failed:
        failure = f.failure
        if failure is None:
            return Counted(f.id, FutureState.failed, submitted, started, 0, name, worker, *whose)
        began, by = failure.began_us or started, failure.worker or worker
        return Counted(f.id, FutureState.failed, submitted, began, failure.wall_us, name, by, *whose)
    if f.realized:
        result = f.result
        ended = result.wall_us if result else 0
        return Counted(f.id, FutureState.realized, submitted, started, ended, name, worker, *whose)
    if f.claimed:
        return Counted(f.id, FutureState.claimed, submitted, started, 0, name, worker, *whose)
    waits = f.backing_off or (bool(f.dependencies) and _has_edges(ch, f.e))
    state = FutureState.waiting if waits else FutureState.unclaimed
    return Counted(f.id, state, submitted, 0, 0, name, "", *whose)


def _has_edges(ch: Changes, e: bytes) -> bool:
    return bool(ch.read_ids(ch.keys.dependencies + e, limit=1, snapshot=True))
