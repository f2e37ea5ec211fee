"""What a task may change of its process for those that follow it: put back after each task, or the process is to end.

Put back are the working directory, the umask, soft limits (rlimits), the interval timer, Python's limit of recursion, and the
handlers of SIGINT, SIGTERM, SIGALRM and the signal that interrupts tasks. A process that can't be put back, that leaks descriptors or that has closed a standard
one is to end. What a task does to Python's own state (modules, `os.environ`) stays, as in any process that is reused.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any, Final

from futures_worker.worker.child.interrupts import INTERRUPT_SIGNAL

LIMITS: Final = tuple(
    getattr(resource, name)
    for name in (
        "RLIMIT_NOFILE",
        "RLIMIT_AS",
        "RLIMIT_CORE",
        "RLIMIT_CPU",
        "RLIMIT_DATA",
        "RLIMIT_FSIZE",
        "RLIMIT_NPROC",
        "RLIMIT_STACK",
    )
)
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, INTERRUPT_SIGNAL)
QUICK: Final = 0.0002
"""Seconds of a task up to which limits, timers and handlers aren't looked at: they take longer to change."""


class Surroundings:
    """As they were before the first task."""

    def __init__(self) -> None:
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._limits = [resource.getrlimit(one) for one in LIMITS]
        self._handlers: list[Any] = [signal.getsignal(one) for one in SIGNALS]
        self._cwd = os.getcwd()
        self._home = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._recursion = sys.getrecursionlimit()
        self._standard = min(3, self._lowest_free())  # standard descriptors that are open

    def restore(self, seconds: float) -> bool:
        """After a task of `seconds`: whether everything is as it was, or could be put back."""
        try:
            if os.umask(self._umask) != self._umask:
                seconds = 1.0
            try:
                moved = os.getcwd() != self._cwd
            except OSError:
                moved = True  # it was removed
            if moved:
                os.fchdir(self._home)
                seconds = 1.0
            if sys.getrecursionlimit() != self._recursion:
                sys.setrecursionlimit(self._recursion)
            return (seconds <= QUICK or self._restore_rest()) and not self._leaks()
        except (OSError, ValueError):
            return False

    def _restore_rest(self) -> bool:
        for which, before in zip(LIMITS, self._limits, strict=True):
            if resource.getrlimit(which) != before:
                resource.setrlimit(which, before)  # a hard limit can't be raised again
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, before in zip(SIGNALS, self._handlers, strict=True):
            if signal.getsignal(number) is not before:
                signal.signal(number, before)
        return True

    def _lowest_free(self) -> int:
        lowest = os.dup(self._home)
        os.close(lowest)
        return lowest

    def _leaks(self) -> bool:
        """Whether so many descriptors stay open that those of later tasks may be refused, or a standard one doesn't."""
        lowest_free = self._lowest_free()
        if lowest_free < self._standard:
            return True
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return most != resource.RLIM_INFINITY and 2 * lowest_free > most
