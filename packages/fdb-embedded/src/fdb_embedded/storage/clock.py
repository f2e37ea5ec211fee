"""The clock of a database's versions, and what tells one boot of the machine, and one mount of a disk, from another."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import msgpack

from ..pure.keys import CLOCK
from ..pure.versions import RECOVERY_JUMP, last_version

PROC, SYS = Path("/proc"), Path("/sys")
UNKNOWN = "unknown"


def boot_id() -> str:
    """Names this boot of the machine."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return UNKNOWN  # as in some sandboxes


def cache_id(directory: Path) -> str:
    """Names what the kernel keeps of a directory's files in memory: the boot and, where the kernel tells, the mount of their disk.

    A disk that fails, or is taken away and mounted again, has lost what wasn't flushed as at a loss of power, and the boot is the same.
    The kernel makes a directory for each mounted file system of these types, whose number is never used twice.
    """
    with contextlib.suppress(OSError):
        device = os.stat(directory).st_dev
        name = os.readlink(SYS / f"dev/block/{os.major(device)}:{os.minor(device)}").rpartition("/")[2]
        for kind in ("ext4", "xfs", "f2fs"):
            with contextlib.suppress(OSError):
                return f"{boot_id()} {os.stat(SYS / 'fs' / kind / name).st_ino}"
    return boot_id()


def same_cache(noted: str, directory: Path) -> bool:
    """Whether a note of `cache_id` says that nothing was lost since; one without a mount, or where none is told now, goes by the boot.

    Where the kernel doesn't tell its boots apart, anything may have happened.
    """
    boot, _, mount = noted.strip().partition(" ")
    here, _, now = cache_id(directory).partition(" ")
    return boot == here != UNKNOWN and (mount == now or not mount or not now)


class Clock:
    """version = base + microseconds of the monotonic clock; the base is stored with the boot it belongs to."""

    __slots__ = ("base",)

    def __init__(self, base: int) -> None:
        self.base = base

    def now(self) -> int:
        return self.base + time.monotonic_ns() // 1000

    def reload(self, txn: Any) -> None:
        """Take the stored base again: another process may have let the version jump."""
        data = txn.get(CLOCK)
        if data is not None:
            self.base = msgpack.unpackb(data)[1]

    def jump(self, txn: Any, by: int) -> None:
        """Let versions jump ahead, for all processes; `txn` is a write transaction."""
        self.reload(txn)
        self.base += by
        txn.put(CLOCK, msgpack.packb((boot_id(), self.base)))

    @classmethod
    def open(cls, txn: Any) -> Clock:
        """Read the base, or after a reboot set a new one so that versions jump ahead; `txn` is a write transaction."""
        boot = boot_id()
        data = txn.get(CLOCK)
        if data is not None:
            stored, base = msgpack.unpackb(data)
            if stored == boot and base + time.monotonic_ns() // 1000 > last_version(txn):
                return cls(base)  # else it was another boot after all, of a kernel that doesn't tell them apart
        last = last_version(txn)
        base = last + RECOVERY_JUMP - time.monotonic_ns() // 1000
        txn.put(CLOCK, msgpack.packb((boot, base)))
        return cls(base)
