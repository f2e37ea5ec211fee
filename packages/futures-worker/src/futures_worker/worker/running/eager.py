"""Looking again and again for a moment before sleeping: for lone requests, whose wake-ups cost more than their work.

A core that slept takes 20 to 60 µs to wake, and then runs the same code two to three times slower for a while. So a worker
that is about to hear something, of a child that runs a short task or of a client whose requests come one right after
another, stays awake for it. It does so for `MOMENT` at most, and not where others want the core: the kernel's account of
who waits for one shows that, and so does a look that was held up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

MOMENT: Final = 0.0005
"""Seconds awake at most for what is expected."""
HELD_UP: Final = 0.0002
"""Seconds between two looks (which take two millionths) by which somebody else had the core."""
REST: Final = 2.0
"""Seconds without it after that."""
CROWDED: Final = 0.4
"""Share of the time in which somebody waited for a core, from which on nobody stays awake for nothing."""
WEIGH_AFTER: Final = 0.05
"""Seconds between two looks at that account while requests come, and twice as many after one that showed a crowd."""
_PRESSURE: Final = "/proc/pressure/cpu"


def seconds_waited() -> float | None:
    """Seconds since the machine's start in which any process waited for a core; None where the kernel doesn't count them."""
    try:
        with open(_PRESSURE, "rb") as file:
            return int(file.readline().rpartition(b"=")[2]) * 1e-6
    except (OSError, ValueError):
        return None


class Eager:
    """When one loop stays awake."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float | None] = seconds_waited,
        cores: int | None = None,
    ) -> None:
        """`cores`: that this process may use; with one, who waits for somebody else must sleep."""
        self._clock = clock
        self._waited = waited
        self._expected_until = 0.0
        alone = (len(os.sched_getaffinity(0)) if cores is None else cores) < 2
        self._rest_until = float("inf") if alone else 0.0
        self._answered = 0.0
        self._prompt = False
        self._crowded = False
        self._weighed: tuple[float, float] | None = None
        self._weigh_at = 0.0

    def expect(self) -> None:
        """Something is about to come."""
        self._expected_until = self._clock() + MOMENT

    def asked(self) -> None:
        """A request came: was it soon after the answer to the one before?"""
        now = self._clock()
        self._prompt = now - self._answered <= MOMENT
        if now >= self._weigh_at:
            self._weigh(now)

    def answered(self) -> None:
        """A request was answered: the next one is expected where the last one came at once."""
        self._answered = self._clock()
        if self._prompt:
            self._expected_until = self._answered + MOMENT

    def look(self, poll: Callable[[int], list[T]], seconds: float) -> list[T]:
        """What `poll(0)` finds while something is expected, for `seconds` at most; often nothing at once."""
        last = self._clock()
        end = min(self._expected_until, last + seconds)
        if self._crowded or last < self._rest_until:
            return []
        while last < end:
            found = poll(0)
            if found:
                return found
            now = self._clock()
            if now - last > HELD_UP:
                self._rest_until = now + REST
                break
            last = now
        return []

    def _weigh(self, now: float) -> None:
        """See whether others want the cores."""
        waited, before = self._waited(), self._weighed
        if waited is not None:
            self._crowded = before is None or waited - before[1] > CROWDED * (now - before[0])
            self._weighed = now, waited
        self._weigh_at = now + (2 if self._crowded else 1) * WEIGH_AFTER
