"""Locks on bytes of a file that belong to an open file description, so that no other use of the file can lose them.

A POSIX record lock belongs to a process, and is lost as soon as the process closes any descriptor of the file: who copies,
archives or hashes the directory of a database that he has open gives up every such lock without a word. These are held until
the descriptor is closed that took them, and the kernel gives them up for a process that was killed, whatever namespace it was in.
"""

from __future__ import annotations

import fcntl
import os
import struct

from .private import PRIVATE_FILE
from .waiting import Wait

_FLOCK = struct.Struct("@hhqqi4x")


def record(kind: int, byte: int) -> bytes:
    """What `fcntl` takes for a lock of one kind (`F_WRLCK`, `F_RDLCK`, `F_UNLCK`) on a byte."""
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)


def try_lock(fd: int, byte: int) -> bool:
    """Lock a byte exclusively, unless somebody else has."""
    return _try(fd, fcntl.F_WRLCK, byte)


def _try(fd: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, record(kind, byte))
    except (BlockingIOError, PermissionError):  # the ways to say that another has it
        return False
    return True


def share(fd: int, byte: int) -> None:
    """Lock a byte so that nobody can exclusively. Nobody of ours does, but for a moment."""
    wait = Wait(lambda: "another program has locked the files of a database, and is waited for", None)
    while not _try(fd, fcntl.F_RDLCK, byte):
        wait.pause()


def is_locked(fd: int, byte: int) -> bool:
    """Whether another open file description holds a lock on a byte, of whatever kind."""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, record(fcntl.F_WRLCK, byte))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def unlock(fd: int, byte: int) -> None:
    """Give up the lock of a byte; it need not be held."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, record(fcntl.F_UNLCK, byte))


def reopen(fd: int) -> int:
    """Another open file description of the same file: its locks are its own."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
