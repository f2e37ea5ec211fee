"""Who a process is, and whether one of this host is certainly gone: told in one way by every package."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_FIRST_TIME_NAMESPACE = "time:[4026531834]"  # the kernel's own, as in linux/proc_ns.h


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
    """Identity of the namespace in which pids and start times count for this process; "" where the platform has none.

    None is claimed where /proc shows another namespace's processes, so that a pid here and one there are different ones.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        pid = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    try:
        # In another time namespace start times are shown shifted. Few processes are in one; theirs is named beside the pids'.
        clock = os.readlink("/proc/self/ns/time")
    except OSError:
        return pid
    return pid if clock == _FIRST_TIME_NAMESPACE else f"{pid} {clock}"


def process_start(pid: int) -> tuple[int, bool] | None:
    """(start in ticks after boot, whether it is a zombie without threads) of a process; None where unreadable."""
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rfind(")") + 2 :].split()
    return int(fields[19]), fields[0] in ("Z", "X") and int(fields[17]) <= 1


def process_gone(boot: str, namespace: str, pid: int, start: int) -> bool:
    """True only where that process ran under this kernel and pid namespace and is no more.

    `start`: as `process_start` told it when the process was recorded, so that its pid may have another owner now; 0 where
    it wasn't recorded.
    """
    if not boot or boot != boot_id() or not namespace or namespace != pid_namespace() or not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and belongs to somebody else
    found = process_start(pid)
    if found is None:
        return False  # hidden from us: not a proof
    started, zombie = found
    return zombie or (start != 0 and start != started)
