"""The map of a database's data file in this process: whoever reads or writes goes through it, and it moves when the file grows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from threading import get_ident
from typing import Any, Protocol, TypeVar

import lmdb

from ..errors import EngineClosed
from ..sharing.blocks import allocate_to
from ..sharing.shared import SharedPage
from ..sharing.waiting import GoOn, acquire

T = TypeVar("T")

MAP_SIZE = 16 << 20  # to begin with, and what a full map grows by at least; all of it has blocks on the disk
GROWTH = 8  # a map grows by one part in so many
LONGEST_READ = 10.0
ATTEMPTS = 1000  # to begin, while the map goes on changing


class Shown(Protocol):
    """An open snapshot."""

    @property
    def guard(self) -> int:
        """What the process's slot of readers may name as long as this is open."""

    @property
    def inside(self) -> set[int]:
        """Threads that read in it at this moment."""


class Snapshots(Protocol):
    """Those of a process, by whatever they are known by."""

    def values(self) -> Collection[Shown]: ...
    def copy(self) -> Mapping[int, Shown]: ...
    def __len__(self) -> int: ...


class Map:
    """LMDB's environments on one data file. `env` writes, and its table of readers is the one of the store's `readers`; `reads`
    reads, without LMDB's table.
    """

    env: Any = None
    reads: Any = None
    page: SharedPage
    file: int  # descriptor of the data file
    page_size: int

    def __init__(self, name: str) -> None:
        self.name = name
        self.allocates = False  # the file gets blocks on a disk before it is written
        # They are taken in this order. Who waits for another process holds the first at most.
        self._changing = threading.Lock()  # held by who is to change the map, together with the map's lock
        self.writing = threading.RLock()  # held while this process has a write transaction: the map must not change
        self.growing = threading.Lock()  # held while the map changes
        self.generation = 0  # raised before the map changes, which ends all transactions of this process
        self.gate = False  # set while the map is to change: nobody may begin to read
        self.closed = False  # then the gate stays shut
        self.inside: set[int] = set()  # threads that begin or read at this moment, those in snapshots apart
        self.snapshots: Snapshots = {}

    def guards(self) -> list[int]:
        """The numbers that protect the snapshots which are open."""
        snapshots = self.snapshots
        return [snap.guard for snap in list(snapshots.values())] if snapshots else []

    def last_number(self) -> int:
        """LMDB's number of the newest transaction."""
        return self.look(self.reads, _last_number)

    def newest_number(self) -> int:
        while True:
            try:
                return self.last_number()
            except lmdb.InvalidParameterError:
                self.await_change()

    def begin(self, go_on: GoOn | None = None) -> Any:
        """An LMDB read transaction: the snapshot itself. The caller is in `readers.reading` or `readers.holding`, or has an older one.

        `go_on` ends the wait for a map that changes by raising.
        """
        for _ in range(ATTEMPTS):
            try:
                return self.look(self.reads, lmdb.Environment.begin)
            except lmdb.MapResizedError:
                self.adopt(go_on)
            except lmdb.InvalidParameterError:
                self.await_change(go_on)
        return self.look(self.reads, lmdb.Environment.begin)

    def look(self, subject: Any, read: Callable[[Any], T]) -> T:
        """What `read` gives of an open read transaction, or of the environment; the map stays meanwhile. Raises lmdb.Error
        where it has changed or is to change.
        """
        me = get_ident()
        try:
            self.inside.add(me)
            if self.gate:
                raise lmdb.InvalidParameterError("the map is to change")
            return read(subject)
        finally:
            self.inside.discard(me)

    def await_change(self, go_on: GoOn | None = None) -> None:
        """Return when the map that is to change has changed. Raises `EngineClosed` where it never will."""
        while True:
            self.check_open()
            held: list[bool] = []
            try:
                acquire(self.growing, held, go_on)
            finally:
                if held and held[-1]:
                    self.growing.release()
            if not self.gate:
                return
            time.sleep(0.0001)

    def shut_gate(self) -> None:
        """Return when no thread of this process touches the map, and none begins to until the gate is opened. LMDB reads
        without Python's lock: to move the map, or to unmap it, under a reader crashes the process.
        """
        me = {get_ident()}  # a signal handler that interrupted a read is not in LMDB
        self.gate = True
        deadline = time.monotonic() + LONGEST_READ  # a handler that waits for this thread, in the midst of a read
        while self.inside - me or any(snap.inside - me for snap in self.snapshots.copy().values()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.00005)

    def adopt(self, go_on: GoOn | None = None) -> None:
        """Another process has grown the map: follow it. Read transactions of this process end. Not under `writing`.

        `go_on` ends the wait for another process by raising.
        """
        self._change(False, go_on)

    def grow(self, go_on: GoOn | None = None) -> None:
        """Make the map larger. Read transactions of this process end; snapshots take theirs again when they are used. Not under `writing`.

        The file gets blocks for all of it first: LMDB writes within its map, so a full disk is this call's `OSError` and never the
        signal that ends a process which writes to a mapped page without a block.
        """
        self._change(True, go_on)

    def _change(self, grow: bool, go_on: GoOn | None) -> None:
        held: list[bool] = []
        try:
            acquire(self._changing, held, go_on)
            self.check_open()
            try:
                self.page.lock_map(go_on)  # with the gate open: meanwhile all that is open can be read
                with self.writing, self.growing:
                    try:
                        self.check_open()
                        self.shut_gate()
                        self.generation += 1
                        size = self.file_size()
                        mapped = self.env.info()["map_size"]
                        if grow and size <= mapped:  # nobody else has grown it meanwhile
                            size = mapped + max(
                                min(mapped, MAP_SIZE), mapped // GROWTH // self.page_size * self.page_size
                            )
                            if self.allocates:
                                allocate_to(self.file, 0, size)
                        self.env.set_mapsize(size)
                        self.reads.set_mapsize(size)
                    finally:
                        self.gate = self.closed
            finally:
                self.page.unlock_map()
        finally:
            if held and held[-1]:
                self._changing.release()

    def file_size(self) -> int:
        """Bytes of the data file, which has the size of the largest map: a smaller one would cut it."""
        return os.fstat(self.file).st_size

    def check_open(self) -> None:
        """Raises `EngineClosed` where this process has detached."""
        if self.closed:
            raise EngineClosed(f"the database {self.name} was closed")


def _last_number(env: Any) -> int:
    number: int = env.info()["last_txnid"]
    return number
