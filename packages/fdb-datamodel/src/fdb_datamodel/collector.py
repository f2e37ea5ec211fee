"""Passes that collect what nobody needs: what lost workers hold, dead sessions, what they held, futures past their grace, tombstones, unused code.

Several may work on one cluster: a pass is made by whoever finds it due, and every step is safe to repeat. A pass reads
every future once, in pages, so it is paced: `tick` works for a bounded time and goes on where it was. What clients let go, which
is nearly all, doesn't wait for it: a sweep reads only the marks of that, and goes on for longer while it finds what is to be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from fdb_datamodel.coordination.collecting import shared_page
from fdb_datamodel.coordination.grants import SUBSPACES as SHARED
from fdb_datamodel.liveness import Observer
from fdb_datamodel.quarantine import run_apart
from fdb_datamodel.transitions import collect as steps
from fdb_datamodel.transitions.sessions import (
    SESSION_TTL_SECONDS,
    SessionSighting,
    declare_session_dead,
    session_sightings,
)
from fdb_datamodel.transitions.sweep import JUDGED, Swept, sweep_page
from fdb_datamodel.transitions.workers import list_forgotten, reap
from fdb_datamodel.trial import TrialCommits
from fdb_schema import ClusterSpace, Database, Transaction, fdb_error_code
from fdb_schema.database import as_database
from fdb_schema.errors import TRANSACTION_TOO_LARGE
from idempotent_txn import run

GRACE_SECONDS = 3600.0
TOMBSTONE_SECONDS = 86_400.0
PASS_SECONDS = 60.0
"""From the beginning of one pass to that of the next, at least."""
_LOOKS_PER_TTL = 6
_PAUSE = 20
"""Seconds without a pass for each second that a pass took: a great backlog isn't read all the time."""
_LONGEST = 5.0
"""Seconds, at most, that a step of a pass works: what takes longer than a transaction lives has stood still, or waited for a
database that gave no answer."""
_FRUITFUL = (5, 20)
"""Times the seconds of a tick for which a sweep goes on that finds something: it has to keep up with what clients let go. The more
often, up to the second, the longer sweeps take than lies between two of them.
"""


@dataclass(slots=True)
class Collected:
    """What was collected, as counts. results: whose record stays as lineage. mailboxes: with their bells.

    places: sessions that waited for, or held, something of a queue or a semaphore, which is back.
    workers: whose rows were damaged, so that nobody could see them die; what they held is given back.
    """

    sessions: int = 0
    workers: int = 0
    futures: int = 0
    results: int = 0
    tombstones: int = 0
    references: int = 0
    mailboxes: int = 0
    pins: int = 0
    code: int = 0
    places: int = 0

    def add(self, other: Collected) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) for one in fields(self))


