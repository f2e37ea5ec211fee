"""Who is alive, judged by an observer's own clock: a worker whose heartbeat counter stood still for a whole TTL is dead.

One that ran on the observer's own host and whose process is certainly gone is dead at once.

`WorkerObserver` is pure: sightings and the observer's monotonic time go in, the workers to declare dead come out. Workers,
janitors and clients that wait all use it, so that a future is rescued by whoever looks.

Workers also keep the clock and the time limits. Where none lives, janitors and clients that wait do (`Caretaker`): a limit of
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
    TrialCommits,
    WorkerId,
    WorkerInfo,
    WorkerSighting,
    WorkerStatus,
    advance,
    anything_to_reap,
    declare_dead,
    list_workers,
    reap,
    set_apart,
)
from fdb_schema import ClusterClock, RecordError, boot_id, pid_namespace, process_gone
from futures_worker.database import ask

log = logging.getLogger("futures_worker")

T = TypeVar("T")
TTL_SECONDS: Final = 5.0
HEAD = 16
"""The first workers by address: they look at all of them. The others, and clients, look at these often and at all seldom, so
that what a cluster reads of its workers rises with their number, and not with its square."""
_WIDER = 4
"""By how many more workers each dead one of the head widens the looks of the others for a while. Those behind it may have died with it,
and only who looks at one for a TTL can judge it: HEAD at a time they were dead for minutes."""


class WorkerObserver(Observer[WorkerSighting]):
    """Remembers since when each worker's counter has stood still."""

    def __init__(self, ttl: float = TTL_SECONDS, writes: TrialCommits | None = None) -> None:
        """`ttl`: seconds of the observer's clock without a change of the counter that mean death. `writes`: None trusts the database."""
        super().__init__(ttl, writes)


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


def see_workers(tr: Any, space: ClusterSpace, first: int = 0) -> tuple[list[WorkerStatus], bool]:
    """Every registered worker, or the `first` ones; and whether some dead one's claims are still to be given back."""
    return list_workers(tr, space, count=False, first=first), anything_to_reap(tr, space)


class Breadth:
    """At how many workers to look next: all, or those of the head. Pure; seconds are of a monotonic clock."""

    def __init__(self) -> None:
        self._all = 0  # how many there were when all were looked at last
        self._next_whole = float("-inf")
        self._died = 0  # lately, of those that were looked at
        self._wide_until = float("-inf")

    def first(self, now: float) -> int:
        """Of `see_workers`."""
        if self._all <= HEAD or now >= self._next_whole:
            return 0
        if now >= self._wide_until:
            self._died = 0
        first = HEAD + _WIDER * self._died
        return first if first < self._all else 0

    @property
    def share(self) -> float:
        """Of all workers, as far as is known, that of the head."""
        return min(1.0, HEAD / max(1, self._all))

    def looked(
        self, now: float, seen: int, *, first: int, pause: float, dead: int = 0, ttl: float = TTL_SECONDS
    ) -> None:
        """So many were seen by a look at `first`; `pause`: seconds between two looks at all, were there no more than the head has.

        dead: of them, whom nobody had declared dead yet.
        """
        if not first:
            self._all = seen
            self._next_whole = now + pause * seen / HEAD
        if dead:
            self._died = dead + (self._died if now < self._wide_until else 0)
            self._wide_until = now + 3 * ttl

    def look_at_all(self) -> None:
        """Next time: there is a dead one that nobody of the head may see."""
        self._next_whole = float("-inf")


class Caretaker:
    """The part of those who wait, and of janitors, in what workers do for the cluster; used by one thread at a time.

    Whoever looks gives back what the dead held. The clock, and the time limits of futures, are left to workers while any lives.
    """

    def __init__(self, db: Any, space: ClusterSpace, *, all_workers: bool = False) -> None:
        """`all_workers`: look at all each time, as the one janitor does that has this duty."""
        self._db = db
        self._space = space
        self._all = all_workers
        self._clock = ClusterClock(space)
        self._observer = WorkerObserver(writes=TrialCommits(db, space))
        self._breadth = Breadth()
        self._told = False

    def look(self, now: float) -> list[WorkerId]:
        """Look at the workers once: fence the dead, give back what they held; whom this call declared dead.

        `now`: seconds of the caller's monotonic clock. One transaction, where nobody died.
        """
        first = 0 if self._all else self._breadth.first(now)
        seen, left = ask(self._db, see_workers, self._space, first, strategy="off")
        dead = find_dead(self._observer, seen, now)
        self._breadth.looked(now, len(seen), first=first, pause=TTL_SECONDS, dead=len(dead))
        declared = [sighting.id for sighting in dead if ask(self._db, declare_dead, self._space, sighting)]
        if dead or left:  # also what another observer declared dead and didn't finish
            while self._apart(reap) is not False:
                pass
        if len(seen) == len(dead):
            self._keep_time()
        return declared

    def _keep_time(self) -> None:
        """Move the clock on by what passed since the last look; fire what is due."""
        try:
            now_us = ask(self._db, self._clock.advance, strategy="off")
        except RecordError as error:  # of the clock's row: no time limit can be kept, all else goes on
            if not self._told:
                self._told = True
                log.warning("time limits of futures aren't kept: %s", error)
            return
        self._clock.committed()
        progress = None
        while progress is None or progress.more:
            progress = self._apart(advance, now_us)

    def _apart(self, function: Callable[..., T], *args: Any) -> T | None:
        """What the transaction says; None if it met a future with damaged rows, which is failed by now: it is to be run again."""
        try:
            return ask(self._db, function, self._space, *args)
        except DamagedFutureError as error:
            set_apart(self._db, self._space, error)
            return None
