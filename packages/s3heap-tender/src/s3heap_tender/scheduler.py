"""Scheduler: looks for what is due and starts it, as far as there is room."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError
from s3heap_tender.claims import index, outbox, tending
from s3heap_tender.errors import (
    StoreError,
    is_waited_out,
)
from s3heap_tender.heap import Heap
from s3heap_tender.objects.heap_io import due_records
from s3heap_tender.rows import core
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.records import MICROSECONDS, TaskRow, item_of
from s3heap_tender.rows.states import State
from s3heap_tender.runs.bells import Bells
from s3heap_tender.runs.ownership import Ownership, leased_sharing
from s3heap_tender.runs.running import Runs, ScheduleReport, Trigger
from s3heap_tender.sysdb import SysDb
from s3heap_tender.tender import IDLE_SECONDS

log = logging.getLogger("s3heap_tender.scheduler")
DEAD_CHECK_SECONDS: Final = 0.5
STOP_SECONDS: Final = 0.2
HELP_MICRO: Final = 2_000_000
LONGEST_FRUITLESS: Final = 5_000_000
OUTAGE_MICRO: Final = 60_000_000
_PAGE: Final = 1000
MOST_REMEMBERED: Final = 200_000
ROOM_SECONDS: Final = 2.0
REPEAT_LOG_SECONDS: Final = 60.0
PARKED_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Worth:
    """Why a shard is listed."""

    since: int  # nothing that may start lies in buckets before this one's, seconds
    told: tuple[Any, ...]  # what the sysdb said of it
    lost: tuple[HeapItem, ...]  # of runs that may be taken over


class Scheduler:
    """Runs due items through `trigger`. Any number of schedulers may share a heap.

    Args:
        concurrency: runs at once; 0 runs each in the calling thread (for tests).
        poll: seconds between looks at the heap.
        shards: which to look at; by default all.
        ownership: which of them are looked at first; by default `run` shares them with other schedulers under leases.
        idle_poll: the most seconds between looks where nothing is due.
        timeout: seconds after which a run is cancelled and has failed, whatever makes it; None is never.
    """

    def __init__(
        self,
        heap: Heap,
        sysdb: SysDb,
        trigger: Trigger,
        *,
        concurrency: int = 32,
        poll: float = 0.2,
        shards: Sequence[int] | None = None,
        ownership: Ownership | None = None,
        idle_poll: float = IDLE_SECONDS,
        timeout: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if heap.sysdb.id != sysdb.id:
            raise ValueError(f"the heap at {heap.store.url} is of another sysdb ({heap.sysdb.id}, not {sysdb.id})")
        self.heap = heap
        self.sysdb = sysdb
        self.poll = poll
        self.concurrency = concurrency
        self.idle_poll = idle_poll
        self._shards = shards
        self._ownership = ownership
        self._monotonic = monotonic
        self._preferred: set[int] | None = None  # shards that are this scheduler's to look at first
        # (shard, whether for lost runs) → (what was known, wait in µs, when to list again)
        self._fruitless: dict[tuple[int, bool], tuple[Any, int, int]] = {}
        self._now = 0  # cluster clock of the last look, µs
        self._next_at = 0
        self._seen_at = -OUTAGE_MICRO - 1
        self._resumed_at = 0
        self._runs_looked = float("-inf")
        self._runs = Runs(sysdb, trigger, concurrency, timeout)
        self._over_for_ever: set[bytes] = set()  # records that never start again, until a pruner takes them
        self._parked: dict[bytes, int] = {}  # records of paused and dead tasks → clock when to look again, µs
        self._alive: dict[str, float] = {}  # foreign session → when it was last found not dead
        self._said: dict[str, float] = {}
        self._stop = self._runs.stopping
        self._rng = random.Random()
        self.totals = self._runs.totals

    @property
    def running(self) -> int:
        """Runs under way."""
        return len(self._runs)

    def run(self, stop: threading.Event | None = None, *, grace: float = 30.0) -> None:
        """Turn after turn until `stop` is set or `stop()` is called; then waits up to `grace` s for runs under way.

        Runs that are still going on then lose their claims to whoever comes next. Schedulers share the shards; each looks
        after another's only where something is late. Where nothing is due a turn waits for the moment, or for a push.
        """
        self._stop = self._runs.stopping = stop or self._stop
        faults = 0
        bells = Bells(self.sysdb.db)
        try:
            while not self._stop.is_set():
                rest = self.poll
                try:
                    if self._ownership is None and self._shards is None:
                        self._ownership = leased_sharing(self.sysdb)
                    report = self.turn()
                    faults = 0
                    if not report.started and not report.errors:
                        mine = self._preferred if self._preferred is not None else self._asked()
                        keys = map(self.sysdb.layout.keys.pushed, sorted(mine))
                        rest = self._until_next() if not bells.arm(keys) else 0.0
                except Exception as error:
                    if not is_waited_out(error):
                        raise
                    faults = min(8, faults + 1)
                    log.warning("the scheduler's turn failed and will be repeated: %s", error)
                if faults:
                    rest = min(5.0, self.poll * 2**faults)
                self._rest(bells, rest * self._rng.uniform(0.8, 1.0))
        finally:
            bells.close()
            try:
                if self._ownership is not None:
                    self._ownership.close()  # it starts nothing more: others need not wait until its runs are over
            finally:
                self.drain(grace)

    def _until_next(self) -> float:
        """Seconds until something may be startable, as far as the last look can tell."""
        return min(self.idle_poll, max(self.poll, (self._next_at - self._now) / MICROSECONDS))

    def _rest(self, bells: Bells, seconds: float) -> None:
        """Wait for a bell; the stop event is looked at meanwhile, and the poll is kept to where bells ring fast."""
        began = self._monotonic()
        while (rest := began + seconds - self._monotonic()) > 0 and not self._stop.is_set():
            if self._rang(bells, min(rest, STOP_SECONDS)):
                self._stop.wait(max(0.0, began + min(seconds, self.poll) - self._monotonic()))
                return

    def _rang(self, bells: Bells, seconds: float) -> bool:
        return bells.wait(seconds)

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    def drain(self, timeout: float) -> bool:
        """Wait for the runs under way; False where some are left after `timeout` seconds."""
        return self._runs.drain(timeout)

    def turn(self) -> ScheduleReport:
        """One look at what is due: list the shards where something is, start what may start, as far as there is room.

        Where nothing is due it costs two transactions, one of which moves the clock, and no request to the store.
        """
        report = ScheduleReport()
        self.sysdb.tick()
        asked = self._asked()
        self._preferred = None if self._ownership is None else set(self._ownership.shards())
        runs = self._monotonic() - self._runs_looked >= DEAD_CHECK_SECONDS
        if runs:
            self._runs_looked = self._monotonic()
            if self.concurrency:
                self._runs.watch()
        self._now, looked = self.sysdb.read(partial(index.look, runs=runs), asked)
        if self._now - self._seen_at > OUTAGE_MICRO:
            self._resumed_at = self._now  # nobody was here to start what became due meanwhile
        self._seen_at = self._now
        todo = self._worth_listing(looked)
        if todo:
            faults: dict[int | str, StoreError] = {}
            try:
                self._start_due(self._now, todo, faults, report)
            except BaseException:
                self._runs_looked = float("-inf")  # what it began may be nobody's run now
                raise
            finally:
                for fault in faults.values():
                    report.errors.append(str(fault))
                    self._warn(str(fault))
        return report

    def _asked(self) -> Sequence[int]:
        return range(self.heap.shards) if self._shards is None else self._shards

    def _worth_listing(self, looked: dict[int, index.ShardLook]) -> dict[int, _Worth]:
        """The shards where something is due, or a run may be taken over; notes when the next look is worth it.

        A shard whose listing had nothing to start, as where a tender is still to push it, is listed again when
        something was pushed or became due, or in a while.
        """
        most = 1.0 if len(self._runs) else self.idle_poll  # what runs is watched
        self._next_at = self._now + int(most * MICROSECONDS)
        todo: dict[int, _Worth] = {}
        for shard, there in looked.items():
            if there.runs:
                self._next_at = min(self._next_at, self._now + MICROSECONDS)
            lost = self._lost_runs(there.runs)
            told = (there.due, there.last_due, there.pushed)
            if lost and self._list_again(shard, (*told, lost), lost=True) <= self._now:
                todo[shard] = _Worth(0, (*told, lost), lost)
                continue
            if there.due is None:
                continue
            later = HELP_MICRO if self._preferred is not None and shard not in self._preferred else 0
            at = max(there.due * 1000 + later, self._list_again(shard, told, lost=False))
            if at <= self._now:
                todo[shard] = _Worth((there.due * 1000 - core.LATEST_START) // MICROSECONDS, told, ())
            if there.next_due is not None:
                at = min(at, there.next_due * 1000 + later)
            self._next_at = min(self._next_at, max(at, self._now))
        return todo

    def _list_again(self, shard: int, told: tuple[Any, ...], *, lost: bool) -> int:
        """When a shard of which no more is known than before is worth another listing; 0 is now."""
        before, _, again = self._fruitless.get((shard, lost), (None, 0, 0))
        return again if before == told else 0

    def _lost_runs(self, runs: Sequence[tuple[UUID, str]]) -> tuple[HeapItem, ...]:
        """Runs that may be taken over: their session is dead, or is this one and nothing here knows of the run."""
        mine = self.sysdb.sessions.session
        foreign = sorted({session for _, session in runs if session != mine})
        dead = {session for session in foreign if self._may_be_dead(session)}
        lost = [
            task
            for task, session in runs
            if session in dead
            or (
                session == mine
                and task not in self._runs
                and not self.sysdb.knows(task)
                and not self._runs.given_up(task)
            )
        ]
        rows = self.sysdb.read(outbox.read_rows, lost) if lost else []
        # One that is paused meanwhile stays as it is: listing its shard again and again would find nothing to start.
        return tuple(
            item_of(task, row)
            for task, row in zip(lost, rows, strict=True)
            if isinstance(row, TaskRow) and row.state is State.RUNNING and not row.paused and not row.dead
        )

    def _start_due(
        self,
        now: int,
        shards: dict[int, _Worth],
        faults: dict[int | str, StoreError],
        report: ScheduleReport,
    ) -> None:
        """Start what may start in these shards, and note which were listed in vain, unless there was no room for more."""
        seen: set[HeapItem] = set()
        fruitful: set[int] = set()
        since = {shard: worth.since for shard, worth in shards.items()}
        for content in self.heap.scan(now // 1_000_000 + 1, list(shards), faults=faults, since=since):
            records = [
                record
                for record in due_records(content.records, now // 1000)
                if record not in self._over_for_ever and self._parked.get(record, 0) <= now
            ]
            for at in range(0, len(records), _PAGE):
                page = [HeapItem.unpack(record) for record in records[at : at + _PAGE]]
                for item in self._startable([item for item in page if item not in seen], now):
                    seen.add(item)
                    fruitful.add(content.name.shard)
                    if not self._runs.wait_for_room(ROOM_SECONDS):
                        return
                    self._runs.start(item, report)
        for shard, worth in shards.items():
            if shard in faults:
                continue
            if shard in fruitful:
                self._fruitless.pop((shard, bool(worth.lost)), None)
            else:
                self._note_fruitless(shard, worth, now)
        if sum(isinstance(what, int) for what in faults) == len(shards):
            raise next(iter(faults.values()))

    def _note_fruitless(self, shard: int, worth: _Worth, now: int) -> None:
        """List it again later, and each time later still, as long as no more is known."""
        told, key = worth.told, (shard, bool(worth.lost))
        before, wait, _ = self._fruitless.get(key, (None, 0, 0))
        wait = min(LONGEST_FRUITLESS, wait * 2) if before == told and wait else int(self.poll * MICROSECONDS)
        self._fruitless[key] = (told, wait, now + wait)
        if worth.lost:
            # What they are started from is off the heap: a tender pushes it again.
            tending.reconcile(self.sysdb, worth.lost)

    def _warn(self, what: str) -> None:
        """Log it; what goes on turn after turn is said once a minute."""
        now = time.monotonic()
        if now - self._said.get(what, float("-inf")) >= REPEAT_LOG_SECONDS:
            if len(self._said) >= 1000:
                self._said.clear()
            self._said[what] = now
            log.warning("%s", what)

    def _startable(self, items: Sequence[HeapItem], now: int) -> list[HeapItem]:
        """The items that a claim is likely to get: a look at their rows spares a transaction for each that isn't."""
        items = [item for item in items if item.task not in self._runs]
        if not items:
            return []
        rows = self.sysdb.read(outbox.read_rows, [item.task for item in items])
        found = []
        for item, row in zip(items, rows, strict=True):
            if row is None:
                continue
            if isinstance(row, outbox.Unreadable):
                self._warn(str(row))
                self._park(item, now)
            elif core.is_done(row, item):
                self._remember_over(item)
            elif row.paused or row.dead:
                self._park(item, now)
            elif self._may_start(item, row, now):
                found.append(item)
        return sorted(found, key=lambda item: item.due_ms)

    def _remember_over(self, item: HeapItem) -> None:
        """What is done is done for ever, so its row needs no second look."""
        if len(self._over_for_ever) >= MOST_REMEMBERED:
            self._over_for_ever.clear()
        self._over_for_ever.add(item.pack())

    def _park(self, item: HeapItem, now: int) -> None:
        """A paused or dead task stays on the heap: look at it again in a while, not at every turn."""
        if len(self._parked) >= MOST_REMEMBERED:
            self._parked.clear()
        self._parked[item.pack()] = now + PARKED_MICRO

    def _may_start(self, item: HeapItem, row: TaskRow, now: int) -> bool:
        if item_of(item.task, row) != item:
            return False
        if row.state is State.RUNNING and row.session == self.sysdb.sessions.session:
            # This session's, and yet none of its runs: its claim was never answered, or couldn't be settled.
            return not self._runs.given_up(item.task) and not self.sysdb.holds(item.task, row.epoch)
        if row.state is State.RUNNING:
            return self._may_be_dead(row.session)
        if row.state is not State.SCHEDULED:
            return False
        return now >= max(core.earliest_start(row), core.spread_again(item.task, row, self._resumed_at))

    def _may_be_dead(self, session: str) -> bool:
        """Whether to try a take-over; a session that was alive is not asked after again at once."""
        checked = self._alive.get(session)
        if checked is not None and time.monotonic() - checked < DEAD_CHECK_SECONDS:
            return False
        try:
            dead = self.sysdb.read(lambda tr, _at: self.sysdb.sessions.is_dead(tr, session))
        except RecordError as error:
            # Nobody can say that it is dead, so its claims stay; every other item goes on.
            self._warn(f"session {session} can't be read, so its runs are left to it: {error}")
            dead = False
        if dead:
            self._alive.pop(session, None)
            return True
        if len(self._alive) >= MOST_REMEMBERED:
            self._alive.clear()
        self._alive[session] = time.monotonic()
        return False


__all__ = ["ScheduleReport", "Scheduler", "Trigger"]
