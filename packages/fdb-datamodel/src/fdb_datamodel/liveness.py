"""Death, judged by an observer's own clock: who makes no sign of life for a whole TTL is dead. Pure.

Sightings and the observer's monotonic time go in, the dead come out; workers and sessions of clients are watched by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar


class Sighting(Protocol):
    """Something that lives as long as its counter changes."""

    @property
    def id(self) -> Any: ...

    @property
    def counter(self) -> int: ...


S = TypeVar("S", bound=Sighting)


class Observer(Generic[S]):
    """Remembers since when each one's counter has stood still."""

    def __init__(self, ttl: float) -> None:
        """`ttl`: seconds of the observer's clock without a change of the counter that mean death."""
        self._ttl = ttl
        self._seen: dict[Any, tuple[int, float]] = {}
        self._last = float("-inf")

    def observe(self, seen: Sequence[S], now: float) -> list[S]:
        """The dead among `seen`, at `now` (seconds of a monotonic clock).

        If the last observation was over half a TTL ago, the observer itself stalled (or the database did), and nobody
        could have been seen beating: all windows start anew.
        """
        if now - self._last > self._ttl / 2:
            self._seen.clear()
        self._last = now
        before, self._seen = self._seen, {}
        dead = []
        for sighting in seen:
            counter, since = before.get(sighting.id, (None, now))
            if counter != sighting.counter:
                since = now
            self._seen[sighting.id] = (sighting.counter, since)
            if now - since >= self._ttl:
                dead.append(sighting)
        return dead
