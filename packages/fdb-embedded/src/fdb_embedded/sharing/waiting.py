"""Waits for what another process, or another thread, holds. Whoever has it may be stopped, so each wait can be left at any moment.

No thread waits in C without end: a signal handler, a timeout and a `cancel` get through within `LONGEST_SLEEP`. After a second
the log says for whom is waited, and what to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

log = logging.getLogger("fdb_embedded")

FIRST_SLEEP = 0.0002
LONGEST_SLEEP = 0.02
TOLD_AFTER = 1.0
TOLD_AGAIN_AFTER = 30.0

GoOn = Callable[[], None]
"""Called now and then by who waits; it ends the wait by raising."""


class Waiter(Protocol):
    """Who waits, and may have to end that."""

    def go_on(self) -> None:
        """Raise when there is nothing to wait for any more."""


class Caller:
    """A `Waiter` of a function."""

    def __init__(self, go_on: GoOn) -> None:
        self.go_on = go_on


class GivenUp(Exception):
    """Who waited has no more reason to, or no more time."""


class Wait:
    """One wait. Call `pause` as long as there is something to wait for."""

    __slots__ = ("_go_on", "_seconds", "_tell_at", "_whom")

    def __init__(self, whom: Callable[[], str], go_on: GoOn | None, first_sleep: float = FIRST_SLEEP) -> None:
        self._whom = whom  # what to say in the log
        self._go_on = go_on
        self._seconds = first_sleep
        self._tell_at = time.monotonic() + TOLD_AFTER

    def pause(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Sleep a little, a little longer each time. Raises what ends the wait."""
        if self._go_on is not None:
            self._go_on()
        if time.monotonic() >= self._tell_at:
            self._tell_at += TOLD_AGAIN_AFTER
            _tell(self._whom())
        sleep(self._seconds)
        self._seconds = min(2 * self._seconds, LONGEST_SLEEP)


_told: dict[str, float] = {}


def _tell(text: str) -> None:
    """Warn, unless another wait of this process has just said the same."""
    now = time.monotonic()
    if now - _told.get(text, -TOLD_AGAIN_AFTER) >= TOLD_AGAIN_AFTER:
        _told.clear()
        _told[text] = now
        log.warning("%s", text)


def at_most(seconds: float) -> GoOn:
    """Ends a wait that takes longer by `GivenUp`."""
    until = time.monotonic() + seconds

    def go_on() -> None:
        if time.monotonic() >= until:
            raise GivenUp

    return go_on


def acquire(lock: threading.Lock, held: list[bool], go_on: GoOn | None, seconds: float = LONGEST_SLEEP) -> None:
    """Take a lock of this process's threads. `held` ends with True once it is, in one C call: no signal handler comes between."""
    while True:
        held.extend(map(lock.acquire, (True,), (seconds,)))
        if held[-1]:
            return
        if go_on is not None:
            go_on()


def lock_file(fd: int, path: Path, go_on: GoOn | None = None) -> None:
    """Lock a file exclusively (`flock`), by its open file description."""
    wait: Wait | None = None
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if wait is None:
            wait = Wait(lambda: f"{path} is locked by {_who(_holder_of(fd))}, so it is waited for; {TO_DO}", go_on)
        wait.pause()


TO_DO = "let it go on (`kill -CONT`), or end it: the lock is given up at once, and nothing acknowledged is lost"


def own_note() -> int:
    """Names this process to those that it keeps waiting: its number, above it that of its PID namespace."""
    return os.getpid() | (os.stat("/proc/self/ns/pid").st_ino & 0xFFFFFFFF) << 32


def who(note: int) -> str:
    """The process that a note names, and whether it is stopped."""
    if not note:
        return "another process"
    process, namespace = note & 0xFFFFFFFF, note >> 32
    if namespace != own_note() >> 32:
        return f"process {process} of another container"
    return _who(process)


def _who(process: int) -> str:
    if process <= 0:
        return "another process"
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "Tt":
            return f"process {process}, which is stopped (by SIGSTOP, Ctrl-Z or a debugger)"
    return f"process {process}"


def _holder_of(fd: int) -> int:
    """The process that holds a file's `flock`, as the kernel tells; 0 where it doesn't."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = os.fstat(fd)
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1:2] == ["FLOCK"] and fields[3] == "WRITE" and fields[5] == place:
                return int(fields[4])
    return 0
