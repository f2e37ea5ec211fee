"""Memory for large objects that is faulted in once and used again: files of the worker's directory, with mappings of our own.

Fresh memory is dear: the kernel zeroes every page of a new file and each process that maps it faults in every page, which
takes longer than the copy itself. So a worker keeps the files of deleted objects (`free/<bytes>-<number>`), gives one to
whoever stores the next object, and a writer keeps its mapping of each file for when it gets that file again.

    reader    opens the object's file, takes a shared lock on it (flock), maps it; the lock goes with the last view
    worker    takes an exclusive lock before it uses a file again: it fails while anybody's view is alive, and the file is
              then left to its readers and to nobody else

A file may be longer than the object in it; objects know their own length. `multiprocessing.shared_memory` isn't used: its
resource tracker removes segments that other processes still need.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fdb_schema.serving.private_files import check_own

Buffer = bytes | bytearray | memoryview

RECYCLED_FROM: Final = 256 << 10
"""Bytes of the smallest file worth keeping."""
MAPPED_BYTES_KEPT: Final = 256 << 20
"""Of the mappings of a process that writes objects; the one used longest ago goes first."""


def map_shared(path: Path | str, size: int | None = None, *, own: bool = False) -> memoryview:
    """A read-only view of an object's file (of its first `size` bytes), shared with every process that maps it.

    `own`: the view can be written to; pages that are become this process's own copies, the others stay shared.

    The file may be deleted meanwhile, and isn't used again before the view is gone. Raises OSError if it is gone already,
    or is another user's, who put it there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        check_own(descriptor, path)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if os.stat(path).st_ino != found.st_ino:
            raise FileNotFoundError(f"{path} was used again for another object")
        if found.st_size == 0:
            return memoryview(b"")
        view = _map(descriptor, found.st_size, own)
        return view if size is None else view[:size]
    finally:
        os.close(descriptor)


def _map(descriptor: int, size: int, own: bool) -> memoryview:
    """A view, to be written to if it is `own`, that keeps no descriptor: the kernel keeps the open file, and its lock, meanwhile.

    `mmap.mmap` would keep a duplicate of the descriptor, and a process could map no more files than it may open. So the file
    takes the place of anonymous memory, which that object unmaps when the last view of it is gone.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(place)
    del place
    protection = mmap.PROT_READ | mmap.PROT_WRITE if own else mmap.PROT_READ
    sharing = mmap.MAP_PRIVATE if own else mmap.MAP_SHARED
    if _libc_mmap(address, size, protection, sharing | _MAP_FIXED, descriptor, 0) != address:
        error = ctypes.get_errno()
        memory.close()
        raise OSError(error, os.strerror(error))
    return memoryview(memory) if own else memoryview(memory).toreadonly()


_MAP_FIXED: Final = 0x10
_libc_mmap = ctypes.CDLL(None, use_errno=True).mmap
_libc_mmap.restype = ctypes.c_void_p
_libc_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


class FreeFiles:
    """The files of deleted objects, to be used again. Several processes of one worker use them side by side."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit`: bytes kept at most. The folder lies on the file system of the objects."""
        self._folder = folder
        self._limit = limit
        self._numbers = itertools.count()

    def put(self, path: Path) -> bool:
        """Takes the file of an object that was deleted; False if it was removed instead: it is small, or still read."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            found = os.fstat(descriptor)
            if found.st_size < RECYCLED_FROM or found.st_size > self._limit:
                return self._remove(path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return self._remove(path)
            # A further link is an input of a task that hasn't opened it yet.
            if os.fstat(descriptor).st_nlink != 1:
                return self._remove(path)
            kept = self._folder / f"{found.st_size}-{os.getpid()}-{next(self._numbers)}"
            os.rename(path, kept)
            if os.fstat(descriptor).st_nlink != 1:  # linked in that moment; under its new name nobody can any more
                return self._remove(kept)
        finally:
            os.close(descriptor)
        self._keep_to_limit()
        return True

    def take(self, size: int, target: Path) -> bool:
        """Makes the smallest file of at least `size` bytes, and of less than twice that, the file `target`."""
        fitting = sorted((bytes_, name) for bytes_, name in self._listed() if size <= bytes_ < 2 * size)
        for _, name in fitting:
            source = self._folder / name
            try:
                descriptor = os.open(source, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                # Whoever opened it under its former name just before that went sees that it is another one.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(source, target)
                return True
            except OSError:
                continue  # somebody else was faster
            finally:
                os.close(descriptor)
        return False

    def bytes(self) -> int:
        """Bytes kept."""
        return sum(size for size, _ in self._listed())

    def _listed(self) -> list[tuple[int, str]]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [(int(name.partition("-")[0]), name) for name in names]

    def _keep_to_limit(self) -> None:
        listed = sorted(self._listed())
        total = sum(size for size, _ in listed)
        for size, name in listed:
            if total <= self._limit:
                return
            with contextlib.suppress(FileNotFoundError):
                (self._folder / name).unlink()
            total -= size

    @staticmethod
    def _remove(path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return False


class ArenaWriter:
    """Writes objects into files through mappings that are kept, for when a file comes back. Thread-safe."""

    def __init__(self, kept: int = MAPPED_BYTES_KEPT) -> None:
        """`kept`: bytes of the mappings that are kept."""
        self._kept = kept
        self._mappings: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()
        self._lock = threading.Lock()

    def write(self, path: Path | str, segments: Iterable[Buffer], size: int) -> int:
        """Writes an object of `size` bytes into a file that has room for it; returns the size. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            if found.st_size < size:
                os.posix_fallocate(descriptor, 0, size)  # or the copy would be killed where there is no room
                found = os.fstat(descriptor)
            key = (found.st_dev, found.st_ino)
            with self._lock:
                mapping = self._mappings.pop(key, None)
            if mapping is not None and len(mapping) != found.st_size:
                mapping.close()
                mapping = None
            if mapping is None:
                flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
                mapping = mmap.mmap(descriptor, found.st_size, flags=flags)
        finally:
            os.close(descriptor)
        position = 0
        with memoryview(mapping) as target:
            for segment in segments:
                view = memoryview(segment).cast("B")
                target[position : position + len(view)] = view
                position += len(view)
        if position != size:
            mapping.close()
            raise ValueError(f"an object of {size} bytes came as {position}")
        with self._lock:
            self._mappings[key] = mapping
            while sum(map(len, self._mappings.values())) > self._kept:
                self._mappings.popitem(last=False)[1].close()
        return size

    def close(self) -> None:
        """Lets the mappings go."""
        with self._lock:
            while self._mappings:
                self._mappings.popitem()[1].close()


def make_file(path: Path | str, size: int) -> None:
    """A new file whose memory is there. Raises OSError, without leaving the file, where there is no room."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)
