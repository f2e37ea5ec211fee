"""Versions advance by a million a second, as FoundationDB's, by the monotonic clock and never the wall clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgpack

from .keys import CLOCK, LOG

VERSIONS_PER_SECOND = 1_000_000
MAX_READ_AGE = 5 * VERSIONS_PER_SECOND
RECOVERY_JUMP = 100 * VERSIONS_PER_SECOND


def boot_id() -> str:
    """Names this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def last_version(txn: Any) -> int:
    """The version of the newest commit that an LMDB transaction sees."""
    cursor = txn.cursor()
    if cursor.last():
        key: bytes = cursor.key()
        if key.startswith(LOG):
            return int.from_bytes(key[3:], "big")
    return 0


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
            if stored == boot:
                return cls(base)
        last = last_version(txn)
        base = last + RECOVERY_JUMP - time.monotonic_ns() // 1000
        txn.put(CLOCK, msgpack.packb((boot, base)))
        return cls(base)
