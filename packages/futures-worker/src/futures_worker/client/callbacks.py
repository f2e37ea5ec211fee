"""Callbacks of futures that ended, and the thread that reads a client's mail while nobody blocks on it.

A database that can't be reached is not waited for in silence: whoever waits through this thread is told its error
(`watch`), after `DATABASE_SECONDS` where retrying might have helped, else at once. The thread goes on trying, so a wait
that begins when the database is back ends as it should.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from fdb_datamodel import FutureDeletedError, UnknownFutureError
from futures_worker.client.nested import Awaited
from futures_worker.client.record import FutureRecord
from futures_worker.client.turn import Flag

log = logging.getLogger("futures_worker")

TROUBLE_PAUSE: Final = 0.5  # seconds before the database is asked again after it failed


class Reads(Protocol):
    """What is asked of the session."""

    @property
    def closed(self) -> bool:
        """Whether its client is closed."""

    def expect(self, records: Iterable[FutureRecord]) -> None:
        """See `Session`."""

    def wait_until(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        waited_for: Callable[[], FutureRecord | None],
        awaited: Awaited,
        *,
        pump: bool = False,
        look: Callable[[], None] | None = None,
    ) -> bool:
        """See `Session`."""

    def wake_followers(self) -> None:
        """See `Session`."""

    def waits_for_both(self) -> bool:
        """See `Session`."""


class Callbacks:
    """Of one session. Thread-safe."""

    def __init__(self, session: Reads, due: deque[FutureRecord]) -> None:
        """`due`: records that ended and have callbacks, for `run_due`."""
        self._session = session
        self._lock = threading.Lock()
        self._awaited: dict[int, FutureRecord] = {}  # with callbacks that haven't run, by identity
        self._watchers: dict[object, tuple[float, Callable[[BaseException], object]]] = {}  # since when, whom to tell
        self._due = due
        self._work = Flag()
        self._thread: threading.Thread | None = None
        self.trouble: tuple[float, BaseException] | None = None  # when the last attempt that failed began; its error

    def __bool__(self) -> bool:
        """Whether any future has callbacks."""
        return bool(self._awaited)

    def add(self, record: FutureRecord, callback: Callable[[], object]) -> None:
        """Have `callback()` called once the future ended. It isn't where the database's error is raised."""
        with self._lock:
            if record.callbacks is None:
                record.callbacks = []
            record.callbacks.append(callback)
            self._awaited[id(record)] = record
        if not record.ended:
            try:
                self._session.expect([record])
            except (UnknownFutureError, FutureDeletedError) as error:
                record.trouble = error
            except Exception:  # the database's trouble: who tries again is told once
                with self._lock, contextlib.suppress(ValueError):
                    record.callbacks.remove(callback)
                    if not record.callbacks:
                        self._awaited.pop(id(record), None)
                raise
        if record.ended:  # meanwhile, or before
            self.run([record])
            return
        self.start()

    def start(self) -> None:
        """See to it that the thread reads the mail."""
        if not self._work.is_set():
            self._work.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._pump, name="mainspring-mail", daemon=True)
            self._thread.start()

    def run_due(self) -> None:
        """Run the callbacks of those that are `due`; by a thread that holds no lock. The thread finds what an interrupt leaves."""
        while self._due:
            try:
                record = self._due.popleft()
            except IndexError:
                return
            self.run([record])

    def run(self, records: Sequence[FutureRecord]) -> None:
        """Run the callbacks of futures that ended, each once. Those that an interrupt leaves are run by the thread that reads."""
        for record in records:
            while (callback := self._take(record)) is not None:
                try:
                    callback()
                except Exception:
                    log.exception("a callback of %r failed", record)

    def _take(self, record: FutureRecord) -> Callable[[], object] | None:
        with self._lock:
            if record.callbacks:
                return record.callbacks.pop(0)
            self._awaited.pop(id(record), None)
            return None

    def _run_left(self) -> None:
        with self._lock:
            left = [record for record in self._awaited.values() if record.ended]
        self.run(left)

    def watch(self, key: object, tell: Callable[[BaseException], object]) -> None:
        """Call `tell(error)` whenever an attempt of this thread fails that began after this, until `unwatch(key)`."""
        with self._lock:
            self._watchers[key] = (time.monotonic(), tell)

    def unwatch(self, key: object) -> None:
        """The end of `watch`."""
        with self._lock:
            self._watchers.pop(key, None)

    def tell_trouble(self, error: BaseException, began: float) -> None:
        """The database failed a thread that reads for others, in an attempt that began at `began` (monotonic)."""
        self.trouble = (began, error)
        with self._lock:
            watchers = [tell for since, tell in self._watchers.values() if since <= began]
        for tell in watchers:
            tell(error)
        self._session.wake_followers()

    def check(self, since: float) -> None:
        """Raises the database's error if an attempt failed that began after `since`."""
        if self.trouble is not None and self.trouble[0] >= since:
            raise self.trouble[1]

    def close(self) -> None:
        """Let the thread end."""
        self._work.set()

    def _needed(self) -> bool:
        return bool(self._awaited) or self._session.waits_for_both()

    def _pump(self) -> None:
        session = self._session
        while not session.closed:
            self._work.wait()
            began = time.monotonic()
            try:
                session.wait_until(
                    lambda: not self._needed() or session.closed,
                    None,
                    lambda: None,
                    lambda: ([record.id for record in tuple(self._awaited.values())], False),
                    pump=True,
                    look=self._run_left,
                )
                self._work.clear()
                if self._needed():
                    self._work.set()
            except Exception as error:
                if session.closed:
                    return
                self.tell_trouble(error, began)
                time.sleep(TROUBLE_PAUSE)
