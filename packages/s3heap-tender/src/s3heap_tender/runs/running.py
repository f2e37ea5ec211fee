"""The runs under way of one scheduler: each claims, calls the trigger, and settles the claim by what the trigger did."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError
from fdb_schema.serving import tracing
from s3heap_tender.claims import outbox
from s3heap_tender.errors import (
    ClaimLostError,
    ClaimRefusedError,
    RunStoppedError,
    SimulatedCrash,
    is_outage,
)
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.output import take_output, text_of
from s3heap_tender.rows.records import Claim, ReadUpTo, Task, TaskRow
from s3heap_tender.rows.states import State
from s3heap_tender.runs.run_context import enter_run
from s3heap_tender.sysdb import SysDb

log = logging.getLogger("s3heap_tender.scheduler")
Trigger = Callable[[Task, int, int], Any]
"""`trigger(task, gen, epoch)`: runs the task's generation. Returns `ReadUpTo(offset)` to say how far it read the log, or a
future of that; anything else says that it read what there was when the attempt was first claimed. An exception, of any
kind, is a failed run."""

GIVEN_UP_SECONDS: Final = 10.0
LEAVE_SECONDS: Final = 5.0


@dataclass
class ScheduleReport:
    """What one turn did."""

    started: int = 0
    finished: int = 0
    failed: int = 0
    lost: int = 0  # claims that were no longer held when their run was over
    errors: list[str] = field(default_factory=list)


class _Run:
    """One run: cancelled, and left behind where it does not end by that."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.claim: Claim | None = None
        self.begun = False  # its trigger is called
        self.began = time.monotonic()
        self.outcome: Any = None
        self.cancelled_at: float | None = None
        self.elsewhere = False  # the same attempt is another scheduler's now
        self.late = ""  # what is said of a run whose time is up
        self.left = False

    def awaits(self, outcome: Any) -> None:
        """What the trigger waits for: it is cancelled with the run."""
        self.outcome = outcome
        if self.over.is_set():
            self.cancel()  # before there was anything to be told

    def cancel(self) -> None:
        """Tell the trigger; a future is cancelled, unless another scheduler may wait for the very same one."""
        self.cancelled_at = time.monotonic()
        self.over.set()
        self.tell()

    def tell(self) -> None:
        """Cancel what the trigger waits for; once more where there was nothing yet to cancel, or the database was away."""
        cancel = getattr(self.outcome, "cancel", None)
        if callable(cancel) and not self.elsewhere:
            with contextlib.suppress(Exception):
                cancel()


