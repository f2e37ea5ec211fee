"""A lock with a condition, which an interrupt can't leave locked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_Reentrant: Any = type(threading.RLock())


class Mutex(_Reentrant):  # type: ignore[misc]
    """As `threading.Condition`, whose own `with` is Python code: a Ctrl-C within it keeps the lock, for good.

    Here `with` is the reentrant lock's own, in which no Python code runs. `wait` is for threads that are not interrupted.
    """

    if TYPE_CHECKING:

        def __enter__(self) -> bool: ...
        def __exit__(self, *error: object) -> None: ...

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition(self)

    def wait(self, timeout: float) -> bool:
        """Until `notify_all`, or for so many seconds; the lock is given up meanwhile."""
        return self._changed.wait(timeout)

    def notify_all(self) -> None:
        """Wake all who wait; whoever calls it holds the lock."""
        self._changed.notify_all()


def uninterrupted(work: Callable[[], Any]) -> None:
    """Do what must be done in full: in a thread of its own where this is the one that signals interrupt."""
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there is no room for another thread
        work()
    else:
        thread.join()
