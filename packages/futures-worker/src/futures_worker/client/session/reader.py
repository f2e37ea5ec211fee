"""Reads what comes for one session, its mail and the answer on its line, by whichever thread waits.

One thread at a time reads, for all; the others follow it, and are woken whenever something was delivered or the turn is free.
A thread that reads also looks after the cluster: it reaps dead workers, so that a lone client sees its future retried, and
keeps time limits where no worker does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from fdb_datamodel import ClusterSpace, MailEntry, subscribe
from futures_worker.client.basis.turn import Turn, Waiters
from futures_worker.client.session.expected import Expected
from futures_worker.client.session.line import Line
from futures_worker.client.session.mailbox import Mailbox
from futures_worker.database import ask
from futures_worker.liveness import Caretaker
from futures_worker.worker.child.task_context import current_task

LOOK_SECONDS: Final = 1.0  # between two looks (jittered) of a thread that waits: mail missed, workers dead
MOST_LOOK_SECONDS: Final = (
    8.0  # the same of a task that has waited long: there may be hundreds on a host, and mail wakes each
)


def rest_between_looks(waited: float) -> float:
    """Seconds between two looks of a thread that has waited for so long."""
    return LOOK_SECONDS if current_task() is None else min(MOST_LOOK_SECONDS, max(LOOK_SECONDS, waited / 4))


class MailReader:
    """Thread-safe. `run_due` runs the callbacks of what was delivered; it is called by a thread that holds nothing."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        session: bytes,
        expected: Expected,
        line: Line,
        run_due: Callable[[], None],
    ) -> None:
        self._db = db
        self._space = space
        self._session = session
        self._expected = expected
        self._line = line
        self._run_due = run_due
        self.mailbox = Mailbox(db, space, session, expected.settle)
        self._turn = Turn()  # of the thread that reads
        self._followers = Waiters()  # who wait for what it delivers
        self._caretaker = Caretaker(db, space)
        self._looked = 0.0

    def wait(self, done: Callable[[], bool], pause: float, *, mail_only: bool = False) -> None:
        """Read for at most `pause` seconds and not at all once `done()`, or follow the thread that reads."""
        me = object()
        try:
            if self._turn.take(me):
                if not done():
                    if self._line.awaited:
                        self._wait_on_line(0.0 if mail_only else pause, leave=mail_only)
                    else:
                        self.mailbox.wait(pause)
                    if not done():  # what has come is told first
                        self._look_after_workers()
                return
        finally:
            if self._turn.holder is me:
                self._turn.holder = None
                self._delivered()
        # A reader that leaves gives its turn up before it wakes who waits.
        self._followers.wait(pause, lambda: self._turn.holder is None or done())

    def read(self) -> None:
        """Read what is there, without waiting, unless another thread does."""
        me = object()
        try:
            if self._turn.take(me):
                if self._line.awaited:
                    self._wait_on_line(0.0)
                self.mailbox.read()
        finally:
            if self._turn.holder is me:
                self._turn.holder = None
                self._delivered()

    def follow(self, done: Callable[[], bool], pause: float) -> None:
        """Wait at most `pause` seconds for others to deliver something."""
        self._followers.wait(pause, done)

    def wake_followers(self) -> None:
        """Futures may have ended: let those who wait for others' reading look."""
        if self._followers:
            self._followers.wake()

    def look_after_workers(self) -> None:
        """Reap the dead, at most once a second, unless a thread that reads does."""
        me = object()
        try:
            if self._turn.take(me):
                self._look_after_workers()
        finally:
            if self._turn.holder is me:
                self._turn.holder = None
                self._delivered()

    def close(self) -> None:
        """Hang up, once the thread that reads has left, which is told to. Callbacks don't run any more."""
        me = object()
        try:
            self.mailbox.interrupt()  # also who had looked whether the client is open, and comes afterwards
            while not self._turn.take(me):
                self.mailbox.interrupt()
                self._line.interrupt()
                self.follow(lambda: self._turn.holder is None, LOOK_SECONDS / 10)
            self.mailbox.close()
            self._line.hang_up()
        finally:
            if self._turn.holder is me:
                self._turn.holder = None

    def _delivered(self) -> None:
        """Another thread may read: wake them, then run callbacks, which may wait for futures themselves."""
        self.wake_followers()
        self._run_due()

    def _wait_on_line(self, pause: float, *, leave: bool = False) -> None:
        """Wait for the answer to the lone request on the line; ask the database if it doesn't come there."""
        line = self._line
        awaited = line.awaited
        settled, entry = line.wait(pause)
        if entry is not None:
            self._expected.settle([entry])
        elif settled or leave or line.overdue():
            # Until the database was asked: no mail comes of a request on the line, so trouble must not forget it.
            line.awaited = awaited
            if awaited in self._expected.pending:
                entries: Sequence[MailEntry] = ask(self._db, subscribe, self._space, self._session, [awaited])
                self._expected.settle(entries)
            line.awaited = b""

    def _look_after_workers(self) -> None:
        if current_task() is not None:
            return  # its worker does
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        if self._looked:
            self._caretaker.look(now)
        self._looked = now
