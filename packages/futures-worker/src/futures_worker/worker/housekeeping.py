"""What any worker does for the whole cluster, beside its own work: the clock, timers, and the reaping of dead workers."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any

from fdb_datamodel import WorkerId, advance
from fdb_schema import ClusterClock, ClusterSpace, fdb_error_code
from fdb_schema.clock import ADVANCE_SECONDS
from futures_worker.liveness import TTL_SECONDS, WorkerObserver, reap_dead
from idempotent_txn import run

log = logging.getLogger("futures_worker")

LOOK_SECONDS = 1.0
"""Between looks at the heartbeats of all workers; jittered by a quarter."""


class Housekeeping:
    """A thread with its own rhythm. A database that can't be reached stops it until it can be again."""

    def __init__(self, db: Any, space: ClusterSpace, *, ttl: float = TTL_SECONDS) -> None:
        self._db = db
        self._space = space
        self._clock = ClusterClock(space)
        self._observer = WorkerObserver(ttl)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="housekeeping", daemon=True)
        self._next_due_us: int | None = None

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends; returns when the thread has."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def tick(self) -> None:
        """Advances the clock and fires what is due."""
        now_us = run(self._db, self._clock.advance, strategy="off")
        self._clock.committed()
        while not self._stop.is_set():
            progress = run(self._db, advance, self._space, now_us)
            if not progress.more:
                return

    def look(self) -> list[WorkerId]:
        """Looks at every worker's heartbeat; gives back what the dead held. Whom this call declared dead."""
        dead: list[WorkerId] = reap_dead(self._db, self._space, self._observer, time.monotonic())
        for worker in dead:
            log.warning("worker %s gave no sign of life for its TTL: declared dead, its claims given back", worker)
        return dead

    def _loop(self) -> None:
        next_look = time.monotonic() + LOOK_SECONDS * random.random()
        while not self._stop.wait(ADVANCE_SECONDS):
            try:
                self.tick()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_SECONDS * random.uniform(0.75, 1.25)
                    self.look()
            except Exception as exc:
                if fdb_error_code(exc) is None:
                    log.exception("housekeeping failed; it goes on with the next round")
                else:
                    log.warning("the database refused housekeeping (%s); it goes on with the next round", exc)
