"""Who is alive, judged by an observer's own clock: a worker whose heartbeat counter stood still for a whole TTL is dead.

`WorkerObserver` is pure: sightings and the observer's monotonic time go in, the workers to declare dead come out. Workers,
janitors and clients that wait all use it, so that a future is rescued by whoever looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fdb_datamodel import ClusterSpace, WorkerId, WorkerSighting, declare_dead, reap, sightings
from idempotent_txn import run

HEARTBEAT_SECONDS: Final = 0.5
TTL_SECONDS: Final = 5.0


class WorkerObserver:
    """Remembers since when each worker's counter has stood still."""

    def __init__(self, ttl: float = TTL_SECONDS) -> None:
        """`ttl`: seconds of the observer's clock without a change of the counter that mean death."""
        self._ttl = ttl
        self._seen: dict[WorkerId, tuple[int, float]] = {}
        self._last = float("-inf")

    def observe(self, seen: Sequence[WorkerSighting], now: float) -> list[WorkerSighting]:
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


def reap_dead(db: Any, space: ClusterSpace, observer: WorkerObserver, now: float) -> list[WorkerId]:
    """Look at every worker once, fence the dead and give back what they held; whom this call declared dead."""
    seen = run(db, sightings, space, strategy="off")
    dead = observer.observe(seen, now)
    declared = [sighting.id for sighting in dead if run(db, declare_dead, space, sighting)]
    while run(db, reap, space):  # also what another observer declared dead and didn't finish
        pass
    return declared
