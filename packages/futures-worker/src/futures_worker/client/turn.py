"""A lock that is tried and never waited for, which no interrupt can leave taken."""

from __future__ import annotations

import threading


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
