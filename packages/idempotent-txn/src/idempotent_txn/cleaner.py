"""Clearing what nobody can ask for any more: ids past their minimum age, and lanes of clients long silent.

A real cluster cleans its own (native) rows, so there only the rows of the strategy `ids` and the lanes are cleaned.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema import prefix_end, read_range, read_version
from fdb_schema.database import as_database
from idempotent_txn.attempts.repeat import until_committed, until_read
from idempotent_txn.ids.identity import public_form
from idempotent_txn.ids.keyspace import CLIENTS, LANES
from idempotent_txn.ids.lookup import NATIVE, USER_SPACE, IdStore
from idempotent_txn.ids.rows import IdRow, RowError, decode_expired_version, decode_row, encode_expired_version
from idempotent_txn.session import session_of

VERSIONS_PER_SECOND: Final = 1_000_000
IDEMPOTENCY_IDS_MIN_AGE_SECONDS: Final = 86_400.0
SILENT_CLIENT_SECONDS: Final = 604_800.0
POLLING_SECONDS: Final = 10.0
_ROWS_PER_TRANSACTION: Final = 1_000
_CLIENTS_PER_PAGE: Final = 1_000
_INCARNATION_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a run of the cleaner cleared."""

    rows: int = 0
    ids: int = 0
    bytes: int = 0
    """Of keys and values of those rows."""
    clients: int = 0
    """Clients whose lanes were cleared."""


@dataclass(frozen=True, slots=True)
class IdStatus:
    """What is kept of ids in one store."""

    store: str
    """"native" or "ids"."""
    rows: int
    ids: int
    bytes: int
    oldest_age: float | None
    """Seconds, by version, of the oldest row; None where there is none."""
    oldest_timestamp: int | None
    """Unix time that the oldest row shows, for people."""
    expired_version: int
    """Ids of commits up to this version may be gone; 0 where none was ever cleaned."""


class Cleaner:
    """Clears ids that are older than a minimum age, oldest first and never anything younger.

    Age is judged by version (1,000,000 a second), never by a row's timestamp. Rows are cleared and the expired version
    is raised in one transaction, so that whoever looks for an id that was cleared learns that it may have been.
    Any number of cleaners may run at once.

    Args:
        IDEMPOTENCY_IDS_MIN_AGE_SECONDS: the minimum lifetime of an id.
        silent_client_seconds: how long a client on lanes may be silent before its lanes are cleared.
    """

    def __init__(
        self,
        db: Any,
        IDEMPOTENCY_IDS_MIN_AGE_SECONDS: float = IDEMPOTENCY_IDS_MIN_AGE_SECONDS,
        *,
        silent_client_seconds: float = SILENT_CLIENT_SECONDS,
    ) -> None:
        if IDEMPOTENCY_IDS_MIN_AGE_SECONDS < 0 or silent_client_seconds < 0:
            raise ValueError("an age is not negative: give seconds from 0")
        self._db = as_database(db)
        self._min_age: Final = IDEMPOTENCY_IDS_MIN_AGE_SECONDS
        self._silence: Final = silent_client_seconds

    def run_once(self, *, dry_run: bool = False) -> Cleaned:
        """Clear all that is old enough now; `dry_run` only counts it."""
        now = current_version(self._db)
        rows = ids = size = 0
        for store in _cleaned_stores(self._db):
            horizon = now - int(self._min_age * VERSIONS_PER_SECOND)
            begin = store.at(0)
            while begin:
                cleared, begin = self._clear_oldest(store, begin, horizon, dry_run)
                rows, ids, size = rows + cleared.rows, ids + cleared.ids, size + cleared.bytes
        return Cleaned(rows, ids, size, self._clear_silent_clients(now, dry_run))

    def run(self, stop: threading.Event | None = None, interval: float = POLLING_SECONDS) -> None:
        """Clean every `interval` seconds until `stop` is set (for ever without one)."""
        stop = stop or threading.Event()
        while not stop.is_set():
            self.run_once()
            stop.wait(interval)

    def _clear_oldest(self, store: IdStore, begin: bytes, horizon: int, dry_run: bool) -> tuple[Cleaned, bytes]:
        """One transaction: the oldest rows from `begin` up to version `horizon`, and the expired version.

        Returns what it cleared, and where the next one begins (b"" where all is done).
        """
        if horizon < 0:
            return Cleaned(), b""

        def body(tr: Any) -> tuple[Cleaned, bytes]:
            store.allow_writes(tr)
            found = read_range(tr, begin, store.at(horizon + 1), limit=_ROWS_PER_TRANSACTION, snapshot=True)
            if not found:
                return Cleaned(), b""
            after = found[-1][0] + b"\0"
            rows = [_decoded(store, key, value) for key, value in found]
            if not dry_run:
                tr.clear_range(begin, after)
            if not dry_run and rows[-1].version > decode_expired_version(tr.get(store.expired_version).value):
                tr.set(store.expired_version, encode_expired_version(rows[-1].version))
            size = sum(len(key) + len(value) for key, value in found)
            cleaned = Cleaned(len(rows), sum(len(row.ids) for row in rows), size)
            return cleaned, after if len(rows) == _ROWS_PER_TRANSACTION else b""

        return until_committed(self._db, body)[0]

    def _clear_silent_clients(self, now: int, dry_run: bool) -> int:
        cleared = 0
        begin, end = CLIENTS, prefix_end(CLIENTS)
        while True:

            def page(tr: Any, begin: bytes = begin) -> list[tuple[bytes, bytes]]:
                return read_range(tr, begin, end, limit=_CLIENTS_PER_PAGE, snapshot=True)

            rows = until_read(self._db, page)
            for key, value in rows:
                seen = int.from_bytes(value[_INCARNATION_BYTES : _INCARNATION_BYTES + 8], "big")
                if now - seen > self._silence * VERSIONS_PER_SECOND:
                    cleared += dry_run or self._clear_client(key, value)
            if len(rows) < _CLIENTS_PER_PAGE:
                return cleared
            begin = rows[-1][0] + b"\0"

    def _clear_client(self, key: bytes, value: bytes) -> bool:
        lanes = LANES + key[len(CLIENTS) :]

        def body(tr: Any) -> bool:
            if tr.get(key).value != value:
                return False  # it spoke meanwhile
            tr.clear(key)
            # Two bytes number a lane; a client's name is its own prefix by its length or fixed size.
            tr.clear_range(lanes, lanes + b"\xff\xff\xff")
            return True

        return until_committed(self._db, body)[0]


