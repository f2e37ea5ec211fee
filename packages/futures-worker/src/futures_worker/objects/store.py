"""The objects one worker holds: files in memory (tmpfs), moved to disk when they pass a byte limit, never dropped silently.

Where the files lie: see `work_directory`. An object's name is unique to one attempt, so a name is never written twice with
different content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fdb_schema.serving.private_files import check_own
from futures_worker.errors import ObjectLostError, OversizeError
from futures_worker.objects.arena import Buffer, FreeFiles, make_file, map_shared
from futures_worker.objects.object_files import check_name, write_file
from futures_worker.objects.work_directory import WorkDirectory

SMALL = 1 << 16
"""Bytes below which an object is stored in memory even while that is over its limit."""
FREE_PART = 4
"""Files of deleted objects may keep the memory limit's such part."""


@dataclass(slots=True)
class _Entry:
    path: Path
    size: int  # bytes
    spilled: bool = False


class ObjectStore:
    """Objects by name. Safe for use by several threads; no method blocks on the network.

    `memory_limit` is in bytes. When objects in memory pass it, the oldest are moved to the spill directory by a thread
    of the store's own; readers that already opened a file keep it. Files to be used again may take a quarter more.
    """

    def __init__(self, directory: WorkDirectory, memory_limit: int) -> None:
        self.directory = directory
        self.memory_limit = memory_limit
        self.free = FreeFiles(directory.free, memory_limit // FREE_PART)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._spare: dict[str, None] = {}  # of those, copies of what other workers hold, oldest first
        self._memory = 0
        self._full = False
        self._spilled = 0
        self._lock = threading.Lock()
        self._over = threading.Condition(self._lock)
        self._closed = False
        self.give_up: Callable[[str], bool] = lambda name: False  # whether a spare object may go, as others hold it too
        self._spiller: threading.Thread | None = None

    def has_room(self, size: int) -> bool:
        """Whether memory has room for an object of `size` bytes without another one having to leave it."""
        return self._memory + size <= self.memory_limit

    def used(self) -> tuple[int, int]:
        """Bytes in memory, bytes on disk."""
        with self._lock:
            return self._memory, self._spilled

    def add(self, name: str, segments: Iterable[Buffer]) -> int:
        """Stores an object; returns its size in bytes. Raises `OversizeError` if neither memory nor disk has room."""
        check_name(name)
        parts = list(segments)
        try:
            return self.adopt(name, write_file(self.directory.objects / name, parts))
        except OSError as memory_error:
            try:
                size = write_file(self.directory.spill / name, parts)
            except OSError as disk_error:
                raise OversizeError(
                    f"object {name} fits neither memory ({memory_error.strerror}) nor the spill directory "
                    f"{self.directory.spill} ({disk_error.strerror}): give the worker more room (--object-store, --spill)"
                ) from disk_error
            return self.adopt(name, size)

    def add_stream(self, name: str, size: int, pieces: Iterable[Buffer]) -> int:
        """Stores an object of a known size (bytes) that comes in pieces; returns the size. Raises `OversizeError`."""
        check_name(name)
        for directory in self._places(size):
            try:
                room = os.statvfs(directory)
            except FileNotFoundError:  # it is made anew in a moment
                continue
            if size <= room.f_bavail * room.f_frsize:
                write_file(directory / name, pieces)
                return self.adopt(name, size)
        raise OversizeError(
            f"an object of {size} bytes fits neither memory nor the spill directory {self.directory.spill}: "
            "give the worker more room (--spill)"
        )

    def grant(self, name: str, size: int) -> Path:
        """A file with room for an object of `size` bytes, for a process of this host to write it, then `adopt_granted`.

        Raises `OversizeError` if memory has no room.
        """
        if self.directory.objects not in self._places(size):
            raise OversizeError(f"memory is full: an object of {size} bytes goes to disk")
        path = self._granted(name)
        path.unlink(missing_ok=True)
        if self.free.take(size, path):
            return path
        try:
            make_file(path, size)
        except OSError as error:
            raise OversizeError(f"an object of {size} bytes doesn't fit memory: {error.strerror}") from error
        return path

    def adopt_granted(self, name: str, size: int) -> int:
        """Takes over what was written into a granted file; returns the size. Raises `ObjectLostError`."""
        path = self._granted(name)
        try:
            if path.stat().st_size < size:
                raise ObjectLostError(f"object {name} is said to have {size} bytes, which its file has no room for")
            os.rename(path, self.directory.objects / name)
        except FileNotFoundError as error:
            raise ObjectLostError(f"object {name} was never granted, or was taken back") from error
        return self.adopt(name, size)

    def withdraw(self, name: str) -> None:
        """Takes a granted file back that nobody will write any more."""
        self.free.put(self._granted(name))

    def _places(self, size: int) -> list[Path]:
        """Where to store an object, best first. While memory is over its limit only the disk is left, at its pace."""
        over = self._memory > self.memory_limit and size >= SMALL
        return [self.directory.spill] if over else [self.directory.objects, self.directory.spill]

    def _mark_full(self) -> None:
        """Tells child processes whether memory is over its limit. Called with the lock held."""
        over = self._memory > self.memory_limit
        if over != self._full:
            self._full = over
            if over:
                self.directory.full.touch()
            else:
                self.directory.full.unlink(missing_ok=True)

    def _granted(self, name: str) -> Path:
        return self.directory.objects / f"{check_name(name)}.new"

    def adopt(self, name: str, size: int, *, spare: bool = False) -> int:
        """Takes over an object that a child process wrote into `objects/` or the spill directory under its name.

        `spare`: others hold it as well, and it goes first where memory is short (`give_up`).
        """
        check_name(name)
        path = self.directory.objects / name
        spilled = not path.exists()
        if spilled:
            path = self.directory.spill / name
            if not path.exists():
                raise ObjectLostError(f"object {name} was announced but no file of that name exists")
        with self._lock:
            old = self._entries.pop(name, None)
            self._spare.pop(name, None)
            if old is not None:
                self._forget(old)
            self._entries[name] = _Entry(path, size, spilled)
            if spare:
                self._spare[name] = None
            if spilled:
                self._spilled += size
            else:
                self._memory += size
            self._mark_full()
            if self._memory > self.memory_limit:
                if self._spiller is None:
                    self._spiller = threading.Thread(target=self._spill_loop, name="object-spill", daemon=True)
                    self._spiller.start()
                self._over.notify()
        return size

    def locate(self, name: str) -> tuple[Path, int] | None:
        """Where the object's file is now and its size in bytes; None if this store does not hold it, or only `open` finds it.

        Whoever opens it by its path has to check whose it is: a spill directory may be replaced by who may write above it.
        """
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or (entry.spilled and not self.directory.spill_holds(entry.path)):
                return None
            return entry.path, entry.size

    def open(self, name: str) -> tuple[int, int] | None:
        """An open descriptor (the caller closes it) and the size in bytes; None if this store does not hold it."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return None
            try:
                descriptor = self._opened(entry)
            except (FileNotFoundError, PermissionError):  # somebody removed it, or put his own there
                self._forget(self._entries.pop(name))
                self._spare.pop(name, None)
                return None
            fcntl.flock(
                descriptor, fcntl.LOCK_SH
            )  # whatever becomes of the object, its file isn't used again meanwhile
            return descriptor, entry.size

    def _opened(self, entry: _Entry) -> int:
        """The object's file in the directory that we made. Raises OSError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if entry.spilled:
            return os.open(entry.path.name, flags, dir_fd=self.directory.in_spill(entry.path))
        try:
            descriptor = os.open(entry.path, flags)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise PermissionError(f"{entry.path} is a link: somebody put it there") from error
            raise
        try:
            check_own(descriptor, entry.path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def names(self) -> list[str]:
        """Names of all objects held, oldest first."""
        with self._lock:
            return list(self._entries)

    def drop_removed(self, *, memory: bool = False) -> list[str]:
        """Forgets spilled objects whose files somebody else removed; their names. The files of the others are touched.

        `memory`: also those in memory.
        """
        with self._lock:
            looked_at = [(name, entry) for name, entry in self._entries.items() if entry.spilled or memory]
        lost = []
        for name, entry in looked_at:
            try:
                # What cleans by age takes it for new.
                if entry.spilled:
                    os.utime(entry.path.name, dir_fd=self.directory.in_spill(entry.path), follow_symlinks=False)
                else:
                    os.utime(entry.path)
            except FileNotFoundError:
                with self._lock:
                    if self._entries.get(name) is not entry:
                        continue
                    self._forget(self._entries.pop(name))
                    self._spare.pop(name, None)
                lost.append(name)
        return lost

    def delete(self, name: str) -> bool:
        """Removes an object; whether it was there. Readers that opened it keep their view."""
        with self._lock:
            entry = self._entries.pop(name, None)
            self._spare.pop(name, None)
            if entry is None:
                return False
            self._forget(entry)
        if entry.spilled:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path.name, dir_fd=self.directory.in_spill(entry.path))
        else:
            self.free.put(entry.path)
        return True

    def discard(self, name: str) -> None:
        """Removes an object, also one that was written and never announced."""
        if not self.delete(check_name(name)):
            for folder in (self.directory.objects, self.directory.spill):
                (folder / name).unlink(missing_ok=True)

    def remove_partial(self, pid: int) -> None:
        """Removes what a process that is gone has begun to write."""
        for folder in (self.directory.objects, self.directory.spill):
            with contextlib.suppress(OSError):  # it is made anew in a moment
                for path in folder.glob(f"*.part-{pid}*"):
                    if path.name.rpartition(".part-")[2].partition("-")[0] == str(pid):
                        path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes all objects."""
        for name in self.names():
            self.delete(name)

    def close(self) -> None:
        """Stops the spilling thread. Files stay until the directory is removed."""
        with self._lock:
            self._closed = True
            self._over.notify_all()
        if self._spiller is not None:
            self._spiller.join()

    def _forget(self, entry: _Entry) -> None:
        if entry.spilled:
            self._spilled -= entry.size
        else:
            self._memory -= entry.size
        self._mark_full()

    def _spill_loop(self) -> None:
        while True:
            with self._lock:
                victim: tuple[str, _Entry] | None = None
                while not self._closed:
                    if self._memory > self.memory_limit:
                        victim = self._first_to_leave()
                    if victim is not None:
                        break
                    self._over.wait()
                if self._closed or victim is None:
                    return
            name, entry = victim
            if name in self._spare and self.give_up(name):
                self.delete(name)
                continue
            self._spare.pop(name, None)
            self._spill_one(name, entry)

    def _first_to_leave(self) -> tuple[str, _Entry] | None:
        """The oldest spare object in memory, else the oldest. Called with the lock held."""
        for name in self._spare:
            entry = self._entries[name]
            if not entry.spilled:
                return name, entry
        return next(((n, e) for n, e in self._entries.items() if not e.spilled), None)

    def _spill_one(self, name: str, entry: _Entry) -> None:
        target = self.directory.spill / name
        try:
            view = map_shared(entry.path, entry.size)
            write_file(target, [view])
            view.release()
        except OSError:
            # No room on disk either: the object stays in memory, over the limit, rather than being lost.
            with self._lock:
                if not self._closed and self._entries.get(name) is entry:
                    self._entries.move_to_end(name)
                    self._over.wait(1.0)
            return
        with self._lock:
            if self._entries.get(name) is not entry:  # deleted meanwhile
                with contextlib.suppress(FileNotFoundError):
                    target.unlink()
                return
            source = entry.path
            entry.path, entry.spilled = target, True
            self._memory -= entry.size
            self._spilled += entry.size
            self._mark_full()
        self.free.put(source)
