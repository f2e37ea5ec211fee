"""The page that the processes of a database share: a counter of commits, versions, how far is flushed, and the slots (slots.py).

    0      magic(8)
    8      commits(8)             raised inside LMDB's writer section
    16     long keys(1)           1 when there may be keys of more than 510 bytes
    17     journaled(1)           1 when commits must be journaled
    24     members(8)             transactions committed, under a journal
    32     flushed(8)             the journal's position up to which everything is on disk
    40     flushed members(8)     how many transactions that were
    48     flush word(4)          futex: rung after each flush
    52     expected(4)            transactions that the next flush may expect to cover
    56     writer word(4)         futex: rung when the lock of writers is given up
    60     writers wait(1)        1 while somebody may be asleep on it
    64     layout(8)              of what follows at 4096 (slots.py)
    72     taken over(8)          another value whenever somebody has flushed in spite of the lock of flushes
    80     (112)                  not used
    192    acknowledged(8)        the journal's position up to which commits may have been acknowledged, or seen, without a flush
    200    ~flushed(8)            the complement of what is at 32: both are kept on disk, and looked at after a crash
    208    flush failed(1)        1 while what was written to the journal may be lost
    212    map(4)                 the number of the process that last locked the map
    216    writer(8)              the process that last took the lock of writers: its number(4), its PID namespace(4)
    224    begun(8)               the LMDB transaction whose commit was last given a version
    232    given(8)               that version
    240    ended(8)               an LMDB transaction that is known to have ended; those before it have, too
    248    jumps(8)               how often versions have jumped ahead

Versions and counts are written in LMDB's writer section alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from functools import partial
from pathlib import Path
from typing import Any

from . import futex, locks
from .blocks import allocate
from .private import PRIVATE_FILE
from .slots import AREAS, SIZE, Slots
from .waiting import TO_DO, GoOn, Wait, own_note, who

MAGIC = b"FDBEMB01"
"""It stays, whatever changes: a release that doesn't know it would empty the page, before it looks at the format of the database."""
HEADER = 256
FLUSH_WORD = 48
WRITER_WORD = 56
WRITERS_WAIT = 60
WRITER, BEGUN, GIVEN, ENDED, JUMPS = range(27, 32)  # of the numbers, which are eight bytes each
MAP_LOCK = 200  # the byte of the file whose lock it is
UNFLUSHED_LOCK = 201  # shared by the processes that don't wait for flushes
_ALL = (1 << 64) - 1