class Collector:
    """One process's part in collecting a cluster's garbage. Not thread-safe."""

    def __init__(
        self,
        db: Database | str,
        cluster: str | ClusterSpace,
        *,
        grace: float = GRACE_SECONDS,
        session_ttl: float = SESSION_TTL_SECONDS,
        tombstones: float = TOMBSTONE_SECONDS,
        interval: float = PASS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """All in seconds: `grace` a future is kept after it ended and nobody holds it, `tombstones` how long its id answers
        "deleted", `session_ttl` without a beat that mean a client's death, `interval` between passes of the cluster.
        """
        self._db = as_database(db)
        self._space = cluster if isinstance(cluster, ClusterSpace) else ClusterSpace(cluster)
        self._grace = grace
        self._tombstones = tombstones
        self._interval = interval
        self._clock = clock
        self._observer: Observer[SessionSighting] = Observer(session_ttl, TrialCommits(self._db, self._space))
        self._look_seconds = session_ttl / _LOOKS_PER_TTL
        self._next_look = float("-inf")
        self._pass_under_way = _Paced(self, sweep=False)
        self._sweep_under_way = _Paced(self, sweep=True)

    def tick(self, seconds: float = 0.05) -> Collected:
        """Do what is due for about `seconds`; call it about once a second. Says what this call collected."""
        begun = self._clock()
        found = Collected()
        if begun >= self._next_look:
            self._next_look = begun + self._look_seconds
            found.sessions = self.look_at_sessions()
        for one in (self._pass_under_way, self._sweep_under_way):
            one.tick(seconds, found)
        return found

    def look_at_sessions(self) -> int:
        """Look at every session once; how many were declared dead. Only who looks every few seconds can judge."""
        seen = run(self._db, session_sightings, self._space, strategy="off")
        dead = self._observer.observe(seen, self._clock())
        return sum(run(self._db, declare_session_dead, self._space, sighting) for sighting in dead)

    def _forget_damaged_workers(self) -> int:
        found = run(self._db, list_forgotten, self._space)
        while found and run_apart(self._db, self._space, reap, self._space):
            pass
        return found

    def whole_pass(self) -> Collected:
        """One pass from beginning to end, due or not. Says what it collected."""
        found = Collected()
        for step in self._pass(sweep=True):
            found.add(step)
        return found

    def _pass(self, *, sweep: bool = False) -> Iterator[Collected]:
        db, space = self._db, self._space
        codes: set[bytes] = set()

        def pages(step: Callable[[bytes], steps.Page]) -> Iterator[int]:
            after: bytes | None = b""
            while after is not None:
                page = step(after)
                after = page.after
                yield page.done

        yield Collected(workers=self._forget_damaged_workers())
        for done in pages(lambda at: run_apart(db, space, steps.references_page, space, at)):
            yield Collected(references=done)
        for done in pages(lambda at: run_apart(db, space, steps.mark_page, space, at, self._tombstones, codes)):
            yield Collected(tombstones=done)
        if sweep:
            for found, _ in self._sweep():
                yield found
        for subspace in SHARED:
            for done in pages(lambda at, subspace=subspace: run_apart(db, space, shared_page, space, subspace, at)):  # type: ignore[misc]
                yield Collected(places=done)
        for step in (steps.mail_page, steps.bells_page):
            for done in pages(lambda at, step=step: run_apart(db, space, step, space, at)):  # type: ignore[misc]
                yield Collected(mailboxes=done)
        after: bytes | None = b""
        while after is not None:
            page, dropped = run_apart(db, space, steps.blobs_page, space, after, codes)
            after = page.after
            yield Collected(pins=page.done, code=dropped)

    def _sweep(self) -> Iterator[tuple[Collected, float]]:
        """With each page the share that it changed of what it judged."""
        after: bytes | None = b""
        while after is not None:
            page = self._sweep_page(after)
            after = page.after
            yield Collected(futures=page.deleted, results=page.shed), page.changed / max(1, page.judged)

    def _steps(self, sweep: bool) -> Iterator[tuple[Collected, float]]:
        """Of a sweep, or of a pass, which only looks."""
        return self._sweep() if sweep else ((found, 0.0) for found in self._pass())

    def _sweep_page(self, after: bytes) -> Swept:
        """A page, or less of it where its transaction lives too long or grows too large: no sweep would ever come past it."""
        limit = 2 * JUDGED

        def less_each_time(tr: Transaction) -> Swept:
            nonlocal limit
            limit = max(1, limit // 2)
            return sweep_page(tr, self._space, after, self._grace, limit)

        while True:
            try:
                return run_apart(self._db, self._space, less_each_time)
            except Exception as error:
                if fdb_error_code(error) != TRANSACTION_TOO_LARGE or limit == 1:
                    raise


class _Paced:
    """A pass, or a sweep, that one collector of the cluster makes: begun when it is due, gone on with at each tick."""

    def __init__(self, collector: Collector, *, sweep: bool) -> None:
        self._of = collector
        self._is_sweep = sweep
        self._next = float("-inf")
        self._steps: Iterator[tuple[Collected, float]] | None = None
        self._busy = 0.0
        self._held_until = self._begun = 0.0
        self._longer = _FRUITFUL[0]

    def tick(self, seconds: float, found: Collected) -> None:
        """Go on for about `seconds`, or up to several times that where a sweep changes what it judges.

        What it judges in vain (it runs yet, or is held) it judges again in the next: that counts as work, as a pass does.
        """
        of = self._of
        begun = of._clock()
        if self._steps is None and begun >= self._next:
            self._next = begun + of._interval / 4
            if run_apart(of._db, of._space, steps.begin_pass, of._space, of._interval, sweep=self._is_sweep):
                self._steps, self._busy = of._steps(self._is_sweep), 0.0
                self._begun, self._held_until = begun, begun + of._interval
        if self._steps is None:
            return
        if begun > self._held_until - of._interval / 2:  # others would begin another
            self._held_until = begun + of._interval
            self._put_off(of._interval)
        last = begun
        for step, fruit in self._steps:
            found.add(step)
            now = of._clock()
            self._busy += (1 - fruit) * min(now - last, _LONGEST)
            last = now
            if now - begun >= (1 + (self._longer - 1) * fruit) * seconds:
                return
        self._steps = None
        least, most = _FRUITFUL
        self._longer = (
            min(most, 2 * self._longer) if last - self._begun > of._interval else max(least, self._longer // 2)
        )
        if self._busy * _PAUSE > of._interval:
            self._put_off(self._busy * _PAUSE)

    def _put_off(self, seconds: float) -> None:
        of = self._of
        run_apart(of._db, of._space, steps.put_off_pass, of._space, seconds, sweep=self._is_sweep)


def collect(db: Database | str, cluster: str | ClusterSpace, **options: Any) -> Collected:
    """One whole pass now, with the options of `Collector`. Sessions are judged only by who watches them: `Collector.tick`."""
    return Collector(db, cluster, **options).whole_pass()
