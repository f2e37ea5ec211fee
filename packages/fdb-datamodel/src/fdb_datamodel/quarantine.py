"""A future with a damaged row is failed for good, with what was found as its reason, and everything else goes on.

What works on many futures in one transaction (a worker's turn, a sweep, giving back what a dead worker held) raises
`DamagedFutureError` where it meets one. `run_apart` then fails that one in a transaction of its own, and begins again.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

from fdb_datamodel.errors import DamagedFutureError
from fdb_datamodel.lifecycle.endings import fail_for_good, finish, write_failure
from fdb_datamodel.lifecycle.holdings import (
    addresses,
    claim_key,
    first_of,
    held_claims,
    keep_listed,
    members,
    unlist,
)
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.ids import as_id, show_id
from fdb_datamodel.rows.pages import after_future, read_futures
from fdb_datamodel.rows.records import NO_SESSION, Failure, WorkerId
from fdb_datamodel.rows.space import CLAIM, CODE, FAILURE, LATEST_RESULT, layout_of, span
from fdb_schema import ClusterSpace, Transaction
from idempotent_txn import run

MOST_AT_ONCE: Final = 1000
"""Damaged futures that one call fails before it gives up."""
MOST_SESSIONS: Final = 1000
"""Sessions that are told of a future whose owner can't be read."""
DAMAGED: Final = "damaged"
"""The reason of such a failure."""

_PAGE_ROWS = 2000

_T = TypeVar("_T")
log = logging.getLogger("fdb_datamodel")


def quarantine_future(
    tr: Transaction, space: ClusterSpace, future_id: UUID | bytes, why: str = "", key: bytes | None = None
) -> bool:
    """Fail a future whose rows are damaged (row `cancel_future`): those are dropped, and its waiters are told.

    key: a damaged row elsewhere that belongs to it. Whether there was such a future. Again: nothing changes.
    """
    ch = Changes(tr, space)
    f = ch.load(as_id(future_id))
    if key is not None:
        ch.clear(key)
    wrong = f.check()
    if not f.exists or f.deleted or (f.failed and not wrong):
        ch.flush()
        return False
    found = "; ".join(f"{name.decode(errors='replace').strip(chr(0))}: {text}" for name, text in wrong.items()) or why
    failure = Failure(DAMAGED, f"a row of future {show_id(f.id)} is damaged, so it can't be run: {found}"[:2000])
    ended = f.ended or LATEST_RESULT in wrong
    if CLAIM in wrong:
        _forget_holders(ch, f)
    for name in wrong:
        ch.put(f, name, None)
    unknown = CODE not in f.rows
    if unknown:
        ch.put(f, CODE, codec.pack_code(NO_SESSION, b"", ch.wall_us))
    if ended:
        _drop_copies(ch, f.e)
        for name in (LATEST_RESULT, FAILURE):
            ch.put(f, name, None)
        ch.drop_claim(f)
        write_failure(ch, f, failure)
    else:
        fail_for_good(ch, f, failure, tell_worker=True)
    if unknown:
        _tell_all(ch, f)
    finish(ch)
    return True


def _forget_holders(ch: Changes, f: FutureRows) -> None:
    """Who holds it can't be read: no worker's row lists it any more, so that no result of it counts, and whose did is told."""
    for at in addresses(ch):
        for held in held_claims(ch, at.ip, at.port, snapshot=True, readable=True):
            if held.id == f.id:
                unlist(ch, held)
                ch.send(held.incarnation, f.id, "cancel", None, f.epoch)


def _drop_copies(ch: Changes, e: bytes) -> None:
    """Forget the rows of copies; their holders find out when they look which of their objects are recorded."""
    prefix = ch.keys.results + e
    for key, _ in ch.read(prefix, prefix + b"\xff"):
        ch.clear(key)


def _tell_all(ch: Changes, f: FutureRows) -> None:
    """Whose future it was can't be read: every session is mailed, and those that don't wait for it pass over it."""
    for _, session, _ in ch.read_ids(ch.keys.sessions, limit=MOST_SESSIONS, snapshot=True):
        ch.send(decode_id(session), f.id, "failed", f.rows[FAILURE], f.epoch)


