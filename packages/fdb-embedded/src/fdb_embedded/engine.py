"""One database as this process has it open: its store, committer, watches and snapshots, shared by all handles."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

import lmdb

from . import durability as durable
from . import idempotency, journal
from .commit import Committer
from .conflict import WITH_LASTING_IDS, pack_record, read_log, unpack_record
from .errors import FUTURE_VERSION, TRANSACTION_TOO_OLD, Code, EngineClosed
from .housekeeping import Housekeeper
from .keys import LOG, log_key
from .snapshot import Snapshot
from .store import MAP_SIZE, Store
from .versions import MAX_READ_AGE, last_version
from .watches import Watches

T = TypeVar("T")

_PASSING = (lmdb.MapResizedError, lmdb.InvalidParameterError, lmdb.ReadersFullError)
PINNED = 64
KEEP_LOG = 2 * MAX_READ_AGE


class Engine:
    """The process's one attachment to a database."""

    def __init__(self, path: Path | None, *, durability: str = "process", map_size: int = MAP_SIZE) -> None:
        self.path = path
        self.durability = durability
        self.handles = 0
        self.closed = False
        self.stale = False  # closed, or this is a forked child that hasn't attached yet
        self.forked = False
        self.store = Store(path, durable=durability == "fsync", map_size=map_size)
        self._start()

    def _start(self) -> None:
        self.live: dict[int, Snapshot] = {}  # not yet ended, or read in
        self.store.snapshots = self.live
        self.pinned: OrderedDict[int, Snapshot] = OrderedDict()
        self.versions_are_asked_for = False  # committed versions are kept from the first `set_read_version` on
        self.lock = threading.Lock()
        self.attaching = threading.RLock()
        self.known = (-1, 0)  # (LMDB's number of a transaction, the version it shows)
        self.flushing = self.durability == "fsync" and self.path is not None
        self._flushed: Snapshot | None = None
        self._flushed_position = -1
        if self.flushing and self.store.flusher is not None:
            self.store.flusher.keep = self._keep_flushed
        self.housekeeper = Housekeeper(self)
        self.committer = Committer(self)
        self.watches = Watches(self)
        self._checkpointing: threading.Thread | None = None

    # --- snapshots ---

    def snapshot(self) -> Snapshot:
        """A snapshot of the newest version."""
        if self.stale:
            self.check_open()
        if self.flushing:
            snap = self._flushed
            if snap is not None and self._flushed_position == self.store.page.flushed() and not snap.ended:
                snap.users += 1
                return snap
        return self._own_snapshot()

    def _own_snapshot(self) -> Snapshot:
        """A snapshot of the newest version that nobody else holds."""
        txn, version = self.newest()
        snap = Snapshot(self, txn, version, version)
        self.live[id(snap)] = snap
        if self.housekeeper.parked:
            self.housekeeper.unpark()
        return snap

    def newest(self) -> tuple[Any, int]:
        """An LMDB read transaction and the version it shows; under `fsync` all of it is on disk."""
        store = self.store
        me, inside = get_ident(), store.inside
        while True:
            generation = store.generation
            failure: lmdb.Error | None = None
            txn = at = None
            try:
                inside.add(me)
                if not store.gate:
                    txn = store.env.begin()
                    number, version = self.known
                    if number != txn.id():
                        version = last_version(txn)
                        self.known = (txn.id(), version)
                    if not self.flushing:
                        return txn, version
                    at = journal.place(txn)
            except lmdb.Error as error:  # another process has grown the map, or all slots of readers are taken
                failure = error
            finally:
                inside.discard(me)
            if at is not None:
                self._await_flush(at)
                return txn, version
            if txn is not None and failure is None:
                return txn, version  # nothing is journaled yet
            store.begin_read().abort()  # waits for the map, or for a slot
            if failure is not None and generation == store.generation and not isinstance(failure, _PASSING):
                raise failure

    def _await_flush(self, at: tuple[int, int]) -> None:
        """Return when the journal is on disk up to the end of a place in it."""
        if self.store.flusher is not None and self.store.page.flushed() < at[1]:
            self.store.flusher.wait(at[1])

    def read_flushed(self, function: Callable[[Any], T]) -> T:
        """What `function` gives of a read transaction, once all that it shows is on disk under `fsync`."""
        found, at = self.store.read(lambda txn: (function(txn), journal.place(txn) if self.flushing else None))
        if at is not None:
            self._await_flush(at)
        return found

    def _keep_flushed(self, txn: Any, position: int) -> None:
        """A flush is done: its read transaction serves those who begin before the next one ends."""
        try:
            version = self.store.look(txn, last_version)
        except lmdb.Error:  # the map has grown meanwhile: the next to begin looks for itself
            self._flushed_position = -1
            return
        snap = Snapshot(self, txn, version, version)
        self.live[id(snap)] = snap
        before, self._flushed = self._flushed, snap
        self._flushed_position = position
        if before is not None:
            self.release(before)

    def snapshot_at(self, version: int) -> Snapshot:
        """A snapshot of a version that a caller names."""
        with self.lock:
            snap = self.pinned.get(version)
            if snap is not None and not snap.ended:
                snap.users += 1
                return snap
        snap = self.snapshot()
        if snap.version != version:
            newest = snap.version
            if version > newest:
                self.release(snap)
                raise Code(FUTURE_VERSION)
            if version < max(newest, self.store.clock.now()) - MAX_READ_AGE:
                self.release(snap)
                raise Code(TRANSACTION_TOO_OLD)
            if self.flushing:  # others may hold that one too, and read at its version
                self.release(snap)
                snap = self._own_snapshot()
            snap.version = version
        return snap

    def pin(self, snap: Snapshot) -> None:
        """Keep a snapshot whose version was handed out, so that `set_read_version` finds it for five seconds."""
        with self.lock:
            if snap.version in self.pinned or snap.ended:
                return
            snap.users += 1
            self.pinned[snap.version] = snap
            oldest = self.pinned.popitem(last=False)[1] if len(self.pinned) > PINNED else None
        if oldest is not None:
            self.release(oldest)

    def pin_committed(self, version: int) -> None:
        """Keep the state of a version just committed, if it is still the newest, for who may ask for it again."""
        snap = self.snapshot()
        if snap.version == version:
            self.pin(snap)
        self.release(snap)

    def release(self, snap: Snapshot) -> None:
        """A user of the snapshot is done with it."""
        snap.users -= 1
        if snap.users <= 0:
            snap.end()

    def end_old_snapshots(self, born_before: float) -> bool:
        """End what is older than five seconds, so that LMDB can use its pages again; True while any are open."""
        if not self.live:
            return False
        # A copy by one call: the collector may run a finalizer that releases a snapshot while a list is being built.
        for snap in self.live.copy().values():
            if snap.born < born_before:
                snap.end()
        if self.pinned:
            with self.lock:
                for version in [version for version, snap in self.pinned.items() if snap.ended]:
                    del self.pinned[version]
        return bool(self.live)

    def written_between(self, since: int, until: int, begin: bytes, end: bytes) -> bool:
        """Whether a commit of a version in (since, until] wrote in [begin, end)."""
        return any(
            record.hit_by_ranges([(begin, end)]) is not None
            for record in self.store.read(lambda txn: read_log(txn, since, until))
        )

    def busy(self) -> bool:
        """Whether anything is open that the housekeeping thread must look after."""
        return bool(self.live or self.committer.queue or self.committer.unsettled)

    def jump_version(self, by: int) -> None:
        """Advance the version as a recovery of a cluster does: transactions under way become too old."""
        store = self.store
        with store.writing:
            txn = store.begin_write()
            try:
                last = last_version(txn)
                store.clock.jump(txn, by)
                version = max(last + 1, store.clock.now())
                store.write_record(txn, last, version, pack_record((), [], [], 0), [])
                txn.commit()
            except BaseException:
                with contextlib.suppress(lmdb.Error):
                    txn.abort()
                raise

    # --- the log ---

    def trim(self, txn: Any, version: int, count: int) -> None:
        """Drop commit records that no reader can need; inside a write transaction."""
        cursor = txn.cursor()
        oldest = log_key(max(0, version - KEEP_LOG))
        if not cursor.set_range(LOG):
            return
        spilled = idempotency.spilled_to(txn)
        while count > 0 and cursor.key() < oldest:
            data = cursor.value()
            if data[0] == WITH_LASTING_IDS:
                at = int.from_bytes(cursor.key()[3:], "big")
                if at > spilled:
                    try:
                        _, _, ids, seconds = unpack_record(data)
                    except (ValueError, IndexError, TypeError) as error:
                        sys.stderr.write(
                            f"fdb-embedded: commit record {at} can't be read ({error}): its ids are lost\n"
                        )
                    else:
                        idempotency.spill(txn, at, ids, seconds)
                        cursor.set_range(log_key(at))  # the spilled row may have moved pages
            if not cursor.delete():
                return
            count -= 1

    # --- checkpoints ---

    def checkpoint_if_due(self) -> None:
        """Begin a checkpoint on a thread of its own when the journal has grown long."""
        if self.path is None or not self.store.page.journaled or self._checkpointing is not None:
            return
        at = self.store.read(journal.place)
        if at is None or at[1] - at[0] < durable.checkpoint_after(self.path):
            return
        thread = threading.Thread(target=self._checkpoint, name="fdb-embedded-checkpoint", daemon=True)
        self._checkpointing = thread
        thread.start()

    def _checkpoint(self) -> None:
        try:
            assert self.path is not None
            durable.checkpoint(self.store, self.path)
        except (lmdb.Error, OSError) as error:
            sys.stderr.write(f"fdb-embedded: no checkpoint of {self.path}: {error}; the journal goes on growing\n")
        finally:
            self._checkpointing = None

    # --- lifetime ---

    def make_durable(self) -> None:
        """From now on this process's commits are flushed before they are acknowledged."""
        if self.flushing or self.path is None:
            return
        with durable.locked(self.path / durable.OPEN_LOCK):
            durable.make_durable(self.store, self.path)
        self.durability = "fsync"
        if self.store.flusher is not None:
            self.store.flusher.keep = self._keep_flushed
        self.flushing = True

    def check_open(self) -> None:
        """In a forked child attach to the database; raise `EngineClosed` when the engine was closed."""
        if self.closed:
            raise EngineClosed(f"the database {self.path or 'in memory'} was closed")
        if self.forked:
            with self.attaching:
                if self.forked:
                    self.store.reattach()
                    if self.flushing and self.store.flusher is not None:
                        self.store.flusher.keep = self._keep_flushed
                    self.forked = self.stale = False

    def after_fork(self) -> None:
        """In a child: leave everything of the parent alone; transactions that were under way must start afresh."""
        for snap in self.live.values():
            snap.ended = True
            _inherited.append(snap.txn)
            snap.txn = None
        self._start()
        self.forked = self.stale = True

    def close(self) -> None:
        """Finish queued commits, end the threads, detach."""
        if self.closed:
            return
        if self.forked:
            self.closed = self.stale = True
            return
        with contextlib.suppress(lmdb.Error):
            self.committer.drive()
        self.closed = self.stale = True
        self.watches.stop()
        self.housekeeper.stop()
        with contextlib.suppress(lmdb.Error):
            while self.committer.unsettled or self.committer.queue:
                self.committer.settle_left()
                self.committer.drive()
        checkpointing = self._checkpointing
        if checkpointing is not None:
            checkpointing.join()
        for snap in self.live.copy().values():
            snap.end()
        self.store.close()


_inherited: list[Any] = []  # read transactions of a parent process: aborting them here would free its reader slots
