"""When a worker gives its next sign of life, and when it reads again what its bells should have told it."""

from __future__ import annotations

import random

HEARTBEAT_SECONDS = 0.5
"""Between two signs of life of a worker that has tasks."""
BEATS_PER_TTL = 4
"""Those of a worker that has none."""
REREAD_SECONDS = 2.0
"""A bell that was missed costs at most this long (a jittered re-read backs every watch), and ..."""
IDLE_REREAD_SECONDS = 8.0
"""... this long where there is nothing to do, and has been nothing for as long."""


class Rhythm:
    """Seconds of the loop's monotonic clock go in. An idle worker does both more seldom: its load doesn't change."""

    def __init__(self, ttl: float) -> None:
        """`ttl`: seconds without a sign of life that mean death."""
        self._idle_beat = max(HEARTBEAT_SECONDS, ttl / BEATS_PER_TTL)
        self.begin()

    def begin(self) -> None:
        """Both are due, as at the start."""
        self._beaten = float("-inf")
        self._reread = REREAD_SECONDS
        self._next_reread = float("-inf")

    def beat_due(self, busy: bool) -> float:
        """When the next sign of life is to be given."""
        return self._beaten + (HEARTBEAT_SECONDS if busy else self._idle_beat)

    def beats(self, now: float) -> None:
        """It is given now."""
        self._beaten = now

    def rereads(self, now: float, busy: bool) -> bool:
        """Whether to read again what bells should have told; it is taken to be done then."""
        if now < self._next_reread:
            return False
        self._reread = REREAD_SECONDS if busy else min(2 * self._reread, IDLE_REREAD_SECONDS)
        self._next_reread = now + self._reread * random.uniform(0.75, 1.25)
        return True

    def due(self, busy: bool) -> float:
        """When the first of both is."""
        return min(self.beat_due(busy), self._next_reread)
