"""The folders that code runs in, unpacked once a host, for all workers of this user there.

    <temporary files>/mainspring-folders-<uid>/         mode 0700; where it is not ours, in the worker's spill directory
        <digest>/               held (flock, shared) by each worker that uses it
            files/              as `folders.unpack` writes them
            boot                in which boot of the host that was: what was written before a crash of it may not be whole
        .new-<random>/          being unpacked, held likewise; renamed into place when it is whole
        .old-<random>/          being removed

A worker that is killed lets go by that. What nobody holds stays for the next one, `MOST_UNUSED` of them, for `UNUSED_SECONDS`.
What removes old temporary files passes over directories that are held, or should. Not all do: `boot` is as old as any of the files
and never counts as read, so where files were removed for their age it has gone, too, and the folder is unpacked anew.
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
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, Final

from fdb_schema import BlobDamagedError, BlobMissingError, ClusterSpace, read_blob
from futures_worker.code.folders import FolderDamagedError, unpack
from idempotent_txn import run

log = logging.getLogger("futures_worker")

MOST_HELD: Final = 8
"""Folders that a worker keeps at hand which none of its tasks and children needs now."""
MOST_UNUSED: Final = 8
"""Folders that stay on a host which no worker holds."""
UNUSED_SECONDS: Final = 86_400.0
_TRIES: Final = 100
_CLOSE_SECONDS: Final = 1.0
_NAME: Final = re.compile(r"[0-9a-f]{64}")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class FolderUnusableError(Exception):
    """A folder that can't be had, whoever tries: what is stored of it is missing or damaged."""


class UnpackedFolders:
    """Those that one worker holds. Thread-safe."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        own: Callable[[], Path],
        needed: Callable[[], Set[bytes]],
        root: Path | None = None,
    ) -> None:
        """`own`: a directory of this worker's, for where the host's can't be used. `needed`: digests that tasks or children have."""
        self._db = db
        self._space = space
        self._own = own
        self._needed = needed
        self._root = root or Path(tempfile.gettempdir(), f"mainspring-folders-{os.geteuid()}")
        self._held: OrderedDict[bytes, tuple[Path, int]] = OrderedDict()  # digest -> directory, and its descriptor
        self._lock = threading.Lock()

    def at_hand(self, digest: bytes) -> str | None:
        """Where the files are, if this worker holds them and nobody has removed them."""
        held = self._held.get(digest)
        if held is None or not _is_at(held[0], held[1]) or not _is_whole(held[0]):
            return None
        return str(held[0] / "files")

    def bring(self, digest: bytes) -> str:
        """Where the files are: unpacked now, unless they are on this host. It takes time.

        Raises FolderUnusableError, OSError, and what is the database's trouble.
        """
        with self._lock:
            found = self.at_hand(digest)
            if found is not None:
                self._held.move_to_end(digest)
                return found
            self._let_go(digest)
            where, descriptor = self._find_or_make(self._checked_root(), digest)
            self._held[digest] = where, descriptor
            self._let_unneeded_go()
            return str(where / "files")

    def close(self) -> None:
        """Lets go of all, and removes what is too much of what nobody holds; waits for nobody who brings one for long."""
        if not self._lock.acquire(timeout=_CLOSE_SECONDS):
            return  # with this process goes what it holds
        try:
            held = bool(self._held)
            for digest in list(self._held):
                self._let_go(digest)
            if held:
                tidy(self._root)
        finally:
            self._lock.release()

    def _checked_root(self) -> Path:
        root = self._root
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(root, 0o700)
            found = os.lstat(root)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
                return root
        own = self._own() / "folders"
        log.warning("%s is no private directory of this user's: folders are unpacked in %s", root, own)
        with contextlib.suppress(FileExistsError):
            os.mkdir(own, 0o700)
        return own

    def _find_or_make(self, root: Path, digest: bytes) -> tuple[Path, int]:
        where = root / digest.hex()
        data: bytes | None = None
        for _ in range(_TRIES):
            descriptor = _hold(where)
            if descriptor is not None:
                if _of_this_boot(where):
                    with contextlib.suppress(OSError):
                        os.utime(descriptor)
                    return where, descriptor
                _put_aside(where, descriptor)
            if data is None:
                data = self._read(digest)
                tidy(root)
            made = self._make(root, where, data)
            if made is not None:
                return where, made
        raise OSError(errno.EAGAIN, f"{where} was removed or replaced again and again while it was unpacked")

    def _read(self, digest: bytes) -> bytes:
        try:
            return read_blob(run, self._db, self._space, digest)
        except (BlobMissingError, BlobDamagedError) as error:
            raise FolderUnusableError(str(error)) from error

    def _make(self, root: Path, where: Path, data: bytes) -> int | None:
        """Unpack it and move it into place; None where another has done so, or it was removed on the way. Raises FolderUnusableError."""
        new = root / f".new-{secrets.token_hex(8)}"
        os.mkdir(new, 0o700)
        descriptor = _hold(new)
        if descriptor is None:
            return None
        try:
            (new / "files").mkdir(mode=0o700)
            unpack(data, new / "files")
            (new / "boot").write_bytes(_boot())
            os.rename(new, where)
        except BaseException as error:
            os.close(descriptor)
            shutil.rmtree(new, ignore_errors=True)
            if isinstance(error, FolderDamagedError):
                raise FolderUnusableError(str(error)) from error
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return None
            raise
        return descriptor

    def _let_unneeded_go(self) -> None:
        if len(self._held) <= MOST_HELD:
            return
        needed = self._needed()
        idle = [digest for digest in self._held if digest not in needed]
        for digest in idle[: len(self._held) - MOST_HELD]:
            self._let_go(digest)

    def _let_go(self, digest: bytes) -> None:
        held = self._held.pop(digest, None)
        if held is not None:
            with contextlib.suppress(OSError):
                os.utime(held[1])
            os.close(held[1])


