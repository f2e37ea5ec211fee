"""What a session asks the database about one future, and does to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fdb_datamodel import (
    ClusterSpace,
    FutureDeletedError,
    FutureResult,
    FutureState,
    cancel_future,
    children_of,
    describe_future,
)
from futures_worker.client.diagnosis import explain
from futures_worker.client.line import Line
from futures_worker.client.outcome import Status
from futures_worker.client.reading import ResultReader
from futures_worker.database import ask
from futures_worker.errors import AuthenticationError, ObjectLostError

if TYPE_CHECKING:
    from futures_worker.client.future import Future


class FutureQueries:
    """The part of `Session` that looks at one future."""

    db: Any
    space: ClusterSpace
    line: Line
    _results: ResultReader
    _fetcher: Callable[[], Any]

    def _check_open(self) -> None:
        raise NotImplementedError

    def await_one(self, future: Future[Any], deadline: float | None, timeout: float | None) -> None:
        """See `Session`."""
        raise NotImplementedError

    def status(self, future: Future[Any]) -> Status:
        """The state and its reason, read now."""
        self._check_open()
        info = ask(self.db, describe_future, self.space, future._id, strategy="off")
        return Status(info.state, explain(self.db, self.space, info))

    def runs(self, future: Future[Any]) -> bool:
        """Whether the worker that claimed it has begun it, as that worker says."""
        self._check_open()
        info = ask(self.db, describe_future, self.space, future._id, strategy="off")
        if info.state is not FutureState.claimed or info.worker is None:
            return False
        try:
            return bool(self._fetcher().runs(info.worker.address, future._id))
        except (ObjectLostError, AuthenticationError):
            return True

    def _reason(self, future: Future[Any]) -> str:
        try:
            return str(self.status(future))
        except Exception as error:
            return f"its state can't be read ({type(error).__name__}: {error})"

    def cancel(self, future: Future[Any], children: bool) -> bool:
        """Cancel it in the database, and what its task submitted; True if it is cancelled now."""
        self._check_open()
        self.line.interrupt()
        state = ask(self.db, cancel_future, self.space, future._id)
        if children:
            cancel_children(self.db, self.space, future._id)
        if state == FutureState.failed and future._entry is None:
            self.await_one(future, None, None)
        return future.cancelled()

    def fetch(
        self, future: Future[Any], stored: FutureResult, resubmit: bool, deadline: float | None = None
    ) -> memoryview | None:
        """The bytes of a large result, see `ResultReader.fetch`."""
        return self._results.fetch(future, stored, resubmit, deadline)

    def fetch_object(self, stored: FutureResult) -> memoryview | None:
        """The bytes of a stored object; None if its holder doesn't have it any more, or can't be reached."""
        return self._results.fetch_object(stored)


def cancel_children(db: Any, space: ClusterSpace, future_id: bytes) -> None:
    """Cancel what a future's task submitted, what those submitted, and so on; what has ended stays as it is."""
    families = [future_id]
    while families:
        parent, last = families.pop(), b""
        while page := ask(db, children_of, space, parent, last, strategy="off"):
            for child in page:
                try:
                    ask(db, cancel_future, space, child)
                except FutureDeletedError:
                    continue
                families.append(child)
            last = page[-1]
