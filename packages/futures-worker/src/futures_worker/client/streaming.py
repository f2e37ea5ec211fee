"""Reads what a generator yields, item by item, while it runs or afterwards."""

from __future__ import annotations

import concurrent.futures
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from fdb_datamodel import FutureResult, FutureState, streams
from futures_worker.client.basis.off_loop import in_thread
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.session.session import Session
from futures_worker.client.session.waiting import wait_until
from futures_worker.database import ask
from futures_worker.errors import ObjectLostError
from futures_worker.payload import load_own
from futures_worker.streams import MOST_AHEAD

T = TypeVar("T")

PAGE: Final = MOST_AHEAD // 2
LOOK_SECONDS: Final = 1.0  # between two looks for more items, should mail have been missed
_END: Final = object()


class Source(Protocol):
    """The future whose items are read."""

    def session(self) -> Session:
        """In which it is read; it exists for others there. Raises why it couldn't be submitted."""

    def record(self) -> FutureRecord:
        """What that session knows of it."""

    def exception(self) -> BaseException | None:
        """What it failed with; waits until it is known."""


class ResultStream(Generic[T]):
    """The items of one future, from the first on: an iterator, and an asynchronous one. Made by `Future.stream`."""

    def __init__(self, source: Source, timeout: float | None, end: float | None = None) -> None:
        """`timeout`: seconds to wait for each item. `end`: of all waiting, on the monotonic clock."""
        self._source = source
        self._timeout = timeout
        self._end = end
        self._position = 0  # of the next item
        self._page: deque[FutureResult] = deque()
        self._begun: concurrent.futures.Future[Any] | None = None  # the next item, that an `anext` began to wait for

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        begun, self._begun = self._begun, None
        value = self._next() if begun is None else begun.result()
        if value is _END:
            raise StopIteration
        return value  # type: ignore[no-any-return]

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        value = await self._awaited()
        if value is _END:
            raise StopAsyncIteration
        return value  # type: ignore[no-any-return]

    async def _awaited(self) -> Any:
        """`_next`; what one that was cancelled meanwhile has begun to wait for is had by the next, and each item by one."""
        import asyncio

        inherited = self._begun is not None
        while True:
            begun = self._begun
            if begun is None:
                if self._page and self._page[0].inline is not None:
                    return self._next()  # it is at hand
                begun = self._begun = in_thread(self._next)
            try:
                value = await asyncio.wrap_future(begun)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if self._begun is begun:
                    self._begun = None
                if not (inherited and isinstance(error, TimeoutError)):
                    raise
                inherited = False  # it was the time of who was cancelled that passed
                continue
            if self._begun is begun:
                self._begun = None
                return value

    def _next(self) -> Any:
        deadline = self._end
        if deadline is None and self._timeout is not None:
            deadline = time.monotonic() + self._timeout
        while True:
            if not self._page and not self._more(deadline):
                return _END
            item = self._page[0]  # the next one still if the fetching is interrupted, or fails
            data = item.inline if item.inline is not None else self._fetch(item)
            if data is not None:
                self._page.popleft()
                self._position += 1
                return load_own(data)
            self._page.clear()  # it is lost, and made again

    def _more(self, deadline: float | None) -> bool:
        """Get the next page; False at the end. Raises what the generator raised, after its last item."""
        session, record = self._source.session(), self._source.record()
        session.life.begin()
        while True:
            seen = session.signals_of(record.id)
            page = ask(session.db, streams.read_items, session.space, record.id, self._position, PAGE, session.id)
            if page.items:
                self._page.extend(page.items)
                return True
            if page.state is FutureState.failed:
                self._raise_failure(record, page.epoch)
            if page.state is FutureState.realized:
                if self._position >= page.made:
                    if page.begun:
                        return False
                    raise TypeError(  # an empty loop would hide its result
                        f"{record!r} is no stream: its function is no generator, so what it returned is its result()"
                    )
                gone = FutureResult()  # a row that another reader found lost
                ask(session.db, streams.lose_item, session.space, record.id, self._position, gone)
            left = LOOK_SECONDS
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(
                        f"item {self._position} of {record!r} did not come within {self._timeout} s: "
                        f"{session.reason(record.id)}"
                    )
            self._wait(session, record, seen, time.monotonic() + left)

    def _wait(self, session: Session, record: FutureRecord, seen: int, until: float) -> None:
        """Until there is news of the stream, or of its future's end."""
        entry = record.entry
        wait_until(
            session,
            lambda: session.signals_of(record.id) != seen or record.entry is not entry,
            until,
            lambda: None,
            lambda: ([record.id], True),
        )

    def _raise_failure(self, record: FutureRecord, epoch: int) -> None:
        if record.entry is None or record.entry.kind != "failed":
            record.expect_again(epoch)
        error = self._source.exception()
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # it would be taken for the end of the items
            raise RuntimeError(f"the task of {record!r} raised {type(error).__name__}") from error
        raise error if error is not None else ObjectLostError(f"{record!r} failed, and no reason is recorded")

    def _fetch(self, item: FutureResult) -> memoryview | None:
        """The bytes of a stored item; None: they are lost, and the generator runs again to make them."""
        session, record = self._source.session(), self._source.record()
        data = session.results.fetch_object(item)
        if data is None:
            ask(session.db, streams.lose_item, session.space, record.id, self._position, item)
        return data
