"""Calls that are made in the background: each in a thread, at most so many at once."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class MemoFuture(Future[Any]):
    """What `submit` returns. `memo_uri`: the address of the invocation."""

    def __init__(self, memo_uri: str, cancel: Callable[[], bool]) -> None:
        super().__init__()
        self.memo_uri = memo_uri
        self._cancel_invocation = cancel

    def cancel(self) -> bool:
        """Cancel the invocation, also one that is being computed: as `runner.cancel`."""
        return super().cancel() or (not self.done() and self._cancel_invocation())


class Submissions:
    """The calls of one runner that are made in the background, in the order in which they came.

    One that is submitted within another needs no place: those that wait for each other end.
    """

    def __init__(self, most: int | None) -> None:
        """`most`: how many are made at once; None: as many as come."""
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"concurrent must be None or a number of calls from 1 on, not {most!r}")
        self.most = most
        self._mutex = threading.Lock()
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._inside = threading.local()

    def begin(self, future: Future[Any], call: Callable[[], Any], name: str) -> None:
        """Have `call` made, with this thread's context, and its outcome put into `future`."""
        context = contextvars.copy_context()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(context.run(call))
            except BaseException as error:
                future.set_exception(error)

        counted = self.most is not None and not getattr(self._inside, "one", False)
        with self._mutex:
            if counted and self.most is not None and self._running >= self.most:
                self._waiting.append(work)
                return
            self._running += counted
        try:
            threading.Thread(target=self._serve, args=(work, counted), name=name, daemon=True).start()
        except BaseException:
            if counted:
                self._next()
            raise

    def _serve(self, work: Callable[[], None] | None, counted: bool) -> None:
        self._inside.one = True
        while work is not None:
            work()
            work = self._next() if counted else None

    def _next(self) -> Callable[[], None] | None:
        with self._mutex:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None


def awaitable(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same for an event loop, where nothing may raise `StopIteration`: whoever awaits it would wait for ever."""

    def called() -> Any:
        try:
            return call()
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration, which can't be awaited") from error

    return called
