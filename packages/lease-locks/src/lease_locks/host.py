"""Who this process is, and whether another of the same host still is: the ground of expiry rule 3."""

from __future__ import annotations

import os
import socket
import sys
import time

from fdb_schema import boot_id, identity, pid_namespace, process_start
from lease_locks.records import SessionRecord


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
    return identity.process_gone(record.boot_id, record.pid_ns, record.pid, record.pid_start)


def boottime() -> float:
    """Seconds on the clock that counts a suspend, where the platform has it."""
    return time.clock_gettime(_BOOTTIME)


__all__ = ["boot_id", "boottime", "describe_session", "pid_namespace", "process_gone", "process_start"]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
