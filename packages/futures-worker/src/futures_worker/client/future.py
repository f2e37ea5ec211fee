"""The handle of one future: a name for something in the database, by which its result is waited for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

from fdb_datamodel import MailEntry
from futures_worker.client.basis import untouched
from futures_worker.client.basis.html import panel
from futures_worker.client.basis.off_loop import in_thread
from futures_worker.client.basis.options import grace_of
from futures_worker.client.basis.program import current_program
from futures_worker.client.basis.record import FutureHandle, FutureRecord
from futures_worker.client.context import Home, home_of
from futures_worker.client.outcome import Status, failure_exception
from futures_worker.client.session.session import Session
from futures_worker.client.session.waiting import deadline_in
from futures_worker.client.streaming import ResultStream
from futures_worker.client.submits.events import published, send
from futures_worker.contained import note_contained
from futures_worker.errors import ObjectLostError
from futures_worker.payload import load_own, reference_to
from futures_worker.streams import StreamedItems

T = TypeVar("T")
A = TypeVar("A")
"""That a program which is cancelled has to undo what it did."""


class Future(FutureHandle, Generic[T]):
    """A durable future. Made by `Client.submit`, `map`, `put` or `get_future`, never directly.

    It is a name for something in the database: it can be passed to tasks (anywhere inside their arguments, where it
    stands for its result), pickled, and found again by its `id` from another process.
    """

    __slots__ = ("__weakref__", "_error", "_home", "_record", "_value")

    def __init__(self, home: Home, record: FutureRecord) -> None:
        self._home = home  # how to find the session to wait in
        self._record = record  # what that session knows
        self._error: tuple[MailEntry, BaseException] | None = None  # what it failed with, once it was asked for
        self._value: Any = _UNREAD

    @property
    def id(self) -> UUID:
        """The future's id, by which any process finds it (`client.get_future`). The submit is durable once this returns."""
        self._make_durable()
        return UUID(bytes=self._record.id)

    @property
    def name(self) -> str:
        """The name given at submit, or the function's."""
        return self._record.name

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
        deadline = deadline_in(timeout)
        while True:
            if self._record.entry is None and not self._record.streams:
                self._await_end(session, deadline, timeout, reading=True)
            record = self._record
            if record.streams:
                self._value = list(self._items(timeout, deadline))
                return self._value  # type: ignore[no-any-return]
            error = self._exception()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # a traceback that refers to its own exception is never freed in time
            stored = record.entry.result if record.entry is not None else None
            if stored is None:
                raise ObjectLostError(f"{self!r} is realized but no result is recorded: run the cluster's validate()")
            data: bytes | memoryview | None = stored.inline
            if data is None:
                data = session.results.fetch(record, stored, resubmit_if_object_lost, deadline)
            if data is not None:
                value = load_own(data)
                self._value = list(self._items(timeout, deadline)) if type(value) is StreamedItems else value
                return self._value  # type: ignore[no-any-return]

    def stream(self, timeout: float | None = None) -> ResultStream[Any]:
        """What the future's generator yields, item by item: `for item in f.stream()`, or `async for`.

        Items are there as soon as they are yielded, and stay until the future is deleted; each call begins with the first.
        While nobody takes them, the generator pauses after 100.

        Args:
            timeout: seconds to wait for each item; None waits for ever.

        Raises, after the last item, what `result` raises; TimeoutError; TypeError where the function was no generator.
        """
        return self._items(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise, or None; waits like `result`.

        Raises TimeoutError, and CancelledError if the future was cancelled.
        """
        if self._record.entry is None:
            session = self._home()
            self._await_end(session, deadline_in(timeout), timeout)
        error = self._exception()
        if isinstance(error, CancelledError):
            raise error
        return error

    def state(self) -> Status:
        """The future's state in the database now: equal to a FutureState; its `.reason` says why.

        A future that no worker can run says so here. Raises UnknownFutureError, FutureDeletedError.
        """
        self._make_durable()
        return self._home().status(self._record.id)

    async def aid(self) -> UUID:
        """`id` for asyncio: the loop goes on while the submit is made durable."""
        return await _off_the_loop(lambda: self.id)

    async def astate(self) -> Status:
        """`state()` for asyncio."""
        return await _off_the_loop(self.state)

    async def adone(self) -> bool:
        """`done()` for asyncio."""
        return self._record.ended or await _off_the_loop(self.done)

    def done(self) -> bool:
        """Whether the future ended, by result, exception or cancellation. Doesn't wait."""
        if not self._record.ended:
            session = self._home()
            session.look(self._known_in(session))
        return self._record.ended

    def running(self) -> bool:
        """Whether the future's task has begun and not ended: not while it waits in its worker's line.

        The worker is asked; one that can't be reached is taken to run what it has claimed.
        """
        self._make_durable()
        return self._home().runs(self._record.id)

    def cancelled(self) -> bool:
        """Whether the future ended because it was cancelled. Doesn't wait."""
        return self.done() and isinstance(self._exception(), CancelledError)

    def cancel(self, children: bool = True, grace: float | None = None) -> bool:
        """Cancel the future unless it ended; True if it is cancelled now.

        A queued future never runs; a running one is stopped with every process that it started, and what it would have
        returned is dropped. With a `grace` its task may clean up: `TaskCancelled` is raised in it (in a coroutine asyncio's
        CancelledError), `cancel_requested()` is True there, and it is stopped so many seconds later; the future is cancelled
        at once all the same. A program is told first in any case: its next request raises CancelledError, so that it can undo
        what it did, and it is stopped `grace` seconds later (30). `children`: also what its task submitted and hasn't ended,
        and what those did, with the same grace.
        """
        grace = grace_of(grace)
        self._make_durable()
        session = self._home()
        if session.cancel(self._record.id, children, grace):
            if self._record.entry is None:
                self._await_end(session, None, None)
            if children:
                session.cancel_children(self._record.id, grace)
        return self.cancelled()

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call `callback(self)` when the future ends, in a thread of the client that does nothing else; at once if it already has.

        Callbacks of a client run one after the other, so one that waits holds up the others, and nobody else.
        """
        session = self._home()
        session.callbacks.add(self._known_in(session), partial(callback, self))

    def send(self, name: str, value: Any = None) -> None:
        """Send an event to the program that this is the future of, which takes it by `wait_for_event(name)`.

        It is there when this returns, and taken once, in the order sent, whatever becomes of the processes. Raises TypeError if
        it can't be pickled, OversizeError over 60 kB, FutureStateError where this is no program, or one that has ended.
        """
        self._make_durable()
        send(self._home.context(), self._record.id, name, value)

    def published(self, name: str | None = None, default: Any = None) -> Any:
        """What the program published last under `name`, or all of it by name."""
        self._make_durable()
        found = published(self._home.context(), self._record.id)
        return found if name is None else found.get(name, default)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the stored result. Waits for it; raises like `exception` if there is none."""
        error = self.exception()
        if error is not None:
            raise error
        entry = self._record.entry
        if entry is None or entry.result is None:
            raise ObjectLostError(f"{self!r} has no stored result")
        return entry.result.size

    def __await__(self) -> Generator[Any, None, T]:
        return _await(self).__await__()

    def __reduce__(self) -> tuple[Any, ...]:
        origin = self._home.origin
        reference = reference_to(self._record.id, origin)
        if reference is not None:
            return reference  # an argument: it stands for its result
        self._make_durable()
        note_contained(self._record.id, origin)
        return attach_future, (self._record.id, self._record.name, None if origin is None else tuple(origin))

    def __eq__(self, other: object) -> bool:
        """Two handles of one future are equal."""
        return self._record.id == other._record.id if isinstance(other, Future) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._record.id)

    def __repr__(self) -> str:
        return repr(self._record)

    def _repr_html_(self) -> str:
        record = self._record
        rows = {"id": UUID(bytes=record.id), "name": record.name, "state": record.told()}
        error = self._exception() if record.ended else None
        if error is not None:
            rows["error"] = f"{type(error).__name__}: {error}"
        return panel("Future", rows)

    def _known_in(self, session: Session) -> FutureRecord:
        """What the session knows of it, which this handle goes by from now on."""
        record = self._record = session.known(self._record)
        return record

    def _make_durable(self) -> None:
        if not self._record.stored:
            self._home().flush()
        if self._record.trouble is not None:
            raise self._record.trouble

    def _await_end(
        self, session: Session, deadline: float | None, timeout: float | None, *, reading: bool = False
    ) -> None:
        """Until the end. `reading`: also until it is seen (`streams`) that it yields items, since it may wait for readers."""
        program = current_program()
        if program is None or self._record.ended:
            session.await_end(self._known_in(session), deadline, timeout, reading=reading)
            return
        # Known to the session from when it is waited for: it keeps what it waits for, and the program may be told to end before.
        program.await_end(
            self._record.id,
            timeout,
            lambda seconds: session.await_end(self._known_in(session), deadline_in(seconds), seconds, reading=reading),
            lambda: f"{self!r} did not end within {timeout} s: {session.reason(self._record.id)}",
        )

    def _items(self, timeout: float | None, end: float | None = None) -> ResultStream[Any]:
        return ResultStream(_Source(self), timeout, end)

    def _exception(self) -> BaseException | None:
        """Of a future that ended; made once, like the exception of a local future."""
        record = self._record
        if record.trouble is not None:
            return record.trouble
        entry = record.entry
        if entry is None or entry.failure is None:
            return None
        if self._error is None or self._error[0] is not entry:  # it was run again, and failed again
            self._error = entry, failure_exception(record.id, record.name, entry.failure)
        return self._error[1]


