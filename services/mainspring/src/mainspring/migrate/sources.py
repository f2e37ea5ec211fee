"""Reading a database as one snapshot, though no transaction lives long enough to read all of it.

An embedded source that stands still keeps the version of its last commit, so a look at that proves each page. The versions of a cluster
go on by themselves. There each page's transaction commits with a conflict range over everything, so that it fails where
anything was written since the page before: a chain of such commits proves that all pages together are one snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from fdb_schema import fdb_error_code, read_range
from fdb_schema.errors import NOT_COMMITTED, TRANSACTION_TOO_OLD
from idempotent_txn import run
from mainspring.migrate.errors import SnapshotBrokenError, SourceInUseError

MARK: Final = b"\x15\x00migrate"
END: Final = b"\xff"
PAGE_ROWS = 1_000
STILL_SECONDS: Final = 1.5
_BEHIND_ALL: Final = b"\xfe\xff"

Row = tuple[bytes, bytes]


def version_of(db: Any) -> int:
    """The read version; of an embedded database the version of its last commit, which stays while nobody commits."""
    engine = _engine_of(db)
    if engine is not None:
        return int(engine.store.last_version())
    return int(run(db, lambda tr: tr.get_read_version().wait(), strategy="off"))


def _engine_of(db: Any) -> Any:
    return getattr(getattr(db, "dpointer", None), "engine", None)


def identity_of(db: Any) -> bytes:
    """What tells this database from every other."""
    return bytes(run(db, lambda tr: tr.get(b"\xff\xff/cluster_id").value or b"", strategy="off"))


class Pages:
    """The rows of a database, a thousand at a time, or fewer where they are so large that a page isn't read in time."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self._most = PAGE_ROWS

    def page(self, begin: bytes) -> list[Row]:
        """The next rows, none at the end."""
        tr = self.db.create_transaction()
        while True:
            try:
                rows = self._read(tr, begin)
            except Exception as error:
                code = fdb_error_code(error)
                if code is None:
                    raise
                self._look_at(code, error)
                if code == TRANSACTION_TOO_OLD:
                    self._most = max(1, self._most // 4)
                tr.on_error(error).wait()
            else:
                self._most = min(PAGE_ROWS, 2 * self._most)
                return rows

    def _read(self, tr: Any, begin: bytes) -> list[Row]:
        return read_range(tr, begin, END, limit=self._most, snapshot=True)

    def _look_at(self, code: int, error: Exception) -> None:
        """Raises where there is no use in trying again."""


class EmbeddedSource(Pages):
    """A database whose version changes with each commit and never else."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.identity: Final = identity_of(db)
        self.version: Final = version_of(db)
        self.noted: Final = self.version
        """The version that an unfinished copy must have been made at, to go on."""

    def begin_snapshot(self) -> None:
        """The pages from here on are to be one snapshot: they are anyway."""

    def _read(self, tr: Any, begin: bytes) -> list[Row]:
        rows = super()._read(tr, begin)
        found = version_of(self.db)  # looked at afterwards: until then nothing was committed that the rows could show
        if found != self.version:
            raise SourceInUseError(
                f"the source was written to during the copy (version {self.version}, now {found}): stop every service "
                "and client of it, clear the target, and begin anew"
            )
        return rows


class ClusterSource(Pages):
    """A database whose version says nothing. Nothing is written to it: the commits have conflict ranges alone."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.identity: Final = identity_of(db)
        self.version: Final = version_of(db)
        self.noted: Final = 0
        """An unfinished copy goes on whenever it was made: what counts is the comparison at the end."""
        self._proved: int | None = None  # nothing was written between the begin of the snapshot and this version

    def begin_snapshot(self) -> None:
        """The pages from here on are to be one snapshot."""
        self._proved = None

    def _read(self, tr: Any, begin: bytes) -> list[Row]:
        if self._proved is not None:
            tr.set_read_version(self._proved)
        rows = super()._read(tr, begin)
        tr.add_read_conflict_range(b"", MARK)
        tr.add_read_conflict_range(MARK + b"\0", END)
        tr.add_write_conflict_key(MARK)  # which makes it more than a transaction that only reads
        tr.commit().wait()
        self._proved = tr.get_committed_version()
        return rows

    def _look_at(self, code: int, error: Exception) -> None:
        if code == NOT_COMMITTED:
            raise SourceInUseError(
                "the source was written to while it was read: stop every service and client of it, clear the target, and "
                "begin anew"
            ) from error
        if code == TRANSACTION_TOO_OLD and self._proved is not None and self._most == 1:
            raise SnapshotBrokenError(
                "the source was read too slowly to tell whether it was written to meanwhile: give the same command again "
                "when both databases have less to do"
            ) from error


Source = EmbeddedSource | ClusterSource


def source_of(db: Any) -> Source:
    """The way to read `db`."""
    return ClusterSource(db) if _engine_of(db) is None else EmbeddedSource(db)


def check_still(db: Any, seconds: float = STILL_SECONDS) -> None:
    """Raises `SourceInUseError` where anything is committed within `seconds`; services commit several times a second."""
    source = source_of(db)
    try:
        source.page(_BEHIND_ALL)
        time.sleep(seconds)
        source.page(_BEHIND_ALL)
    except SourceInUseError as error:
        raise SourceInUseError(
            "the source is in use: something commits to it. Stop every service and client; `mainspring status` lists workers, "
            "`mainspring leases sessions` other processes"
        ) from error


def rows_of(page: Callable[[bytes], list[Row]], begin: bytes = b"") -> Iterator[Row]:
    """Every row from `begin` on, read in pages."""
    while rows := page(begin):
        yield from rows
        begin = rows[-1][0] + b"\0"
