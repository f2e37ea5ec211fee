"""`as_completed`: futures as they end, also such as are added meanwhile, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Literal, TypeVar, overload

from futures_worker.client.basis.program import RunningProgram, current_program
from futures_worker.client.future import Future, failure_of, tell_at_end
from futures_worker.client.session.waiting import check_timeout
from futures_worker.client.waiting.group import Group
from futures_worker.client.waiting.waits import check_errors, check_futures

T = TypeVar("T")
Y = TypeVar("Y")

_SKIPPED: Final = object()


@overload
def as_completed(
    futures: Iterable[Future[T]], timeout: float | None = None, *, with_results: Literal[False] = False
) -> AsCompleted[Future[T]]: ...
@overload
def as_completed(
    futures: Iterable[Future[T]], timeout: float | None = None, *, with_results: Literal[True], errors: str = "raise"
) -> AsCompleted[tuple[Future[T], T]]: ...
def as_completed(
    futures: Iterable[Future[Any]], timeout: float | None = None, *, with_results: bool = False, errors: str = "raise"
) -> AsCompleted[Any]:
    """Futures as they end, for `for` and for `async for`; more can be added meanwhile.

    Args:
        futures: those to begin with; each comes once.
        timeout: seconds after this call at which TimeoutError is raised if not all have ended.
        with_results: what comes are pairs of a future and its result.
        errors: of `with_results`, what comes of a future that failed: "raise" what it failed with (`next` goes on behind it),
            "return" that in the place of its result, or "skip" it.
    """
    found = check_futures(futures, "as_completed")
    check_timeout(timeout)
    return AsCompleted(found, timeout, check_errors(errors) if with_results else None, current_program())


class _Awaited:
    """What an iterator and its steps share. The steps know nothing of the iterator: they end as soon as nobody has that any more."""

    def __init__(self, futures: Iterable[Future[Any]], timeout: float | None) -> None:
        untold = set(futures)
        self.group = Group(untold, all_of_them=False)
        self.count = len(untold)  # that were asked for so far
        self.wake: Callable[[], object] | None = None  # tells who waits in asyncio
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds until it is too late."""
        return None if self._end is None else self._end - time.monotonic()

    def too_late(self) -> TimeoutError:
        return TimeoutError(f"{len(self.group.remaining)} of {self.count} futures did not end within {self._timeout} s")


class AsCompleted(Generic[Y]):
    """What `as_completed` returns: an iterator, also an asynchronous one."""

    def __init__(
        self,
        futures: Iterable[Future[Any]],
        timeout: float | None,
        errors: str | None,
        program: RunningProgram | None,
    ) -> None:
        """`errors`: None where futures come alone. `program`: whose body waits; what ends first is recorded there."""
        given = list(dict.fromkeys(futures))
        self._untold = set(given)  # that are still to come
        self._awaited = _Awaited(self._untold, timeout)
        self._program = program
        self._left = given if program is not None else []
        self._timeout = timeout
        self._errors = errors
        self._steps: Iterator[Future[Any]] | None = None
        self._async_steps: AsyncGenerator[Future[Any], None] | None = None

    def add(self, future: Future[Any]) -> None:
        """Have one more come, at any time, from any thread. One that has come comes again; one that is still to come comes once."""
        (future,) = check_futures([future], "as_completed")
        if future in self._untold:
            return
        self._untold.add(future)
        if self._program is not None:
            self._left.append(future)
            return
        self._awaited.count += 1
        self._awaited.group.add(future)
        wake = self._awaited.wake
        if wake is not None:
            tell_at_end(future, wake)

    def update(self, futures: Iterable[Future[Any]]) -> None:
        """`add` each."""
        for future in check_futures(futures, "as_completed"):
            self.add(future)

    def count(self) -> int:
        """How many are still to come."""
        return len(self._untold)

    def __iter__(self) -> AsCompleted[Y]:
        return self

    def __next__(self) -> Y:
        while True:
            if self._steps is None and self._program is not None:
                self._steps = self._program.as_completed(self._left, self._timeout)
            elif self._steps is None:
                self._steps = _steps(self._awaited)
            try:
                future = next(self._steps)
            except BaseException:
                self._steps = None  # more may be added afterwards
                raise
            value, error = None, None
            if self._errors is not None:
                try:
                    value = future.result()
                except BaseException as failure:
                    error = failure
            told = self._told(future, value, error)
            if told is not _SKIPPED:
                return told  # type: ignore[no-any-return]

    def __aiter__(self) -> AsCompleted[Y]:
        return self

    async def __anext__(self) -> Y:
        if self._program is not None:
            try:
                return next(self)
            except StopIteration:
                raise StopAsyncIteration from None
        while True:
            if self._async_steps is None:
                self._async_steps = _async_steps(self._awaited)
            try:
                future = await anext(self._async_steps)
            except BaseException:
                self._async_steps = None
                raise
            value: Any = None
            error: BaseException | None = None
            if self._errors is not None:
                try:
                    value = await future
                except asyncio.CancelledError as failure:
                    if failure is not failure_of(future):  # who waits was cancelled: it is still to come
                        self._awaited.group.add(future)
                        raise
                    error = failure
                except BaseException as failure:
                    error = failure
            told = self._told(future, value, error)
            if told is not _SKIPPED:
                return told  # type: ignore[no-any-return]

    def _told(self, future: Future[Any], value: Any, error: BaseException | None) -> Any:
        """What comes of a future that has ended."""
        self._untold.discard(future)
        if self._errors is None:
            return future
        if error is None:
            return future, value
        if self._errors == "raise" or not (isinstance(error, Exception) or error is failure_of(future)):
            try:
                if isinstance(error, (StopIteration, StopAsyncIteration)):  # it would end the loop without a word
                    raise RuntimeError(f"the task of {future!r} raised {type(error).__name__}") from error
                raise error
            finally:
                del error  # a traceback that refers to its own exception is never freed in time
        return _SKIPPED if self._errors == "skip" else (future, error)


def _steps(awaited: _Awaited) -> Generator[Future[Any], None, None]:
    group = awaited.group
    with group:
        ready: deque[Future[Any]] = deque()

        def some() -> bool:
            none_left = not group.remaining  # looked at first: what another thread notes afterwards is still to come
            ready.extend(group.newly_ended())
            return bool(ready) or none_left

        while True:  # no condition, as everywhere in a `with` or `try` (`turn`)
            if not group.wait(some, awaited.left()):
                break
            if not ready:
                return
            while True:
                if not ready:
                    break
                yield ready.popleft()
        raise awaited.too_late()


async def _async_steps(awaited: _Awaited) -> AsyncGenerator[Future[Any], None]:
    loop, woken, group = asyncio.get_running_loop(), asyncio.Event(), awaited.group
    troubles: list[BaseException] = []

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(woken.set)
        except RuntimeError:  # the loop was closed meanwhile; nobody waits
            pass

    def fail(error: BaseException) -> None:
        troubles.append(error)
        wake()

    await loop.run_in_executor(None, group.__enter__)
    try:
        for session in group.sessions:
            session.callbacks.watch(awaited, fail)
        awaited.wake = wake
        for future in tuple(group.remaining):
            tell_at_end(future, wake)
        while True:
            none_left = not group.remaining
            ended = group.newly_ended()
            for future in ended:
                yield future
            if troubles:
                raise troubles[0]
            if ended:
                continue
            if none_left:
                return
            left = awaited.left()
            if left is not None and left <= 0:
                raise awaited.too_late()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), left)
            woken.clear()
    finally:
        awaited.wake = None
        for session in group.sessions:
            session.callbacks.unwatch(awaited)
        group.__exit__()
