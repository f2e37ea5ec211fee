"""The future of one call of an actor."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final, TypeVar

from fdb_datamodel import (
    ClusterSpace,
    Failure,
    FutureDeletedError,
    FutureSpec,
    UnknownFutureError,
    actors,
    cancel_future,
)
from futures_worker.client.basis.options import grace_of
from futures_worker.client.basis.record import CallRecord, FutureRecord
from futures_worker.client.future import Future
from futures_worker.client.outcome import describe
from futures_worker.client.session.calls import await_call
from futures_worker.client.session.session import Session
from futures_worker.client.session.storing import Submission
from futures_worker.database import ask

T = TypeVar("T")
UNTOLD: Final = ("actor-died", "cancelled")  # reasons of ends that the actor itself may not have recorded
CANCEL_SECONDS: Final = 1.0  # that `cancel` waits to learn whether it came in time


class Call(Future[T]):
    """It is known to the cluster once it ended, or once its `id` is read, it is pickled or passed on, or the client is flushed.

    It runs at most once: if the process that ran it died before it was recorded, it fails (ActorDiedError).
    """

    __slots__ = ()

    def cancel(self, children: bool = True, grace: float | None = None) -> bool:
        """Keep the call from beginning; True if it is cancelled, as far as is known within a second, or within `grace` seconds.

        One that runs isn't stopped: its actor goes on, and so does what it submitted. But of an actor with `concurrency` a
        coroutine is cancelled, by itself, and a method in a thread finds `cancel_requested()` true.
        """
        seconds = max(CANCEL_SECONDS, grace_of(grace) or 0.0)
        if self._record.entry is None:
            self.keep_from_beginning()
            try:
                self._await_end(self._home(), time.monotonic() + seconds, seconds)
            except TimeoutError:
                return False
        return self.cancelled()

    def keep_from_beginning(self) -> bool:
        """Ask that it doesn't begin, without waiting; False where the session has no connection by which it could ask."""
        record = None if self._record.ended else self._unanswered(self._home())
        if record is not None:
            record.link.cancel(record)
        return record is not None or self._record.ended

    def _make_durable(self) -> None:
        record = self._unanswered(self._home()) if not self._record.ended else None
        if record is not None and not record.recorded:
            record.link.record(record)
        self._make_end_known()
        super()._make_durable()

    def _make_end_known(self) -> None:
        """A call that was lost with its actor, or cancelled before it was sent, may have ended before the cluster knew of it."""
        record = self._record
        failure = record.entry.failure if record.entry is not None else None
        if not isinstance(record, CallRecord) or record.recorded or failure is None or failure.reason not in UNTOLD:
            return
        session, actor = self._home(), record.link.actor
        spec = FutureSpec(
            b"",
            b"",  # it never runs again
            record.id,
            session.id,
            (actor,),
            max_retries=0,
            max_worker_losses=0,
            max_oom=0,
            allow_reconstruction=False,
            name=record.name,
            call_options=actors.call_options(0, record.what[0]),
        )
        stored = FutureRecord(record.id, record.name, stored=False, subscribed=True)
        session.store([Submission(stored, spec, None)])
        if stored.trouble is None:  # else it, or its actor, was deleted
            with contextlib.suppress(
                FutureDeletedError, UnknownFutureError
            ):  # it was collected: this client was taken for dead
                ask(session.db, _fail, session.space, record.id, actor, failure)
            record.recorded = True

    def __reduce__(self) -> tuple[Any, ...]:
        self._make_end_known()  # what takes it as an argument fails with it
        return super().__reduce__()

    def _unanswered(self, session: Session) -> CallRecord | None:
        """The call, where the session's own connection brings its answer: not in a child of the process that made it, which may
        not touch the connection, nor once its result is lost.
        """
        record = self._record
        own = isinstance(record, CallRecord) and record.life is session.life and record.subscribed
        return record if own else None  # type: ignore[return-value]

    def _await_end(
        self, session: Session, deadline: float | None, timeout: float | None, *, reading: bool = False
    ) -> None:
        record = self._unanswered(session)
        if record is None:
            super()._await_end(session, deadline, timeout)
        elif not await_call(record, deadline):
            why = session.queries.why_unanswered(record)
            raise TimeoutError(f"{describe(record.id, record.name)} did not end within {timeout} s: {why}")


def _fail(tr: Any, space: ClusterSpace, call: bytes, actor: bytes, failure: Failure) -> None:
    if failure.reason == "cancelled":
        cancel_future(tr, space, call, failure)
    else:
        said = actors.lost_call(call, actor, "").message
        actors.fail_calls(tr, space, [call], actor, failure.message.removeprefix(said))
