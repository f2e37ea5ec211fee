"""What the database knows of one actor's calls, and of where the actor is: for the link that sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fdb_datamodel import ClusterSpace, Failure, FutureSpec, MailEntry, actors, cancel_future
from futures_worker.client.basis.record import CallRecord
from futures_worker.client.session.storing import Submission
from futures_worker.database import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class LinkSession(Protocol):
    """What is asked of the session."""

    id: bytes
    db: Any
    space: ClusterSpace

    def store(self, submissions: Iterable[Submission]) -> None:
        """See `Session`."""

    def flush_before(self, dependencies: Iterable[bytes]) -> None:
        """See `Session`."""

    def deliver_calls(self, entries: list[MailEntry]) -> None:
        """See `Session`."""

    def calls_delivered(self) -> None:
        """See `Session`."""

    def wake_followers(self) -> None:
        """See `Session`."""

    def follow(self, done: Callable[[], bool], pause: float) -> None:
        """See `Session`."""


class CallRecords:
    """Of one actor, for one session. Each method is a transaction, and raises what the database does."""

    def __init__(self, session: LinkSession, actor: bytes) -> None:
        self._session = session
        self._actor = actor

    def find(self) -> actors.ActorPlace:
        """Where the actor is. Raises UnknownFutureError, FutureDeletedError."""
        place: actors.ActorPlace = ask(
            self._session.db, actors.find_actor, self._session.space, self._actor, strategy="off"
        )
        return place

    def ended(self, calls: Sequence[CallRecord]) -> list[MailEntry | None]:
        """How they ended; None of those that haven't."""
        ids = [call.id for call in calls]
        entries: list[MailEntry | None] = ask(
            self._session.db, actors.ended_calls, self._session.space, ids, strategy="off"
        )
        return entries

    def cancel(self, call: CallRecord, failure: Failure) -> MailEntry | None:
        """Cancel one; how it ended, by this or before. Raises UnknownFutureError, FutureDeletedError."""
        ask(self._session.db, cancel_future, self._session.space, call.id, failure)
        (entry,) = self.ended([call])
        return entry

    def fail(self, calls: Sequence[CallRecord], why: str) -> list[MailEntry]:
        """How those ended that were sent and not answered: in a recorded way, or they are lost."""
        recorded = [call.id for call in calls if call.recorded]
        if recorded:
            ask(self._session.db, actors.fail_calls, self._session.space, recorded, self._actor, why)
        return [
            entry or MailEntry(call.id, "failed", None, actors.lost_call(call.id, self._actor, why))
            for call, entry in zip(calls, self.ended(calls), strict=True)
        ]

    def store(self, calls: Sequence[CallRecord], start: int) -> None:
        """Make calls known to the cluster, for the actor's start `start` to find."""
        submissions = []
        for one in calls:
            method, args, dependencies = one.what
            spec = FutureSpec(
                b"",
                args,
                one.id,
                self._session.id,
                (self._actor, *dependencies),
                max_retries=0,
                max_worker_losses=0,
                max_oom=0,
                allow_reconstruction=False,
                name=one.name,
                call_options=actors.call_options(start, method),
            )
            submissions.append(Submission(one, spec, None))
        self._session.store(submissions)
        for one in calls:
            one.written = True
