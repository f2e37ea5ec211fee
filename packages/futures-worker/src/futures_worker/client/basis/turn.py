"""How threads wait for each other where one of them may be interrupted: nothing here is left taken by a KeyboardInterrupt.

`threading.Condition` and `Event` are themselves written in Python: an interrupt can come between a lock's being taken and the
`with` that gives it back. A `with` over a plain lock has no such place.

But for one: from CPython 3.13 on, the jump back to the condition of a loop, or past the filter of a loop or comprehension, is part of
no `with` or `try` around it, and an interrupt that comes there is met by none. What has locks to give back, or something to put
back, loops in a function of its own, or without a condition (`while True: if …: break`); `test_turn` looks for the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

_LOOK_SECONDS: Final = (
    5.0  # between two looks of who waits for ever: an interrupt can come between a change and the waking
)


class Turn:
    """What one at a time has. Its holder gives it up in the `finally` of the `try` in which it is taken:

        me = object()
        try:
            if turn.take(me): ...
        finally:
            if turn.holder is me:
                turn.holder = None

    An interrupt (KeyboardInterrupt) comes where something is called or repeated: never between the test and the assignment.
    """

    __slots__ = ("_gate", "holder")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self.holder: object | None = None

    def take(self, me: object) -> bool:
        """Whether `me` has it now."""
        with self._gate:
            if self.holder is None:
                self.holder = me
        return self.holder is me


class Waiters:
    """Threads that wait until somebody wakes them."""

    __slots__ = ("_gates",)

    def __init__(self) -> None:
        self._gates: set[threading.Lock] = set()

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._gates)

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Wait to be woken, for so long at most, and not at all if it is `over()`; who changes that wakes afterwards."""
        gate = threading.Lock()
        gate.acquire()
        try:
            self._gates.add(gate)
            if not over():
                gate.acquire(timeout=max(0.0, seconds))
        finally:
            self._gates.discard(gate)

    def wake(self) -> None:
        """Wake all that wait."""
        for gate in self._gates.copy():
            self._gates.discard(gate)
            with contextlib.suppress(RuntimeError):  # another thread has just woken it
                gate.release()


class Flag:
    """As a `threading.Event`."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return once it is set, or after `timeout` seconds; whether it is."""
        if timeout is not None:
            self._waiters.wait(timeout, self.is_set)
        else:
            while not self._set:
                self._waiters.wait(_LOOK_SECONDS, self.is_set)
        return self._set
