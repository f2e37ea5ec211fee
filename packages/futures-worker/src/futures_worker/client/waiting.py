"""Waiting for many futures: `wait`, `as_completed` and `gather`, with the contracts of `concurrent.futures`.

All of them block on one watch per client, however many futures they wait for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import Any, Final, NamedTuple, TypeVar

from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.basis.turn import Flag
from futures_worker.client.future import Future, failure_of, known_in_its_session, record_of, tell_at_end
from futures_worker.client.session.session import Session, check_timeout

T = TypeVar("T")
PROGRESS_AFTER: Final = 0.5  # seconds of waiting after which a bar is shown


class DoneAndNotDone(NamedTuple):
    """What `wait` returns."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait(
    futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Wait for futures as `concurrent.futures.wait` does: (done, not_done), at the latest after `timeout` seconds.

    `return_when`: ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION.
    """
    futures = check_futures(futures, "wait")
    check_timeout(timeout)
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when is ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, found {return_when!r}")
    wanted = set(futures)
    first = return_when == FIRST_COMPLETED
    on_error = return_when == FIRST_EXCEPTION
    found = False
    with _Group(wanted, all_of_them=return_when == ALL_COMPLETED) as group:

        def enough() -> bool:
            nonlocal found
            for future in group.newly_ended():
                found = found or first or (on_error and failure_of(future) is not None)
            return found or not group.remaining

        group.wait(enough, timeout)
        return DoneAndNotDone(wanted - group.remaining, set(group.remaining))


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> Iterator[Future[T]]:
    """Yield futures as they end. Raises TimeoutError if not all have `timeout` seconds after the call."""
    futures = check_futures(futures, "as_completed")
    check_timeout(timeout)
    end = None if timeout is None else time.monotonic() + timeout
    return _completed(set(futures), end, timeout)


def _completed(futures: set[Future[T]], end: float | None, timeout: float | None) -> Iterator[Future[T]]:
    with _Group(futures, all_of_them=False) as group:
        ready: deque[Future[Any]] = deque()

        def some() -> bool:
            none_left = not group.remaining  # looked at first: what another thread notes afterwards is still to come
            ready.extend(group.newly_ended())
            return bool(ready) or none_left

        while True:  # no condition, as everywhere in a `with` or `try` (`turn`)
            if not group.wait(some, None if end is None else end - time.monotonic()):
                break
            if not ready:
                return
            while True:
                if not ready:
                    break
                yield ready.popleft()
        raise TimeoutError(f"{len(group.remaining)} of {len(futures)} futures did not end within {timeout} s")


def await_all(futures: Iterable[Future[Any]], timeout: float | None = None) -> None:
    """Wait until all have ended; raises the first failure, or TimeoutError. Fetches no results."""
    ended = wait(check_futures(futures, "await_all"), timeout=timeout, return_when="FIRST_EXCEPTION")
    for future in ended.done:
        error = future.exception()
        if error is not None:
            raise error
    if ended.not_done:
        raise TimeoutError(f"{len(ended.not_done)} of {len(ended.done) + len(ended.not_done)} futures did not end")


def check_futures(futures: Iterable[Future[T]], what: str) -> list[Future[T]]:
    """The futures, if they are. Raises TypeError, which names the one that isn't."""
    if isinstance(futures, Future):
        raise TypeError(f"{what} takes several futures, found one: {what}([future]), or future.result()")
    found = list(futures)
    for number, future in enumerate(found):
        if not isinstance(future, Future):
            kind = type(future).__name__
            hint = "; futures of an executor have their durable one as .durable" if hasattr(future, "durable") else ""
            raise TypeError(f"{what} takes futures, found {future!r:.80} ({kind}) in place {number}{hint}")
    return found


def gather(
    futures: Iterable[Future[T]], *, progress: bool = True, timeout: float | None = None, errors: str = "raise"
) -> list[T]:
    """Results in order; see `Client.gather`."""
    futures = check_futures(futures, "gather")
    check_timeout(timeout)
    if errors not in ("raise", "return"):
        raise ValueError(f'errors is "raise" or "return", found {errors!r}')
    failed: list[Future[Any]] = []
    left = _read_yielded(futures, timeout)
    with _Group(set(futures), all_of_them=True) as group, _Progress(len(group.remaining), shown=progress) as bar:

        def enough() -> bool:
            for future in group.newly_ended():
                if errors == "raise" and failure_of(future) is not None:
                    failed.append(future)
            bar.show(len(group.remaining))
            return bool(failed) or not group.remaining

        all_done = group.wait(enough, left)
        if failed:
            failed[0].result()
        if not all_done:
            raise TimeoutError(f"{len(group.remaining)} of {len(set(futures))} futures did not end within {timeout} s")
    if errors == "raise":
        return [future.result() for future in futures]
    return [_result_or_error(future) for future in futures]


