"""Watches: who waits for one sleeps on the process's futex and looks at the watched keys when it is woken.

A thread that blocks on a watch does so itself (`wait_for`), so that a wake-up of another process reaches it without a
change of threads. Callbacks are run by a thread of their own, which exists while somebody needs it.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import lmdb

from . import errors, keys
from .errors import Code
from .futures import Future

if TYPE_CHECKING:
    from .engine import Engine
    from .handles import Database

POLL = 0.25  # seconds between looks when nothing wakes the thread
DEFAULT_LIMIT = 10_000
KEPT_ENDED = 1000  # watches that were added between two looks for those that have ended
KEPT_PUBLISHED = 4  # keys without a watch that other processes may still wake this one for


class Watch(Future):
    """A watch. It counts against the limit of its database handle from `reserve` until it has ended, or is dropped."""

    __slots__ = ("counted", "database", "expected", "key")

    def __init__(self, database: Database, key: bytes, expected: bytes | None) -> None:
        super().__init__()
        self.database = database
        # C functions alone, so that an interrupt of the collector can't lose count
        self.counted = weakref.ref(self, database.watches.discard)
        hash(self.counted)  # asked for now, it is known when the watch is gone
        self.key = key
        self.expected = expected  # the value that it waits to see differ

    def set(self, value: Any = None, error: int = 0) -> bool:
        """As `Future.set`."""
        self.database.watches.discard(self.counted)
        return super().set(value, error)


class Watches:
    """The watches of an engine. The thread exists while somebody needs it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self.by_key: dict[bytes, dict[Watch, None]] = {}
        self._ended = 0  # at most so many of them
        self.published: frozenset[bytes] = frozenset()
        self.thread: threading.Thread | None = None
        self.stopping = False

    def reserve(self, watch: Watch) -> None:
        """Count one more watch of a database handle; `Code` 1032 when there are too many."""
        database = watch.database
        if len(database.watches) >= database.max_watches:
            self._look()  # those that are due make room
        with self.lock:
            if len(database.watches) >= database.max_watches:
                raise Code(errors.TOO_MANY_WATCHES)
            database.watches.add(watch.counted)

    def _drop_ended(self) -> None:
        """Forget the watches that have fired, and those that their holders cancelled. Under `lock`."""
        self._ended = 0
        for key, entries in list(self.by_key.items()):
            for watch in [watch for watch in entries if watch.done]:
                del entries[watch]
            if not entries:
                del self.by_key[key]
        if len(self.published) > 2 * len(self.by_key) + KEPT_PUBLISHED:
            self._publish()

    def add(self, watches: list[Watch]) -> None:
        """Start the watches of a transaction that has committed; those that were started already stay."""
        with self.lock:
            self._ended += len(watches)
            if self._ended > KEPT_ENDED:
                self._drop_ended()
            live = [watch for watch in watches if not watch.done]
            for watch in live:
                self.by_key.setdefault(watch.key, {})[watch] = None
                watch.kick = self._kick
                watch.direct = self.wait_for
            if not live:
                return
            if not all(watch.key in self.published for watch in live):
                self._publish()
        if self.thread is not None:
            self._look()  # what changed since the transaction read it woke nobody
        # A callback that was added before `kick` was set asked nobody.
        elif any(watch.callbacks for watch in live):
            self._kick(False)

    def wait_for(self, future: Future, seconds: float) -> bool:
        """Block the calling thread until a watch fires, at most `seconds`; whether it has."""
        deadline = time.monotonic() + seconds
        page = self.engine.store.page
        while not future.done:
            word = page.word()
            self._look()
            left = deadline - time.monotonic()
            if future.done or left <= 0 or self.engine.closed:
                break
            page.wait(word, min(left, POLL))
        return future.done

    def _publish(self) -> None:
        """Tell other processes what to wake this one for. A key stays published for a while after its watch fired.

        Most watches are set again on the same key at once, and a wake-up too many is cheaper than telling everybody.
        """
        published = frozenset(self.by_key)
        self.engine.store.page.publish(published)
        self.published = published

    def _kick(self, block: bool) -> None:
        """Somebody wants to be called back: there has to be a thread. It begins with a look."""
        if self.thread is None or not self.thread.is_alive():
            with self.lock:
                if (self.thread is None or not self.thread.is_alive()) and not self.stopping:
                    self.thread = threading.Thread(target=self._run, name="fdb-embedded-watches", daemon=True)
                    self.thread.start()

    def _wake(self) -> None:
        page = self.engine.store.page
        if page.slot is not None:
            page.wake(page.slot)

    def _run(self) -> None:
        page = self.engine.store.page
        idle = 0
        while True:
            word = page.word()
            try:
                self._look()
            except (lmdb.Error, Code):
                if self.stopping:
                    return
            with self.lock:
                if self.stopping:
                    return
                if not self.by_key:
                    idle += 1
                    if idle > 4:
                        self._publish()
                        self.thread = None
                        return
                else:
                    idle = 0
            page.wait(word, POLL)

    def _look(self) -> None:
        """Fire the watches whose value differs now."""
        with self.lock:
            # the values are read under the lock: a watch that is added later may know newer ones
            values = self.engine.read_flushed(self._values)
            due = [
                watch
                for key, entries in self.by_key.items()
                for watch in entries
                if watch.done or watch.expected != values[key]
            ]
        if not due:
            return
        for watch in due:  # they are found again if this is interrupted
            watch.set()
        with self.lock:
            self._drop_ended()

    def _values(self, txn: Any) -> dict[bytes, bytes | None]:
        return {key: keys.get(txn, key) for key in self.by_key}

    def stop(self, code: int = errors.TRANSACTION_CANCELLED) -> None:
        """End the thread; watches that are left end with `code`."""
        with self.lock:
            thread = self.thread
            self.stopping = True
            left = [watch for entries in self.by_key.values() for watch in entries]
            self.by_key.clear()
        if thread is not None and thread is not threading.current_thread():
            while thread.is_alive():
                self._wake()
                thread.join(0.05)
        self.thread = None
        for watch in left:
            watch.set(None, code)
