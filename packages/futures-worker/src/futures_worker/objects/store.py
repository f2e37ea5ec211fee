"""The objects one worker holds: files in memory (tmpfs), moved to disk when they pass a byte limit, never dropped silently.

    <memory root>/futures-worker-<uid>-<pid>-<random>/          private directory of one worker process (mode 0700)
        objects/<name>      one object, written whole, then renamed into place; readers of this host map it
        objects/<name>.new  one that a client of this host is writing
        free/               files of deleted objects, to be used again, see `futures_worker.objects.arena`
        code/<digest>       pickled functions, read by child processes at their first use of a function
        logs/               what tasks print, see `futures_worker.worker.output`
        parcels/<name>      arguments too large for a message to a child; the child removes what it has read
        full                there while memory is over its limit: whoever stores an object now writes it to disk
    <memory root>/futures-worker-<uid>-<pid>-<random>.lock      held (flock) for as long as the worker lives
    <spill root>/futures-worker-<uid>-<pid>-<random>-spill-<random>/    objects that left memory, same names

A worker that is killed leaves its directories; whoever starts next on this host removes directories whose lock nobody
holds. An object's name is unique to one attempt, so a name is never written twice with different content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fdb_schema.serving.private_files import check_own, make_private_directory, others_may_replace
from futures_worker.errors import ObjectLostError, OversizeError
from futures_worker.objects.arena import Buffer, FreeFiles, make_file, map_shared

log = logging.getLogger("futures_worker")

INLINE_LIMIT = 16_000
"""Bytes up to which a result travels in the database and survives its worker."""

SMALL = 1 << 16
"""Bytes below which an object is stored in memory even while that is over its limit."""
MOST_TRIES = 1000
"""Names tried for the directory of a worker, should somebody take each of them at once."""
FREE_PART = 4
"""Files of deleted objects may keep the memory limit's such part."""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_DIRECTORY = re.compile(r"futures-worker-(\d+)-(\d+)-[0-9a-f]+")


def memory_root() -> Path:
    """Where files live in memory: `/dev/shm` where it exists and is writable, else the directory for temporary files."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def check_name(name: str) -> str:
    """The name, if it may be used as a file's name. Names come from peers."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an object: letters, digits, '.', '_' and '-', at most 128")
    return name


def check_offered(path: str, name: str) -> None:
    """Whether a path that a peer names can be that of the object `name`: a file of this user's. Raises PermissionError."""
    where = Path(path)
    found = os.lstat(path)
    if where.name != name or not where.is_absolute() or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"a peer names {path!r} as the file of object {name}, which it can't be")


def check_granted(path: str, name: str) -> None:
    """Whether a path that a peer grants can be that of the object `name`, to be written. Raises PermissionError."""
    where = Path(path)
    check_offered(path, f"{check_name(name)}.new")
    if where.parent.name != "objects" or not _DIRECTORY.fullmatch(where.parent.parent.name) or ".." in where.parts:
        raise PermissionError(f"a peer grants {path!r} for object {name}, which lies in no worker's directory")


