"""Every write and flush that durability rests on, in one place: a test that plays the loss of power stands in for it here.

An acknowledged commit is in the journal, and a checkpoint takes the journal's place. Both are written through these functions only,
so that what a crash may leave of them (unflushed writes dropped, torn, or done in another order) can be recorded and replayed.
"""

from __future__ import annotations

import os
from pathlib import Path

from .blocks import allocate


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


def flush_all(fd: int) -> None:
    """Return when the contents of a file and its length are on disk. Raises OSError as `flush`."""
    os.fsync(fd)


def flush_directory(directory: Path) -> None:
    """Make names in a directory survive a power loss."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(source: Path, target: Path) -> None:
    """Give a file another name, of which another file may be robbed."""
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a file; a missing one is fine."""
    path.unlink(missing_ok=True)
