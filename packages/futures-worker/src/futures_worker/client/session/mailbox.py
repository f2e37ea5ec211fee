"""One mailbox and one watch per client: how a client learns, without polling, that any of its futures ended.

Whoever waits reads the mailbox itself and blocks on the watch itself; there is no thread in between. One thread at a
time does so (the caller sees to it).
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from typing import Any, Final

from fdb_datamodel import ClusterSpace, MailEntry, clear_mailbox, read_mailbox, session_bell
from futures_worker.database import ask

PAGE_ROWS: Final = 1000


class Mailbox:
    """Reads the mail of one session. Not thread-safe: its user holds a lock."""

    def __init__(
        self, db: Any, space: ClusterSpace, session: bytes, deliver: Callable[[Sequence[MailEntry]], None]
    ) -> None:
        self._db = db
        self._space = space
        self._session = session
        self._deliver = deliver
        self._bell = session_bell(space, session)
        self._watch: Watch | None = None
        self._read_to = b""  # cursor: mail up to here was delivered
        self._cleared_to = b""  # cursor: mail up to here was deleted
        self._ending = False

    def read(self) -> int:
        """Deliver what is there; how many entries."""
        return self._take(ask(self._db, self._read, strategy="off"))

    def wait(self, timeout: float) -> int:
        """Deliver what is there, or else block until mail comes or `timeout` seconds passed; how many entries."""
        if self._ending:
            return 0
        if self._watch is None:
            delivered = self._read_and_rearm()
            if delivered:
                return delivered
        # An outstanding watch was set in a transaction that also read the mailbox: no mail can be missed by blocking.
        fired = self._watch is None or self._ending or self._watch.wait(timeout)
        if self._ending:
            return 0
        return self._read_and_rearm() if fired else self.read()  # should the watch have been lost

    def _read_and_rearm(self) -> int:
        """Read, and watch for what comes after, in one transaction: the next wait can block at once."""
        entries, cursor, watch = ask(self._db, self._read_and_watch, strategy="off")
        self._watch = Watch(watch)
        return self._take((entries, cursor))

    @property
    def undeleted(self) -> bool:
        """Whether there is delivered mail to delete."""
        return self._read_to != self._cleared_to

    def clear_delivered(self, tr: Any) -> Callable[[], None] | None:
        """Delete delivered mail within `tr`; what to call once it committed, or None if there is nothing to delete."""
        cursor = self._read_to
        if cursor == self._cleared_to:
            return None
        clear_mailbox(tr, self._space, self._session, cursor)

        def committed() -> None:
            self._cleared_to = max(self._cleared_to, cursor)

        return committed

    def interrupt(self) -> None:
        """Let the thread that waits return now, and none wait any more; by any thread, before `close`."""
        self._ending = True
        watch = self._watch
        if watch is not None:
            watch.cancel()

    def close(self) -> None:
        """Let the watch go."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _read(self, tr: Any) -> tuple[list[MailEntry], bytes]:
        return read_mailbox(tr, self._space, self._session, self._read_to, PAGE_ROWS)

    def _read_and_watch(self, tr: Any) -> tuple[list[MailEntry], bytes, Any]:
        watch = tr.watch(self._bell)
        entries, cursor = self._read(tr)
        return entries, cursor, watch

    def _take(self, read: tuple[list[MailEntry], bytes]) -> int:
        entries, cursor = read
        if entries:
            # In this order: mail that an interrupt kept from being delivered is read again; to deliver twice is harmless.
            self._deliver(entries)
            self._read_to = cursor
        return len(entries)


class Watch:
    """A watch that can be waited for with a timeout.

    An engine that lets a thread block on a watch directly (`wait_for(seconds)`) saves one change of threads.
    """

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._direct = getattr(watch, "wait_for", None)
        if self._direct is None:
            fired = self._fired = _thread.allocate_lock()
            fired.acquire()
            watch.on_ready(lambda _: fired.release())

    def wait(self, timeout: float) -> bool:
        """Whether it fired (or broke, which is to be looked at all the same) within `timeout` seconds."""
        if self._direct is not None:
            return bool(self._direct(timeout))
        return self._fired.acquire(timeout=max(0.0, timeout))

    def cancel(self) -> None:
        self._watch.cancel()
