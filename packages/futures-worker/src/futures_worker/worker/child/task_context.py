"""Lets code that runs inside a task know its task, and tell the worker that it waits for another future.

A task that waits gives its slot back: the worker takes the tasks queued behind it to other children and may claim
more, so nested waits never deadlock, even with one worker of one slot.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from futures_worker.code.settings import Setting
from futures_worker.worker.child.interrupts import ours, shielded


@dataclass(slots=True)
class TaskContext:
    """The task this process is running now."""

    id: bytes  # of its future
    url: str  # database of the worker, so that a Client() inside a task finds its cluster
    cluster: str
    attempt: int = 0  # which start of the future this is
    token: bytes = b""  # of the claim of that
    epoch: int = 0  # how often the future was made to run again after it had ended
    actor: bool = False  # it never ends, and what it submits is nobody's child
    concurrent: bool = False  # while one of its waits lasts, the rest of it goes on
    waiting: int = 0  # its threads that wait for futures now

    @property
    def future_id(self) -> UUID:
        return UUID(bytes=self.id)


_own_cluster: tuple[str, str] | None = None
_own_setting: Setting | None = None
_worker_address = ""
_report: Callable[[bool, Sequence[bytes]], None] | None = None
_current: TaskContext | None = None
_lock = threading.RLock()


def own_cluster() -> tuple[str, str] | None:
    """(database URL, cluster) of the worker that this process belongs to, between tasks too; None outside of a worker."""
    return _own_cluster


def own_setting(where: tuple[str | None, str]) -> Setting | None:
    """What this process of a worker runs code in, for clients of the worker's own (database URL, cluster); None where nothing."""
    return _own_setting if where == _own_cluster else None


def set_own_setting(setting: Setting | None) -> None:
    """Called once by the child's main loop, before its first task."""
    global _own_setting
    _own_setting = setting


def worker_address() -> str:
    """The address at which the worker of this process listens, which others may know it by another than; "" outside of a worker."""
    return _worker_address


def set_worker_address(address: str) -> None:
    """Called once by the process that forks a worker's children."""
    global _worker_address
    _worker_address = address


def current_task() -> TaskContext | None:
    """The task that runs in this process; None outside of a worker's child."""
    return _current


@contextlib.contextmanager
@ours
def waiting(ids: Sequence[bytes] = ()) -> Iterator[None]:
    """Around every wait for futures: inside a task the slot is free for others meanwhile. Outside it does nothing.

    `ids`: what is waited for, or the first of it; the worker runs that before all else.
    """
    task = _current
    if task is None:
        yield
        return
    _count(task, 1, ids)
    try:
        yield
    finally:
        _count(task, -1, ())


@shielded
def _count(task: TaskContext, change: int, ids: Sequence[bytes]) -> None:
    """One thread of the task more that waits, or less. Of a task that has ended nobody is told."""
    with _lock:
        before, task.waiting = task.waiting, task.waiting + change
        if _report is not None and task is _current and (before == 0 or task.waiting == 0):
            _report(change > 0, ids)


def install(report: Callable[[bool, Sequence[bytes]], None], url: str = "", cluster: str = "") -> None:
    """Called once by the child's main loop: how to tell the worker of waits, and which cluster the worker is of."""
    global _report, _own_cluster
    _report = report
    _own_cluster = (url, cluster) if url else None


def enter(context: TaskContext | None) -> None:
    """Called by the child's main loop when a task begins or ends."""
    global _current
    with _lock:
        _current = context


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
