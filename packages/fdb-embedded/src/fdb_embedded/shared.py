"""The page that the processes of a database share: who watches which key, a counter of commits, and their futexes.

    0      magic(8)
    8      commits(8)             raised inside LMDB's writer section
    16     long keys(1)           1 once a bucket of long keys was ever written
    17     journaled(1)           1 when commits must be journaled
    24     members(8)             transactions committed, under a journal
    32     flushed(8)             the journal's position up to which everything is on disk
    40     flushed members(8)     how many transactions that were
    48     flush word(4)          futex: rung after each flush
    52     expected(4)            transactions that the next flush may expect to cover
    56     allocated(8)           bytes of the data file that are certain to have disk blocks
    64     watching(128)          1 for each process slot that watches something
    256    word(4) * 128, 64 apart: futex words
    12288  region(4096) * 128     sequence(4), count(4) or OVERFLOW, then (length(2), key)*

A process owns a slot as long as it holds the POSIX lock on that byte of the file, so a killed process gives it up.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
import time
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from .conflict import Range

MAGIC = b"FDBEMB01"
SLOTS = 128
WATCHING = 64
WORDS = 256
REGIONS = 12288
REGION = 4096
SIZE = REGIONS + SLOTS * REGION
OVERFLOW = 0xFFFFFFFF
MAP_LOCK = 200  # the byte of the file whose lock it is; those before are the slots'
_NOBODY = bytes(SLOTS)
_TWO = struct.Struct("<II")
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}.get(platform.machine(), 0)
FUTEX_WAIT = 0
FUTEX_WAKE = 1

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP_SIZE = 1


def allocate(fd: int, offset: int, length: int) -> None:
    """Give a file disk blocks without touching its contents; `OSError` when there are none. Some file systems can't."""
    while _fallocate(fd, KEEP_SIZE, offset, length) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class SharedPage:
    """One process's view of the page. `wait` is for one thread; everything else may be called by any."""

    def __init__(self, path: Path | None, descriptor: int | None = None) -> None:
        if descriptor is None:
            assert path is not None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        else:
            descriptor = os.dup(descriptor)
        self._fd = descriptor
        if os.fstat(descriptor).st_size < SIZE:
            os.ftruncate(descriptor, SIZE)
        self.map = mmap.mmap(descriptor, SIZE)
        self._words = (ctypes.c_char * SIZE).from_buffer(self.map)
        self._view = memoryview(self.map)
        self._numbers = self._view[:64].cast("Q")
        self._base = ctypes.addressof(self._words)
        if self.map[:8] != MAGIC:  # new, or not a page that anybody can be using
            self.map[:] = MAGIC.ljust(SIZE, b"\0")
        self.slot: int | None = None
        # Held by whoever opens the store or changes its map: LMDB cuts the file to the map's size when it maps it.
        # C functions, so that an interrupt can't hide that the lock was taken: take it in the `try` whose end gives it up.
        self.lock_map = partial(fcntl.lockf, descriptor, fcntl.LOCK_EX, 1, MAP_LOCK)
        self.unlock_map = partial(fcntl.lockf, descriptor, fcntl.LOCK_UN, 1, MAP_LOCK)
        self._seen: dict[int, tuple[int, frozenset[bytes] | None]] = {}
        self._watched: frozenset[bytes] = frozenset()

    def commits(self) -> int:
        """How many commits the page has counted."""
        return self._numbers[1]

    def count_commit(self) -> int:
        """Count one; only inside the writer section."""
        count = self._numbers[1] = self._numbers[1] + 1
        return count

    @property
    def long_keys(self) -> bool:
        return self.map[16] != 0

    def set_long_keys(self) -> None:
        self.map[16] = 1

    # --- flushing (durability.py) ---

    @property
    def journaled(self) -> bool:
        return self.map[17] != 0

    def set_journaled(self) -> None:
        self.map[17] = 1

    def members(self) -> int:
        return self._numbers[3]

    def count_members(self, count: int) -> None:
        """Count committed transactions; only inside the writer section."""
        self._numbers[3] += count

    def flushed(self) -> int:
        return self._numbers[4]

    def flushed_members(self) -> int:
        return self._numbers[5]

    def set_flushed(self, position: int, members: int) -> None:
        """Only who holds the flush lock."""
        self._numbers[4] = position
        self._numbers[5] = members

    def expected(self) -> int:
        """How many transactions the next flush may expect to cover."""
        return int.from_bytes(self.map[52:56], "little")

    def set_expected(self, count: int) -> None:
        self.map[52:56] = min(count, 0xFFFF).to_bytes(4, "little")

    def flush_word(self) -> int:
        return int.from_bytes(self.map[48:52], "little")

    def wait_flush(self, word: int, seconds: float) -> None:
        """Sleep until a flush after `word` was read, or about `seconds`."""
        self._wait_at(48, word, seconds)

    def wake_flush(self) -> None:
        self._wake_at(48)

    def allocated(self) -> int:
        """Bytes of the data file that are certain to have disk blocks."""
        return self._numbers[7]

    def set_allocated(self, size: int) -> None:
        """Only in the writer section."""
        self._numbers[7] = size

    # --- watching ---

    def claim_slot(self) -> int | None:
        """This process's slot, or None when all are taken: then only the slow poll sees changes of others."""
        if self.slot is None:
            for slot in range(SLOTS):
                try:
                    fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
                except OSError:
                    continue
                self.slot = slot
                self.map[WATCHING + slot] = 0
                at = REGIONS + slot * REGION
                sequence, _ = _TWO.unpack_from(self.map, at)
                _TWO.pack_into(self.map, at, (sequence + 2) & 0xFFFFFFFE, 0)
                break
        return self.slot

    def release_slot(self) -> None:
        if self.slot is not None:
            self.map[WATCHING + self.slot] = 0
            with contextlib.suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self.slot)
            self.slot = None

    def publish(self, watched: Iterable[bytes]) -> None:
        """Tell the others which keys this process watches."""
        slot = self.claim_slot()
        if slot is None:
            return
        parts: list[bytes] | None = []
        size = 8
        count = 0
        for key in watched:
            size += 2 + len(key)
            count += 1
            if size > REGION:
                parts = None
                break
            assert parts is not None
            parts.append(len(key).to_bytes(2, "little"))
            parts.append(key)
        at = REGIONS + slot * REGION
        sequence = _TWO.unpack_from(self.map, at)[0] | 1  # odd: being written, perhaps since an interrupted call
        _TWO.pack_into(self.map, at, sequence, OVERFLOW)
        if parts is not None:
            data = b"".join(parts)
            self.map[at + 8 : at + 8 + len(data)] = data
        _TWO.pack_into(self.map, at, (sequence + 1) & 0xFFFFFFFF, OVERFLOW if parts is None else count)
        self.map[WATCHING + slot] = 1 if count else 0

    def _region(self, slot: int) -> frozenset[bytes] | None:
        """The keys that a slot's process watches; None for "tell it everything"."""
        at = REGIONS + slot * REGION
        sequence, count = _TWO.unpack_from(self.map, at)
        seen = self._seen.get(slot)
        if seen is not None and seen[0] == sequence:
            return seen[1]
        if sequence & 1 or count == OVERFLOW:
            return None
        data = self.map[at + 8 : at + REGION]
        keys = []
        place = 0
        for _ in range(count):
            size = int.from_bytes(data[place : place + 2], "little")
            keys.append(data[place + 2 : place + 2 + size])
            place += 2 + size
        if _TWO.unpack_from(self.map, at)[0] != sequence:
            return None
        found = frozenset(keys)
        self._seen[slot] = (sequence, found)
        return found

    def ring(self, points: Collection[bytes], ranges: list[Range]) -> None:
        """Wake the processes that watch a key which a commit wrote. Call after the commit."""
        watching = self.map[WATCHING : WATCHING + SLOTS]
        if watching == _NOBODY:
            return
        slot = watching.find(1)
        while slot >= 0:
            keys = self._region(slot)
            if (
                keys is None
                or (points and not keys.isdisjoint(points))
                or (ranges and any(begin <= key < end for begin, end in ranges for key in keys))
            ):
                self.wake(slot)
            slot = watching.find(1, slot + 1)

    def wake(self, slot: int) -> None:
        """Wake a slot's process."""
        self._wake_at(WORDS + 64 * slot)

    def _wake_at(self, at: int) -> None:
        word = int.from_bytes(self.map[at : at + 4], "little")
        self.map[at : at + 4] = ((word + 1) & 0xFFFFFFFF).to_bytes(4, "little")
        if _FUTEX:
            _syscall(_FUTEX, ctypes.c_void_p(self._base + at), FUTEX_WAKE, 2**31 - 1, None, None, 0)

    def word(self) -> int:
        """The value to pass to `wait`: read it before looking for changes."""
        if self.slot is None:
            return 0
        at = WORDS + 64 * self.slot
        return int.from_bytes(self.map[at : at + 4], "little")

    def wait(self, word: int, seconds: float) -> None:
        """Sleep until the word changes, or about `seconds`."""
        if self.slot is None or not _FUTEX:
            time.sleep(min(seconds, 0.002))
            return
        self._wait_at(WORDS + 64 * self.slot, word, seconds)

    def _wait_at(self, at: int, word: int, seconds: float) -> None:
        if not _FUTEX:
            time.sleep(min(seconds, 0.0005))
            return
        limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        place = ctypes.c_void_p(self._base + at)
        _syscall(_FUTEX, place, FUTEX_WAIT, ctypes.c_uint32(word), ctypes.byref(limit), None, 0)

    def close(self) -> None:
        """Give up the slot and the mapping; nobody may be in `wait`."""
        if self._fd >= 0:
            self.release_slot()
            self._numbers.release()
            self._view.release()
            del self._words
            self.map.close()
            os.close(self._fd)
            self._fd = -1
