"""The private directories of one worker process: what it holds in memory (tmpfs) and what it spilled to disk.

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

A worker that is killed leaves its directories; whoever starts next on this host removes directories whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from fdb_schema.serving.private_files import make_private_directory, others_may_replace

log = logging.getLogger("futures_worker")

MOST_TRIES: Final = 1000
"""Names tried for the directory of a worker, should somebody take each of them at once."""
DIRECTORY_NAME: Final = re.compile(r"futures-worker-(\d+)-(\d+)-[0-9a-f]+")
"""Of a worker's directory in memory."""


def memory_root() -> Path:
    """Where files live in memory: `/dev/shm` where it exists and is writable, else the directory for temporary files."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


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
        if not DIRECTORY_NAME.fullmatch(path.name) or not path.is_dir() or path.is_symlink():
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
