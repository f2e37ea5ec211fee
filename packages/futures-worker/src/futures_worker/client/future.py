"""The handle of one future: the client's side of rows in the database."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from fdb_datamodel import MailEntry
from futures_worker.client.outcome import Status, failure_exception
from futures_worker.client.streaming import ResultStream
from futures_worker.errors import ObjectLostError
from futures_worker.payload import load_own, note_contained, reference_to
from futures_worker.streams import StreamedItems

if TYPE_CHECKING:
    from futures_worker.client.home import Home
    from futures_worker.client.session import Session

T = TypeVar("T")
A = TypeVar("A")


class Future(Generic[T]):
    """A durable future. Made by `Client.submit`, `map`, `put` or `get_future`, never directly.

    It is a name for something in the database: it can be passed to tasks (anywhere inside their arguments, where it
    stands for its result), pickled, and found again by its `id` from another process.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_entry",
        "_epoch",
        "_error",
        "_home",
        "_id",
        "_name",
        "_session",
        "_stored",
        "_streams",
        "_subscribed",
        "_trouble",
        "_value",
    )

    def __init__(self, home: Home, future_id: bytes, name: str = "", *, stored: bool, subscribed: bool) -> None:
        self._home = home  # how to find the session to wait in
        self._session: Session | None = None  # that the future is known to, once it is
        self._id = future_id
        self._name = name
        self._stored = stored  # whether the submit is committed
        self._subscribed = subscribed  # whether its end will be mailed to the session
        self._streams = False  # whether it is known to yield items
        self._entry: MailEntry | None = None  # how it ended, once mailed
        self._epoch = 0  # mail of an earlier epoch is old news
        self._trouble: BaseException | None = None  # why it couldn't be submitted
        self._error: BaseException | None = None  # what it failed with, once it was asked for
        self._value: Any = _UNREAD
        self._callbacks: list[Callable[[Future[T]], object]] | None = None

    @property
    def id(self) -> UUID:
        """The future's id, by which any process finds it (`client.get_future`). The submit is durable once this returns."""
        self._make_durable()
        return UUID(bytes=self._id)

    @property
    def name(self) -> str:
        """The name given at submit, or the function's."""
        return self._name

    def result(self, timeout: float | None = None, resubmit_if_object_lost: bool = True) -> T:
        """The value, once there is one.

        Args:
            timeout: seconds to wait in all, whatever happens meanwhile; None waits for ever.
            resubmit_if_object_lost: compute the result anew if every copy of it died with its workers.

        Raises:
            Exception: what the task raised, of its original type, with the remote traceback as its `__cause__`.
            FutureFailedError: or the subclass that says why there is no result.
            concurrent.futures.CancelledError: it was cancelled.
            ObjectLostError: every copy is gone, and it may not be (or is not to be) computed again.
            TimeoutError: not done in time; the message says what it is waiting for.
        """
        if self._value is not _UNREAD:
            return self._value  # type: ignore[no-any-return]
        session = self._home()
        deadline = session.deadline(timeout)
        if self._streams:
            self._value = list(ResultStream(self, timeout, deadline))
            return self._value  # type: ignore[no-any-return]
        while True:
            if self._entry is None:
                self._await_end(session, deadline, timeout, reading=True)
                if self._streams:
                    self._value = list(ResultStream(self, timeout, deadline))
                    return self._value
            error = self._exception()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # a traceback that refers to its own exception is never freed in time
            stored = self._entry.result if self._entry is not None else None
            if stored is None:
                raise ObjectLostError(f"{self!r} is realized but no result is recorded: run the cluster's validate()")
            if stored.inline is not None:
                self._value = load_own(stored.inline)
                if type(self._value) is StreamedItems:
                    self._value = list(ResultStream(self, timeout, deadline))
                return self._value  # type: ignore[no-any-return]
            data = session.fetch(self, stored, resubmit_if_object_lost, deadline)
            if data is not None:
                self._value = load_own(data)
                return self._value  # type: ignore[no-any-return]

    def stream(self, timeout: float | None = None) -> ResultStream[Any]:
        """What the future's generator yields, item by item: `for item in f.stream()`, or `async for`.

        Items are there as soon as they are yielded, and stay until the future is deleted; each call begins with the first.
        While nobody takes them, the generator pauses after 100.

        Args:
            timeout: seconds to wait for each item; None waits for ever.

        Raises, after the last item, what `result` raises; TimeoutError; TypeError where the function was no generator.
        """
        return ResultStream(self, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise, or None; waits like `result`.

        Raises TimeoutError, and CancelledError if the future was cancelled.
        """
        if self._entry is None:
            session = self._home()
            self._await_end(session, session.deadline(timeout), timeout)
        error = self._exception()
        if isinstance(error, CancelledError):
            raise error
        return error

    def state(self) -> Status:
        """The future's state in the database now: equal to a FutureState; its `.reason` says why.

        A future that no worker can run says so here. Raises UnknownFutureError, FutureDeletedError.
        """
        self._make_durable()
        return self._home().status(self)

    async def aid(self) -> UUID:
        """`id` for asyncio: the loop goes on while the submit is made durable."""
        return await _off_the_loop(lambda: self.id)

    async def astate(self) -> Status:
        """`state()` for asyncio."""
        return await _off_the_loop(self.state)

    async def adone(self) -> bool:
        """`done()` for asyncio."""
        return self._entry is not None or self._trouble is not None or await _off_the_loop(self.done)

    def done(self) -> bool:
        """Whether the future ended, by result, exception or cancellation. Doesn't wait."""
        if self._entry is None and self._trouble is None:
            self._home().look(self)
        return self._entry is not None or self._trouble is not None

    def running(self) -> bool:
        """Whether the future's task has begun and not ended: not while it waits in its worker's line.

        The worker is asked; one that can't be reached is taken to run what it has claimed.
        """
        self._make_durable()
        return self._home().runs(self)

    def cancelled(self) -> bool:
        """Whether the future ended because it was cancelled. Doesn't wait."""
        return self.done() and isinstance(self._exception(), CancelledError)

    def cancel(self, children: bool = True) -> bool:
        """Cancel the future unless it ended; True if it is cancelled now.

        A queued future never runs; a running one is stopped with every process that it started, and what it would have
        returned is dropped. `children`: also what its task submitted and hasn't ended, and what those did.
        """
        self._make_durable()
        return self._home().cancel(self, children)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call `callback(self)` when the future ends, in a thread of this process; at once if it already has."""
        self._home().callbacks.add(self, callback)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the stored result. Waits for it; raises like `exception` if there is none."""
        error = self.exception()
        if error is not None:
            raise error
        if self._entry is None or self._entry.result is None:
            raise ObjectLostError(f"{self!r} has no stored result")
        return self._entry.result.size

    def __await__(self) -> Generator[Any, None, T]:
        return _await(self).__await__()

    def __reduce__(self) -> tuple[Any, ...]:
        origin = self._home.origin
        reference = reference_to(self._id, origin)
        if reference is not None:
            return reference  # an argument: it stands for its result
        from futures_worker.client.ambient import attach_future

        self._make_durable()
        note_contained(self._id, origin)
        return attach_future, (self._id, self._name, None if origin is None else tuple(origin))

    def __eq__(self, other: object) -> bool:
        """Two handles of one future are equal."""
        return self._id == other._id if isinstance(other, Future) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        label = f" {self._name}" if self._name else ""
        ended = ""
        if self._entry is not None:
            failure = self._entry.failure
            ended = " cancelled" if failure is not None and failure.reason == "cancelled" else f" {self._entry.kind}"
        return f"<Future {UUID(bytes=self._id)}{label}{ended}>"

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.keeping.drop(self._id)

    def _make_durable(self) -> None:
        if not self._stored:
            self._home().flush()
        if self._trouble is not None:
            raise self._trouble

    def _await_end(
        self, session: Session, deadline: float | None, timeout: float | None, *, reading: bool = False
    ) -> None:
        """Until the end. `reading`: also until it is seen (`_streams`) that it yields items, since it may wait for readers."""
        session.await_one(self, deadline, timeout, reading=reading)

    def _exception(self) -> BaseException | None:
        """Of a future that ended; made once, like the exception of a local future."""
        if self._trouble is not None:
            return self._trouble
        if self._error is None and self._entry is not None and self._entry.failure is not None:
            self._error = failure_exception(self._id, self._name, self._entry.failure)
        return self._error


class _Unread:
    """In the place of a value that wasn't unpickled yet."""


_UNREAD = _Unread()


async def _off_the_loop(ask: Callable[[], A]) -> A:
    """What `ask` answers: it may wait for the database, in a thread that is not the loop's."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, ask)


async def _await(future: Future[T]) -> T:
    import asyncio

    loop = asyncio.get_running_loop()
    if future._streams:  # it may wait for its readers
        return await loop.run_in_executor(None, _result_for_loop, future)
    session = future._home()
    ended: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not ended.done():
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

    def tell(error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, error)
        except RuntimeError:  # the loop was closed meanwhile; nobody waits
            pass

    if not future._stored or not future._subscribed:  # asks the database, which may take its time
        await loop.run_in_executor(None, session.expect, [future])
    session.callbacks.watch(ended, tell)
    try:
        future.add_done_callback(lambda _: tell(None))
        await ended
    finally:
        session.callbacks.unwatch(ended)
    # Reading may fetch an object from a worker or, if it was lost, wait for it anew.
    stored = future._entry.result if future._entry is not None else None
    if stored is None or stored.inline is not None:
        return future.result()
    return await loop.run_in_executor(None, _result_for_loop, future)


def _result_for_loop(future: Future[T]) -> T:
    """A future of asyncio can't have StopIteration, and would never end: it becomes what a coroutine makes of it."""
    try:
        return future.result()
    except StopIteration as error:
        raise RuntimeError("the task raised StopIteration") from error
