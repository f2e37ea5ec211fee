"""Finding a commit by its id: the dummy commit, then the scan of the versions it can have committed at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fdb_schema import read_range
from idempotent_txn.attempts.outcome import Committed
from idempotent_txn.attempts.repeat import until_committed, until_read
from idempotent_txn.errors import CommitUnknownResultFatal
from idempotent_txn.ids.identity import native_form
from idempotent_txn.ids.keyspace import (
    CONFLICTS,
    EXPIRED_VERSION,
    NATIVE_CONFLICTS,
    NATIVE_EXPIRED_VERSION,
    NATIVE_ROWS,
    ROWS,
)
from idempotent_txn.ids.rows import decode_expired_version, decode_row

PAGE_ROWS: Final = 5_000


@dataclass(frozen=True, slots=True)
class IdStore:
    """One of the places where ids are kept with their commits."""

    what: str
    rows: bytes
    """Prefix of the rows (`idempotent_txn.ids.rows`)."""
    conflicts: bytes
    """Prefix of the keys on which attempts with one id conflict."""
    expired_version: bytes
    """Key of the version up to which ids may be gone."""
    system: bool
    """Whether the keys are FoundationDB's own, and need its options."""

    def form(self, id: bytes) -> bytes:
        """How an explicit id is written here."""
        return native_form(id) if self.system else id

    def allow_reads(self, tr: Any) -> None:
        if self.system:
            tr.options.set_read_system_keys()

    def allow_writes(self, tr: Any) -> None:
        if self.system:
            tr.options.set_access_system_keys()

    def at(self, version: int) -> bytes:
        """The first key of the rows of `version`."""
        return self.rows + max(0, version).to_bytes(8, "big")


NATIVE: Final = IdStore("native", NATIVE_ROWS, NATIVE_CONFLICTS, NATIVE_EXPIRED_VERSION, system=True)
USER_SPACE: Final = IdStore("ids", ROWS, CONFLICTS, EXPIRED_VERSION, system=False)


def fence(db: Any, stores: Sequence[IdStore], id: bytes) -> int:
    """The dummy commit: afterwards no attempt with `id` that was in flight can commit. Returns its commit version.

    Each attempt has a read conflict on the id's key, and the dummy writes there (in conflict ranges alone).
    """

    def body(tr: Any) -> None:
        for store in stores:
            store.allow_writes(tr)
            key = store.conflicts + store.form(id)
            tr.add_read_conflict_key(key)
            tr.add_write_conflict_key(key)

    return until_committed(db, body)[1]


def look_up(db: Any, store: IdStore, id: bytes, first: int | None, last: int) -> Committed | None:
    """The commit of `id` among the versions `first` to `last`, once nothing of it is in flight.

    Without `first` among all that is kept: whoever asks so knows that an id may have been expired.

    Raises:
        CommitUnknownResultFatal: it isn't there, and ids of that time may have been expired.
    """
    needle = store.form(id)
    begin, end = store.at(first or 0), store.at(last + 1)
    while True:

        def page(tr: Any, begin: bytes = begin) -> tuple[int, list[tuple[bytes, bytes]]]:
            store.allow_reads(tr)
            expired = decode_expired_version(tr.snapshot.get(store.expired_version).value)
            return expired, read_range(tr, begin, end, limit=PAGE_ROWS, snapshot=True)

        expired, rows = until_read(db, page)
        for key, value in rows:
            if needle in value:
                found = decode_row(store.rows, key, value).find(needle)
                if found is not None:
                    return found
        if len(rows) < PAGE_ROWS:
            break
        begin = rows[-1][0] + b"\0"
    # 0: nothing was ever expired, also for a read version of 0 (a database without a commit).
    if first is not None and expired and expired >= first:
        raise CommitUnknownResultFatal(
            f"the outcome of the transaction with idempotency id {id.hex()} can't be told any more: ids of commits up "
            f"to version {expired} may have been expired, and its attempt began at {first}; look at the data instead"
        )
    return None
