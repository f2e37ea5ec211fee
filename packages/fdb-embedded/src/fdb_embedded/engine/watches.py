"""Watches: who waits for one sleeps on the process's futex, and is woken by commits that wrote a watched key (slots.py).

A new watch is looked at once, by its key's value. Afterwards only what the records of those commits name is: so the work is that of what
has changed, and not of how much is watched. All watches are looked at where that isn't known any more: the process was stopped
for so long that the records are gone, or didn't look while hundreds of such commits came.

A thread that blocks on a watch does so itself (`wait_for`), so that a wake-up of another process reaches it without a
change of threads. Callbacks are run by a thread of their own, which exists while somebody needs it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

import lmdb

from .. import errors
from ..errors import Code, DamagedDatabase
from ..pure import keys
from ..pure.conflict import unpack_record, written_ranges
from ..pure.versions import last_version
from ..sharing.interest import Interest
from ..sharing.waiting import GivenUp, at_most
from ..storage.store import Store
from .futures import Future
from .snapshots import Attachment, Snapshots
from .soundness import Soundness
from .watch import Watch

POLL = 2.0
"""Seconds between looks at the page when nothing wakes a thread; no row is read for them."""
POLL_AGAIN = 0.25
"""Seconds until the next where somebody was about to commit. So soon after that a watch fires though the process that changed its key was killed, or
stopped, before it told."""
LINGER = 2.0  # seconds in which a thread without watches waits for new ones
FEW_KEYS = 1000  # so many are looked through at each poll for watches that nobody holds any more
KEPT_TOLD = 4  # keys without a watch that commits are still asked for


class _Found:
    """What one look has found."""

    __slots__ = ("all_at", "all_wanted", "done", "due", "unwatched")

    def __init__(self, all_wanted: int) -> None:
        self.all_wanted = all_wanted
        self.all_at = 0  # the version at which all watches were looked at; 0: not all
        self.done: set[int] = set()  # versions whose commits were looked at
        self.due: list[Watch] = []
        self.unwatched: set[bytes] = set()  # keys that were written, and that nobody watches


class Owner(Attachment, Protocol):
    """The engine whose watches they are."""

    @property
    def store(self) -> Store: ...
    @property
    def soundness(self) -> Soundness: ...
    @property
    def snapshots(self) -> Snapshots: ...


class Watches:
    """The watches of an engine. The thread exists while somebody needs it."""

    def __init__(self, engine: Owner) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self.by_key: dict[bytes, dict[weakref.ref[Watch], None]] = {}  # who drops a watch gives it up
        self.awaited: set[Watch] = set()  # those that somebody is to be called back by
        self.interest = Interest()  # the keys of `by_key`, and a few that were lately
        self._unwatched: dict[bytes, None] = {}  # those few, oldest first
        self._added = 0  # how many watches were
        self._swept = 0  # of them, when all were looked through for those that have ended
        self._to_sweep: list[bytes] = []  # what is left of looking through them bit by bit
        self._untold = True  # some keys may not have been told of
        # What is to be looked at; it is noted before it leaves the page, and stays until the watches that are due have fired.
        self._fresh: dict[bytes, int] = {}  # keys of new watches, with `_added` then
        self._pending: set[int] = set()  # versions of commits that wrote a watched key
        self._all_wanted = self._all_done = 0  # how often all watches were to be looked at
        self._all_seen = (0, 0)  # the page's number of this, when it was seen last
        self._all_at = 0  # the version at which all watches of that time were looked at
        self._debts: dict[int, int] = {}  # of commits, at the last poll
        self._settled: dict[int, int] = {}  # those of them that were looked at
        self._poll_at = 0.0
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

    def add(self, watches: list[Watch]) -> None:
        """Start the watches of a transaction that has committed; those that were started already stay."""
        with self.lock:
            if self.stopping:
                live = []
            else:
                if self._added - self._swept > max(FEW_KEYS, len(self.by_key)):
                    self._drop_ended(list(self.by_key))
                    self._swept = self._added
                live = [watch for watch in watches if not watch.done]
                self._begin(live)
                self._tell([watch.key for watch in live])
        if self.stopping:
            for watch in watches:
                watch.set(None, errors.TRANSACTION_CANCELLED)
        elif self.thread is not None:
            self.engine.store.page.slots.wake_own()  # what changed since the transaction read it was told to nobody
        # A callback that was added before `kick` was set asked nobody.
        elif any(watch.callbacks for watch in live):
            self._kick(None)

    def _begin(self, live: Iterable[Watch]) -> None:
        for watch in live:
            self._added += 1
            self._fresh[watch.key] = self._added
            self.by_key.setdefault(watch.key, {})[watch.counted] = None
            watch.kick = self._kick
            watch.direct = self.wait_for

    def inherit(self, parents: Watches) -> None:
        """In a forked child, which is to attach yet: those of the parent's watches that somebody holds go on here, too."""
        held = [held for entries in parents.by_key.copy().values() for held in entries.copy()]
        self._begin(watch for one in held if (watch := one()) is not None and not watch.done)

    def _tell(self, added: Iterable[bytes]) -> None:
        """Let commits tell this process when they write the keys. Under `lock`, which is given up before the keys are looked at."""
        slots = self.engine.store.page.slots
        if slots.own is None:
            self._untold = True
            if not slots.claim():
                return
        if self._untold:
            added = list(self.by_key)
            self._all_wanted += 1  # what was watched without a slot
        for key in added:
            self.interest.tell(slots, key)
            self._unwatched.pop(key, None)
        self._untold = False

    def _withdraw(self, unwatched: Iterable[bytes]) -> None:
        """Let no commit tell of keys that nobody watches. Under `lock`."""
        slots = self.engine.store.page.slots
        for key in unwatched:
            if key not in self.by_key:
                if slots.own is not None:
                    self.interest.withdraw(slots, key)
                self._unwatched.pop(key, None)

    def _keep_told(self, unwatched: Iterable[bytes]) -> None:
        """As `_withdraw`, but not for the last few, until they change: most watches are set again on the same key at once."""
        self._unwatched.update(dict.fromkeys(unwatched))
        if len(self._unwatched) > KEPT_TOLD:
            self._withdraw(list(self._unwatched)[: len(self._unwatched) - KEPT_TOLD])

    def _drop_ended(self, among: Iterable[bytes]) -> None:
        """Forget the watches that have fired, that were cancelled, or that nobody holds. Under `lock`."""
        gone = []
        for key in among:
            entries = self.by_key.get(key, {})
            for held in list(entries):
                watch = held()
                if watch is None or watch.done:
                    del entries[held]
            if not entries:
                self.by_key.pop(key, None)
                gone.append(key)
        self._keep_told(gone)

    # --- waiting ---

    def wait_for(self, future: Future, seconds: float) -> bool:
        """Block the calling thread until a watch fires, at most `seconds`; whether it has."""
        deadline = time.monotonic() + seconds
        if self.engine.forked:
            self.engine.check_open()
        slots = self.engine.store.page.slots
        try:
            while not future.done:
                word = slots.word()
                self._look()
                left = deadline - time.monotonic()
                if future.done or left <= 0 or self.engine.closed:
                    break
                slots.wait(word, min(left, self._pause()))
        except ValueError:  # another thread has closed the database, and with it the page
            if not self.engine.closed:
                raise
        return future.done

    def wake(self) -> None:
        """Wake the threads that wait: one of their watches has ended, not by a change of its key."""
        with contextlib.suppress(ValueError):  # the page was closed
            self.engine.store.page.slots.wake_own()

    def _pause(self) -> float:
        return max(0.0, self._poll_at - time.monotonic())

    def _kick(self, waiter: Future | None) -> None:
        """Somebody wants to be called back: there has to be a thread. It begins with a look."""
        if self.thread is None or not self.thread.is_alive():
            if self.engine.forked:
                self.engine.check_open()
            with self.lock:
                if (self.thread is None or not self.thread.is_alive()) and not self.stopping:
                    self.thread = threading.Thread(target=self._run, name="fdb-embedded-watches", daemon=True)
                    self.thread.start()

    def _run(self) -> None:
        slots = self.engine.store.page.slots
        idle_since = time.monotonic()
        while True:
            word = slots.word()
            try:
                self._look()
            except (lmdb.Error, DamagedDatabase, Code):
                if self.stopping:
                    return
            now = time.monotonic()
            with self.lock:
                if self.stopping:
                    return
                if self.by_key:
                    idle_since = now
                elif now > idle_since + LINGER:
                    self._withdraw(list(self._unwatched))
                    self.thread = None
                    return
            slots.wait(word, self._pause())

    # --- looking ---

    def _collect(self) -> None:
        """Note what there is to look at. Under `lock`."""
        slots = self.engine.store.page.slots
        number = slots.look_at_all()
        if number != self._all_seen or (slots.own is None and self.by_key):
            self._all_wanted += 1
            self._all_seen = number
        for place, version in slots.hits():
            self._pending.add(version)
            slots.clear_hit(place)
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll()
            self._poll_at = now + (POLL_AGAIN if self._debts.items() - self._settled.items() else POLL)

    def _poll(self) -> None:
        """Look for commits of which nobody told, and a part of the watches through for those that have ended."""
        before, self._debts = self._debts, self.engine.store.page.slots.debts()
        left = {place: version for place, version in self._debts.items() if before.get(place) == version}
        self._settled = {place: version for place, version in left.items() if self._settled.get(place) == version}
        self._pending |= {version for place, version in left.items() if place not in self._settled}
        if not self._to_sweep:
            self._to_sweep = list(self.by_key)
        self._drop_ended(self._to_sweep[-FEW_KEYS:])
        del self._to_sweep[-FEW_KEYS:]

    def _look(self) -> None:
        """Fire the watches whose value differs now, of those that there is a reason to look at."""
        if self.by_key and time.monotonic() >= self._poll_at:
            self._end_where_gone()
        if self._untold and self.by_key and time.monotonic() >= self._poll_at:
            with self.lock:  # without a slot until now; and it is given up before they are looked at
                self._tell(())
        with self.lock:
            self._collect()
            if not (self._pending or self._fresh or self._all_wanted > self._all_done):
                return
            fresh = self._fresh.copy()
            # under the lock: a watch that is added later may know newer values
            try:
                found = self.engine.snapshots.read_flushed(self._find, at_most(POLL_AGAIN))
            except GivenUp:  # another process is waited for, which is to keep nobody who needs this lock
                self._poll_at = min(self._poll_at, time.monotonic() + POLL_AGAIN)
                return
        for watch in found.due:  # they are found again if this is interrupted
            watch.set()
        with self.lock:
            self._drop_ended({watch.key for watch in found.due})
            self._withdraw(found.unwatched)
            self._settled.update((place, version) for place, version in self._debts.items() if version in found.done)
            self._pending -= found.done
            for key, added in fresh.items():
                if self._fresh.get(key) == added:
                    del self._fresh[key]
            if found.all_at:
                self._all_at = max(self._all_at, found.all_at)
                self._all_done = max(self._all_done, found.all_wanted)

    def _end_where_gone(self) -> None:
        """End all watches of a database whose directory was removed: nobody will write there."""
        try:
            if time.monotonic() >= self.engine.soundness.look_there_at:
                self.engine.soundness.look_there()
        except Code as gone:
            with self.lock:
                left = self._live()
            for watch in left:
                watch.set(None, gone.code)

    def _live(self) -> list[Watch]:
        """All watches that somebody holds. Under `lock`."""
        return [watch for entries in self.by_key.values() for held in entries if (watch := held()) is not None]

    def _find(self, txn: Any) -> _Found:
        """What is due in a read transaction. Under `lock`; may be called again."""
        found = _Found(self._all_wanted)
        last = last_version(txn)
        wanted = self._all_wanted > self._all_done
        everything = wanted and last != self._all_at
        look_at = set(self._fresh)
        for version in self._pending:
            if version > last:  # of a process that is still about to commit
                continue
            found.done.add(version)
            if everything or version <= self._all_at:
                continue
            written = self._written(txn, version)
            if written is None:
                everything = True
            else:
                look_at |= written
                found.unwatched |= written - self.by_key.keys()
        if everything or wanted:
            found.all_at = last
        if everything:
            look_at = set(self.by_key)
        for key in look_at:
            entries = self.by_key.get(key)
            if entries:
                found.due += self._due(txn, key, entries)
        return found

    def _written(self, txn: Any, version: int) -> set[bytes] | None:
        """The keys, of those that commits are asked for, that one wrote; None where that isn't known (any more)."""
        record = txn.get(keys.log_key(version))
        if record is None:  # forgotten long ago, or never made
            return None
        try:
            points, ranges, _, _ = unpack_record(record)
        except DamagedDatabase:
            return None
        written = set(filter(self.interest.keys.__contains__, points))
        for begin, end in written_ranges(ranges):
            written.update(self.interest.between(begin, end))
        return written

    @staticmethod
    def _due(txn: Any, key: bytes, entries: Iterable[weakref.ref[Watch]]) -> list[Watch]:
        live = [watch for held in entries if (watch := held()) is not None]
        try:
            value = keys.get(txn, key)
        except DamagedDatabase:  # who reads the row is told
            return live
        return [watch for watch in live if watch.done or watch.expected != value]

    def stop(self, code: int = errors.TRANSACTION_CANCELLED) -> None:
        """End the thread; watches that are left end with `code`."""
        with self.lock:
            thread = self.thread
            self.stopping = True
            left = self._live()
            self.by_key.clear()
        for watch in left:
            watch.set(None, code)
        slots = self.engine.store.page.slots
        slots.wake_own()
        if thread is not None and thread is not threading.current_thread():
            while thread.is_alive():
                slots.wake_own()
                thread.join(0.05)
        self.thread = None
