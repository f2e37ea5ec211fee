"""One look for any number of pages: its answer is kept for some seconds, and renewed behind those who ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from mainspring_dashboard.answering import is_reading_error

T = TypeVar("T")

KEPT_SECONDS: Final = 3.0
STALE_SECONDS: Final = 30.0
"""What was found less long ago is answered at once, and a look begun for those who ask next."""


class Renewed(Generic[T]):
    """Call it for the answer. It blocks only where there is none, or one that is stale; then it raises what the look raises."""

    def __init__(self, name: str, look: Callable[[], T], kept: float = KEPT_SECONDS) -> None:
        self._name = name
        self._look = look
        self._for = kept
        self._lock = threading.Lock()  # who comes while somebody looks for the first time gets the same
        self._found: tuple[float, T] | None = None  # when, by the monotonic clock, and what

    def __call__(self) -> T:
        found = self._found
        if found is None or time.monotonic() - found[0] >= STALE_SECONDS:
            with self._lock:
                found = self._found
                if found is None or time.monotonic() - found[0] >= STALE_SECONDS:
                    found = self._renew()
        elif time.monotonic() - found[0] >= self._for and self._lock.acquire(blocking=False):
            threading.Thread(target=self._renew_behind, name=self._name, daemon=True).start()
        return found[1]

    def _renew(self) -> tuple[float, T]:
        answer = self._look()
        self._found = time.monotonic(), answer
        return self._found

    def _renew_behind(self) -> None:
        """In a thread of its own, which has the lock. What can't be read now is said to who asks when it is stale."""
        try:
            self._renew()
        except Exception as error:
            if not is_reading_error(error):
                raise
        finally:
            self._lock.release()
