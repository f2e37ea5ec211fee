"""The snapshots of an engine: those that begin share what is the newest, and what was handed out is kept for a while."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import Any, Protocol, TypeVar

import lmdb

from ..errors import FUTURE_VERSION, TRANSACTION_TOO_OLD, Code, EmbeddedError
from ..pure.conflict import read_log, unconflicted
from ..pure.versions import MARGIN, MAX_READ_AGE, first_version_after, last_version, log_begin
from ..sharing.waiting import GivenUp, GoOn, at_most
from ..storage import journal
from ..storage.store import Store
from .housekeeping import Housekeeper
from .snapshot import DAMAGE, SHARED_FOR, Snapshot
from .soundness import Soundness

T = TypeVar("T")

_PASSING = (lmdb.MapResizedError, lmdb.InvalidParameterError)
PINNED = 64


class Attachment(Protocol):
    """Whether the process has the database open."""

    @property
    def closed(self) -> bool: ...
    @property
    def stale(self) -> bool:
        """Closed, or this is a forked child that hasn't attached yet."""

    @property
    def forked(self) -> bool: ...
    def check_open(self) -> None:
        """In a forked child attach to the database; raise `EngineClosed` where it was closed."""


class Snapshots:
    """Those that are open, and how another one is come by."""

    def __init__(
        self, store: Store, soundness: Soundness, attached: Attachment, housekeeper: Housekeeper, flushing: bool
    ) -> None:
        self.store = store
        self.soundness = soundness
        self._attached = attached
        self._housekeeper = housekeeper
        self.live: dict[int, Snapshot] = {}  # not yet ended, or read in
        self.pinned: OrderedDict[int, Snapshot] = OrderedDict()
        self.versions_are_asked_for = False  # committed versions are kept from the first `set_read_version` on
        self.lock = threading.Lock()
        self.flushing = flushing  # what is acknowledged, or shown, is on disk
        self._flushed: Snapshot | None = None
        self.shared: Snapshot | None = None  # by those that begin before the next commit
        self._flushed_at = (-1, 0)  # the position that it shows, and `taken_over` of before
        self.known = (-1, 0)  # the number and the version of a commit that has ended: the last one of this process
        self.attach()

    def attach(self) -> None:
        """The store has opened its files, perhaps anew."""
        self.store.map.snapshots = self.live
        if self.flushing and self.store.flusher is not None:
            self.store.flusher.keep = self.keep_flushed

    def begin_flushing(self) -> None:
        """From now on this process shows, and acknowledges, only what is on disk."""
        if self.store.flusher is not None:
            self.store.flusher.keep = self.keep_flushed
        self.flushing = self.store.waits_for_flushes = True
        self.store.page.read_unflushed(False)

    def abandon(self) -> list[Any]:
        """In a forked child: nobody reads what the parent had open. Its transactions, which nobody may touch."""
        left = []
        for snap in self.live.values():
            snap.ended = True
            left.append(snap.txn)
            snap.txn = None
        return left

    def end_all(self) -> None:
        """The database is closed."""
        for snap in self.live.copy().values():
            snap.end()

    def begin(self, go_on: GoOn | None = None) -> Snapshot:
        """A snapshot of the newest version. Under `fsync` it is waited for; `go_on` ends the wait by raising."""
        if self._attached.stale:
            self._attached.check_open()
        now = monotonic()
        if now >= self.soundness.look_there_at:
            self.soundness.look_there()
            now = monotonic()  # that may have taken long
        if self.flushing:
            snap = self._flushed
            page = self.store.page
            if (
                snap is not None
                and self._flushed_at == (page.flushed(), page.taken_over())
                and page.acknowledged() <= self._flushed_at[0]  # others don't wait
                and snap.is_new()
                and not snap.ended
            ):
                snap.users += 1
                return snap
            return self._own_snapshot(go_on=go_on)
        snap = self.shared
        if snap is not None and now < snap.new_until and snap.mark == self.store.page.begun() and not snap.ended:
            snap.users += 1  # no call since the look: nothing else of this process comes between
            return snap
        return self._own_snapshot(go_on=go_on)

    def _own_snapshot(self, alone: bool = False, go_on: GoOn | None = None) -> Snapshot:
        """A snapshot of the newest version, which those that begin before the next commit share, unless it is to be `alone`."""
        readers = self.store.readers
        token = object()
        try:
            readers.beginning.add(token)
            if readers.parked:
                readers.publish()
            known = self.known
            mark = self.store.page.ended_mark()
            txn, version, at = self._newest(known, go_on)
            shared = self.shared
            if (
                not alone
                and shared is not None
                and shared.version == version == shared.shown
                and shared.is_new()
                and not shared.ended
            ):
                shared.users += 1  # as in `begin`
                shared.mark = mark
                txn.abort()
                snap = shared
            else:
                snap = Snapshot(self, txn, version, readers.guard_of(txn), mark)
                self.live[id(snap)] = snap
                if not alone:
                    before, self.shared = self.shared, snap
                    if before is not None:
                        self.end_unused(before)
        finally:
            readers.beginning.discard(token)
        if self._housekeeper.parked:
            self._housekeeper.unpark()
        if at is not None:
            try:
                self.await_flush(at, go_on)
            except BaseException:
                self.release(snap)
                raise
        return snap

    def newest(self, go_on: GoOn | None = None) -> tuple[Any, int]:
        """An LMDB read transaction and the version it shows; under `fsync` all of it is on disk. The caller has an older one open."""
        txn, version, at = self._newest(self.known, go_on)
        if at is not None:
            self.await_flush(at, go_on)
        return txn, version

    def _newest(self, known: tuple[int, int], go_on: GoOn | None) -> tuple[Any, int, tuple[int, int] | None]:
        """An LMDB read transaction, the version it shows, and under `fsync` the place in the journal up to which it shows all."""
        store = self.store
        me, inside = get_ident(), store.map.inside
        while True:
            generation = store.map.generation
            failure: lmdb.Error | None = None
            txn = at = None
            try:
                inside.add(me)
                if not store.map.gate:
                    txn = store.map.reads.begin()
                    # `known` had ended before: it is the newest where nobody has begun another one until now. Otherwise of the
                    # data: the number of `txn` may be of an earlier one than it shows
                    version = known[1] if store.page.begun() == known[0] else last_version(txn)
                    if not self.flushing:
                        return txn, version, None
                    at = journal.place(txn)
            except lmdb.Error as error:  # another process has grown the map, or all slots of readers are taken
                failure = error
            finally:
                inside.discard(me)
            if txn is not None and failure is None:
                return txn, version, at  # None: nothing is journaled yet
            store.map.begin(go_on).abort()  # waits for the map, or for a slot
            if failure is not None and generation == store.map.generation and not isinstance(failure, _PASSING):
                raise self.soundness.damaged(failure) from failure

    def await_flush(self, at: tuple[int, int], go_on: GoOn | None = None) -> None:
        """Return when the journal is on disk up to the end of a place in it."""
        if self.store.flusher is not None and self.store.page.flushed() < at[1]:
            self.store.flusher.wait(at[1], go_on)

    def read_flushed(self, function: Callable[[Any], T], go_on: GoOn | None = None) -> T:
        """What `function` gives of a read transaction, once all that it shows is on disk under `fsync`."""
        found, at = self.store.read(lambda txn: (function(txn), journal.place(txn) if self.flushing else None), go_on)
        if at is not None:
            self.await_flush(at, go_on)
        return found

    def keep_flushed(self, txn: Any, position: int, taken_over: int) -> None:
        """A flush is done: its read transaction serves those who begin before the next one ends."""
        try:
            version = self.store.map.look(txn, last_version)
        except lmdb.Error:  # the map has grown meanwhile: the next to begin looks for itself
            self._flushed_at = (-1, 0)
            return
        snap = Snapshot(self, txn, version, self.store.readers.guard_of(txn))
        self.live[id(snap)] = snap
        before, self._flushed = self._flushed, snap
        self._flushed_at = (position, taken_over)
        if before is not None:
            self.release(before)

    def begin_at(self, version: int, go_on: GoOn | None = None) -> Snapshot:
        """A snapshot of a version that a caller names."""
        if version < self.store.clock.now() - MAX_READ_AGE:
            raise Code(TRANSACTION_TOO_OLD)
        with self.lock:
            for snap in self.pinned.values():
                if snap.version <= version <= snap.told and not snap.ended:
                    snap.users += 1
                    return snap
        snap = self.begin(go_on)
        if snap.version != version:
            newest = snap.version
            if version > newest:
                if version <= self.read_version(newest, go_on):
                    return snap
                self.release(snap)
                raise Code(FUTURE_VERSION)
            if version < newest - MAX_READ_AGE:
                self.release(snap)
                raise Code(TRANSACTION_TOO_OLD)
            self.release(snap)  # others may hold that one too, and read at its version
            snap = self._own_snapshot(alone=True, go_on=go_on)
            snap.version = version
        return snap

    def read_version(self, version: int, go_on: GoOn | None = None) -> int:
        """What to call the read version of a snapshot of `version`: it shows all versions up to this one (versions.py)."""
        store = self.store
        now = store.clock.now() - MARGIN
        begun = store.page.begun()
        number, following = store.read(lambda txn: (txn.id(), first_version_after(txn, version)), go_on)
        if following is not None:
            return following - 1
        return max(version, now) if number >= begun else version

    def pin(self, snap: Snapshot, told: int) -> None:
        """Keep a snapshot whose version was handed out as `told`, so that `set_read_version` finds it for five seconds."""
        with self.lock:
            before = self.pinned.get(snap.version)
            if before is not None:
                before.told = max(before.told, told)
                return
            if snap.ended:
                return
            snap.told = max(snap.told, told)
            snap.users += 1
            self.pinned[snap.version] = snap
            oldest = self.pinned.popitem(last=False)[1] if len(self.pinned) > PINNED else None
        if oldest is not None:
            self.release(oldest)

    def pin_committed(self, version: int) -> None:
        """Keep the state of a version just committed, if it is still the newest, for who may ask for it again.

        Where it can't be read any more, the commit was made all the same, and who waits for it is to be told so.
        """
        with contextlib.suppress(GivenUp, Code, EmbeddedError, lmdb.Error):
            snap = self.begin(at_most(0.0))
            if snap.version == version:
                self.pin(snap, version)
            self.release(snap)

    def release(self, snap: Snapshot) -> None:
        """A user of the snapshot is done with it."""
        snap.users = users = snap.users - 1
        if users <= 0:
            snap.ended = True  # no call since the last user left: nobody comes to share it in between
            if self.shared is snap:
                self.shared = None
            snap.end()

    def leave(self, snap: Snapshot) -> None:
        """As `release`, by who wrote nothing: the shared snapshot stays open for the next who reads before anybody commits. It
        ends at this process's next commit, or when nobody shares it any more for its age.
        """
        if snap is self.shared and not snap.ended:
            snap.users -= 1
        else:
            self.release(snap)

    def end_unused(self, snap: Snapshot) -> None:
        """End a snapshot that was shared, unless somebody uses it."""
        if snap.users <= 0:
            snap.ended = True  # no call since the look: as in `release`
            if self.shared is snap:
                self.shared = None
            snap.end()

    def end_old(self, born_before: float) -> bool:
        """End what is older than five seconds, so that LMDB can use its pages again; True while any are open, or were since the last call."""
        if not self.live:
            readers = self.store.readers
            used = not readers.parked
            if not readers.park():
                self.store.advance_readers()
            return used
        shared = self.shared
        if shared is not None and not shared.is_new():
            self.end_unused(shared)
        if self._oldest_birth() < born_before:
            # A copy by one call: the collector may run a finalizer that releases a snapshot while a list is being built.
            for snap in self.live.copy().values():
                if snap.born < born_before:
                    snap.end()
        if self.pinned:
            with self.lock:
                for version in [version for version, snap in self.pinned.items() if snap.ended]:
                    del self.pinned[version]
        self.store.advance_readers()
        return bool(self.live)

    def _oldest_birth(self) -> float:
        """When the oldest of the open snapshots was taken: they are noted in this order, give or take what begins at one time."""
        with contextlib.suppress(StopIteration, RuntimeError):  # none is left, or the notes change at this moment
            return next(iter(self.live.values())).born - SHARED_FOR
        return 0.0

    def written_between(self, since: int, until: int, begin: bytes, end: bytes, go_on: GoOn | None = None) -> bool:
        """Whether a commit of a version in (since, until] wrote in [begin, end), be it in conflict with readers or not."""
        spans = [(begin, end), *unconflicted((), [(begin, end)])]

        def find(txn: Any) -> bool:
            if until - since > MAX_READ_AGE and log_begin(txn) > since:
                return True  # for all that is known
            return any(record.hit_by_ranges(spans) is not None for record in read_log(txn, since, until))

        try:
            return self.store.read(find, go_on)
        except DAMAGE as error:
            raise self.soundness.damaged(error) from error
