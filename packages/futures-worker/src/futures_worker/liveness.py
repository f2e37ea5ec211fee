"""Who is alive, judged by an observer's own clock: a worker whose heartbeat counter stood still for a whole TTL is dead.

One that ran on the observer's own host and whose process is certainly gone is dead at once.

`WorkerObserver` is pure: sightings and the observer's monotonic time go in, the workers to declare dead come out. Workers,
janitors and clients that wait all use it, so that a future is rescued by whoever looks.

Workers also keep the clock and the time limits. Where none lives, janitors and clients that wait do (`TimeKeeper`): a limit of
the wait for a worker matters just then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from fdb_datamodel import (
    ClusterSpace,
    DamagedFutureError,
    Observer,
    WorkerId,
    WorkerInfo,
    WorkerSighting,
    WorkerStatus,
    advance,
    declare_dead,
    list_workers,
    reap,
    set_apart,
)
from fdb_schema import ClusterClock, RecordError, boot_id, pid_namespace, process_gone
from futures_worker.database import ask

log = logging.getLogger("futures_worker")

T = TypeVar("T")
HEARTBEAT_SECONDS: Final = 0.5
TTL_SECONDS: Final = 5.0


class WorkerObserver(Observer[WorkerSighting]):
    """Remembers since when each worker's counter has stood still."""

    def __init__(self, ttl: float = TTL_SECONDS) -> None:
        """`ttl`: seconds of the observer's clock without a change of the counter that mean death."""
        super().__init__(ttl)


def process_space() -> str:
    """Where a process id means the same process: this boot of this host, and this namespace of process ids."""
    boot, namespace = boot_id(), pid_namespace()
    return f"{boot}/{namespace}" if boot and namespace else ""


def worker_gone(info: WorkerInfo) -> bool:
    """Whether the process that registered is certainly gone: it ran on this boot of this host, and is no more."""
    boot, _, namespace = info.boot_id.partition("/")
    return process_gone(boot, namespace, info.pid, info.pid_start)


def find_dead(observer: WorkerObserver, seen: Sequence[WorkerStatus], now: float) -> list[WorkerSighting]:
    """The dead among `seen`: those whose process is certainly gone, at once, and those that stood still for a TTL."""
    sighted = [WorkerSighting(status.id, status.heartbeat.counter if status.heartbeat else 0) for status in seen]
    stopped = set(observer.observe(sighted, now))
    gone = {sighting for sighting, status in zip(sighted, seen, strict=True) if worker_gone(status.info)}
    return [sighting for sighting in sighted if sighting in stopped or sighting in gone]


def _apart(db: Any, space: ClusterSpace, function: Callable[..., T], *args: Any) -> T | None:
    """What the transaction says; None if it met a future with damaged rows, which is failed by now: it is to be run again."""
    try:
        return ask(db, function, space, *args)
    except DamagedFutureError as error:
        set_apart(db, space, error)
        return None


def reap_dead(db: Any, space: ClusterSpace, observer: WorkerObserver, now: float) -> list[WorkerId]:
    """Look at every worker once, fence the dead and give back what they held; whom this call declared dead."""
    seen = ask(db, list_workers, space, count=False, strategy="off")
    dead = find_dead(observer, seen, now)
    declared = [sighting.id for sighting in dead if ask(db, declare_dead, space, sighting)]
    while _apart(db, space, reap) is not False:  # also what another observer declared dead and didn't finish
        pass
    return declared


class TimeKeeper:
    """Keeps the cluster's clock, and the time limits of its futures, by the looks of one thread."""

    def __init__(self, db: Any, space: ClusterSpace) -> None:
        self._db = db
        self._space = space
        self._clock = ClusterClock(space)
        self._told = False

    def look(self) -> None:
        """Move the clock on by what passed since the last look; fire what is due."""
        now_us = ask(self._db, self._clock.advance, strategy="off")
        self._clock.committed()
        progress = None
        while progress is None or progress.more:
            progress = _apart(self._db, self._space, advance, now_us)

    def look_alone(self) -> None:
        """The same if there is no worker that does."""
        if ask(self._db, list_workers, self._space, count=False, strategy="off"):
            return
        try:
            self.look()
        except RecordError as error:  # of the clock's row: no time limit can be kept, all else goes on
            if not self._told:
                self._told = True
                log.warning("time limits of futures aren't kept: %s", error)