def _read_yielded(futures: Iterable[Future[Any]], timeout: float | None) -> float | None:
    """Take what generators yield, which else wait for a reader before they end; the seconds that are left. Raises TimeoutError."""
    end = None if timeout is None else time.monotonic() + timeout
    for future in futures:
        if record_of(future).streams:
            found = _result_or_error(future, None if end is None else max(0.0, end - time.monotonic()))
            if isinstance(found, TimeoutError) and not future.done():
                raise found
    return None if end is None else max(0.0, end - time.monotonic())


def _result_or_error(future: Future[Any], timeout: float | None = None) -> Any:
    try:
        return future.result(timeout)
    except BaseException as error:
        if isinstance(error, Exception) or error is failure_of(future):
            return error  # also what the task ended with by sys.exit()
        raise


class _Group:
    """Futures that are waited for together. Their sessions tell it who ended, so nothing is looked at twice."""

    def __init__(self, futures: set[Future[Any]], *, all_of_them: bool) -> None:
        """`all_of_them`: whether the wait ends only when every member has ended."""
        self._all_of_them = all_of_them
        self._members = {record_of(future).id: future for future in futures}
        self.remaining = set(futures)
        self._ended: deque[Future[Any]] = deque()
        self._noting = threading.Lock()  # held while a member goes from the one to the other
        self._sessions: dict[int, Session] = {}

    def note(self, ended: Iterable[FutureRecord]) -> None:
        """Called by a session, in any thread, with futures that just ended; also others than this group's."""
        with self._noting:
            self._note_each(ended)

    def _note_each(self, ended: Iterable[FutureRecord]) -> None:
        for record in ended:
            member = self._members.get(record.id)
            if member is not None and member in self.remaining and record_of(member).ended:
                self.remaining.discard(member)
                self._ended.append(member)

    def newly_ended(self) -> Sequence[Future[Any]]:
        """Members that ended since the last call; all, where none remained before it."""
        with self._noting:
            found = tuple(self._ended)
            self._ended.clear()
        return found

    def wait(self, enough: Callable[[], bool], timeout: float | None) -> bool:
        """Block until `enough()`, asked whenever mail came; False if `timeout` seconds passed first."""
        if enough():
            return True
        end = None if timeout is None else time.monotonic() + timeout
        if len(self._sessions) == 1:
            (session,) = self._sessions.values()
            return session.wait_until(enough, end, self._still_waiting, self._awaited)
        return self._wait_on_several(enough, end)

    def _awaited(self) -> tuple[list[bytes], bool]:
        return sorted(record_of(future).id for future in tuple(self.remaining)), self._all_of_them

    def _still_waiting(self) -> FutureRecord | None:
        return next((record_of(future) for future in tuple(self.remaining)), None)

    def _wait_on_several(self, enough: Callable[[], bool], end: float | None) -> bool:
        """Futures of several clients: a thread of each client tells."""
        told = Flag()
        troubles: list[BaseException] = []

        def fail(error: BaseException) -> None:
            troubles.append(error)
            told.set()

        for session in self._sessions.values():
            session.callbacks.watch(self, fail)
        try:
            for future in tuple(self.remaining):
                tell_at_end(future, told.set)
            while True:  # no condition (`turn`)
                if enough():
                    return True
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                told.wait(left)
                told.clear()
                if troubles and not enough():
                    raise troubles[0]
        finally:
            for session in self._sessions.values():
                session.callbacks.unwatch(self)

    def __enter__(self) -> _Group:
        members: dict[int, list[FutureRecord]] = {}
        for future in tuple(self.remaining):
            session, record = known_in_its_session(future)
            self._sessions[id(session)] = session
            members.setdefault(id(session), []).append(record)
        try:
            for key, session in self._sessions.items():
                session.join(self)
                session.expect(members[key])
        except BaseException:
            self.__exit__()
            raise
        self.note([record_of(future) for future in tuple(self.remaining)])
        return self

    def __exit__(self, *exc_info: object) -> None:
        for session in self._sessions.values():
            session.leave(self)


class _Progress:
    """A bar on standard error, if that is a terminal and the wait is long enough to be noticed."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total = total
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._off = not (shown and sys.stderr.isatty())

    def show(self, remaining: int) -> None:
        if self._off or time.monotonic() - self._started < PROGRESS_AFTER:
            return
        if self._bar is None:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            except ModuleNotFoundError:  # it comes with the extra `cli`
                self._off = True
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("futures", total=self._total)
            self._bar.start()
        self._bar.update(self._task, completed=self._total - remaining)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()