def _decoded(store: IdStore, key: bytes, value: bytes) -> IdRow:
    """The row; one that is damaged holds no ids, and is as old as its key says: it is cleared like any other."""
    try:
        return decode_row(store.rows, key, value)
    except RowError:
        return IdRow(int.from_bytes(key[len(store.rows) :][:8].ljust(8, b"\0"), "big"), 0, ())


def current_version(db: Any) -> int:
    """The version that age is counted back from."""
    return until_read(db, read_version)


def id_status(db: Any) -> list[IdStatus]:
    """What is kept of ids, per store."""
    now = current_version(db)
    return [_status_of(db, store, now) for store in session_of(db).stores()]


def _status_of(db: Any, store: IdStore, now: int) -> IdStatus:
    rows = ids = size = 0
    oldest = None
    begin, end = store.at(0), prefix_end(store.rows)
    while True:

        def page(tr: Any, begin: bytes = begin) -> tuple[int, list[tuple[bytes, bytes]]]:
            store.allow_reads(tr)
            expired = decode_expired_version(tr.snapshot.get(store.expired_version).value)
            return expired, read_range(tr, begin, end, limit=_ROWS_PER_TRANSACTION, snapshot=True)

        expired, found = until_read(db, page)
        for key, value in found:
            row = _decoded(store, key, value)
            oldest = oldest or row
            rows, ids, size = rows + 1, ids + len(row.ids), size + len(key) + len(value)
        if len(found) < _ROWS_PER_TRANSACTION:
            break
        begin = found[-1][0] + b"\0"
    return IdStatus(
        store.what,
        rows,
        ids,
        size,
        None if oldest is None else max(0.0, (now - oldest.version) / VERSIONS_PER_SECOND),
        None if oldest is None else oldest.timestamp,
        expired,
    )


@dataclass(frozen=True, slots=True)
class KeptId:
    """An id that is kept with its commit."""

    id: bytes
    store: str
    version: int
    batch_index: int
    timestamp: int
    """Unix time of the commit in seconds, for people."""


def kept_ids(db: Any) -> Iterator[KeptId]:
    """Every id that is kept, read page by page; of each store the oldest first."""
    for store in session_of(db).stores():
        begin, end = store.at(0), prefix_end(store.rows)
        while begin:

            def page(
                tr: Any, begin: bytes = begin, store: IdStore = store, end: bytes = end
            ) -> list[tuple[bytes, bytes]]:
                store.allow_reads(tr)
                return read_range(tr, begin, end, limit=_ROWS_PER_TRANSACTION, snapshot=True)

            rows = until_read(db, page)
            for row in (_decoded(store, key, value) for key, value in rows):
                for id, index in row.ids:
                    yield KeptId(public_form(id), store.what, row.version, index, row.timestamp)
            begin = rows[-1][0] + b"\0" if len(rows) == _ROWS_PER_TRANSACTION else b""


def _cleaned_stores(db: Any) -> list[IdStore]:
    stores = [USER_SPACE]
    if session_of(db).offers_native() and hasattr(db.create_transaction(), "set_many"):
        stores.append(NATIVE)  # the embedded engine has no process that would clean them
    return stores
