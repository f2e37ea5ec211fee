"""What any worker does for the whole cluster, beside its own work: the clock, timers, and the reaping of dead workers."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fdb_datamodel import WorkerId, WorkerSighting, WorkerStatus, advance, declare_dead, list_workers, reap, run_apart
from fdb_schema import ClusterClock, ClusterSpace, fdb_error_code
from fdb_schema.clock import ADVANCE_SECONDS
from futures_worker.liveness import TTL_SECONDS, WorkerObserver, find_dead, worker_gone
from idempotent_txn import run

log = logging.getLogger("futures_worker")

LOOKS_PER_TTL = 6
"""Looks at the heartbeats of all workers in one TTL; an observer that misses half a TTL starts to observe anew."""
SAY_AGAIN_SECONDS = 3600.0
"""After which the same trouble of the same chore is told once more."""


class Housekeeping:
    """A thread with its own rhythm. A database that can't be reached stops it until it can be again."""

    def __init__(
        self,
        db: Any,
        space: ClusterSpace,
        *,
        ttl: float = TTL_SECONDS,
        on_peers: Callable[[list[WorkerStatus]], None] = lambda _: None,
        chores: Sequence[Callable[[], object]] = (),
    ) -> None:
        """`on_peers` is told, from the thread, which workers live, after every look; `chores` are done at every round."""
        self._chores = chores
        self._on_peers = on_peers
        self._db = db
        self._space = space
        self._clock = ClusterClock(space)
        self._observer = WorkerObserver(ttl)
        self._look_seconds = ttl / LOOKS_PER_TTL
        self._next_look = 0.0
        self._told: dict[
            Callable[[], object], tuple[str, float]
        ] = {}  # of each chore: its last trouble, and when it was told
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._live: list[WorkerStatus] = []  # at the last look
        self._thread = threading.Thread(target=self._loop, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends; returns when the thread has."""
        self._stop.set()
        self._hurry.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def hurry(self) -> None:
        """There is something to advance: do it now; callable from any thread."""
        self._hurry.set()

    def tick(self) -> None:
        """Advances the clock and fires what is due."""
        now_us = run(self._db, self._clock.advance, strategy="off")
        self._clock.committed()
        while not self._stop.is_set():
            progress = run_apart(self._db, self._space, advance, self._space, now_us)
            if not progress.more:
                return

    def look(self) -> list[WorkerId]:
        """Looks at every worker's heartbeat; gives back what the dead held. Whom this call declared dead."""
        seen = run(self._db, list_workers, self._space, count=False, strategy="off")
        dead = find_dead(self._observer, seen, time.monotonic())
        try:
            return self._give_back(dead)
        finally:
            gone = {sighting.id for sighting in dead}
            self._live = [status for status in seen if status.id not in gone]
            self._on_peers(self._live)

    def _give_back(self, dead: list[WorkerSighting]) -> list[WorkerId]:
        declared = [sighting.id for sighting in dead if run(self._db, declare_dead, self._space, sighting)]
        for worker in declared:
            log.warning("worker %s is gone, or gave no sign of life for its TTL: its claims are given back", worker)
        while not self._stop.is_set() and run_apart(self._db, self._space, reap, self._space):
            pass  # also what another observer declared dead and didn't finish
        return declared

    def _loop(self) -> None:
        self._next_look = time.monotonic() + self._look_seconds * random.random()
        while not self._stop.is_set():
            if self._hurry.wait(min(ADVANCE_SECONDS, self._look_seconds)):
                self._hurry.clear()
                if self._stop.is_set():
                    return
            self._round()

    def _round(self) -> None:
        """Does what is due; what fails keeps nothing else from being done."""
        for chore in (self.tick, self._look_in_time, *self._chores):
            try:
                chore()
            except Exception as exc:
                self._tell(chore, exc)

    def _look_in_time(self) -> None:
        if time.monotonic() >= self._next_look or any(worker_gone(status.info) for status in self._live):
            self._next_look = time.monotonic() + self._look_seconds * random.uniform(0.75, 1.25)
            self.look()

    def _tell(self, chore: Callable[[], object], exc: Exception) -> None:
        """Once, until it changes: there are four rounds in a second."""
        trouble, now = repr(exc), time.monotonic()
        told, at = self._told.get(chore, ("", 0.0))
        if trouble == told and now - at < SAY_AGAIN_SECONDS:
            return
        self._told[chore] = trouble, now
        if fdb_error_code(exc) is None:
            log.exception("housekeeping failed; it goes on with the next round")
        else:
            log.warning("the database refused housekeeping (%s); it goes on with the next round", exc)
