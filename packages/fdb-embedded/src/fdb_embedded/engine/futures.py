"""The engine's future: a value or an error code, callbacks, and a way for whoever waits to do the work itself."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from .. import errors
from ..errors import Code

LOOK_AGAIN = 1.0  # seconds after which who waits looks for himself

_callbacks_lock = threading.RLock()


def renew_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _callbacks_lock
    _callbacks_lock = threading.RLock()


class Future:
    """What a C API call returns.

    `kick(waiter)` is what moves an unfinished future along: a thread that waits calls it with the future it waits for, and may do
    the work itself; with None it only asks that somebody does.
    """

    __slots__ = ("__weakref__", "callbacks", "direct", "done", "error", "kick", "value")

    def __init__(self, kick: Callable[[Future | None], None] | None = None) -> None:
        self.value: Any = None
        self.error = 0
        self.done = False
        self.callbacks: list[Callable[[], None]] | None = None
        self.kick = kick
        self.direct: Callable[[Future, float], bool] | None = None  # how a thread may wait by itself

    def set(self, value: Any = None, error: int = 0) -> bool:
        """Finish; the first result stands. True when this call was the first. An interrupted call may be repeated."""
        with _callbacks_lock:
            first = not self.done
            if first:
                self.value = value
                self.error = error
                self.kick = None
                self.done = True
        if self.callbacks:  # perhaps of a call that was interrupted here
            _run_all(self.callbacks)
        return first

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Run `callback` once the future is done, at once if it is; on whichever thread finishes it."""
        with _callbacks_lock:
            if not self.done:
                if self.callbacks is None:
                    self.callbacks = [callback]
                else:
                    self.callbacks.append(callback)
                return
        run_callback(callback)

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Forget a callback that hasn't run."""
        with _callbacks_lock:
            if self.callbacks is not None:
                with contextlib.suppress(ValueError):
                    self.callbacks.remove(callback)

    def on_ready(self, callback: Callable[[], None]) -> None:
        """As `add_callback`, and somebody is asked to do the work: nobody needs to wait."""
        self.add_callback(callback)
        kick = self.kick
        if kick is not None:
            kick(None)

    def wait(self) -> None:
        """Block until done; interruptible by signals."""
        if self.done:
            return
        kick = self.kick
        if kick is not None:
            kick(self)
            if self.done:
                return
        gate = threading.Lock()
        gate.acquire()
        release = gate.release
        self.add_callback(release)
        try:
            # Who was to finish this, or to wake its waiters, may have been interrupted: look, and help, now and then.
            while not gate.acquire(timeout=LOOK_AGAIN) and not self.done:
                kick = self.kick
                if kick is not None:
                    kick(self)
        except BaseException:
            self.remove_callback(release)
            raise

    def wait_until(self, seconds: float) -> bool:
        """Block at most `seconds`, without doing the work; True when done."""
        if self.done:
            return True
        gate = threading.Lock()
        gate.acquire()
        release = gate.release
        self.add_callback(release)
        if not gate.acquire(timeout=max(0.0, seconds)):
            self.remove_callback(release)
        return self.done

    def wait_for(self, seconds: float) -> bool:
        """Block at most `seconds`; the calling thread looks for itself where it can (`direct`). True when done."""
        direct = self.direct
        return self.wait_until(seconds) if direct is None or self.done else direct(self, seconds)

    def result(self) -> Any:
        """The value; raises `Code`."""
        if not self.done:
            self.wait()
        if self.error:
            raise Code(self.error)
        return self.value

    def cancel(self) -> None:
        """Give up waiting: an unfinished future ends with 1101."""
        self.set(None, errors.OPERATION_CANCELLED)


def _run_all(callbacks: list[Callable[[], None]]) -> None:
    """Run callbacks, oldest first. Each is taken before it is run, so that an interrupt costs one at most."""
    with contextlib.suppress(IndexError):  # another thread may be at it
        while True:
            run_callback(callbacks.pop(0))


def run_callback(callback: Callable[[], None]) -> None:
    """Run a user's callback; what it raises is printed, as the official binding does."""
    try:
        callback()
    except Exception:
        sys.stderr.write("Discarding uncaught exception from user FDB callback:\n")
        traceback.print_exc(file=sys.stderr)


def ready(value: Any = None) -> Future:
    """A future that has its value."""
    future = Future()
    future.value = value
    future.done = True
    return future


def failed(code: int) -> Future:
    """A future that has failed."""
    future = Future()
    future.error = code
    future.done = True
    return future
