"""Scheduler: starts what is due. Claims an item, calls the trigger, and settles the claim by what the trigger did."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError, tracing
from s3heap_tender import core, outbox
from s3heap_tender.errors import ClaimLostError, ClaimRefusedError, RunStoppedError, is_outage, is_waited_out
from s3heap_tender.heap import Heap
from s3heap_tender.heap_io import due_records
from s3heap_tender.items import HeapItem
from s3heap_tender.output import take_output
from s3heap_tender.records import Claim, Task, TaskRow, item_of
from s3heap_tender.states import State
from s3heap_tender.sysdb import SysDb

log = logging.getLogger("s3heap_tender.scheduler")
Trigger = Callable[[Task, int, int], Any]
"""`trigger(task, gen, epoch)`: runs the task's generation. Returns None, or the log offset it read up to, or a future
of one of these; an exception is a failed run."""

DEAD_CHECK_SECONDS: Final = 0.5
_PAGE: Final = 1000
MOST_REMEMBERED: Final = 200_000
ROOM_SECONDS: Final = 2.0
PARKED_MICRO: Final = 1_000_000


@dataclass
class ScheduleReport:
    """What one turn did."""

    started: int = 0
    finished: int = 0
    failed: int = 0
    lost: int = 0  # claims that were no longer held when their run was over
    errors: list[str] = field(default_factory=list)


class Scheduler:
    """Runs due items through `trigger`. Any number of schedulers may share a heap.

    Args:
        concurrency: runs at once; 0 runs each in the calling thread (for tests).
        poll: seconds between looks at the heap.
        shards: which to look at; by default all.
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
    ) -> None:
        if heap.sysdb.id != sysdb.id:
            raise ValueError(f"the heap at {heap.store.url} is of another sysdb ({heap.sysdb.id}, not {sysdb.id})")
        self.heap = heap
        self.sysdb = sysdb
        self.trigger = trigger
        self.poll = poll
        self.concurrency = concurrency
        self._shards = shards
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="s3heap-run") if concurrency else None
        self._running: set[UUID] = set()
        self._changed = threading.Condition()
        self._over_for_ever: set[bytes] = set()  # records that never start again, until a pruner takes them
        self._parked: dict[bytes, int] = {}  # records of paused and dead tasks → clock when to look again, µs
        self._alive: dict[str, float] = {}  # foreign session → when it was last found not dead
        self._stop = threading.Event()
        self._rng = random.Random()
        self.totals = ScheduleReport()

    @property
    def running(self) -> int:
        """Runs under way."""
        return len(self._running)

    def run(self, stop: threading.Event | None = None, *, grace: float = 30.0) -> None:
        """Turn after turn until `stop` is set or `stop()` is called; then waits up to `grace` s for runs under way.

        Runs that are still going on then lose their claims to whoever comes next.
        """
        self._stop = stop or self._stop
        faults = 0
        try:
            while not self._stop.is_set():
                try:
                    self.turn()
                    faults = 0
                except Exception as error:
                    if not is_waited_out(error):
                        raise
                    faults = min(8, faults + 1)
                    log.warning("the scheduler's turn failed and will be repeated: %s", error)
                delay = self.poll if not faults else min(5.0, self.poll * 2**faults)
                self._stop.wait(delay * self._rng.uniform(0.8, 1.2))
        finally:
            self.drain(grace)
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    def drain(self, timeout: float) -> bool:
        """Wait for the runs under way; False where some are left after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout)

    def turn(self) -> ScheduleReport:
        """One look at the heap: start what may start, as far as there is room."""
        report = ScheduleReport()
        self.sysdb.tick()
        now = self.sysdb.now_micro()
        seen: set[HeapItem] = set()
        for content in self.heap.scan(now // 1_000_000 + 1, self._shards):
            records = [
                record
                for record in due_records(content.records, now // 1000)
                if record not in self._over_for_ever and self._parked.get(record, 0) <= now
            ]
            for at in range(0, len(records), _PAGE):
                page = [HeapItem.unpack(record) for record in records[at : at + _PAGE]]
                for item in self._startable([item for item in page if item not in seen], now):
                    seen.add(item)
                    if not self._room():
                        return report
                    self._start(item, report)
        return report

    def _startable(self, items: Sequence[HeapItem], now: int) -> list[HeapItem]:
        """The items that a claim is likely to get: a look at their rows spares a transaction for each that isn't."""
        with self._changed:
            items = [item for item in items if item.task not in self._running]
        if not items:
            return []
        try:
            rows = self.sysdb.read(outbox.read_rows, [item.task for item in items])
        except RecordError:
            rows = [self._row(item) for item in items]
        found = []
        for item, row in zip(items, rows, strict=True):
            if row is None:
                continue
            if core.is_done(row, item):
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

    def _row(self, item: HeapItem) -> TaskRow | None:
        try:
            return self.sysdb.read(outbox.read_rows, [item.task])[0]
        except RecordError as error:
            log.warning("task %s can't be read and is left alone: %s", item.task, error)
            return None

    def _may_start(self, item: HeapItem, row: TaskRow, now: int) -> bool:
        if item_of(item.task, row) != item:
            return False
        if row.state is State.RUNNING:
            return self._may_be_dead(row.session)
        return row.state is State.SCHEDULED and now >= core.earliest_start(row)

    def _may_be_dead(self, session: str) -> bool:
        """Whether to try a take-over; a session that was alive is not asked after again at once."""
        checked = self._alive.get(session)
        if checked is not None and time.monotonic() - checked < DEAD_CHECK_SECONDS:
            return False
        try:
            dead = self.sysdb.read(lambda tr, _at: self.sysdb.sessions.is_dead(tr, session))
        except RecordError as error:
            # Nobody can say that it is dead, so its claims stay; every other item goes on.
            log.warning("session %s can't be read, so its runs are left to it: %s", session, error)
            dead = False
        if dead:
            self._alive.pop(session, None)
            return True
        if len(self._alive) >= MOST_REMEMBERED:
            self._alive.clear()
        self._alive[session] = time.monotonic()
        return False

    def _room(self) -> bool:
        """Wait a little for room for another run; False where there is none, or the scheduler stops."""
        if not self.concurrency:
            return not self._stop.is_set()
        with self._changed:
            self._changed.wait_for(
                lambda: self._stop.is_set() or len(self._running) < self.concurrency, timeout=ROOM_SECONDS
            )
            return not self._stop.is_set() and len(self._running) < self.concurrency

    def _start(self, item: HeapItem, report: ScheduleReport) -> None:
        with self._changed:
            self._running.add(item.task)
        if self._pool is None:
            try:
                self._run(item, report)
            finally:
                self._over(item)
            return

        def work() -> None:
            try:
                self._run(item, self.totals)
            except Exception as error:
                log.warning("run of task %s, generation %d: %s", item.task, item.gen, error)
            finally:
                self._over(item)

        report.started += 1
        self._pool.submit(work)

    def _over(self, item: HeapItem) -> None:
        with self._changed:
            self._running.discard(item.task)
            self._changed.notify_all()

    def _run(self, item: HeapItem, report: ScheduleReport) -> None:
        try:
            claim = self.sysdb.claim(item)
        except ClaimRefusedError:
            return  # another scheduler was first, or the task changed meanwhile
        except RecordError as error:
            log.warning("task %s has a row that can't be read and is left alone: %s", item.task, error)
            return
        self._count(report, "started")
        began = time.monotonic()
        what = f"task {claim.task.name} ({claim.id}), generation {claim.gen}"
        take_output()
        try:
            outcome = self._call(claim)
        except RunStoppedError as error:
            log.info("%s: %s", what, error)
            return
        except Exception as error:
            reason, output = f"{type(error).__name__}: {error}", take_output()
            log.warning("%s failed after %.2f s: %s", what, time.monotonic() - began, reason)
            self._settle(report, lambda: self.sysdb.fail(claim, reason, output=output))
            self._count(report, "failed")
            return
        output = take_output()
        log.info("%s ran for %.2f s", what, time.monotonic() - began)
        self._settle(report, lambda: self.sysdb.finish(claim, outcome, output=output))
        self._count(report, "finished")

    def _count(self, report: ScheduleReport, what: str) -> None:
        with self._changed:
            setattr(report, what, getattr(report, what) + 1)

    def _call(self, claim: Claim) -> int | None:
        with tracing.span(
            f"run {claim.task.name}",
            self._cause(claim),
            task=str(claim.task.id),
            generation=claim.gen,
            epoch=claim.epoch,
        ):
            outcome = self.trigger(claim.task, claim.gen, claim.epoch)
            result = getattr(outcome, "result", None)
            if callable(result):
                outcome = result()
        if outcome is None or (isinstance(outcome, int) and not isinstance(outcome, bool) and outcome >= 0):
            return outcome
        return None

    def _cause(self, claim: Claim) -> str:
        """The trace of the write that this run follows; "" where none was traced."""
        if not tracing.enabled():
            return ""
        key = self.sysdb.layout.keys.trace(claim.task.partition)
        return bytes(self.sysdb.read(lambda tr, _at: tr.snapshot.get(key).value) or b"").decode()

    def _settle(self, report: ScheduleReport, settle: Callable[[], None]) -> None:
        """Settle a claim, however long the database takes: until then the task is this session's and runs nowhere."""
        delay = 0.1
        while True:
            try:
                settle()
                return
            except ClaimLostError as error:
                self._count(report, "lost")
                log.info("%s", error)
                return
            except Exception as error:
                if self._stop.is_set() or not is_outage(error):
                    raise  # the claim is left to whoever comes after this process's session
                log.warning("a run is over and its claim can't be settled yet: %s", error)
                self._stop.wait(delay)
                delay = min(5.0, delay * 2)
