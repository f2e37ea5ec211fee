"""When a worker gives its next sign of life, looks at its children, and reads again what its bells should have told it."""

from __future__ import annotations

import random

HEARTBEAT_SECONDS = 0.5
"""Between two signs of life of a worker that has tasks. Those that end in time carry them with their turns."""
BEATS_PER_TTL = 4
"""Those of a worker that has none, and the least of one that has."""
AT_MOST = 0.001
"""Seconds that the bells stay unarmed after tasks were sent."""
COMPLAIN_SECONDS = 10.0
"""Between two messages that the database refuses."""
REREAD_SECONDS = 2.0
"""A bell that was missed costs at most this long (a jittered re-read backs every watch), and ..."""
IDLE_REREAD_SECONDS = 8.0
"""... this long where there is nothing to do, and has been nothing for as long."""


class Rhythm:
    """Seconds of the loop's monotonic clock go in. An idle worker does all of it more seldom: its load doesn't change."""

    def __init__(self, ttl: float) -> None:
        """`ttl`: seconds without a sign of life that mean death."""
        self._idle_beat = max(HEARTBEAT_SECONDS, ttl / BEATS_PER_TTL)
        self._busy = False
        self._busy_since = float("-inf")
        self.begin()

    def begin(self) -> None:
        """All is due, as at the start."""
        self._beaten = self._looked = float("-inf")
        self._reread = REREAD_SECONDS
        self._next_reread = float("-inf")

    def saw(self, now: float, busy: bool) -> None:
        """Whether there are tasks, at each look: who has had some for a moment only gives no sign of life for it."""
        if busy and not self._busy:
            self._busy_since = now
        self._busy = busy

    def beat_due(self, busy: bool) -> float:
        """When the next sign of life is to be given, by a transaction of its own."""
        latest = self._beaten + self._idle_beat
        return min(latest, max(self._beaten, self._busy_since) + HEARTBEAT_SECONDS) if busy else latest

    def carries(self, now: float) -> bool:
        """Whether a turn that is taken now gives one with it."""
        return now >= self._beaten + HEARTBEAT_SECONDS

    def beats(self, now: float) -> None:
        """It is given now."""
        self._beaten = now

    def _look_due(self, busy: bool) -> float:
        return self._looked + (HEARTBEAT_SECONDS if busy else self._idle_beat)

    def looks(self, now: float, busy: bool) -> bool:
        """Whether to look at the children; it is taken to be done then."""
        if now < self._look_due(busy):
            return False
        self._looked = now
        return True

    def rereads(self, now: float, busy: bool) -> bool:
        """Whether to read again what bells should have told; it is taken to be done then."""
        if now < self._next_reread:
            return False
        self._reread = REREAD_SECONDS if busy else min(2 * self._reread, IDLE_REREAD_SECONDS)
        self._next_reread = now + self._reread * random.uniform(0.75, 1.25)
        return True

    def due(self, busy: bool) -> float:
        """When the first of these is."""
        return min(self.beat_due(busy), self._look_due(busy), self._next_reread)
