"""What a session asks the database about one future, and does to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fdb_datamodel import (
    ClusterSpace,
    FutureDeletedError,
    FutureState,
    actors,
    cancel_future,
    children_of,
    describe_future,
    programs,
)
from futures_worker.client.basis.diagnosis import explain
from futures_worker.client.basis.record import CallRecord, FutureRecord
from futures_worker.client.outcome import Status
from futures_worker.database import ask
from futures_worker.errors import AuthenticationError, ObjectLostError

PROGRAM_GRACE_SECONDS: Final = 30.0
"""That a program which is cancelled has to undo what it did, unless another grace is given."""


class FutureQueries:
    """Of one session. Nothing of it waits for a future."""

    def __init__(self, db: Any, space: ClusterSpace, fetcher: Callable[[], Any]) -> None:
        self._db = db
        self._space = space
        self._fetcher = fetcher

    def status(self, future_id: bytes) -> Status:
        """The state and its reason, read now."""
        info = ask(self._db, describe_future, self._space, future_id, strategy="off")
        return Status(info.state, explain(self._db, self._space, info))

    def reason(self, future_id: bytes) -> str:
        """The same for a message: also why it can't be read."""
        return str(self._told(future_id))

    def _why_unclaimed(self, future_id: bytes) -> str | None:
        told = self._told(future_id)
        waits = not isinstance(told, Status) or told.state in (FutureState.waiting, FutureState.unclaimed)
        return str(told) if waits else None

    def why_unanswered(self, call: CallRecord) -> str:
        """Why a call of an actor hasn't ended, for a message."""
        link = call.link
        if link.refused:
            return str(link.refused)
        if call.recorded:
            return self.reason(call.id)
        if link.connected:
            return f"actor {link.label} was sent it and has not answered"
        return f"it is to be sent to actor {link.label}, {self.reason(link.actor)}"

    def why_it_waits(self, record: FutureRecord) -> str | None:
        """Of what nobody has begun; None where it may run."""
        if not isinstance(record, CallRecord) or not record.subscribed:
            return self._why_unclaimed(record.id)
        return None if record.link.connected and not record.link.refused else self.why_unanswered(record)

    def _told(self, future_id: bytes) -> Status | str:
        try:
            return self.status(future_id)
        except Exception as error:
            return f"its state can't be read ({type(error).__name__}: {error})"

    def runs(self, future_id: bytes) -> bool:
        """Whether the worker that claimed it has begun it, as that worker says."""
        info = ask(self._db, describe_future, self._space, future_id, strategy="off")
        if info.state is not FutureState.claimed or info.worker is None:
            return False
        try:
            return bool(self._fetcher().runs(info.worker.address, future_id))
        except (ObjectLostError, AuthenticationError):
            return True

    def cancel(self, future_id: bytes, children: bool, grace: float | None) -> tuple[FutureState, bytes | None]:
        """Cancel it in the database, and what its task submitted; its state now, and the actor if it is the call of one. A program is told, and ends after `grace` seconds
        (by default 30): what it submitted is cancelled then. Another task has none unless one is given.
        """
        own = PROGRAM_GRACE_SECONDS if grace is None else grace

        def body(tr: Any, space: ClusterSpace) -> tuple[FutureState, bytes | None]:
            actor = actors.actor_of_call(tr, space, future_id)
            return programs.cancel_program(tr, space, future_id, own, grace or 0.0), actor

        state, actor = ask(self._db, body, self._space)
        if children and state in (FutureState.failed, FutureState.realized):
            cancel_children(self._db, self._space, future_id, grace)
        return state, actor


def cancel_children(db: Any, space: ClusterSpace, future_id: bytes, grace: float | None) -> None:
    """Cancel what a future's task submitted, what those submitted, and so on; what has ended stays as it is.

    `grace`: seconds that the tasks among them have to clean up.
    """
    families = [future_id]
    while families:
        parent, last = families.pop(), b""
        while page := ask(db, children_of, space, parent, last, strategy="off"):
            for child in page:
                try:
                    ask(db, cancel_future, space, child, grace=grace or 0.0)
                except FutureDeletedError:
                    continue
                families.append(child)
            last = page[-1]
