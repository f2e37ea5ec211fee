"""Which old pages a process still reads: its one slot in LMDB's table of readers, which is its as long as it holds a lock.

LMDB reuses a page once no slot of the table names a transaction as old as the page. Its own readers take a slot each, named by the
number of the process and guarded by a POSIX lock. So processes of two containers that are both number 1 exclude each other, who
copies the directory loses the lock, and then his snapshots show pages that others have reused. Here LMDB reads without the
table (in an environment opened with `lock=False`), and the engine keeps one slot for each process:

    slot i of the lock file     transaction(8) owner(4) process(8)
    owner                       FIRST_OWNER + i, and the byte of that offset in the file is locked by the process that has the slot

The slot names a transaction that is no newer than any that the process has open; so those that begin while it does are safe without
a further step, and there is no limit to how many are open. LMDB sees such a slot as one of its own: it asks whether the byte is locked
to learn whether the owner lives. Byte 0, whose lock keeps LMDB from making the table anew, is locked in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from ..errors import EmbeddedError, PathUnusable
from ..sharing import locks
from .disk import is_lack

FIRST_OWNER = 1 << 23  # above the number of any process
NOTHING = (1 << 64) - 1  # the slot names no transaction
FULL = "as many processes have the database open as its table of readers holds; stop one of them"
_SLOT = struct.Struct("=QI4xQ")


class Layout(NamedTuple):
    """Where things are in LMDB's lock file."""

    slots: int  # the first slot
    stride: int  # bytes from one to the next
    used: int  # how many slots were ever used: four bytes


@functools.cache
def layout() -> Layout:
    """Found by trying, on a file of its own: it depends on the machine's mutexes. Raises `EmbeddedError` if it isn't as expected."""
    try:
        return _try_layout()
    except (OSError, lmdb.Error) as error:
        if not is_lack(error):
            raise
        where = tempfile.tempdir or "the directory for temporary files"
        raise PathUnusable(
            f"{where} can't be used, where the engine tries something for a moment: {error}; make room there, or set TMPDIR"
        ) from error


def _try_layout() -> Layout:
    with tempfile.TemporaryDirectory(prefix="fdb-embedded-") as folder:
        lock = Path(folder) / "lock.mdb"
        with lmdb.open(os.fsencode(folder), max_readers=8, map_size=1 << 20, sync=False) as env:
            readers, places, counts = [], [], []
            for _ in range(3):
                with env.begin(write=True) as txn:
                    txn.put(b"k", b"v")
                readers.append(env.begin())
                data = lock.read_bytes()
                places.append(_last(data, struct.pack("=QI", readers[-1].id(), os.getpid())))
                counts.append(data[: places[0]])
            for reader in readers:
                reader.abort()
        places_of_count = [
            at
            for at in range(8, places[0], 4)
            if [int.from_bytes(before[at : at + 4], "little") for before in counts] == [1, 2, 3]
            or [int.from_bytes(before[at : at + 4], "big") for before in counts] == [1, 2, 3]
        ]
    # the number of the last transaction counts 1, 2, 3 as well; the count follows it
    stride = places[1] - places[0]
    if places[2] - places[1] != stride or stride % 8 or places[0] % 8 or not places_of_count:
        raise EmbeddedError("the table of readers of this build of LMDB isn't laid out as the engine knows it")
    return Layout(places[0], stride, places_of_count[-1])


def _last(data: bytes, wanted: bytes) -> int:
    at = data.rfind(wanted)  # the slots come last; what is before them may look like one to process 1
    if at < 0:
        raise EmbeddedError("the table of readers of this build of LMDB isn't laid out as the engine knows it")
    return at


