"""What workers do for the whole cluster, beside their own work: the clock, timers, and the reaping of dead workers.

The first of the living, by address, keeps the clock, fires timers and looks often at who lives. The next ones, those of the head
(`liveness.HEAD`), stand by: they look every `FOLLOW_SHARE` of a TTL, so that they can judge the dead as soon as the first can, and
do its work for a TTL when they find the clock standing, or a timer late by more than `LATE_SECONDS`. Two who believe at once to be
first do no harm. All others look at the head, of which they are when those before them are dead, and seldom at all. All of the head may have
died at once: so these do its work too when they find that nobody does, about as many of them as stand by, and the more the longer.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fdb_datamodel import (
    TrialCommits,
    WorkerId,
    WorkerSighting,
    WorkerStatus,
    advance,
    declare_dead,
    how_late,
    reap,
    run_apart,
)
from fdb_schema import ClusterClock, ClusterSpace, fdb_error_code
from fdb_schema.clock import ADVANCE_SECONDS, MICROSECONDS
from futures_worker import liveness
from futures_worker.liveness import TTL_SECONDS, Breadth, WorkerObserver, find_dead, see_workers, worker_gone
from futures_worker.schedules.firing import fire_due
from idempotent_txn import run

log = logging.getLogger("futures_worker")

LOOKS_PER_TTL = 6
"""Looks at the heartbeats of all workers in one TTL; an observer that misses half a TTL starts to observe anew."""
FOLLOW_SHARE = 0.35
"""Of a TTL, between two looks of a worker that stands by and has nothing to do: less than half of it, as said above."""
LATE_SECONDS = 1.0
"""By which a timer is late when whoever stands by concludes that nobody fires them."""
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
        me: Callable[[], WorkerId | None] = lambda: None,
        busy: Callable[[], bool] = lambda: True,
        on_peers: Callable[[list[WorkerStatus]], None] = lambda _: None,
        chores: Sequence[Callable[[], object]] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_peers` is told, from the thread, which workers live, after every look; `chores` are done at every round.

        `me` is the worker that this is part of, if any; `busy`, whether it has tasks, for which it wants to know who has room.
        """
        self._me = me
        self._busy = busy
        self._chores = chores
        self._on_peers = on_peers
        self._db = db
        self._space = space
        self._monotonic = monotonic
        self._clock = ClusterClock(space, monotonic=monotonic)
        self._observer = WorkerObserver(ttl, TrialCommits(db, space))
        self._breadth = Breadth()
        self._ttl = ttl
        self._look_seconds = ttl / LOOKS_PER_TTL
        self._next_look = 0.0
        self._next_tick = 0.0
        self._now_us = 0  # of the cluster's clock, at the last tick
        self._first = self.in_head = True  # as far as is known; at the start, until the first look
        self._stand_in_until = 0.0
        self._stood = 0  # ticks in a row that found the clock standing, or a timer late
        self._rush = False  # something is to be settled now
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

    @property
    def leads(self) -> bool:
        """Whether this process keeps the clock and fires timers, for itself or in the place of one that doesn't."""
        return self._first or self._monotonic() < self._stand_in_until

    def tick(self) -> None:
        """Advances the clock and fires what is due; who stands by sees whether that is done."""
        kept = True
        if self.leads:
            self._now_us, late = run(self._db, self._advance, strategy="off")
            self._clock.committed()
            fires = late is not None
        else:
            (self._now_us, kept), late = run(self._db, self._observe, strategy="off")
            fires = late is not None and late > LATE_SECONDS * MICROSECONDS
            self._stood = 0 if kept and not fires else self._stood + 1
            if not self.in_head and random.random() >= self._breadth.share * 2.0 ** min(self._stood - 1, 30):
                fires, kept = False, True  # it is left to others
            if fires or not kept:
                self._stand_in_until = self._monotonic() + self._ttl
        self._next_tick = self._monotonic() + self._tick_seconds()
        if fires:
            self.settle()

    def settle(self) -> None:
        """Fires what was due at the last tick, and settles what earlier turns left."""
        while not self._stop.is_set():
            if not run_apart(self._db, self._space, advance, self._space, self._now_us).more:
                break
        fire_due(self._db, self._space, self._now_us)

    def _advance(self, tr: Any) -> tuple[int, int | None]:
        now_us = self._clock.advance(tr)
        return now_us, how_late(tr, self._space, now_us)

    def _observe(self, tr: Any) -> tuple[tuple[int, bool], int | None]:
        now_us, kept = self._clock.observe(tr)
        return (now_us, kept), how_late(tr, self._space, now_us)

    def _tick_seconds(self) -> float:
        return ADVANCE_SECONDS if self.leads else FOLLOW_SHARE * self._ttl * random.uniform(0.75, 1.25)

    def look(self) -> list[WorkerId]:
        """Looks at the heartbeats of workers; gives back what the dead held. Whom this call declared dead."""
        now = self._monotonic()
        first = 0 if self.in_head else self._breadth.first(now)
        seen, left = run(self._db, see_workers, self._space, first, strategy="off")
        dead = find_dead(self._observer, seen, now)
        self._breadth.looked(now, len(seen), first=first, pause=self._pause(), dead=len(dead), ttl=self._ttl)
        try:
            return self._give_back(dead, left)
        finally:
            gone = {sighting.id for sighting in dead}
            live = [status for status in seen if status.id not in gone]
            me = self._me()
            # Behind a look at some there may be others before this one: it takes no dead one's place until it sees itself.
            if not (me and 0 < first == len(seen) and (me.ip, me.port) > (seen[-1].id.ip, seen[-1].id.port)):
                self._see_who_is_first(live)
            if not first:
                self._live = live
                self._on_peers(live)

    def _see_who_is_first(self, live: list[WorkerStatus]) -> None:
        me = self._me()
        ahead = 0 if me is None else sum((one.id.ip, one.id.port) < (me.ip, me.port) for one in live)
        before, self._first, self.in_head = self._first, ahead == 0, ahead < liveness.HEAD
        if self._first and not before:
            self._next_tick = 0.0

    def _give_back(self, dead: list[WorkerSighting], left: bool) -> list[WorkerId]:
        declared = [sighting.id for sighting in dead if run(self._db, declare_dead, self._space, sighting)]
        for worker in declared:
            log.warning("worker %s is gone, or gave no sign of life for its TTL: its claims are given back", worker)
        left = left or bool(dead)  # also what another observer declared dead and didn't finish
        while left and not self._stop.is_set():
            left = run_apart(self._db, self._space, reap, self._space)
        return declared

    def _loop(self) -> None:
        self._next_look = self._monotonic() + self._look_seconds * random.random()
        while not self._stop.is_set():
            if self._hurry.wait(min(ADVANCE_SECONDS, self._look_seconds)):
                self._hurry.clear()
                if self._stop.is_set():
                    return
                self._rush = True
            self._round()

    def _round(self) -> None:
        """Does what is due; what fails keeps nothing else from being done."""
        for chore in (self._settle_in_a_hurry, self._tick_in_time, self._look_in_time, *self._chores):
            try:
                chore()
            except Exception as exc:
                self._tell(chore, exc)

    def _settle_in_a_hurry(self) -> None:
        if self._rush:
            self._rush = False
            self.settle()

    def _tick_in_time(self) -> None:
        if self._monotonic() >= self._next_tick:
            self.tick()

    def _look_in_time(self) -> None:
        now = self._monotonic()
        gone = any(worker_gone(status.info) for status in self._live)
        if gone:
            self._breadth.look_at_all()
        if gone or now >= self._next_look:
            self._next_look = now + self._pause() * random.uniform(0.75, 1.25)
            self.look()

    def _pause(self) -> float:
        often = self.leads or self._busy()
        return self._look_seconds if often else FOLLOW_SHARE * self._ttl

    def _tell(self, chore: Callable[[], object], exc: Exception) -> None:
        """Once, until it changes: there are four rounds in a second."""
        trouble, now = repr(exc), self._monotonic()
        told, at = self._told.get(chore, ("", 0.0))
        if trouble == told and now - at < SAY_AGAIN_SECONDS:
            return
        self._told[chore] = trouble, now
        if fdb_error_code(exc) is None:
            log.exception("housekeeping failed; it goes on with the next round")
        else:
            log.warning("the database refused housekeeping (%s); it goes on with the next round", exc)
