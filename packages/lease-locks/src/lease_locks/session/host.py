"""Who this process is, and whether another of the same host still is: the ground of expiry rule 3."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator

from fdb_schema import boot_id, identity, pid_namespace, process_start
from lease_locks.grants.records import SessionRecord, storable

MARK = "MAINSPRING_LEASE_KEEPER"
"""In the environment of all that comes of a helper: its `mark`, after those of the helpers that it came of itself."""


def describe_session(ttl: float) -> SessionRecord:
    """The session row of this process."""
    pid = os.getpid()
    start = process_start(pid)
    return SessionRecord(
        ttl_ms=max(1, round(ttl * 1000)),
        host=socket.gethostname(),
        boot_id=boot_id() if start else "",
        pid_ns=pid_namespace(),
        pid=pid,
        pid_start=start[0] if start else 0,
        started_us=time.time_ns() // 1000,
        command=storable(" ".join(sys.argv[:1])[-200:]),
    )


def process_gone(record: SessionRecord) -> bool:
    """True only where the session's processes ran under this kernel and pid namespace and are no more, nor is anything
    that its helpers left behind."""
    return all(_ended(record)) and not _left(record)


def left_behind(record: SessionRecord) -> bool:
    """Whether some that came of the session's helpers run on here, such as this user may see: its processes, that would have
    ended them, are gone, or stopped."""
    here = boot_id(), pid_namespace()
    return all(here) and (record.boot_id, record.pid_ns) == here and _left(record)


def mark(helper: tuple[int, int]) -> str:
    """What tells a helper, (pid, start), from any other of this boot."""
    return f"{helper[0]}:{helper[1]}"


def _ended(record: SessionRecord) -> Iterator[bool]:
    for pid, start in ((record.pid, record.pid_start), *record.helpers):
        yield identity.process_gone(record.boot_id, record.pid_ns, pid, start)


def _left(record: SessionRecord) -> bool:
    marks = {mark(helper).encode() for helper in record.helpers}
    name = MARK.encode() + b"="
    for entry in os.listdir("/proc") if marks else ():
        if entry.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as environment:
                for variable in environment.read().split(b"\0"):
                    if variable.startswith(name) and marks.intersection(variable[len(name) :].split()):
                        return True
    return False


def boottime() -> float:
    """Seconds on the clock that counts a suspend, where the platform has it."""
    return time.clock_gettime(_BOOTTIME)


__all__ = [
    "MARK",
    "boot_id",
    "boottime",
    "describe_session",
    "left_behind",
    "mark",
    "pid_namespace",
    "process_gone",
    "process_start",
]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
