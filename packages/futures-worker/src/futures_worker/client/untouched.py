"""Handles that were made from an id, or unpickled, and that nobody has waited with yet: they hold their futures too.

Making one does nothing: most are used, passed on or let go at once, and who unpickles one may have no database at hand. What is
still there a moment later is held like any other, by a thread that ends when there is nothing left for it to do. Nothing is opened
for it outside of a worker: a handle whose cluster this process has no client of waits until it has one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from fdb_schema import MainspringError

if TYPE_CHECKING:
    from futures_worker.client.client import Client
    from futures_worker.client.future import Future

HOLD_AFTER: Final = 1.0
"""Seconds that a handle may be without use before its future is held."""

_made: deque[weakref.ref[Future[Any]]] = deque()
_elsewhere: list[weakref.ref[Future[Any]]] = []  # of clusters that this process has no client of
_lock = threading.Lock()
_stopped = threading.Event()  # never set: a pause that leaves the interpreter alone
_thread: threading.Thread | None = None


def note(future: Future[Any]) -> None:
    """A handle was made that is known to no session."""
    _made.append(weakref.ref(future))
    _begin()


def found_client() -> None:
    """This process has one more client: perhaps of the cluster of handles that had none."""
    with _lock:
        if not _elsewhere:
            return
        _made.extend(_elsewhere)
        _elsewhere.clear()
    _begin()


def _begin() -> None:
    global _thread
    with _lock:
        if _thread is None and _made:
            thread = threading.Thread(target=_run, name="mainspring-handles", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread now: the next handle, or the first wait, sees to it
                thread.start()
                _thread = thread


def _run() -> None:
    global _thread
    while True:
        _stopped.wait(HOLD_AFTER)
        look()
        with _lock:
            if not _made:
                _thread = None
                return


def look() -> None:
    """Hold the futures of all handles that are there still and that no session knows."""
    found: dict[Client, list[Future[Any]]] = {}
    for _ in range(len(_made)):
        one = _made.popleft()
        future = one()
        if future is None or future._session is not None:
            continue
        client = None
        with contextlib.suppress(MainspringError):
            client = future._home.known_client()
        if client is not None:
            found.setdefault(client, []).append(future)
            continue
        with _lock:
            _elsewhere[:] = [other for other in _elsewhere if other() is not None]
            _elsewhere.append(one)
    for client, futures in found.items():
        try:
            client._live.take_up(futures)
        except Exception:  # it was closed, or its database is in trouble: tried again
            _made.extend(weakref.ref(future) for future in futures)


def _after_fork() -> None:
    """The copies of a fork are their parent's handles until they are used."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _made.clear()
    _elsewhere.clear()


os.register_at_fork(after_in_child=_after_fork)
