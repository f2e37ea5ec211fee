"""The future of one call of an actor."""

from __future__ import annotations

import time
from typing import Final, TypeVar

from futures_worker.client.basis.record import CallRecord
from futures_worker.client.future import Future
from futures_worker.client.outcome import describe
from futures_worker.client.session.calls import await_call
from futures_worker.client.session.session import Session

T = TypeVar("T")
CANCEL_SECONDS: Final = 1.0  # that `cancel` waits to learn whether it came in time


class Call(Future[T]):
    """It is known to the cluster once it ended, or once its `id` is read, it is pickled or passed on, or the client is flushed.

    It runs at most once: if the process that ran it died before it was recorded, it fails (ActorDiedError).
    """

    __slots__ = ()

    def cancel(self, children: bool = True) -> bool:
        """Keep the call from beginning; True if it never will, as far as is known within a second.

        One that runs isn't stopped: its actor goes on, and so does what it submitted.
        """
        if self._record.entry is None:
            session = self._home()
            record = self._unanswered(session)
            if record is not None:
                record.link.cancel(record)
            try:
                self._await_end(session, time.monotonic() + CANCEL_SECONDS, CANCEL_SECONDS)
            except TimeoutError:
                return False
        return self.cancelled()

    def _make_durable(self) -> None:
        record = self._unanswered(self._home()) if not self._record.ended else None
        if record is not None and not record.recorded:
            record.link.record(record)
        super()._make_durable()

    def _unanswered(self, session: Session) -> CallRecord | None:
        """The call, where the session's own connection brings its answer: not in a child of the process that made it, which may
        not touch the connection, nor once its result is lost.
        """
        record = self._record
        own = isinstance(record, CallRecord) and record.keeping is session.keeping and record.subscribed
        return record if own else None  # type: ignore[return-value]

    def _await_end(
        self, session: Session, deadline: float | None, timeout: float | None, *, reading: bool = False
    ) -> None:
        record = self._unanswered(session)
        if record is None:
            super()._await_end(session, deadline, timeout)
        elif not await_call(record, deadline):
            why = record.link.refused or session.reason(record.id)
            raise TimeoutError(f"{describe(record.id, record.name)} did not end within {timeout} s: {why}")
