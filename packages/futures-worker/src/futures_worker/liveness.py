"""Who is alive, judged by an observer's own clock: a worker whose heartbeat counter stood still for a whole TTL is dead.

`WorkerObserver` is pure: sightings and the observer's monotonic time go in, the workers to declare dead come out. Workers,
janitors and clients that wait all use it, so that a future is rescued by whoever looks.
"""

from __future__ import annotations

from typing import Any, Final

from fdb_datamodel import ClusterSpace, Observer, WorkerId, WorkerSighting, declare_dead, reap, sightings
from idempotent_txn import run

HEARTBEAT_SECONDS: Final = 0.5
TTL_SECONDS: Final = 5.0


class WorkerObserver(Observer[WorkerSighting]):
    """Remembers since when each worker's counter has stood still."""

    def __init__(self, ttl: float = TTL_SECONDS) -> None:
        """`ttl`: seconds of the observer's clock without a change of the counter that mean death."""
        super().__init__(ttl)


def reap_dead(db: Any, space: ClusterSpace, observer: WorkerObserver, now: float) -> list[WorkerId]:
    """Look at every worker once, fence the dead and give back what they held; whom this call declared dead."""
    seen = run(db, sightings, space, strategy="off")
    dead = observer.observe(seen, now)
    declared = [sighting.id for sighting in dead if run(db, declare_dead, space, sighting)]
    while run(db, reap, space):  # also what another observer declared dead and didn't finish
        pass
    return declared
