"""Lets code that runs inside a task know its task, and tell the worker that it waits for another future.

A task that waits gives its slot back: the worker takes the tasks queued behind it to other children and may claim
more, so nested waits never deadlock, even with one worker of one slot.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(slots=True)
class TaskContext:
    """The task this process is running now."""

    id: bytes  # of its future
    url: str  # database of the worker, so that a Client() inside a task finds its cluster
    cluster: str
    attempt: int = 0  # which start of the future this is
    actor: bool = False  # it never ends, and what it submits is nobody's child

    @property
    def future_id(self) -> UUID:
        return UUID(bytes=self.id)


_report: Callable[[bool, Sequence[bytes]], None] | None = None
_current: TaskContext | None = None
_waiting = 0
_lock = threading.Lock()


def current_task() -> TaskContext | None:
    """The task that runs in this process; None outside of a worker's child."""
    return _current


@contextlib.contextmanager
def waiting(ids: Sequence[bytes] = ()) -> Iterator[None]:
    """Around every wait for futures: inside a task the slot is free for others meanwhile. Outside it does nothing.

    `ids`: what is waited for, or the first of it; the worker runs that before all else.
    """
    global _waiting
    if _current is None or _report is None:
        yield
        return
    with _lock:
        _waiting += 1
        first = _waiting == 1
    if first:
        _report(True, ids)
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1
            last = _waiting == 0
        if last:
            _report(False, ())


def install(report: Callable[[bool, Sequence[bytes]], None]) -> None:
    """Called once by the child's main loop: how to tell the worker of waits."""
    global _report
    _report = report


def enter(context: TaskContext | None) -> None:
    """Called by the child's main loop when a task begins or ends."""
    global _current
    _current = context
