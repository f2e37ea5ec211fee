"""What a worker and all that it started really use, for people: processor time and memory, from /proc."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from futures_worker.worker.processes import children_of

EVERY_SECONDS: Final = 2.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Of this process and those below it; read at most every two seconds, a walk over some files of /proc."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._ticks: dict[int, int] = {}  # process -> ticks that it had used
        self.cpu: float | None = (
            None  # processors in use, on average since the reading before; None until there are two
        )
        self.memory: int | None = None  # bytes that no file backs; pages shared by a fork are counted in each process

    def read(self) -> None:
        """Look, where it is time."""
        now = self._clock()
        passed = now - self._at
        if passed < EVERY_SECONDS:
            return
        ticks, memory = dict[int, int](), 0
        for pid in _family(os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks[pid] = int(fields[11]) + int(fields[12])
                _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
                memory += (int(resident) - int(shared)) * _PAGE
        if self._ticks:
            # What began since counts whole; what ended since is missed.
            used = sum(max(0, count - self._ticks.get(pid, 0)) for pid, count in ticks.items())
            self.cpu = used / _TICKS / passed
        self._at, self._ticks, self.memory = now, ticks, memory


def _family(root: int) -> Iterator[int]:
    seen = {root}
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        with contextlib.suppress(OSError, ValueError):
            for child in children_of(pid):
                if child not in seen:
                    seen.add(child)
                    pending.append(child)
