"""Disk blocks for a file, had before anything is written to them: a full disk is an error then, and no signal."""

from __future__ import annotations

import ctypes
import errno
import os

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP_SIZE = 1


def allocate(fd: int, offset: int, length: int) -> bool:
    """Give a file disk blocks without touching its contents or its length. Raises `OSError` when there are none; False where the
    file system can't.
    """
    while length > 0 and _fallocate(fd, KEEP_SIZE, offset, length) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def allocate_to(fd: int, begin: int, end: int) -> None:
    """Give a file blocks from `begin` to `end`. Raises OSError when there aren't as many."""
    size = os.fstat(fd).st_size
    if not allocate(fd, begin, end - begin) and size:  # the file system can't: blocks are what is written
        zeros = bytes(1 << 20)
        for at in range(size, end, len(zeros)):
            os.pwrite(fd, zeros[: end - at], at)
