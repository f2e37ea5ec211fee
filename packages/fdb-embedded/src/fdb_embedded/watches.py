"""Watches: who waits for one sleeps on the process's futex and looks at the watched keys when it is woken.

A thread that blocks on a watch does so itself (`wait_for`), so that a wake-up of another process reaches it without a
change of threads. Callbacks are run by a thread of their own, which exists while somebody needs it.
"""

from __future__ import annotations

import threading
import time
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
KEPT_PUBLISHED = 4  # keys without a watch that other processes may still wake this one for


class Watches:
    """The watches of an engine. The thread exists while there are any."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self.by_key: dict[bytes, list[tuple[bytes | None, Future, Database]]] = {}
        self.published: frozenset[bytes] = frozenset()
        self.thread: threading.Thread | None = None
        self.stopping = False

    def reserve(self, database: Database) -> None:
        """Count one more watch of a database handle; `Code` 1032 when there are too many."""
        if database.watches >= database.max_watches:
            self._look()  # cancelled ones make room
        with self.lock:
            if database.watches >= database.max_watches:
                self._drop_ended()
            if database.watches >= database.max_watches:
                raise Code(errors.TOO_MANY_WATCHES)
            database.watches += 1

    def _drop_ended(self) -> None:
        """Make room: forget the watches that their holders cancelled."""
        for key, entries in list(self.by_key.items()):
            kept = [entry for entry in entries if not entry[1].done]
            for entry in entries:
                if entry[1].done:
                    entry[2].watches -= 1
            if kept:
                self.by_key[key] = kept
            else:
                del self.by_key[key]

    def forget(self, database: Database) -> None:
        """A counted watch has ended."""
        with self.lock:
            database.watches -= 1

    def add(self, database: Database, watches: list[tuple[bytes, bytes | None, Future]]) -> None:
        """Start the watches of a transaction that has committed."""
        with self.lock:
            live = 0
            for key, value, future in watches:
                if future.done:
                    database.watches -= 1
                    continue
                live += 1
                self.by_key.setdefault(key, []).append((value, future, database))
                future.kick = self._kick
                future.direct = self.wait_for
            if not live:
                return
            self._publish_new(watches)
        if self.thread is not None:
            self._look()  # what changed since the transaction read it woke nobody
        # A callback that was added before `kick` was set asked nobody.
        elif any(future.callbacks for _, _, future in watches):
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

    def _publish_new(self, watches: list[tuple[bytes, bytes | None, Future]]) -> None:
        if not all(key in self.published for key, _, _ in watches):
            self._publish()

    def _publish(self) -> None:
        """Tell other processes what to wake this one for. A key stays published for a while after its watch fired.

        Most watches are set again on the same key at once, and a wake-up too many is cheaper than telling everybody.
        """
        self.published = frozenset(self.by_key)
        self.engine.store.page.publish(self.published)

    def _kick(self, block: bool) -> None:
        """Somebody wants to be called back: there has to be a thread. It begins with a look."""
        if self.thread is None:
            with self.lock:
                if self.thread is None and not self.stopping:
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
            except lmdb.Error:
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
        fired: list[Future] = []
        with self.lock:
            # the values are read under the lock: a watch that is added later may know newer ones
            values = self.engine.store.read(self._values)
            gone: list[bytes] = []
            for key, entries in self.by_key.items():
                value = values[key]
                kept = []
                for entry in entries:
                    if entry[1].done:
                        entry[2].watches -= 1
                    elif entry[0] != value:
                        entry[2].watches -= 1
                        fired.append(entry[1])
                    else:
                        kept.append(entry)
                if not kept:
                    gone.append(key)
                elif len(kept) != len(entries):
                    entries[:] = kept
            for key in gone:
                del self.by_key[key]
            if len(self.published) > 2 * len(self.by_key) + KEPT_PUBLISHED:
                self._publish()
        for future in fired:
            future.set()

    def _values(self, txn: Any) -> dict[bytes, bytes | None]:
        if self.engine.flushing:
            self.engine.await_flush(txn)
        return {key: keys.get(txn, key) for key in self.by_key}

    def stop(self, code: int = errors.TRANSACTION_CANCELLED) -> None:
        """End the thread; watches that are left end with `code`."""
        with self.lock:
            thread = self.thread
            self.stopping = True
            left = [entry for entries in self.by_key.values() for entry in entries]
            self.by_key.clear()
        if thread is not None and thread is not threading.current_thread():
            while thread.is_alive():
                self._wake()
                thread.join(0.05)
        self.thread = None
        for _, future, _ in left:
            future.set(None, code)
