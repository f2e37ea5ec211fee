"""The lock that a process takes before LMDB's lock of writers: who waits for this one can leave.

LMDB waits for its own lock in C, and neither a signal handler nor a timeout ends that. So nobody ever waits for it: this lock (`flock` of a
file) comes first. The kernel gives it up with the process that holds it, after LMDB's. Uncontended it costs two system calls.

Who finds it taken sleeps on a futex of the shared page, which is rung when it is given up. A holder that was killed rings nothing, so
a sleep has an end; that comes late, for whoever wakes before he is rung only takes the processor from who writes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial

from ..errors import EngineClosed
from .shared import WRITER, WRITERS_WAIT, SharedPage
from .waiting import LONGEST_SLEEP, TO_DO, GoOn, Wait, Waiter, own_note, who


class WriterLock:
    """For one thread of the process at a time: who has `Store.turn`."""

    def __init__(self, fd: int, page: SharedPage, name: str) -> None:
        self._fd = fd
        self._page = page
        self._name = name
        self._note = own_note()
        self._lock: Callable[[], None] = partial(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._unlock: Callable[[], None] = partial(fcntl.flock, fd, fcntl.LOCK_UN)

    def take(self, waiter: Waiter | None = None) -> None:
        """Call it in the `try` whose end calls `leave`: an interrupt may hide that it was taken."""
        try:
            self._lock()
        except BlockingIOError:
            self._await(None if waiter is None else waiter.go_on)
        self._page.numbers[WRITER] = self._note

    def _await(self, go_on: GoOn | None) -> None:
        page = self._page
        wait = Wait(self._whom, go_on, LONGEST_SLEEP)
        while True:
            word = page.writer_word()
            page.map[WRITERS_WAIT] = 1  # also of who takes it: others may be asleep
            try:
                self._lock()
                return
            except BlockingIOError:
                wait.pause(partial(page.await_writer, word))

    def _whom(self) -> str:
        holder = who(self._page.numbers[WRITER])
        return f"{self._name}: {holder} is in the midst of a commit, so nobody else can commit; {TO_DO}"

    def leave(self) -> None:
        """Give it up; it need not be held."""
        self._unlock()
        page = self._page
        if page.map[WRITERS_WAIT]:
            page.map[WRITERS_WAIT] = 0
            page.wake_writer()

    def close(self) -> None:
        """Close the file, also in a forked child: the parent's lock is to be free when the parent ends."""
        if self._fd >= 0:
            self._lock = self._unlock = _closed
            os.close(self._fd)
            self._fd = -1


def _closed() -> None:
    raise EngineClosed("the database was closed")
