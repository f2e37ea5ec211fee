"""How short memory is, so that the task that takes it can be ended before the kernel ends something else."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SHORT_OF_MEMORY = 0.95
"""Fraction of the memory of the machine, or of the control group, from which a task is ended."""
BLAMEABLE = 64 << 20
"""Resident bytes under which a process is not what memory is short of."""


class MemoryGauge:
    """Reads the tighter of two limits: the control group's (v2) and the machine's. `root` is for tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo = root / "proc/meminfo"
        self._group = _control_group(root)

    def used_fraction(self) -> float:
        """From 0 to 1; 0 where nothing can be read."""
        return max(self._machine(), self._in_group())

    def kills(self) -> int:
        """How many processes of the control group the kernel has ended for their memory so far; 0 where it doesn't say."""
        return _field(self._group / "memory.events", "oom_kill")

    def _machine(self) -> float:
        total = _field(self._meminfo, "MemTotal:")
        return 1 - _field(self._meminfo, "MemAvailable:") / total if total else 0.0

    def _in_group(self) -> float:
        with contextlib.suppress(OSError, ValueError):
            limit = int((self._group / "memory.max").read_text())  # "max" where there is none
            current = int((self._group / "memory.current").read_text())
            # What the kernel can drop at once is no shortage.
            return (current - _field(self._group / "memory.stat", "inactive_file")) / limit
        return 0.0


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _control_group(root: Path) -> Path:
    base = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            own = base / path.lstrip("/")
            if number == "0" and (own / "memory.events").exists():
                return own
    return base


def _field(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            words = line.split()
            if words and words[0] == name:
                return int(words[1])
    return 0
