"""Asking for the commit of an explicit id, and saying that nobody will ask again."""

from __future__ import annotations

from typing import Any

from fdb_schema import read_range
from idempotent_txn.attempts.outcome import CommitResult, NotCommitted
from idempotent_txn.attempts.repeat import until_committed, until_read
from idempotent_txn.errors import CommitUnknownResultFatal
from idempotent_txn.ids.identity import checked_id
from idempotent_txn.ids.lookup import PAGE_ROWS, IdStore, fence, look_up
from idempotent_txn.ids.rows import without_id
from idempotent_txn.session import session_of


def commit_result(db: Any, id: bytes, read_snapshot: int) -> CommitResult:
    """Whether the transaction with idempotency id `id` committed; any process may ask.

    First a dummy transaction commits that conflicts with the id, so that no attempt then in flight can commit any more;
    then the id is looked up among the commits since that read snapshot: in their order, so that one that committed is soon found.

    Args:
        id: the `IdempotencyId` that `run` was given.
        read_snapshot: the read version of the last attempt, as `on_attempt` told it.

    Returns:
        `Committed(version, batch_index, versionstamp)`, or `NotCommitted()`.

    Raises:
        CommitUnknownResultFatal: it isn't found, and ids of that time may have been expired.
        IdempotencyIdError: the id can't be one.
        TypeError: the read snapshot is no version, or `db` no open database.
    """
    name = checked_id(id)
    if not isinstance(read_snapshot, int) or isinstance(read_snapshot, bool):
        raise TypeError(
            f"read_snapshot must be a version (int), as `on_attempt` told it, not {type(read_snapshot).__name__} "
            f"{read_snapshot!r:.100}; without it, `find_commit` searches all ids"
        )
    stores = session_of(db).stores()
    # All that came since, and not only five seconds of versions: a snapshot's version may lag behind its transaction.
    last = fence(db, stores, name)
    fatal: CommitUnknownResultFatal | None = None
    for store in stores:
        try:
            found = look_up(db, store, name, read_snapshot, last)
        except CommitUnknownResultFatal as error:
            fatal = error  # what one store has forgotten may be in the other
        else:
            if found is not None:
                return found
    if fatal is not None:
        raise fatal
    return NotCommitted()


def find_commit(db: Any, id: bytes) -> CommitResult:
    """`commit_result` for those who lost the read snapshot: all ids that are kept are searched.

    `NotCommitted` then also stands for an id whose row was expired or cleaned.
    """
    name = checked_id(id)
    stores = session_of(db).stores()
    last = fence(db, stores, name)
    for store in stores:
        found = look_up(db, store, name, None, last)
        if found is not None:
            return found
    return NotCommitted()


def expire_idempotency_id(db: Any, id: bytes) -> bool:
    """Say that nobody will ask for `id` again, so that the database may forget it; True where it was there.

    Where this process didn't commit the id itself, all ids that are kept are searched for it.

    Raises:
        IdempotencyIdError: the id can't be one.
    """
    name = checked_id(id)
    session = session_of(db)
    version = session.recall(name)
    expired = False
    for store in session.stores():
        for key in _rows_with(db, store, store.form(name), version):
            expired = _remove(db, store, key, store.form(name)) or expired
    return expired


def _rows_with(db: Any, store: IdStore, needle: bytes, version: int | None) -> list[bytes]:
    """Keys of the rows in which `needle` may be; among those of `version` where it is known."""
    begin = store.at(0 if version is None else version)
    end = store.at((1 << 63) - 1 if version is None else version + 1)
    keys: list[bytes] = []
    while True:

        def page(tr: Any, begin: bytes = begin) -> list[tuple[bytes, bytes]]:
            store.allow_reads(tr)
            return read_range(tr, begin, end, limit=PAGE_ROWS, snapshot=True)

        rows = until_read(db, page)
        keys += [key for key, value in rows if needle in value]
        if len(rows) < PAGE_ROWS:
            return keys
        begin = rows[-1][0] + b"\0"


def _remove(db: Any, store: IdStore, key: bytes, needle: bytes) -> bool:
    there = False

    def body(tr: Any) -> None:
        nonlocal there  # also in an attempt that committed unnoticed
        store.allow_writes(tr)
        value = tr.get(key).value
        if value is None:
            return
        rest = without_id(value, needle)
        if rest is None:
            tr.clear(key)
        elif rest != value:
            tr.set(key, rest)
        there = there or rest != value

    until_committed(db, body)
    return there