def write_file(path: Path | str, segments: Iterable[Buffer]) -> int:
    """Writes a file whole or not at all (under another name, then renamed); returns its size in bytes."""
    partial = f"{path}.part-{os.getpid()}-{threading.get_ident()}"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    size = 0
    try:
        try:
            for segment in segments:
                view = memoryview(segment).cast("B")
                while len(view):
                    written = os.write(descriptor, view[: 1 << 30])
                    view = view[written:]
                    size += written
        finally:
            os.close(descriptor)
        os.rename(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return size


class WorkDirectory:
    """The private directories of one worker process, and the removal of those that dead ones left."""

    def __init__(self, spill: Path | None = None, root: Path | None = None) -> None:
        root = root or memory_root()
        spill_root = (spill or Path(tempfile.gettempdir())).absolute()
        make_private_directory(spill_root)
        if others_may_replace(spill_root.stat()):
            log.warning(
                "others may remove what this worker spills to %s: give it a directory of its own (--spill, chmod 700)",
                spill_root,
            )
        remove_abandoned(root)
        self._lock_path, self._lock, self.path = _make_locked(root)
        self.objects = self.path / "objects"
        self.free = self.path / "free"
        self.full = self.path / "full"
        self.code = self.path / "code"
        self.parcels = self.path / "parcels"
        self.logs = self.path / "logs"
        self.spill = self._spill_in(spill_root)
        self._folders = (self.path, self.objects, self.free, self.code, self.parcels, self.logs)
        for directory in (*self._folders[1:], self.spill):
            directory.mkdir(mode=0o700)
        (self.path / "spill").symlink_to(self.spill)
        self._spill_lock = self._hold_spill()
        self.made_anew = 0  # how often any of it was, and what was in it is lost

    def _spill_in(self, root: Path) -> Path:
        """Another user may read the names in memory's root: none of them tells what the spill directory will be called."""
        return root / f"{self.path.name}-spill-{secrets.token_hex(8)}"

    def _hold_spill(self) -> int:
        """The directory that was just made, whatever somebody puts in its place later.

        What cleans directories for temporary files by their age passes over one that is locked, or should.
        """
        descriptor = os.open(self.spill, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"somebody put a directory of his in the place of {self.spill}")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def spill_holds(self, path: Path) -> bool:
        """Whether a path is one in the spill directory that we made, and still the way there."""
        with contextlib.suppress(OSError):
            return path.parent == self.spill and os.path.samestat(os.lstat(self.spill), os.fstat(self._spill_lock))
        return False

    def in_spill(self, path: Path) -> int:
        """The spill directory we made (its descriptor, which stays ours), to find the file of `path` in. Raises FileNotFoundError."""
        if path.parent != self.spill or self._lock < 0:
            raise FileNotFoundError(f"{path} was in a directory that is gone")
        return self._spill_lock

    def renew_spill(self) -> bool:
        """Another spill directory, if somebody removed the one in use or put another in its place; whether that was so.

        It has another name: who made a directory of the old name could put what he likes in the place of results.
        """
        with contextlib.suppress(FileNotFoundError):
            found, held = os.lstat(self.spill), os.fstat(self._spill_lock)
            if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                return False
        make_private_directory(self.spill.parent)
        self.spill = self._spill_in(self.spill.parent)
        self.spill.mkdir(mode=0o700)
        self._link_spill()
        renewed = self._hold_spill()
        os.dup2(renewed, self._spill_lock, inheritable=False)  # another thread may be about to open a file there
        os.close(renewed)
        self.made_anew += 1
        return True

    def _link_spill(self) -> None:
        link = self.path / "spill.new"
        link.unlink(missing_ok=True)
        link.symlink_to(self.spill)
        os.rename(link, self.path / "spill")

    def renew(self) -> bool:
        """Makes anew what somebody removed of the directory in memory; whether anything was missing.

        What cleans up after a user's last session may remove it. Raises PermissionError if somebody else's is in its place.
        """
        held = self._holds_lock()
        if held and self._is_whole():
            return False
        if not held:
            former, self._lock = self._lock, _hold_lock(self._lock_path, wait=False)
            os.close(former)
        for folder in self._folders:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            found = os.lstat(folder)
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                raise PermissionError(f"{folder} was removed, and what is there now is somebody else's")
        self._link_spill()
        self.made_anew += 1
        return True

    def _holds_lock(self) -> bool:
        try:
            return os.path.samestat(os.lstat(self._lock_path), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def _is_whole(self) -> bool:
        try:
            own = os.lstat(self.path).st_uid == os.geteuid()
            return own and all(map(os.path.isdir, self._folders)) and (self.path / "spill").is_symlink()
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Removes everything; idempotent."""
        _remove_directory(self.path)
        with contextlib.suppress(OSError):
            self._lock_path.unlink()
        if self._lock >= 0:
            os.close(self._lock)
            os.close(self._spill_lock)
            self._lock = -1


def _make_locked(root: Path) -> tuple[Path, int, Path]:
    """A new directory, and the lock that was held before anybody could take it for abandoned.

    The lock's name tells the directory's, and another user who watches `root` may make that first: then another name is tried.
    """
    for left in range(MOST_TRIES, 0, -1):
        path = root / f"futures-worker-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}"
        lock_path = root / f"{path.name}.lock"
        lock = _hold_lock(lock_path)
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            with contextlib.suppress(OSError):
                lock_path.unlink()
            os.close(lock)
            if isinstance(error, FileExistsError) and left > 1:
                continue
            raise
        return lock_path, lock, path
    raise AssertionError


def _hold_lock(path: Path, *, wait: bool = True) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        # Someone who cleans up may have unlinked the file between open and flock.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def _remove_directory(path: Path) -> None:
    remove_spill(path)
    shutil.rmtree(path, ignore_errors=True)


def remove_spill(path: Path) -> None:
    """Removes the spill directory of a worker's directory; a link that is in its place, whoever put it there, isn't followed."""
    with contextlib.suppress(OSError):
        spill = os.readlink(path / "spill")
        if os.path.isabs(spill) and os.lstat(path).st_uid == os.geteuid():  # else somebody put it in the place of ours
            shutil.rmtree(spill, ignore_errors=True)


def remove_abandoned(root: Path) -> list[Path]:
    """Removes the directories of this user's workers that are dead; returns their paths."""
    removed = []
    uid = os.getuid()
    for path in root.glob(f"futures-worker-{uid}-*"):
        if not _DIRECTORY.fullmatch(path.name) or not path.is_dir() or path.is_symlink():
            continue
        lock = root / f"{path.name}.lock"
        try:
            # Anybody can make a directory of such a name in /dev/shm, with a link `spill` to what isn't theirs to delete.
            if path.lstat().st_uid != uid:
                continue
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            _remove_directory(path)
            with contextlib.suppress(OSError):
                lock.unlink()
            removed.append(path)
        finally:
            os.close(descriptor)
    return removed


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
