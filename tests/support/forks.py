"""Forked children, for tests."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 20
"""That a child may take."""


def in_child(body: Callable[[], None]) -> int:
    """Run `body` in a forked child; its exit code: 1 where it raised, minus SIGALRM where it hung."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def paused_child() -> Iterator[None]:
    """A child is forked here, has all that this process has open, and lives until the end of the block."""
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def take_lock(path: Path) -> None:
    """Raises BlockingIOError where another has the lock of a file."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
