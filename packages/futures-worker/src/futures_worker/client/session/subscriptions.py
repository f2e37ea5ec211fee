"""The futures that a session holds, and of whose ends it has asked for mail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from fdb_datamodel import ClusterSpace, FutureDeletedError, UnknownFutureError, subscribe
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.basis.session_life import SessionLife
from futures_worker.client.outcome import describe
from futures_worker.client.session.expected import Expected
from futures_worker.client.session.line import Line
from futures_worker.database import ask

SUBSCRIBED_AT_ONCE: Final = 250  # futures of one transaction


class Subscriptions:
    """Of one session. Thread-safe."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        session: bytes,
        expected: Expected,
        life: SessionLife,
        line: Line,
        delivered: Callable[[], None],
        refused: Callable[[FutureRecord, BaseException], None],
    ) -> None:
        """`delivered` is called after the ends of futures were noted, `refused(record, why)` of each that is no more."""
        self._db = db
        self._space = space
        self._session = session
        self._expected = expected
        self._pending = expected.pending
        self._life = life
        self._line = line
        self._delivered = delivered
        self._refused = refused
        self._taking = threading.Lock()  # held while a record becomes this session's

    def subscribe(self, records: Sequence[FutureRecord]) -> None:
        """Hold these futures, and ask for mail of their ends. Raises UnknownFutureError, and whatever the database does."""
        self._line.interrupt()
        for start in range(0, len(records), SUBSCRIBED_AT_ONCE):
            page = records[start : start + SUBSCRIBED_AT_ONCE]
            for record in page:
                self._pending.setdefault(record.id, record)
                self.take(record)  # held first: a record of before may be let go meanwhile
            try:
                self._life.begin()
                entries = ask(self._db, subscribe, self._space, self._session, [record.id for record in page])
            except BaseException:
                for record in page:
                    if (not record.subscribed or record.ended) and self._pending.get(record.id) is record:
                        self._pending.pop(record.id, None)
                raise
            for record in page:
                record.stored = record.subscribed = True
                if not record.ended:
                    self._pending.setdefault(
                        record.id, record
                    )  # another thread, refused by the database, may have taken it out
            self._expected.settle(entries)
            self._delivered()

    def share(self, record: FutureRecord) -> bool:
        """This session holds the future for `record` too, if it does for another record; whether it does."""
        with self._taking:
            if record.life is None and self._life.share(record.id):
                record.life = self._life
        return record.life is self._life

    def take(self, record: FutureRecord) -> bool:
        """The record is this session's, which holds its future from now on; whether it wasn't."""
        with self._taking:
            if record.life is self._life:
                return False
            record.life = self._life
            self._life.hold_another(record.id)
            return True

    def take_all(self, records: Sequence[FutureRecord]) -> None:
        """The same of many."""
        for start in range(0, len(records), SUBSCRIBED_AT_ONCE):
            page = records[start : start + SUBSCRIBED_AT_ONCE]
            self._life.tell_of_holds([record.id for record in page if self.take(record)])

    def doubt_unstored(self) -> None:
        """Before `renew`: what seems not to be stored may have been committed, and have ended, and its mail be lost."""
        for record in list(self._pending.values()):
            if not record.stored:
                record.subscribed = False  # whoever stores it asks for its mail, too ...
                if record.stored:
                    record.subscribed = True  # ... or has just done so, and `renew` asks

    def renew(self) -> None:
        """After others had declared the session dead: mail, and what it held, were lost meanwhile."""
        self._life.hold_again()
        stored = [record for record in list(self._pending.values()) if record.stored]
        for start in range(0, len(stored), SUBSCRIBED_AT_ONCE):
            self._life.catch_up()  # nobody else beats meanwhile, and there may be many
            page = [record for record in stored[start : start + SUBSCRIBED_AT_ONCE] if not record.ended]
            try:
                self.subscribe(page)
            except UnknownFutureError:  # one of them is no more; the others get their mail
                for record in page:
                    self._renew_one(record)

    def _renew_one(self, record: FutureRecord) -> None:
        self._life.catch_up()
        try:
            self.subscribe([record])
        except UnknownFutureError:
            if record.in_database and not record.ended:
                self._refused(record, FutureDeletedError(
                    f"{describe(record.id, record.name)} of cluster {self._space.cluster!r} was deleted, as this client gave "
                    "no sign of life for too long: submit the work anew"
                ))  # fmt: skip