class Readers:
    """This process's slot, and who begins to read under it.

    Who begins a transaction is in `beginning` from before it begins until its guard is among those that `oldest` gives, or until
    the transaction has ended. Only `advance` and `park` raise what the slot names, and neither does while anybody begins.
    """

    def __init__(self, lock_file: Path, newest: Callable[[], int], oldest: Callable[[], list[int]]) -> None:
        self.newest = newest  # the number of the newest transaction
        self.oldest = oldest  # the numbers that protect the open snapshots
        self.beginning: set[object] = set()
        self.held: dict[object, int] = {}  # what protects transactions that are no snapshots, and open for long
        self.parked = True  # nothing is open, and the slot names nothing
        self.number = NOTHING  # what the slot names
        self.wake: Callable[[], None] | None = None  # called when the slot begins to name something
        self._standing: dict[int, int] = {}  # what the slots of others named at the last look for dead processes
        self._parking = threading.RLock()  # a signal handler may begin to read in the midst of `publish`
        self._layout = layout()
        self._fd = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
        try:
            locks.share(self._fd, 0)
            mapped = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)  # the map keeps it; the locks are on the other
            try:
                self._map = mmap.mmap(mapped, 0)
            finally:
                # and with it go the POSIX locks that LMDB took: a second process of this number may take them
                os.close(mapped)
        except BaseException:
            os.close(self._fd)
            raise
        self._view = memoryview(self._map)
        self._numbers = self._view[: len(self._view) // 8 * 8].cast("Q")
        self._slots = (len(self._map) - self._layout.slots) // self._layout.stride
        self.slot = -1

    def claim(self) -> None:
        """Take a slot. Under the lock of the map: LMDB takes one for a moment where an environment is opened."""
        for slot in range(self._slots):
            if locks.try_lock(self._fd, FIRST_OWNER + slot):
                at = self._layout.slots + slot * self._layout.stride
                _, owner, _ = _SLOT.unpack_from(self._map, at)
                if owner not in (0, FIRST_OWNER + slot):  # LMDB's own, of a process that was killed while it opened
                    locks.unlock(self._fd, FIRST_OWNER + slot)
                    continue
                self._numbers[at // 8] = NOTHING
                _SLOT.pack_into(self._map, at, NOTHING, FIRST_OWNER + slot, os.getpid())
                used = struct.unpack_from("=I", self._map, self._layout.used)[0]
                struct.pack_into("=I", self._map, self._layout.used, max(used, slot + 1))
                self.slot = slot
                self._word = at // 8
                return
        raise PathUnusable(FULL)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction may begin and end within, in a short time."""
        token = object()
        alone = False
        try:
            self.beginning.add(token)
            if self.parked:
                alone = True
                self.publish(alone=True)
            yield
        finally:
            self.beginning.discard(token)
            if alone and not self.park() and self.wake is not None:  # somebody else has begun meanwhile
                self.wake()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """A transaction may begin and end within, however long that takes."""
        token = object()
        try:
            with self.reading():
                self.held[token] = self.newest()  # who begins afterwards shows that, or what came after it
            yield
        finally:
            self.held.pop(token, None)

    def publish(self, alone: bool = False) -> None:
        """Let the slot name the newest transaction. The caller is in `beginning`, and begins to read afterwards.

        `alone`: the caller parks again when it has read, so that nobody need be woken for it.
        """
        with self._parking:
            if self.parked:
                while True:
                    number = self.newest()
                    self.number = self._numbers[self._word] = number
                    if self.newest() == number:  # whoever writes next sees the slot
                        break
                self.parked = False
        if self.wake is not None and not alone:
            self.wake()

    def guard_of(self, txn: Any) -> int:
        """The number that protects a transaction just begun: LMDB's own, which is of none later than it shows.

        What the slot names would protect it as well. But where one transaction always begins before the one before it ends, the slot
        would go on naming what it does, and no page would ever be used again.
        """
        try:
            return int(txn.id())
        except lmdb.Error:  # the map has changed since: it will be taken again, and show later pages
            return self.number

    def advance(self, newest: int) -> None:
        """Let the slot name the oldest transaction that is still open, or `newest` where there is none.

        Without a lock, which an interrupt could leave held: `newest` was read before the look at who begins, so whoever begins later shows
        that or what came after it, and what is written here is right whenever it is written, at worst too old.
        """
        if self.parked or self.beginning:
            return
        oldest = self.oldest()
        number = min([newest, *oldest, *self.held.copy().values()]) if oldest or self.held else newest
        if number > self.number:
            self.number = self._numbers[self._word] = number

    def park(self) -> bool:
        """Let the slot name nothing, unless something is open."""
        with self._parking:
            if not self.parked or self.number != NOTHING:  # an `advance` may have come late
                self.parked = True
                if self.beginning or self.held or self.oldest():
                    self.parked = False
                else:
                    self.number = self._numbers[self._word] = NOTHING
            return self.parked

    def forget_dead(self, unused_too: bool = False) -> None:
        """Clear the slots of killed processes: no page that they name could be used again.

        Looked at are slots that name something and stood still since the last look, since each look costs the kernel a walk through the
        locks of all processes; `unused_too`: also those that name nothing.
        """
        before, self._standing = self._standing, {}
        for at, number, owner, _ in self._used():
            if number == NOTHING and owner >= FIRST_OWNER and not unused_too:
                continue  # whoever takes a slot asks himself
            self._standing[at] = number
            if before.get(at, number) == number and locks.try_lock(self._fd, owner):
                try:
                    if _SLOT.unpack_from(self._map, at)[1] == owner:
                        self._numbers[at // 8] = NOTHING
                        _SLOT.pack_into(self._map, at, NOTHING, 0, 0)
                finally:
                    locks.unlock(self._fd, owner)

    def _used(self) -> Iterator[tuple[int, int, int, int]]:
        """(offset, transaction, owner, process) of the slots of other processes."""
        used = min(self._slots, struct.unpack_from("=I", self._map, self._layout.used)[0])
        for slot in range(used):
            at = self._layout.slots + slot * self._layout.stride
            number, owner, process = _SLOT.unpack_from(self._map, at)
            if owner and slot != self.slot:
                yield at, number, owner, process

    def count(self) -> int:
        """How many processes have something open."""
        return len(self.others()) + (not self.parked)

    def others(self) -> list[tuple[int, int]]:
        """(process, transaction) of the other processes that have something open, as they number themselves."""
        return [(process, number) for _, number, _, process in self._used() if number != NOTHING]

    def abandon(self) -> None:
        """In a forked child: the slot is the parent's, and is to be free when the parent ends."""
        self._parking = threading.RLock()  # a thread of the parent's may have held it, and isn't here to give it up
        self.parked = True
        self._let_go()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _let_go(self) -> memoryview:
        """The table, to which nothing is written any more, whatever other threads are at."""
        numbers, self._numbers = self._numbers, memoryview(bytearray(len(self._numbers) * 8)).cast("Q")
        return numbers

    def close(self) -> None:
        """Give up the slot."""
        if self._fd >= 0:
            if self.slot >= 0:
                at = self._layout.slots + self.slot * self._layout.stride
                self._numbers[self._word] = NOTHING
                _SLOT.pack_into(self._map, at, NOTHING, 0, 0)
            self._let_go().release()
            self._view.release()
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    _word: Any = 0