class Runs:
    """At most `concurrency` runs at once, each in a thread; 0 makes each in the calling thread.

    A run whose claim is lost, as by an overlap policy or a deletion, is cancelled, and so is one that takes longer than
    `timeout` seconds. One that doesn't end by that is left behind: its result counts for nothing, and it keeps nobody
    from running.
    """

    def __init__(self, sysdb: SysDb, trigger: Trigger, concurrency: int, timeout: float | None) -> None:
        self.sysdb = sysdb
        self.trigger = trigger
        self.concurrency = concurrency
        self.timeout = timeout
        self.stopping = threading.Event()
        self.totals = ScheduleReport()
        self._changed = threading.Condition()
        self._under_way: dict[UUID, _Run] = {}
        self._given_up: dict[UUID, float] = {}  # tasks whose claim couldn't be settled → when

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, task: UUID) -> bool:
        with self._changed:
            return task in self._under_way

    def given_up(self, task: UUID) -> bool:
        """Whether a claim of the task could not be settled just now."""
        return time.monotonic() - self._given_up.get(task, float("-inf")) < GIVEN_UP_SECONDS

    def wait_for_room(self, seconds: float) -> bool:
        """Wait a little for room for another run; False where there is none, or the scheduler stops."""
        if not self.concurrency:
            return not self.stopping.is_set()
        with self._changed:
            self._changed.wait_for(
                lambda: self.stopping.is_set() or len(self._under_way) < self.concurrency, timeout=seconds
            )
            return not self.stopping.is_set() and len(self._under_way) < self.concurrency

    def drain(self, timeout: float) -> bool:
        """Wait for the runs under way; False where some are left after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, timeout)

    def start(self, item: HeapItem, report: ScheduleReport) -> None:
        """Claim the item and run it."""
        run = _Run()
        with self._changed:
            self._under_way[item.task] = run
        if not self.concurrency:
            try:
                self._make(run, item, report)
            finally:
                self._ended(run, item.task)
            return

        def work() -> None:
            try:
                self._make(run, item, self.totals)
            except Exception as error:
                log.warning("run of task %s, generation %d: %s", item.task, item.gen, error)
            finally:
                self._ended(run, item.task)

        try:
            threading.Thread(target=work, name="s3heap-run", daemon=True).start()
        except RuntimeError as error:  # no room for another thread: a later look starts it
            self._ended(run, item.task)
            report.errors.append(f"task {item.task}, generation {item.gen}: {error}")
            return
        report.started += 1

    def watch(self) -> None:
        """Cancel what has lost its claim or taken too long; leave behind what doesn't end by that. To be called often."""
        with self._changed:
            runs = [(run, run.claim) for run in self._under_way.values() if run.claim is not None]
        if not runs:
            return
        now = time.monotonic()
        rows = self.sysdb.read(outbox.read_rows, [claim.id for _, claim in runs])
        for (run, claim), row in zip(runs, rows, strict=True):
            what = f"task {claim.task.name} ({claim.id}), generation {claim.gen}"
            if run.cancelled_at is not None:
                if now - run.cancelled_at >= LEAVE_SECONDS:
                    self._leave(run, claim, what)
            elif not isinstance(row, outbox.Unreadable) and not _holds(row, claim):
                log.info("%s is no longer this scheduler's: its run is cancelled", what)
                run.elsewhere = _goes_on(row, claim)
                run.cancel()
            elif self.timeout is not None and now - run.began >= self.timeout:
                run.late = f"it ran longer than {self.timeout:g} s and was cancelled"
                log.warning("%s ran longer than %g s and is cancelled", what, self.timeout)
                run.cancel()

    def _leave(self, run: _Run, claim: Claim, what: str) -> None:
        run.tell()
        try:
            if run.late:
                self.sysdb.fail(claim, run.late)
                self._count(self.totals, "failed")
            else:
                self.sysdb.abandon(claim)
        except ClaimLostError:
            self._count(self.totals, "lost")
        except Exception as error:
            if is_outage(error):
                raise  # it stays under way until a later look can leave it: else its claim would be nobody's for ever
            log.warning("%s: its claim can't be settled and is given up: %s", what, error)
            self._give_up(claim)
        log.warning("%s doesn't end though it was cancelled: it is left behind, and its result won't count", what)
        run.left = True
        self._ended(run, claim.id)

    def _ended(self, run: _Run, task: UUID) -> None:
        with self._changed:
            if self._under_way.get(task) is run:
                del self._under_way[task]
            self._changed.notify_all()

    def _make(self, run: _Run, item: HeapItem, report: ScheduleReport) -> None:
        try:
            claim = self.sysdb.claim(item)
        except ClaimRefusedError:
            return  # another scheduler was first, or the task changed meanwhile
        except RecordError as error:
            log.warning("task %s has a row that can't be read and is left alone: %s", item.task, error)
            return
        run.began = began = time.monotonic()
        run.claim = claim
        self._count(report, "started")
        what = f"task {claim.task.name} ({claim.id}), generation {claim.gen}"
        take_output()
        enter_run(run.over, run.awaits)
        try:
            outcome = self._call(run)
        except RunStoppedError as error:
            log.info("%s: %s", what, error)
            self._give_up(claim)
            return
        except SimulatedCrash:
            raise
        except BaseException as error:
            # Also what ends a program or cancels a task, as sys.exit() does: here it ends this run, which has failed.
            if not run.begun and isinstance(error, ClaimLostError):
                self._count(report, "lost")
                log.info("%s is no longer this scheduler's and does not begin: %s", what, error)
                return
            if not run.begun or (not self.concurrency and isinstance(error, KeyboardInterrupt)):
                self.sysdb.abandon(claim)
                raise
            reason, output = run.late or text_of(error), take_output()
            if run.left:
                return
            log.warning("%s failed after %.2f s: %s", what, time.monotonic() - began, reason)
            self._settle(claim, report, "failed", lambda c: self.sysdb.fail(c, reason, output=output))
            return
        output = take_output()
        if run.left:
            return
        log.info("%s ran for %.2f s", what, time.monotonic() - began)
        self._settle(claim, report, "finished", lambda c: self.sysdb.finish(c, outcome, output=output))

    def _count(self, report: ScheduleReport, what: str) -> None:
        with self._changed:
            setattr(report, what, getattr(report, what) + 1)

    def _call(self, run: _Run) -> int | None:
        claim = run.claim
        assert claim is not None
        with tracing.span(
            f"run {claim.task.name}",
            self._cause(claim),
            task=str(claim.task.id),
            generation=claim.gen,
            epoch=claim.epoch,
        ):
            claim = self.sysdb.begin(claim)  # what lay between may have taken as long as the claim's commit
            run.begun = True
            outcome = self.trigger(claim.task, claim.gen, claim.epoch)
            if inspect.iscoroutine(outcome) or inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
                raise TypeError(
                    f"the trigger returned a {type(outcome).__name__}, whose code has not run: call what runs it"
                )
            result = getattr(outcome, "result", None)
            if callable(result):
                run.awaits(outcome)
                outcome = result()
        return outcome.offset if isinstance(outcome, ReadUpTo) else None

    def _cause(self, claim: Claim) -> str:
        """The trace of the write that this run follows; "" where none was traced."""
        if not tracing.enabled():
            return ""
        key = self.sysdb.layout.keys.trace(claim.task.partition)
        return bytes(self.sysdb.read(lambda tr, _at: tr.snapshot.get(key).value) or b"").decode()

    def _give_up(self, claim: Claim) -> None:
        """Leave a run to whoever comes: another scheduler of this session, in a while, or of another once this one has ended."""
        self._given_up[claim.id] = time.monotonic()
        self.sysdb.abandon(claim)

    def _settle(self, claim: Claim, report: ScheduleReport, what: str, settle: Callable[[Claim], None]) -> None:
        """Settle a claim, however long the database takes: until then the task is this session's and runs nowhere.

        One that can't be settled for another reason is given up: its run is made again, after a while.
        """
        delay = 0.1
        while True:
            try:
                settle(claim)
                break
            except ClaimLostError as error:
                self._count(report, "lost")
                log.info("%s", error)
                break
            except Exception as error:
                if not is_outage(error):
                    self._give_up(claim)
                    raise
                if self.stopping.is_set():
                    self._give_up(claim)
                    raise
                log.warning("a run is over and its claim can't be settled yet: %s", error)
                self.stopping.wait(delay)
                delay = min(5.0, delay * 2)
        self._count(report, what)


def _holds(row: TaskRow | outbox.Unreadable | None, claim: Claim) -> bool:
    return isinstance(row, TaskRow) and row.state is State.RUNNING and (row.gen, row.epoch) == (claim.gen, claim.epoch)


def _goes_on(row: TaskRow | outbox.Unreadable | None, claim: Claim) -> bool:
    """Whether the claim's attempt was taken over, so that what it started may be what is waited for now."""
    return (
        isinstance(row, TaskRow) and row.state is State.RUNNING and (row.gen, row.attempt) == (claim.gen, claim.attempt)
    )
