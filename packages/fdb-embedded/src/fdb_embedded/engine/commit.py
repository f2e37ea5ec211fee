"""The commit pipeline of a process: concurrent commits go into one LMDB transaction (`batch`).

Commits are queued; whoever waits for one leads: takes all that are queued, validates them (against the log outside the
writer section, against what came since inside), writes them with one version and an index each, and finishes their
futures. A commit that nobody waits for is led by the housekeeping thread.
"""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Protocol

import lmdb

from .. import errors
from ..errors import Code
from ..pure.conflict import written_ranges
from ..sharing.waiting import GivenUp, acquire
from ..storage.store import Store
from .batch import Batches, Outcome, is_late
from .futures import Future
from .housekeeping import Housekeeper
from .request import Commit
from .snapshots import Attachment, Snapshots

BATCH_MEMBERS = 1000
BATCH_KEYS = 50_000
KNOWN_SECONDS = 1.0  # in which who has taken a commit sees that it was given up, or has written it
_AT_ONCE = (False,)


class _AllTold(Exception):
    """Everybody who waited for a flush has an answer."""


def _tell_late(members: list[tuple[Commit, int]]) -> None:
    """End the commits whose time is over while they wait for a flush; raises `_AllTold` when all have ended."""
    now = time.monotonic()
    waiting = False
    for commit, _ in members:
        if commit.deadline and not commit.done and now >= commit.deadline:
            commit.set(None, errors.TRANSACTION_TIMED_OUT)
        waiting = waiting or not commit.done
    if not waiting:
        raise _AllTold


class Owner(Attachment, Protocol):
    """The engine that commits."""

    @property
    def store(self) -> Store: ...
    @property
    def snapshots(self) -> Snapshots: ...
    @property
    def housekeeper(self) -> Housekeeper: ...


