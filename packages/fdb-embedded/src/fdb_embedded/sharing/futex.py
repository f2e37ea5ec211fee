"""Sleeping on a word of shared memory until another process changes it: Linux's futex."""

from __future__ import annotations

import ctypes
import platform
import time

_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}.get(platform.machine(), 0)
_WAIT = 0
_WAKE = 1
ALL = 2**31 - 1
AWAKE = 0.0005  # seconds between looks on machines whose number of the call isn't known here

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def wait(address: int, word: int, seconds: float) -> None:
    """Sleep until somebody calls `wake`, or about `seconds`; not at all if the word at the address isn't `word` any more."""
    if not _NUMBER:
        time.sleep(min(seconds, AWAKE))
        return
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    _syscall(_NUMBER, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(word), ctypes.byref(limit), None, 0)


def wake(address: int, count: int = ALL) -> None:
    """Wake as many of those who wait at the address. Change the word first."""
    if _NUMBER:
        _syscall(_NUMBER, ctypes.c_void_p(address), _WAKE, count, None, None, 0)
