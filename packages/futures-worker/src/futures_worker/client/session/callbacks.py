"""Callbacks of futures that ended, the thread that runs them, and the one that reads a client's mail while nobody blocks on it.

What a callback does is unknown: it may wait, or want a lock that a thread holds which waits for a future. So none runs in a thread
that came for something else, or amid a commit, but for those of the client itself, which only tell somebody (`inline`).

A database that can't be reached is not waited for in silence: whoever waits through this thread is told its error
(`watch`), after `DATABASE_SECONDS` where retrying might have helped, else at once. The thread goes on trying, so a wait
that begins when the database is back ends as it should.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from fdb_datamodel import FutureDeletedError, UnknownFutureError
from fdb_schema import MainspringError
from futures_worker.client.basis.nested import SlotOfCallbacks
from futures_worker.client.basis.record import FutureRecord
from futures_worker.client.basis.turn import Flag
from futures_worker.client.session.waiting import WaitingSession, wait_until

log = logging.getLogger("futures_worker")

TROUBLE_PAUSE: Final = 0.5  # seconds before the database is asked again after it failed
LAST_SECONDS: Final = 1.0  # that `close` gives callbacks of futures that have ended


class Reads(WaitingSession, Protocol):
    """What is asked of the session."""

    @property
    def closed(self) -> bool:
        """Whether its client is closed."""

    def expect(self, records: Iterable[FutureRecord]) -> None:
        """See `Session`."""

    def closed_error(self) -> MainspringError:
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
        self._slot = SlotOfCallbacks()  # changed with the lock held
        self._watchers: dict[object, tuple[float, Callable[[BaseException], object]]] = {}  # since when, whom to tell
        self._due = due
        self._work = Flag()
        self._thread: threading.Thread | None = None
        self._ended: deque[FutureRecord] = deque()  # with callbacks for the thread that runs them
        self._handed = Flag()
        self._runner: threading.Thread | None = None
        self.trouble: tuple[float, BaseException] | None = None  # when the last attempt that failed began; its error

    def __bool__(self) -> bool:
        """Whether any future has callbacks."""
        return bool(self._awaited)

    def add(self, record: FutureRecord, callback: Callable[[], object], *, inline: bool = False) -> None:
        """Have `callback()` called once the future ended; at once if it has. It isn't where the database's error is raised.

        `inline`: it only tells somebody, waits for nothing and raises nothing, so any thread may call it.
        """
        one = (inline, callback)
        with self._lock:
            if record.callbacks is None:
                record.callbacks = []
            record.callbacks.append(one)
            self._awaited[id(record)] = record
        if not record.ended:
            try:
                self._session.expect([record])
            except (UnknownFutureError, FutureDeletedError) as error:
                record.trouble = error
            except Exception:  # the database's trouble: who tries again is told once
                if self._take_out(record, one) and not record.callbacks:
                    self._awaited.pop(id(record), None)
                raise
        if record.ended:  # meanwhile, or before
            if self._take_out(record, one):
                _call(record, callback)
            self.run([record])
            return
        with self._lock:
            if id(record) in self._awaited:
                self._slot.add(id(record))
        self.start()

    def _take_out(self, record: FutureRecord, one: tuple[bool, Callable[[], object]]) -> bool:
        with self._lock:
            there = one in (record.callbacks or ())
            if there and record.callbacks:
                record.callbacks.remove(one)
            return there

    def start(self) -> None:
        """See to it that the thread reads the mail."""
        if not self._work.is_set():
            self._work.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._pump, name="mainspring-mail", daemon=True)
            self._thread.start()

    def run_due(self) -> None:
        """See to the callbacks of those that are `due`. The thread that reads finds what an interrupt leaves."""
        while self._due:
            try:
                record = self._due.popleft()
            except IndexError:
                return
            self.run([record])

    def run(self, records: Sequence[FutureRecord]) -> None:
        """See to it that the callbacks of futures that ended are called, each once; by whichever thread, whatever it holds."""
        for record in records:
            while (callback := self._take(record, inline=True)) is not None:
                _call(record, callback)
            if record.callbacks:
                self._ended.append(record)
                self._hand_over()

    def _take(self, record: FutureRecord, *, inline: bool) -> Callable[[], object] | None:
        with self._lock:
            callbacks = record.callbacks or []
            at = _first(callbacks, inline)
            if at is not None:
                return callbacks.pop(at)[1]
            if not callbacks:
                self._awaited.pop(id(record), None)
                self._slot.discard(id(record))
            return None

    def _hand_over(self) -> None:
        if self._runner is None or not self._runner.is_alive():
            with self._lock:
                if self._runner is None or not self._runner.is_alive():
                    self._runner = threading.Thread(target=self._run_ended, name="mainspring-callbacks", daemon=True)
                    self._runner.start()
        self._handed.set()

    def _run_ended(self) -> None:
        while True:
            self._handed.wait()
            self._handed.clear()
            while self._ended:
                record = self._ended.popleft()
                while (callback := self._take(record, inline=False)) is not None:
                    try:
                        _call(record, callback)
                    except BaseException:  # sys.exit(), say: others' callbacks are still to run
                        log.exception("a callback of %r failed", record)
            if self._session.closed:
                return

    def _run_left(self) -> None:
        if self._ended:
            self._hand_over()  # an interrupt may have come before that
            return
        with self._lock:
            awaited = list(self._awaited.values())
        self.run([record for record in awaited if record.ended])

    def watch(self, key: object, tell: Callable[[BaseException], object]) -> None:
        """Call `tell(error)` whenever an attempt of this thread fails that began after this, until `unwatch(key)`.

        And once the client is closed: nobody reads any more.
        """
        with self._lock:
            self._watchers[key] = (time.monotonic(), tell)
        if self._session.closed:
            tell(self._session.closed_error())

    def unwatch(self, key: object) -> None:
        """The end of `watch`."""
        with self._lock:
            self._watchers.pop(key, None)

    def tell_trouble(self, error: BaseException, began: float) -> None:
        """The database failed a thread that reads for others, in an attempt that began at `began` (monotonic)."""
        self.trouble = (began, error)
        with self._lock:
            watchers = list(self._watchers.values())
        for since, tell in watchers:
            if since <= began:
                tell(error)
        self._session.wake_followers()

    def check(self, since: float) -> None:
        """Raises the database's error if an attempt failed that began after `since`."""
        if self.trouble is not None and self.trouble[0] >= since:
            raise self.trouble[1]

    def close(self) -> None:
        """Let the threads end, and tell whoever waits through them. Called once the session is closed."""
        self._work.set()
        self._handed.set()
        runner = self._runner
        if runner is not None and runner.is_alive() and runner is not threading.current_thread():
            runner.join(LAST_SECONDS)
        with self._lock:
            watchers = [tell for _, tell in self._watchers.values()]
        for tell in watchers:
            tell(self._session.closed_error())

    def _needed(self) -> bool:
        return bool(self._awaited) or self._session.waits_for_both()

    def _pump(self) -> None:
        session = self._session
        while not session.closed:
            self._work.wait()
            began = time.monotonic()
            with self._lock:
                self._slot.begin_reading()
            try:
                wait_until(
                    session,
                    lambda: not self._needed() or session.closed or self._slot.outdated,
                    None,
                    lambda: None,
                    lambda: ([record.id for record in tuple(self._awaited.values())], False),
                    pump=True,
                    look=self._run_left,
                )
                with self._lock:
                    self._slot.end_reading()
                self._work.clear()
                if self._needed():
                    self._work.set()
            except Exception as error:
                if session.closed:
                    return
                self.tell_trouble(error, began)
                time.sleep(TROUBLE_PAUSE)


def _first(callbacks: Sequence[tuple[bool, object]], inline: bool) -> int | None:
    return next((at for at, (anywhere, _) in enumerate(callbacks) if anywhere or not inline), None)


def _call(record: FutureRecord, callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        log.exception("a callback of %r failed", record)
