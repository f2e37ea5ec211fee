"""One database as this process has it open: its store, committer, watches and snapshots, shared by all handles."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar

import lmdb

from ..errors import (
    FILE_NOT_FOUND,
    FUTURE_VERSION,
    IO_ERROR,
    TRANSACTION_TOO_OLD,
    Code,
    DamagedDatabase,
    EmbeddedError,
    EngineClosed,
)
from ..pure import idempotency
from ..pure.conflict import (
    NOTHING_WRITTEN,
    WITH_LASTING_IDS,
    log_begin,
    pack_record,
    read_log,
    unconflicted,
    unpack_record,
)
from ..pure.keys import LOG, log_key
from ..pure.versions import MARGIN, MAX_READ_AGE, first_version_after, last_version
from ..sharing.waiting import GivenUp, GoOn, at_most
from ..storage import durability as durable
from ..storage import journal
from ..storage.files import DATA
from ..storage.store import MAP_SIZE, Store
from .commit import Committer
from .housekeeping import Housekeeper
from .promises import Promised, end_unowned
from .snapshot import DAMAGE, SHARED_FOR, Snapshot
from .watches import Watches

T = TypeVar("T")

log = logging.getLogger("fdb_embedded")

_PASSING = (lmdb.MapResizedError, lmdb.InvalidParameterError)
THERE_SECONDS = 1.0
"""Between two looks whether the directory is still there."""
CLOSING_SECONDS = 5.0
"""So long a closing process waits to write what nobody waits for, while another one keeps it from that."""
PINNED = 64
KEEP_LOG = 2 * MAX_READ_AGE


class Engine:
    """The process's one attachment to a database."""

    def __init__(self, path: Path | None, *, durability: str = "process", map_size: int = MAP_SIZE) -> None:
        self.path = path
        self.durability = durability
        self.handles = 0
        self.closed = False
        self.damage: DamagedDatabase | None = None  # the first that was come upon
        self.stale = False  # closed, or this is a forked child that hasn't attached yet
        self.forked = False
        self.promised: Promised = {}  # in a forked child the parent's too
        self.store = Store(path, durable=durability == "fsync", map_size=map_size)
        try:
            self._directory_fd = -1 if path is None else os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            self.store.close()
            raise
        self.look_there_at = monotonic() + THERE_SECONDS
        self._gone = False  # and that was said
        self._start()

    def _start(self) -> None:
        self.live: dict[int, Snapshot] = {}  # not yet ended, or read in
        self.store.snapshots = self.live
        self.pinned: OrderedDict[int, Snapshot] = OrderedDict()
        self.versions_are_asked_for = False  # committed versions are kept from the first `set_read_version` on
        self.lock = threading.Lock()
        self.attaching = threading.RLock()
        self.flushing = self.durability == "fsync" and self.path is not None
        self._flushed: Snapshot | None = None
        self.shared: Snapshot | None = None  # by those that begin before the next commit
        self._flushed_at = (-1, 0)  # the position that it shows, and `taken_over` of before
        self.known = (-1, 0)  # the number and the version of a commit that has ended: the last one of this process
        if self.flushing and self.store.flusher is not None:
            self.store.flusher.keep = self._keep_flushed
        self.housekeeper = Housekeeper(self)
        self.store.readers.wake = self.housekeeper.unpark
        self.store.readers.park()  # what was read to open it
        self.committer = Committer(self)
        self.watches = Watches(self)
        self._checkpointing: threading.Thread | None = None

    # --- snapshots ---

    def snapshot(self, go_on: GoOn | None = None) -> Snapshot:
        """A snapshot of the newest version. Under `fsync` it is waited for; `go_on` ends the wait by raising."""
        if self.stale:
            self.check_open()
        now = monotonic()
        if now >= self.look_there_at:
            self.look_there()
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
                shared.users += 1  # as in `snapshot`
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
        if self.housekeeper.parked:
            self.housekeeper.unpark()
        if at is not None:
            try:
                self._await_flush(at, go_on)
            except BaseException:
                self.release(snap)
                raise
        return snap

    def newest(self, go_on: GoOn | None = None) -> tuple[Any, int]:
        """An LMDB read transaction and the version it shows; under `fsync` all of it is on disk. The caller has an older one open."""
        txn, version, at = self._newest(self.known, go_on)
        if at is not None:
            self._await_flush(at, go_on)
        return txn, version

    def _newest(self, known: tuple[int, int], go_on: GoOn | None) -> tuple[Any, int, tuple[int, int] | None]:
        """An LMDB read transaction, the version it shows, and under `fsync` the place in the journal up to which it shows all."""
        store = self.store
        me, inside = get_ident(), store.inside
        while True:
            generation = store.generation
            failure: lmdb.Error | None = None
            txn = at = None
            try:
                inside.add(me)
                if not store.gate:
                    txn = store.reads.begin()
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
            store.begin_read(go_on).abort()  # waits for the map, or for a slot
            if failure is not None and generation == store.generation and not isinstance(failure, _PASSING):
                raise self.damaged(failure) from failure

    def damaged(self, error: Exception) -> Code:
        """What a read or a commit gets that came upon damage: 1510, which isn't retried. The place is told once."""
        found = error if isinstance(error, DamagedDatabase) else DamagedDatabase(f"the store can't be read ({error})")
        self.store.note_damage()
        if self.damage is None:
            self.damage = found
            log.error(
                "%s is damaged: %s. What comes upon it fails with 1510; `fdb-embedded check` looks for more of it; restore a dump or a copy",
                *(self.path or "the database in memory", found),
            )
        code = Code(IO_ERROR)
        code.__cause__ = found
        return code

    def look_there(self) -> None:
        """To be called at `look_there_at`, once a second. Raises `Code` 1511, which isn't retried, where the database's directory was removed, or another is in its place.

        What is open goes on in files without a name: others would begin an empty database beside it, and neither would know.
        """
        self.look_there_at = monotonic() + THERE_SECONDS
        if self.path is None or self._directory_fd < 0:
            return
        ours = os.fstat(self._directory_fd)
        try:
            there = os.path.samestat(os.stat(self.path), ours) and (self.path / DATA).exists()
        except FileNotFoundError:
            there = False
        except OSError:
            return  # it can't be said
        if there:
            return
        if not self._gone:
            self._gone = True
            log.error(
                "the directory %s was removed or replaced while its database was open: what uses it fails with 1511. Stop it, and "
                "restore a dump or a copy",
                self.path,
            )
        self.look_there_at = 0.0
        raise Code(FILE_NOT_FOUND)

    def _await_flush(self, at: tuple[int, int], go_on: GoOn | None = None) -> None:
        """Return when the journal is on disk up to the end of a place in it."""
        if self.store.flusher is not None and self.store.page.flushed() < at[1]:
            self.store.flusher.wait(at[1], go_on)

    def read_flushed(self, function: Callable[[Any], T], go_on: GoOn | None = None) -> T:
        """What `function` gives of a read transaction, once all that it shows is on disk under `fsync`."""
        found, at = self.store.read(lambda txn: (function(txn), journal.place(txn) if self.flushing else None), go_on)
        if at is not None:
            self._await_flush(at, go_on)
        return found

    def _keep_flushed(self, txn: Any, position: int, taken_over: int) -> None:
        """A flush is done: its read transaction serves those who begin before the next one ends."""
        try:
            version = self.store.look(txn, last_version)
        except lmdb.Error:  # the map has grown meanwhile: the next to begin looks for itself
            self._flushed_at = (-1, 0)
            return
        snap = Snapshot(self, txn, version, self.store.readers.guard_of(txn))
        self.live[id(snap)] = snap
        before, self._flushed = self._flushed, snap
        self._flushed_at = (position, taken_over)
        if before is not None:
            self.release(before)

    def snapshot_at(self, version: int, go_on: GoOn | None = None) -> Snapshot:
        """A snapshot of a version that a caller names."""
        if version < self.store.clock.now() - MAX_READ_AGE:
            raise Code(TRANSACTION_TOO_OLD)
        with self.lock:
            for snap in self.pinned.values():
                if snap.version <= version <= snap.told and not snap.ended:
                    snap.users += 1
                    return snap
        snap = self.snapshot(go_on)
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
            snap = self.snapshot(at_most(0.0))
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

    def end_old_snapshots(self, born_before: float) -> bool:
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
            raise self.damaged(error) from error

    def busy(self) -> bool:
        """Whether anything is open that the housekeeping thread must look after. When nothing is, no old pages are kept any more."""
        return bool(self.live or self.committer.queue or self.committer.unsettled or not self.store.readers.park())

    def jump_version(self, by: int) -> None:
        """Advance the version as a recovery of a cluster does: transactions under way become too old."""
        store = self.store
        with store.writer_section() as txn:
            number = txn.id()
            try:
                last = last_version(txn)
                store.clock.jump(txn, by)
                version = store.next_version(txn, number, last)
                store.page.count_jump()
                store.write_record(txn, last, version, pack_record((), [], [], 0), [])
                txn.commit()
                store.page.end_version(number)
            except BaseException:
                with contextlib.suppress(lmdb.Error):
                    store.abort_write(txn, number)
                raise

    # --- the log ---

    def trim(self, txn: Any, version: int, count: int) -> None:
        """Drop commit records that no reader can need; inside a write transaction.

        Of the newest of those that are old enough the key stays: it says that nothing is missing behind it.
        """
        cursor = txn.cursor()
        if not (cursor.set_range(log_key(max(0, version - KEEP_LOG))) and cursor.prev()):
            return
        begin: bytes = cursor.key()
        if not cursor.set_range(LOG):
            return
        spilled = idempotency.spilled_to(txn)
        while count > 0 and cursor.key() <= begin:
            key, data = cursor.item()
            if data[0] == WITH_LASTING_IDS:
                self._spill(txn, key, data, spilled)
                cursor.set_range(key)  # the spilled row may have moved pages
            if key == begin:
                if data != NOTHING_WRITTEN:
                    txn.put(key, NOTHING_WRITTEN)
                return
            if not cursor.delete():
                return
            count -= 1

    @staticmethod
    def _spill(txn: Any, key: bytes, data: bytes, spilled: int) -> None:
        """Make rows of the lasting ids of a commit record."""
        at = int.from_bytes(key[len(LOG) :], "big")
        if at <= spilled:
            return
        try:
            _, _, ids, seconds = unpack_record(data)
        except DamagedDatabase as error:
            sys.stderr.write(f"fdb-embedded: commit record {at} can't be read ({error}): its ids are lost\n")
        else:
            idempotency.spill(txn, at, ids, seconds)

    # --- checkpoints ---

    def checkpoint_if_due(self) -> None:
        """Begin a checkpoint on a thread of its own when the journal has grown long."""
        if self.path is None or not self.store.page.journaled or self._checkpointing is not None:
            return
        try:
            at = self.store.read(journal.place, at_most(0.0))
        except GivenUp:  # the next look is soon
            return
        if at is None or at[1] - at[0] < durable.checkpoint_after(self.path):
            return
        thread = threading.Thread(target=self._checkpoint, name="fdb-embedded-checkpoint", daemon=True)
        self._checkpointing = thread
        thread.start()

    def _checkpoint(self) -> None:
        try:
            assert self.path is not None
            durable.checkpoint(self.store, self.path, self._while_open)
        except GivenUp:
            pass
        except (lmdb.Error, OSError) as error:
            sys.stderr.write(f"fdb-embedded: no checkpoint of {self.path}: {error}; the journal goes on growing\n")
        finally:
            self._checkpointing = None

    def _while_open(self) -> None:
        if self.closed:
            raise GivenUp

    # --- lifetime ---

    def is_own_thread(self) -> bool:
        """Whether the calling thread is one of the engine's, which end before it closes."""
        me = threading.current_thread()
        return me is self.housekeeper.thread or me is self.watches.thread or me is self._checkpointing

    def make_durable(self) -> None:
        """From now on this process's commits are flushed before they are acknowledged."""
        if self.flushing or self.path is None:
            return
        with durable.locked(self.path / durable.OPEN_LOCK):
            durable.make_durable(self.store, self.path)
        self.durability = "fsync"
        if self.store.flusher is not None:
            self.store.flusher.keep = self._keep_flushed
        self.flushing = self.store.waits_for_flushes = True
        self.store.page.read_unflushed(False)

    def check_open(self) -> None:
        """In a forked child attach to the database; raise `EngineClosed` when the engine was closed."""
        if self.closed:
            raise EngineClosed(f"the database {self.path or 'in memory'} was closed")
        if self.forked:
            with self.attaching:
                if self.forked:
                    self.store.reattach()
                    self.store.snapshots = self.live
                    self.store.readers.wake = self.housekeeper.unpark
                    if self.flushing and self.store.flusher is not None:
                        self.store.flusher.keep = self._keep_flushed
                    self.forked = self.stale = False

    def after_fork(self) -> None:
        """In a child: leave everything of the parent alone; transactions that were under way must start afresh."""
        self.store.after_fork()
        for snap in self.live.values():
            snap.ended = True
            _inherited.append(snap.txn)
            snap.txn = None
        parents = self.watches
        self._start()
        self.watches.inherit(parents)
        self.forked = self.stale = True

    def close(self) -> None:
        """Finish queued commits, end the threads, detach."""
        if self.closed:
            return
        if self.forked:
            self.closed = self.stale = True
            return
        until = self.committer.closes_at = monotonic() + CLOSING_SECONDS
        with contextlib.suppress(lmdb.Error):
            self.committer.drive(until=until)
        self.closed = self.stale = True
        self.watches.stop()
        self.housekeeper.stop()
        self.committer.await_others(until)
        with contextlib.suppress(lmdb.Error):
            while self.committer.unsettled or self.committer.queue:
                self.committer.settle_left()
                if not self.committer.drive(until=until):
                    self.committer.give_up()
        end_unowned(self.promised, closing=True)
        checkpointing = self._checkpointing
        if checkpointing is not None:
            checkpointing.join()
        for snap in self.live.copy().values():
            snap.end()
        self.store.close()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1


_inherited: list[Any] = []  # read transactions of a parent process: aborting them here would free its reader slots
