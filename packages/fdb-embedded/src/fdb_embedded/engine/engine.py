"""One database as this process has it open: its store, committer, watches and snapshots, shared by all handles."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import lmdb

from ..errors import EngineClosed
from ..pure.conflict import pack_record
from ..pure.versions import last_version
from ..sharing.waiting import GivenUp, at_most
from ..storage import durability as durable
from ..storage import journal
from ..storage.map import MAP_SIZE
from ..storage.store import Store
from .commit import Committer
from .housekeeping import Housekeeper
from .promises import Promised, end_unowned
from .snapshot import MAX_AGE
from .snapshots import Snapshots
from .soundness import Soundness
from .watches import Watches

CLOSING_SECONDS = 5.0
"""So long a closing process waits to write what nobody waits for, while another one keeps it from that."""
LOOK_EVERY = 1.0
PATIENCE = 0.02
"""Seconds that the housekeeper waits to write what nobody waits for, before it looks after its other work."""


class Engine:
    """The process's one attachment to a database."""

    def __init__(self, path: Path | None, *, durability: str = "process", map_size: int = MAP_SIZE) -> None:
        self.path = path
        self.durability = durability
        self.handles = 0
        self.closed = False
        self.stale = False  # closed, or this is a forked child that hasn't attached yet
        self.forked = False
        self.promised: Promised = {}  # in a forked child the parent's too
        self.store = Store(path, durable=durability == "fsync", map_size=map_size)
        try:
            self.soundness = Soundness(path, self.store)
        except BaseException:
            self.store.close()
            raise
        self._start()
        self.store.readers.park()  # what was read to open it
        _finish_at_the_end(self)

    def _start(self) -> None:
        self.attaching = threading.RLock()
        self._next_look = 0.0
        self.housekeeper = Housekeeper(self._keep_house, self.busy)
        flushing = self.durability == "fsync" and self.path is not None
        self.snapshots = Snapshots(self.store, self.soundness, self, self.housekeeper, flushing)
        self.store.readers.wake = self.housekeeper.unpark
        self.committer = Committer(self)
        self.watches = Watches(self)
        self._checkpointing: threading.Thread | None = None

    # --- what nobody waits for ---

    def _keep_house(self, now: float) -> bool:
        """To be done now and then; whether anything is open, or was."""
        busy = False
        end_unowned(self.promised)
        if self.committer.unsettled:
            self.committer.settle_left()
            busy = True
        if self.committer.queue:
            if not self.committer.drive(until=monotonic() + PATIENCE):  # the timers have to go on
                self.committer.tell_late()
            busy = True
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            self.checkpoint_if_due()
            self.store.readers.forget_dead()
            self.store.page.slots.free_dead()
        return self.snapshots.end_old(now - MAX_AGE) or busy

    def busy(self) -> bool:
        """Whether anything is open that the housekeeping thread must look after. When nothing is, no old pages are kept any more."""
        open = self.snapshots.live or self.committer.queue or self.committer.unsettled
        return bool(open or not self.store.readers.park())

    def jump_version(self, by: int) -> None:
        """Advance the version as a recovery of a cluster does: transactions under way become too old."""
        self.store.write(partial(self._jump, by))

    def _jump(self, by: int, txn: Any) -> None:
        store, number = self.store, txn.id()
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
        if self.snapshots.flushing or self.path is None:
            return
        with durable.locked(self.path / durable.OPEN_LOCK):
            durable.make_durable(self.store, self.path)
        self.durability = "fsync"
        self.snapshots.begin_flushing()

    def check_open(self) -> None:
        """In a forked child attach to the database; raise `EngineClosed` when the engine was closed."""
        if self.closed:
            raise EngineClosed(f"the database {self.path or 'in memory'} was closed")
        if self.forked:
            with self.attaching:
                if self.forked:
                    self.store.reattach()
                    self.snapshots.attach()
                    self.store.readers.wake = self.housekeeper.unpark
                    self.forked = self.stale = False
                    _finish_at_the_end(self)

    def after_fork(self) -> None:
        """In a child: leave everything of the parent alone; transactions that were under way must start afresh."""
        self.store.after_fork()
        _inherited.extend(self.snapshots.abandon())
        parents = self.watches
        self._start()
        self.watches.inherit(parents)
        self.forked = self.stale = True

    def finish(self) -> None:
        """Commit what is queued and nobody waits for."""
        if not self.closed and not self.forked:
            with contextlib.suppress(lmdb.Error):
                self.committer.drive(until=monotonic() + CLOSING_SECONDS)

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
        self.snapshots.end_all()
        self.store.close()
        self.soundness.close()


_open: weakref.WeakSet[Engine] = weakref.WeakSet()
_told = 0  # the process of which multiprocessing knows what to do at its end


def _finish_at_the_end(engine: Engine) -> None:
    """A process that multiprocessing has forked ends without exit handlers: there it calls what it was told of itself."""
    global _told
    _open.add(engine)
    if _told == os.getpid():
        return
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        _told = os.getpid()
        util.Finalize(None, _finish_all, exitpriority=-10)  # after those who may commit something at the end, too


def _finish_all() -> None:
    for engine in list(_open):
        with contextlib.suppress(Exception):
            engine.finish()


_inherited: list[Any] = []  # read transactions of a parent process: aborting them here would free its reader slots
