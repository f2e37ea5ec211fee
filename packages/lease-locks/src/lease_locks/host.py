"""Who this process is, and whether another of the same host still is: the ground of expiry rule 3."""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
from pathlib import Path

from lease_locks.records import SessionRecord


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


@functools.cache
def boot_id() -> str:
    """Identity of this boot of the kernel; "" where the platform has none."""
    return _read("/proc/sys/kernel/random/boot_id")


def pid_namespace() -> str:
    """Identity of the pid namespace of this process; "" where the platform has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def process_start(pid: int) -> tuple[int, bool] | None:
    """(start in ticks after boot, whether it is a zombie without threads) of a process; None where unreadable."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rfind(")") + 2 :].split()
    return int(fields[19]), fields[0] in ("Z", "X") and int(fields[17]) <= 1


def describe_session(ttl: float) -> SessionRecord:
    """The session row of this process."""
    pid = os.getpid()
    start = process_start(pid)
    return SessionRecord(
        ttl_ms=round(ttl * 1000),
        host=socket.gethostname(),
        boot_id=boot_id() if start else "",
        pid_ns=pid_namespace(),
        pid=pid,
        pid_start=start[0] if start else 0,
        started_us=time.time_ns() // 1000,
        command=" ".join(sys.argv[:1])[-200:],
    )


def process_gone(record: SessionRecord) -> bool:
    """True only where the session's process ran under this kernel and pid namespace and is no more."""
    if not record.boot_id or record.boot_id != boot_id() or record.pid_ns != pid_namespace() or not record.pid_ns:
        return False
    try:
        os.kill(record.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to somebody else
    found = process_start(record.pid)
    if found is None:
        return False  # hidden from us: not a proof
    start, zombie = found
    return zombie or start != record.pid_start


def boottime() -> float:
    """Seconds on the clock that counts a suspend, where the platform has it."""
    return time.clock_gettime(_BOOTTIME)


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
