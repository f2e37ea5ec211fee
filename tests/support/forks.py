"""Forked children, for tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

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