def flushed_before(path: Path) -> int:
    """Up to which position a journal was on disk, as the page of an earlier boot says; 0 where it can't be known."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        data = file.read(HEADER)
        if len(data) == HEADER and data[:8] == MAGIC:
            flushed, complement = int.from_bytes(data[32:40], "little"), int.from_bytes(data[200:208], "little")
            if flushed ^ complement == _ALL:
                return flushed
    return 0


class SharedPage:
    """One process's view of the page. Any thread may call."""

    def __init__(self, path: Path | None, descriptor: int | None = None) -> None:
        if descriptor is None:
            assert path is not None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        else:
            descriptor = locks.reopen(descriptor)
        self._fd = descriptor
        try:
            # a page without a block is a signal for who writes it, once the disk is full; those of a slot are had when it is claimed
            allocate(descriptor, 0, AREAS)
            if os.fstat(descriptor).st_size < SIZE:
                os.ftruncate(descriptor, SIZE)
            # the map keeps a copy of its descriptor, and with it would keep the locks of this one
            mapped = locks.reopen(descriptor)
            try:
                self.map = mmap.mmap(mapped, SIZE)
            finally:
                os.close(mapped)
        except OSError:
            os.close(descriptor)
            raise
        self._words: Any = (ctypes.c_char * SIZE).from_buffer(self.map)
        self._view = memoryview(self.map)
        self.numbers = self._view[:HEADER].cast("Q")
        self._base = ctypes.addressof(self._words)
        if self.map[:8] != MAGIC:  # new, or not a page that anybody can be using
            self.map[:AREAS] = MAGIC.ljust(AREAS, b"\0")
        self.slots = Slots(descriptor, self.map, self._view, self._base)
        # A C function: what interrupts the `finally` that calls it comes before it or after it.
        self.unlock_map = partial(fcntl.fcntl, descriptor, fcntl.F_OFD_SETLK, locks.record(fcntl.F_UNLCK, MAP_LOCK))
        self._name = "a database in memory" if path is None else str(path.parent)

    def lock_map(self, go_on: GoOn | None = None) -> None:
        """Held by whoever opens the store or changes its map: LMDB cuts the file to the map's size when it maps it.

        Take it in the `try` whose end gives it up: an interrupt may hide that it was taken.
        """
        wait: Wait | None = None
        while not locks.try_lock(self._fd, MAP_LOCK):
            wait = wait or Wait(self._who_has_the_map, go_on)
            wait.pause()
        self.map[212:216] = os.getpid().to_bytes(4, "little")

    def _who_has_the_map(self) -> str:
        process = int.from_bytes(self.map[212:216], "little")
        return f"{self._name}: {who(process | own_note() >> 32 << 32)} opens the database or lets its file grow, and is waited for; {TO_DO}"

    def commits(self) -> int:
        """How many commits the page has counted."""
        return self.numbers[1]

    @property
    def long_keys(self) -> bool:
        return self.map[16] != 0

    def set_long_keys(self) -> None:
        self.map[16] = 1

    # --- versions (versions.py), written in LMDB's writer section alone ---

    def begin_version(self, number: int) -> int:
        """The LMDB transaction `number` is about to be given a version; how often versions have jumped ahead."""
        numbers = self.numbers
        numbers[BEGUN] = number
        return numbers[JUMPS]

    def give_version(self, version: int) -> None:
        self.numbers[GIVEN] = version

    def count_commit(self) -> None:
        """Count one more of `commits`."""
        self.numbers[1] += 1

    def begun(self) -> int:
        """The LMDB transaction that was last given a version, or is just about to be."""
        return self.numbers[BEGUN]

    def ended_mark(self) -> int:
        """`begun`, where that transaction has ended; else -1. What begins to read now shows all commits but those that change it."""
        numbers = self.numbers
        begun = numbers[BEGUN]
        return begun if numbers[ENDED] >= begun else -1

    def end_version(self, number: int) -> None:
        """The LMDB transaction `number` has been committed; its process may note that after the writer section."""
        self.numbers[ENDED] = number

    def take_back_version(self, number: int) -> None:
        """The LMDB transaction `number` is about to be given up."""
        self.numbers[BEGUN] = self.numbers[ENDED] = number - 1

    def settled_version(self) -> int:
        """A version below that of any commit which ends after this call. Reads in the opposite order of the writing."""
        numbers = self.numbers
        given = numbers[GIVEN]
        begun = numbers[BEGUN]
        return given if numbers[ENDED] >= begun else given - 1

    def jumps(self) -> int:
        return self.numbers[JUMPS]

    def count_jump(self) -> None:
        self.numbers[JUMPS] += 1

    # --- flushing (durability.py) ---

    @property
    def journaled(self) -> bool:
        return self.map[17] != 0

    def set_journaled(self) -> None:
        self.map[17] = 1

    def members(self) -> int:
        return self.numbers[3]

    def count_members(self, count: int) -> None:
        """Count committed transactions; only inside the writer section."""
        self.numbers[3] += count

    def flushed(self) -> int:
        return self.numbers[4]

    def flushed_members(self) -> int:
        return self.numbers[5]

    def set_flushed(self, position: int, members: int) -> None:
        """Only who holds the flush lock, or has taken over from one who makes no progress."""
        self.numbers[25] = ~position & _ALL
        self.numbers[4] = position
        self.numbers[5] = members

    def taken_over(self) -> int:
        """Differs from what it was before, for good, once somebody has taken over: positions may have been acknowledged since that
        who was taken over from doesn't know of, and what he tells of his own flush, however late, may come after those.
        """
        return self.numbers[9]

    def note_taken_over(self) -> None:
        """Called before the flush is told of."""
        self.numbers[9] = int.from_bytes(os.urandom(8))

    def acknowledged(self) -> int:
        """The journal's position up to which commits may have been acknowledged, or seen by others, before they are on disk."""
        return self.numbers[24]

    def set_acknowledged(self, position: int) -> None:
        """Only in the writer section, before the commit."""
        self.numbers[24] = position

    def read_unflushed(self, own: bool) -> None:
        """Say, until this page is closed, whether this process reads and acknowledges what isn't flushed."""
        (locks.share if own else locks.unlock)(self._fd, UNFLUSHED_LOCK)

    def others_read_unflushed(self) -> bool:
        """Whether another process may see a commit before it is on disk."""
        return locks.is_locked(self._fd, UNFLUSHED_LOCK)

    def flush_failed(self) -> bool:
        """Whether a flush failed and nothing has taken the place of what it may have lost."""
        return self.map[208] != 0

    def set_flush_failed(self, failed: bool) -> None:
        self.map[208] = failed

    # --- the lock of writers (writer_lock.py) ---

    def writer_word(self) -> int:
        return int.from_bytes(self.map[WRITER_WORD : WRITER_WORD + 4], "little")

    def await_writer(self, word: int, seconds: float) -> None:
        """Sleep until the lock is given up after `word` was read, or about `seconds`."""
        futex.wait(self._base + WRITER_WORD, word, seconds)

    def wake_writer(self) -> None:
        """Wake one of those that wait."""
        self._wake_at(WRITER_WORD, 1)

    def abandon(self) -> None:
        """In a forked child: the locks are the parent's, and are to be free when the parent ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = self.slots.fd = -1

    def expected(self) -> int:
        """How many transactions the next flush may expect to cover."""
        return int.from_bytes(self.map[52:56], "little")

    def set_expected(self, count: int) -> None:
        self.map[52:56] = min(count, 0xFFFF).to_bytes(4, "little")

    def flush_word(self) -> int:
        return int.from_bytes(self.map[FLUSH_WORD : FLUSH_WORD + 4], "little")

    def wait_flush(self, word: int, seconds: float) -> None:
        """Sleep until a flush after `word` was read, or about `seconds`."""
        futex.wait(self._base + FLUSH_WORD, word, seconds)

    def wake_flush(self) -> None:
        self._wake_at(FLUSH_WORD, futex.ALL)

    def _wake_at(self, at: int, count: int) -> None:
        word = int.from_bytes(self.map[at : at + 4], "little")
        self.map[at : at + 4] = ((word + 1) & 0xFFFFFFFF).to_bytes(4, "little")
        futex.wake(self._base + at, count)

    def close(self) -> None:
        """Give up the slot and the mapping; nobody may be in `wait`."""
        if self._fd >= 0:
            self.slots.close()
            self.numbers.release()
            self._view.release()
            self._words = None
            self.map.close()
            fd, self._fd = (
                self._fd,
                -1,
            )  # before it is closed: an interrupted close may be repeated, and the number be another's
            os.close(fd)