class Committer:
    """The queue of a process's commits and the work of whoever leads."""

    def __init__(self, engine: Owner) -> None:
        self.engine = engine
        self.queue: deque[Commit] = deque()
        self.lead = engine.store.turn
        self.batches = Batches(engine.snapshots)
        self.unsettled: deque[Outcome] = deque()
        self.driving: list[int] = []  # threads that commit, or tell of a commit, at this moment
        self.closes_at = math.inf  # from then on nobody waits any more for who keeps this process from writing

    def submit(self, commit: Commit) -> None:
        """Queue a commit, which does the work when somebody waits for it. One that is done before it begins is never made."""
        if self.engine.stale:
            self.engine.check_open()
        commit.kick = self.kick
        housekeeper = self.engine.housekeeper
        if housekeeper.parked:  # before, too: an interrupt may come just behind
            housekeeper.unpark()
        self.queue.append(commit)
        if housekeeper.parked:
            housekeeper.unpark()

    def kick(self, waiter: Future | None) -> None:
        if waiter is not None:
            self.drive(waiter)
        else:
            self.engine.housekeeper.unpark(now=True)

    def drive(self, waiter: Future | None = None, until: float = math.inf) -> bool:
        """Commit what is queued now. Members that another thread has taken are its to finish.

        While another process, or another thread, is writing, it waits: until `waiter` is done, whose time may run out meanwhile, or
        until a time of the monotonic clock. False where nothing could be written till then; it stays queued.
        """
        me = get_ident()
        try:
            self.driving.append(me)
            return self._drive(waiter, until)
        finally:
            self.driving.remove(me)

    def await_others(self, until: float) -> None:
        """Return when no other thread commits, or tells of a commit; or at a time of the monotonic clock."""
        me = get_ident()
        while any(thread != me for thread in self.driving.copy()) and time.monotonic() < until:
            time.sleep(0.001)

    def _drive(self, waiter: Future | None, until: float) -> bool:
        while self.queue:
            outcome = Outcome(self, waiter, until)
            held = outcome.held
            try:
                try:
                    try:
                        held.extend(map(self.lead.acquire, _AT_ONCE))
                        if not held[0]:
                            acquire(self.lead, held, outcome.go_on)
                        self._take(outcome.batch)
                        if outcome.batch:
                            self.batches.commit(outcome.batch, outcome)
                    finally:
                        if held and held[-1]:
                            self.lead.release()
                    self.settle(outcome)
                except GivenUp:
                    # In one C call, so that no signal handler comes when the batch is in both or in neither.
                    back: list[Callable[[], object]] = [
                        partial(self.queue.extendleft, outcome.batch[::-1]),
                        outcome.batch.clear,
                    ]
                    deque(map(operator.call, back), maxlen=0)
                    self.tell_late(waiter)
                    if time.monotonic() >= self.closes_at:
                        self.give_up()
                        return False
                    if (waiter is not None and waiter.done) or time.monotonic() >= until:
                        self.engine.housekeeper.unpark(now=True)
                        return False
            except BaseException:
                # an interrupt of this thread, anywhere: the housekeeper finishes what is left, whatever that is
                self.unsettled.append(outcome)
                self.engine.housekeeper.unpark(now=True)
                raise
        if self.unsettled:
            self.engine.housekeeper.unpark(now=True)
        return True

    def tell_late(self, waiter: Future | None = None) -> None:
        """End the commits whose time is over before they were begun, and what was promised with those that have ended; they are
        never made. Not under `lead`: callbacks run here.
        """
        now = time.monotonic()
        if waiter is not None and is_late(waiter, now):
            waiter.set(None, errors.TRANSACTION_TIMED_OUT)
        for commit in self.queue.copy():
            if commit.done or is_late(commit, now):
                code = commit.error or errors.TRANSACTION_TIMED_OUT
                commit.refuse(code, code)
                commit.set(None, code)
                self._take_back(commit)

    def is_never_made(self, commit: Commit) -> bool:
        """Whether a commit that has ended for who waits, without an answer, was never begun, and never will be.

        Where another thread has taken it to write it, that is known in a moment; False where nobody can tell then.
        """
        until = time.monotonic() + KNOWN_SECONDS
        while commit.version < 0:
            self._take_back(commit)
            if commit.never_made:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)
        return False

    def _take_back(self, commit: Commit) -> None:
        """Out of the queue, where nobody can take it any more to write it; or another thread has done that."""
        with contextlib.suppress(ValueError, IndexError):
            self.queue.remove(commit)
            commit.never_made = True

    def give_up(self) -> None:
        """End what is queued without making it: the process closes, and another one keeps it from writing."""
        while self.queue:
            for commit in self.queue.copy():
                commit.fail(errors.TRANSACTION_CANCELLED)
                with contextlib.suppress(ValueError, IndexError):  # another thread has taken it
                    self.queue.remove(commit)

    def settle_left(self) -> None:
        """Finish what interrupted threads have left; only on a thread that no interrupt reaches."""
        while self.unsettled:
            outcome = self.unsettled[0]
            if outcome.written:
                self.settle(outcome)
            else:  # nothing of it has happened: it is begun again
                self.queue.extendleft(reversed(outcome.batch))
            self.unsettled.popleft()

    def _take(self, batch: list[Commit]) -> None:
        """Move what is queued to `batch`."""
        queue = self.queue
        size = 0
        try:
            while queue and len(batch) < BATCH_MEMBERS and size < BATCH_KEYS:
                # in one C call, so that no signal handler comes when a commit is in neither of them
                batch.extend(map(operator.call, (queue.popleft,)))
                size += len(batch[-1].overlay.writes)
        except IndexError:  # emptied meanwhile
            return

    def settle(self, outcome: Outcome) -> None:
        """Tell the members of a batch, and whoever watches what they wrote. Not under `lead`: callbacks run here."""
        engine = self.engine
        if outcome.written:
            written = outcome.written[0]
            if engine.snapshots.flushing and written.position:
                assert engine.store.flusher is not None
                try:
                    engine.store.flusher.wait(written.position, partial(_tell_late, written.members))
                except _AllTold:
                    pass
                except (OSError, lmdb.Error, Code):
                    outcome.failures += ((commit, errors.COMMIT_UNKNOWN_RESULT) for commit, _ in written.members)
                    written.members.clear()
            if engine.snapshots.versions_are_asked_for:
                engine.snapshots.pin_committed(written.version)
            version = written.version
            for commit, index in written.members:
                commit.succeed(version, index)
            ranges = written.ranges
            slots = engine.store.page.slots
            slots.tell(written.place, version, written.points, written_ranges(ranges) if ranges else ranges)
            slots.pay(written.place, version)
        for commit, code in outcome.failures:
            commit.fail(code)
