"""Death, judged by an observer's own clock: who makes no sign of life for a whole TTL is dead. Pure.

Sightings and the observer's monotonic time go in, the dead come out; workers and sessions of clients are watched by it.

A database may answer reads and take no commits for a while (a disk that stalls, a process that is stopped in the midst of a commit): then
nobody can beat, and the first commit afterwards may be that of an observer. So silence counts only where a commit
was made in the midst of it.
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


class Writes(Protocol):
    """Whether the database takes commits."""

    def begin(self) -> bool:
        """Begin one, unless one is under way; whether one was begun. Returns soon, whatever the database does."""

    def made(self) -> bool:
        """Whether the one that was begun last is made."""


S = TypeVar("S", bound=Sighting)


class Observer(Generic[S]):
    """Remembers since when each one's counter has stood still."""

    def __init__(self, ttl: float, writes: Writes | None = None) -> None:
        """`ttl`: seconds of the observer's clock without a change of the counter that mean death. `writes`: None trusts the database."""
        self._ttl = ttl
        self._writes = writes
        self._begun: float | None = None  # when a commit was begun of which nobody knows yet that it was made
        self._seen: dict[
            Any, tuple[int, float, float | None]
        ] = {}  # counter, since when, when commits were made meanwhile
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
        for sighting in seen:
            counter, since, proven = before.get(sighting.id, (None, now, None))
            if counter != sighting.counter:
                since, proven = now, None
            self._seen[sighting.id] = (sighting.counter, since, proven)
        if self._writes is not None:
            self._prove(self._writes, now)
        return [sighting for sighting in seen if self._dead(*self._seen[sighting.id][1:], now)]

    def _dead(self, since: float, proven: float | None, now: float) -> bool:
        if now - since < self._ttl:
            return False
        # Who lives beats within that time of a commit, for it has waited for the same.
        return self._writes is None or (proven is not None and now - proven >= self._ttl / 4)

    def _prove(self, writes: Writes, now: float) -> None:
        """Have a commit made in the midst of each silence: at its half."""
        silent = [since for _, since, proven in self._seen.values() if proven is None and now - since >= self._ttl / 2]
        if silent and (self._begun is None or not writes.made()) and writes.begin():
            self._begun = now
        if self._begun is None or not writes.made():
            return
        begun, self._begun = self._begun, None
        for one, (counter, since, proven) in self._seen.items():
            if proven is None and begun - since >= self._ttl / 2:
                self._seen[one] = (counter, since, now)