def tidy(root: Path, now: float | None = None) -> None:
    """Remove what nobody holds and is too much or too old, and what was left half unpacked or half removed."""
    at = time.time() if now is None else now
    unused: list[tuple[float, Path]] = []
    for one in _listed(root):
        if not _NAME.fullmatch(one.name):
            if one.name.startswith((".new-", ".old-")):
                _remove(one)
            continue
        with contextlib.suppress(OSError):
            if (descriptor := _lock_alone(one)) is not None:
                unused.append((os.fstat(descriptor).st_mtime, one))
                os.close(descriptor)
    unused.sort(reverse=True)
    for place, (since, one) in enumerate(unused):
        if place >= MOST_UNUSED or at - since > UNUSED_SECONDS:
            _remove(one)


def _listed(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(root.iterdir())


def _open(where: Path) -> int | None:
    try:
        return os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _hold(where: Path) -> int | None:
    """A directory, held against its removal; None where it isn't there, or goes just now."""
    descriptor = _open(where)
    if descriptor is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(where, descriptor):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock_alone(where: Path) -> int | None:
    """A directory that nobody else holds, locked; None where somebody does, or it isn't there."""
    descriptor = _open(where)
    if descriptor is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(where, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _remove(where: Path) -> None:
    """Remove a directory, if nobody holds it: out of its place at once, then file by file."""
    with contextlib.suppress(OSError):
        descriptor = _lock_alone(where)
        if descriptor is None:
            return
        try:
            gone = where if where.name.startswith(".old-") else where.with_name(f".old-{secrets.token_hex(8)}")
            if gone != where:
                os.rename(where, gone)
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(descriptor)


def _put_aside(where: Path, descriptor: int) -> None:
    """One that isn't whole goes out of its place, whoever else holds it: they find it gone, and unpack it anew. Closes the descriptor."""
    gone = where.with_name(f".old-{secrets.token_hex(8)}")
    try:
        with contextlib.suppress(OSError):
            if _is_at(where, descriptor):
                os.rename(where, gone)
    finally:
        os.close(descriptor)
    _remove(gone)


def _is_whole(where: Path) -> bool:
    return os.path.exists(where / "boot") and os.path.isdir(where / "files")


def _is_at(where: Path, descriptor: int) -> bool:
    """Whether an opened directory is still what is at its path."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.lstat(where), os.fstat(descriptor))
    return False


def _of_this_boot(where: Path) -> bool:
    try:
        with open(os.open(where / "boot", os.O_RDONLY | os.O_NOATIME | os.O_CLOEXEC), "rb") as file:
            return file.read() == _boot() and _is_whole(where)
    except OSError:
        return False


def _boot() -> bytes:
    try:
        return _BOOT_ID.read_bytes()
    except OSError:
        return b""