def run_apart(db: Any, space: ClusterSpace, function: Callable[..., _T], *args: Any, **options: Any) -> _T:
    """`run(db, function, *args, **options)`; futures with damaged rows that it meets are failed, each by itself.

    Raises what `run` raises, and `DamagedFutureError` where there are very many.
    """
    for _ in range(MOST_AT_ONCE):
        try:
            return run(db, function, *args, **options)
        except DamagedFutureError as error:
            set_apart(db, space, error)
    return run(db, function, *args, **options)


def set_apart(db: Any, space: ClusterSpace, error: DamagedFutureError) -> None:
    """Fail the future that an error is about, in a transaction of its own; before it those that wait for it and are damaged too."""
    pending = [error]
    while pending:
        one = pending[-1]
        if _relisted(db, space, one):
            pending.pop()
            continue
        try:
            run(db, quarantine_future, space, one.id, one.why, one.key)
        except DamagedFutureError as other:
            if _relisted(db, space, other):
                continue  # of one whose claim that row lists
            if len(pending) == MOST_AT_ONCE or other.id in {known.id for known in pending}:
                raise
            pending.append(other)
        else:
            log.error("future %s is failed, its data are damaged: %s", show_id(one.id), one.why)
            pending.pop()


def _relisted(db: Any, space: ClusterSpace, error: DamagedFutureError) -> bool:
    """Whether what is damaged is a row that lists several claims, which is made anew, and no future."""
    if error.key is None or not relist_claims(db, space, error.key):
        return False
    log.error("a worker's row of the claims that it holds was damaged, and is made anew: %s", error.why)
    return True


def relist_claims(db: Any, space: ClusterSpace, key: bytes) -> bool:
    """Make a worker's row anew that lists several claims and is damaged, from the futures that say they are in it; False: it is no such row.

    Looks at every future, in pages.
    """
    keys = layout_of(space)
    try:
        ip, port, name, *_ = space["workers"].unpack(key) if key.startswith(keys.workers) else ("", 0, "")
    except (ValueError, IndexError, TypeError, struct.error):
        return False
    first = first_of(key, len(keys.claim_rows(ip, port))) if name == "claim_future" else None
    if first is None or not first[1]:
        return False
    found: list[bytes] = []
    begin: bytes | None = keys.futures
    while begin is not None:
        page, begin = run(db, _claimed_in, space, key, begin)
        found += page
    run(db, _relist, space, key, found)
    return True


def _claimed_in(tr: Transaction, space: ClusterSpace, key: bytes, begin: bytes) -> tuple[list[bytes], bytes | None]:
    """A page of the futures whose claim is listed by a row, by snapshot, and where the next one begins."""
    ch = Changes(tr, space)
    page = read_futures(ch, begin, span(ch.keys.futures)[1], _PAGE_ROWS)
    found = [f.id for f in page.futures if _lists(ch, key, f) is not None]
    return found, after_future(ch, page.futures[-1].e) if page.more and page.futures else None


def _lists(ch: Changes, key: bytes, f: FutureRows) -> WorkerId | None:
    """Whose row lists the claim of a future, if it is this one."""
    with contextlib.suppress(DamagedFutureError):  # it is failed where somebody meets it
        claim = f.claim
        if f.claimed and claim is not None and claim_key(ch, claim[1], f.e, claim[0], f.claimed_with) == key:
            return claim[1]
    return None


def _relist(tr: Transaction, space: ClusterSpace, key: bytes, ids: list[bytes]) -> None:
    ch = Changes(tr, space)
    try:
        if not members(key, ch.get_many([key])[0], ids[0] if ids else b""):
            return  # it is gone
    except DamagedFutureError:
        held = {f.id: worker.incarnation for f in map(ch.load, ids) if (worker := _lists(ch, key, f)) is not None}
        keep_listed(ch, key, held)
        ch.flush()


__all__ = ["DAMAGED", "quarantine_future", "run_apart", "set_apart"]