class _Unread:
    """In the place of a value that wasn't unpickled yet."""


_UNREAD = _Unread()


class _Source:
    """A future as the source of its items."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def session(self) -> Session:
        future = self._future
        future._make_durable()
        return future._home()

    def record(self) -> FutureRecord:
        return self._future._record

    def exception(self) -> BaseException | None:
        return self._future.exception()


def record_of(future: Future[Any]) -> FutureRecord:
    """What is known of a future where its handle was used last."""
    return future._record


def known_in_its_session(future: Future[Any]) -> tuple[Session, FutureRecord]:
    """The session that a handle waits in, and what it knows of the future."""
    session = future._home()
    return session, future._known_in(session)


def tell_at_end(future: Future[Any], tell: Callable[[], object]) -> None:
    """Have `tell()` called once the future ended, by any thread: it waits for nothing and raises nothing."""
    session = future._home()
    session.callbacks.add(future._known_in(session), tell, inline=True)


def failure_of(future: Future[Any]) -> BaseException | None:
    """What a future that ended failed with, also where it was cancelled; the same object whenever it is asked for."""
    return future._exception()


def attach_future(future_id: bytes, name: str, origin: tuple[str, bytes, str | None] | None = None) -> Future[Any]:
    """What a pickled future becomes where it is unpickled. It finds its client when it is first used."""
    home, record = home_of(origin), FutureRecord(future_id, name, stored=True, subscribed=False)
    untouched.note(home, record)
    return Future(home, record)


async def _off_the_loop(ask: Callable[[], A]) -> A:
    """What `ask` answers: it may wait for the database, in a thread that is not the loop's."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, ask)


async def _await(future: Future[T]) -> T:
    import asyncio

    loop = asyncio.get_running_loop()
    if future._record.streams:  # it may wait for its readers
        return await asyncio.wrap_future(in_thread(lambda: _result_for_loop(future)))
    session = future._home()
    record = future._known_in(session)
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

    if not record.stored or not record.subscribed:  # asks the database, which may take its time
        await loop.run_in_executor(None, session.expect, [record])
    session.callbacks.watch(ended, tell)
    try:
        tell_at_end(future, lambda: tell(None))
        await ended
    finally:
        session.callbacks.unwatch(ended)
    # Reading may fetch an object from a worker or, if it was lost, wait for it anew.
    entry = future._record.entry
    if entry is None or entry.result is None or entry.result.inline is not None:
        return future.result()
    return await loop.run_in_executor(None, _result_for_loop, future)


def _result_for_loop(future: Future[T]) -> T:
    """A future of asyncio can't have StopIteration, and would never end: it becomes what a coroutine makes of it."""
    try:
        return future.result()
    except StopIteration as error:
        raise RuntimeError("the task raised StopIteration") from error
