"""Every write and flush that durability rests on, in one place: a test that plays the loss of power stands in for it here.

An acknowledged commit is in the journal, and a checkpoint takes the journal's place. Both are written through these functions only,
so that what a crash may leave of them (unflushed writes dropped, torn, or done in another order) can be recorded and replayed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import lmdb

from ..sharing.blocks import allocate

_OF_THE_MACHINE = (lmdb.DiskError, lmdb.MemoryError, lmdb.LockError, lmdb.ReadonlyError)


def is_lack(error: Exception) -> bool:
    """Whether the machine refused something (room, memory, a permission), which says nothing of what is on the disk.

    LMDB has classes for its own errors, and hands on other ones of the system as they are, like that of a write that was cut short.
    """
    if isinstance(error, OSError):
        return error.errno is not None  # a signal handler's TimeoutError has no number
    return isinstance(error, _OF_THE_MACHINE) or type(error) is lmdb.Error


def write(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at an offset. Raises OSError."""
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def extend(fd: int, begin: int, end: int) -> None:
    """Give a file blocks of zeros from `begin` to `end`, its new end. Raises OSError."""
    allocate(fd, begin, end - begin)
    os.ftruncate(fd, end)


def flush(fd: int) -> None:
    """Return when the contents of a file are on disk. Raises OSError: then what was written since the last flush may be lost, though
    a later flush succeeds, because the kernel gives up what it couldn't write.
    """
    os.fdatasync(fd)
    _check_writable(fd)


def flush_all(fd: int) -> None:
    """Return when the contents of a file and its length are on disk. Raises OSError as `flush`."""
    os.fsync(fd)
    _check_writable(fd)


def _check_writable(fd: int) -> None:
    """Raises OSError where the file system takes no changes any more: of those who waited for a flush as it stopped, some are told of success."""
    os.utime(fd)  # which ext4 refuses as soon as its own journal has failed, and that may be before it is read-only
    if os.fstatvfs(fd).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def flush_directory(directory: Path) -> None:
    """Make names in a directory survive a power loss."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
        _check_writable(fd)
    finally:
        os.close(fd)


def replace(source: Path, target: Path) -> None:
    """Give a file another name, of which another file may be robbed."""
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a file; a missing one is fine."""
    path.unlink(missing_ok=True)
