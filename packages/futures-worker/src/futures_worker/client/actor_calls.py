"""A session's part in calls of actors: their connections, and how what they deliver reaches whoever waits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fdb_datamodel import MailEntry
from futures_worker.client.callbacks import Callbacks
from futures_worker.client.calls import Call, CallReader
from futures_worker.client.expected import Expected
from futures_worker.client.intake import Intake
from futures_worker.client.keeping import Keeping
from futures_worker.client.storing import Submission

if TYPE_CHECKING:
    from futures_worker.client.future import Future
    from futures_worker.client.session import Session


class ActorCalls:
    """The part of `Session` that is about actors."""

    callbacks: Callbacks
    keeping: Keeping
    _calls: CallReader | None
    _expected: Expected
    _intake: Intake[Submission]
    _joining: threading.Lock
    _pending: dict[bytes, Future[Any]]

    def _check_open(self) -> None:
        raise NotImplementedError

    def wake_followers(self) -> None:
        """See `Session`."""
        raise NotImplementedError

    def _session(self) -> Session:
        return self  # type: ignore[return-value]

    @property
    def calls(self) -> CallReader:
        """The session's connections to actors."""
        if self._calls is None:
            with self._joining:
                self._calls = self._calls or CallReader(self._session())
        return self._calls

    def submit_call(self, call: Call[Any]) -> None:
        """Take a call to be sent to its actor."""
        self._check_open()
        self.keeping.begin()
        self.keeping.hold(call._id)
        self._pending[call._id] = call
        self.calls.submit(call)

    def deliver_calls(self, entries: Sequence[MailEntry]) -> None:
        """Calls ended. `calls_delivered` runs their callbacks, when the caller holds no lock any more."""
        self._expected.settle(entries, self.callbacks.due, calls=True)

    def calls_delivered(self) -> None:
        """After `deliver_calls`."""
        self.wake_followers()
        self.callbacks.run_due()

    def watched(self) -> bool:
        """Whether somebody waits for several futures, or has a callback called."""
        return self._expected.has_groups or bool(self.callbacks)

    def flush_before(self, dependencies: Iterable[bytes]) -> None:
        """What another process is about to ask for is in the database: submits, and those calls of actors."""
        self._intake.flush()
        self.record_calls(dependencies)

    def make_known(self, ids: Sequence[bytes]) -> None:
        """Those of `ids` that this session made and hasn't stored are in the database."""
        made = (self._pending.get(one) for one in ids)
        if any(future is not None and not future._stored for future in made):
            self._intake.flush()
        self.record_calls(ids)

    def record_calls(self, ids: Iterable[bytes]) -> None:
        """Make those unanswered calls among `ids` known to the cluster."""
        if self._calls is not None:
            self._calls.record(ids)

    def store(self, submissions: Iterable[Submission]) -> None:
        """Store submissions that no batch waits for."""
        for submission in submissions:
            self._intake.add(submission)
        self._intake.flush()
