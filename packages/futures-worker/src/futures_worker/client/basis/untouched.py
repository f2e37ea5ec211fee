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
from typing import Any, Final

from fdb_schema import MainspringError
from futures_worker.client.basis.record import FutureRecord

HOLD_AFTER: Final = 1.0
"""Seconds that a handle may be without use before its future is held."""

_Untouched = tuple[Any, "weakref.ref[FutureRecord]"]  # with the `Home` of its handle

_made: deque[_Untouched] = deque()
_elsewhere: list[_Untouched] = []  # of clusters that this process has no client of
_lock = threading.Lock()
_stopped = threading.Event()  # never set: a pause that leaves the interpreter alone
_thread: threading.Thread | None = None


def note(home: Any, record: FutureRecord) -> None:
    """A handle was made that is known to no session; `home` is its `Home`."""
    _made.append((home, weakref.ref(record)))
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
    found: dict[Any, list[FutureRecord]] = {}
    for _ in range(len(_made)):
        try:
            one = _made.popleft()
        except IndexError:  # another thread looks, too
            break
        home, record = one[0], one[1]()
        if record is None or record.life is not None:
            continue
        context = None
        with contextlib.suppress(MainspringError):
            context = home.known_context()
        if context is not None:
            found.setdefault(context, []).append(record)
            continue
        with _lock:
            _elsewhere[:] = _still_there(_elsewhere)
            _elsewhere.append(one)
    for context, records in found.items():
        try:
            context().take_up(records)
        except Exception:  # it was closed, or its database is in trouble: tried again
            _made.extend((context, weakref.ref(record)) for record in records)


def _still_there(handles: list[_Untouched]) -> list[_Untouched]:
    return [one for one in handles if one[1]() is not None]


def _after_fork() -> None:
    """The copies of a fork are their parent's handles until they are used."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _made.clear()
    _elsewhere.clear()


os.register_at_fork(after_in_child=_after_fork)
