"""SysDb: the tasks of one cluster, on FoundationDB. The truth; the heap only ever follows it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError
from fdb_schema.clock import ADVANCE_SECONDS
from fdb_schema.serving import tracing
from idempotent_txn import run_committed
from s3heap_tender import failpoints
from s3heap_tender.claims import listing, outbox, transitions, writes
from s3heap_tender.claims.describing import Description, describe
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.claims.transitions import Step
from s3heap_tender.errors import ClaimLostError, ClaimRefusedError, TaskNotFoundError, UnknownItemError
from s3heap_tender.rows import core
from s3heap_tender.rows.held import held_by
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.output import storable, text_of
from s3heap_tender.rows.records import (
    MICROSECONDS,
    Backoff,
    Claim,
    DeadLetter,
    ReadUpTo,
    Task,
    TaskRow,
    task_of,
)
from s3heap_tender.rows.settings import new_row, partition_id

log = logging.getLogger("s3heap_tender.sysdb")
_PAGE: Final = 1000
MOST_RECORDS: Final = 1 << 48
LAST_OFFSET: Final = 1 << 62
"""A log's end is a counter of 64 bits: one that went round would hide every write after it."""


class SysDb(SysDbBase):
    """Tasks, what was written, what is due. Safe to share between threads and processes.

    Opened by the arguments of `SysDbBase`.
    """

    # tasks

    def create_task(
        self,
        partition: UUID | str,
        name: str,
        cadence: float = 60.0,
        min_records: int = 1,
        max_wait: float | None = None,
        jitter: float = 0,
        backoff: Backoff | float | None = None,
        max_attempts: int = 5,
        overlap: str = "skip",
        catch_up: str = "once",
        payload: bytes = b"",
        *,
        id: UUID | None = None,
    ) -> Task:
        """A new task of `partition`, due at once. The same name with the same settings again returns the task there is.

        Args:
            cadence: seconds between the starts of two generations.
            min_records: a write below this many unread records waits for more, at most `max_wait` seconds.
            jitter: seconds over which scheduled runs are spread, drawn by task and generation.
            backoff: `Backoff(...)`, for failed runs; a number is its `initial`.
            max_attempts: failures of one generation until it is a dead letter.
            overlap: what `run_now` does while the task runs: "skip", "buffer_one", "buffer_all", "cancel_other".
            catch_up: after an outage one run ("once"), or one for every cadence missed ("all", at most 1000).
            payload: bytes for the trigger, at most 64,000.

        Raises:
            ValueError: a setting out of range; `min_records` > 1 without `max_wait`.
            TaskExistsError: the partition's task of this name has other settings.
        """
        row = new_row(
            partition,
            name,
            cadence,
            min_records,
            max_wait,
            jitter,
            backoff,
            max_attempts,
            overlap,
            catch_up,
            payload,
        )
        self.tick()
        task = uuid.uuid4() if id is None else id

        def body(tr: Any, at: Layout) -> tuple[Task, list[Step]]:
            stored, steps = transitions.create(tr, at, task, row, payload)
            there = transitions.task_id_of_name(tr, at, row.partition, name)
            return task_of(there or task, stored, payload), steps

        return self.commit("create", body)

    def get(self, id: UUID) -> Task:
        """The task as it is now. Raises `TaskNotFoundError`."""

        def body(tr: Any, at: Layout) -> Task:
            row = transitions.load_existing(tr, at, id)
            return task_of(id, row, bytes(tr.get(at.keys.payload(id)).value or b""))

        return self.read(body)

    def describe(self, id: UUID) -> Description:
        """The task, and why it is not running. Raises `TaskNotFoundError`."""
        self.tick()
        return describe(self, id)

    def find(self, partition: UUID | str, name: str) -> Task:
        """The partition's task of that name. Raises `TaskNotFoundError`."""
        id = self.read(transitions.task_id_of_name, partition_id(partition), name)
        if id is None:
            raise TaskNotFoundError(f"partition {partition} has no task named {name!r}")
        return self.get(id)

    def tasks(self, partition: UUID | str | None = None, *, after: UUID | None = None) -> Iterator[Task]:
        """All tasks, or a partition's, read page by page in the order of their ids; those after the id `after`."""
        return listing.tasks(self, partition, after)

    def delete(self, id: UUID) -> bool:
        """Delete the task; no claim commits any more. False where it was deleted before.

        Raises `TaskNotFoundError` where it never was.
        """

        def body(tr: Any, at: Layout) -> tuple[bool, list[Step]]:
            steps = transitions.delete(tr, at, id)
            return bool(steps), steps

        # A process that dies after this commit leaves no other line of a task that is gone.
        self.trace.line("delete.begin", task=id)
        return self.commit("delete", body)

    def pause(self, id: UUID) -> Task:
        """Start no more runs; writes accumulate. A run under way goes on."""
        return self._change("pause", id, lambda row, _tail, _now: replace(row, paused=True))

    def resume(self, id: UUID) -> Task:
        """End a pause; writes that came meanwhile cause one run."""
        return self._change(
            "resume", id, lambda row, tail, now: core.resumed(id, row, tail, now) if row.paused else row
        )

    def run_now(self, id: UUID) -> Task:
        """Run as soon as the cadence allows, written to or not; while it runs, as its overlap policy says.

        A dead letter is tried again, as by `redrive`.
        """

        def body(tr: Any, at: Layout) -> tuple[Task, list[Step]]:
            row = transitions.load_existing(tr, at, id)
            if row.dead:
                steps = transitions.redrive(tr, at, id, row.gen)
            else:
                steps = transitions.change(tr, at, "run_now", id, lambda row, _tail, now: core.requested(row, now))
            return _seen(tr, at, id, steps[0].after or row if steps else row), steps

        self.tick()
        return self.commit("run_now", body)

    def backfill(self, id: UUID, n: int) -> Task:
        """Give the task `n` more generations, a cadence apart. Raises `TransitionError` beyond 1000 pending."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"backfill takes 1 or more runs, not {n!r}")
        return self._change("backfill", id, lambda row, _tail, now: core.backfilled(row, n, now))

    def redrive(self, id: UUID, gen: int) -> Task:
        """Run a dead letter's generation again, as a new attempt. Raises `TransitionError` where it is none."""

        def body(tr: Any, at: Layout) -> tuple[Task, list[Step]]:
            steps = transitions.redrive(tr, at, id, gen)
            assert steps[0].after is not None
            return _seen(tr, at, id, steps[0].after), steps

        self.tick()
        return self.commit("redrive", body)

    def dead_letters(self, id: UUID | None = None) -> list[DeadLetter]:
        """Every dead letter, or one task's."""
        return listing.dead_letters(self, id)

    # writes

    def record_write(self, tr: Any, partition: UUID | str, records: int = 1) -> None:
        """Inside the caller's own transaction: `records` were written to `partition`, so its tasks are to run."""
        if isinstance(records, bool) or not isinstance(records, int) or not 1 <= records <= MOST_RECORDS:
            raise ValueError(f"record_write takes 1 or more records, at most {MOST_RECORDS:,}, not {records!r}")
        there = partition_id(partition)
        writes.record_write(tr, self.layout, there, records)
        if tracing.enabled():
            with tracing.span("write", partition=str(partition), records=records):
                tr.set(self.layout.keys.trace(there), tracing.traceparent().encode())
        if self.trace.enabled:
            stamp = tr.get_versionstamp()

            def committed(future: Any) -> None:
                try:
                    version = int.from_bytes(bytes(future.wait())[:8], "big")
                except Exception:
                    return  # it did not commit
                self.trace.line("write", partition=there, records=records, v=version)

            stamp.on_ready(committed)

    def mark_dirty(self, partition: UUID | str, offset: int) -> None:
        """After a write that is visible: the partition's log ends at `offset` (a count of records) or beyond.

        An offset below the end that is known causes a run too: it may be a write of a log that was made anew.
        """
        if isinstance(offset, bool) or not isinstance(offset, int) or not 1 <= offset <= LAST_OFFSET:
            raise ValueError(
                f"offset is the log's end after the write, 1 or more, at most {LAST_OFFSET:,}, not {offset!r}"
            )
        there = partition_id(partition)
        failpoints.hit("sysdb.mark_dirty.before")
        outcome = run_committed(self.db, writes.mark_dirty, self.layout, there, offset)
        failpoints.hit("sysdb.mark_dirty.after")
        version = None if outcome.commit is None else outcome.commit.version
        if offset < outcome.value:
            log.warning(
                "partition %s was written up to %d, which is below its known end %d: its tasks run once more for it, and so "
                "for each such write until its log has passed that end",
                partition,
                offset,
                outcome.value,
            )
        self.trace.line("write", partition=there, offset=offset, v=version, behind=offset < outcome.value)

    def log_end(self, partition: UUID | str) -> int:
        """Records written to the partition so far."""
        key = self.layout.keys.log(partition_id(partition))
        return self.read(lambda tr, _at: writes.read_counter(tr, key))

    # running

    def claim(self, item: HeapItem | Task) -> Claim:
        """The right to run the item's generation, for this process's session.

        Takes over from a session that is dead by the rules of its lease. Raises `ClaimRefusedError`, whose `reason` is
        deleted, superseded, paused, dead, not_due or running.
        """
        wanted = item.item if isinstance(item, Task) else item
        asked = self.tick_for_start()
        sessions = self.sessions
        mine = self._session = sessions.session
        known = held_by(mine)

        def is_over(tr: Any, row: TaskRow) -> bool:
            if row.session == mine:
                return known.lost(wanted.task, row.epoch)
            return sessions.is_dead(tr, row.session)

        with known.claiming(wanted.task):
            claim = self.commit("claim", transitions.claim, wanted, mine, is_over)
            known.add(claim)
        try:
            return self.begin(replace(claim, asked=asked))
        except ClaimLostError as lost:
            raise ClaimRefusedError(str(lost), reason="superseded") from lost

    def begin(self, claim: Claim) -> Claim:
        """The claim of a run that begins only now, long after what is stored: first the later start is stored.

        Nothing is where no more went by than the two ticks that every start allows for. Raises `ClaimLostError`: the run must
        not begin; nor may it after any other error, and the claim is given up.
        """
        leeway = 0.0
        while (late := self._monotonic() - claim.asked) > claim.leeway + 2 * ADVANCE_SECONDS:
            try:
                asked = self.tick_for_start()
                micro = int(leeway * MICROSECONDS)
                now = self.commit("begin", transitions.begin, claim.id, claim.gen, claim.epoch, micro)
            except BaseException:
                self.abandon(claim)
                raise
            started = now / MICROSECONDS
            view = replace(claim.task, last_start=started)
            claim = replace(claim, task=view, started=started, leeway=leeway, asked=asked)
            leeway = 2 * (self._monotonic() - asked)  # for a database that always takes long
        if late > 2 * ADVANCE_SECONDS:
            at = int((claim.started + late) * MICROSECONDS)
            self.trace.line("began", task=claim.id, gen=claim.gen, epoch=claim.epoch, at=at)
        return claim

    def holds(self, task: UUID, epoch: int) -> bool:
        """Whether this process knows of this session's claim, or is about to: one that it doesn't is taken over."""
        return not held_by(self.sessions.session).lost(task, epoch, claiming=0)

    def knows(self, task: UUID) -> bool:
        """Whether this process knows of a claim of the task by this session, or is about to get one."""
        return held_by(self.sessions.session).knows(task)

    def abandon(self, claim: Claim) -> None:
        """Forget a claim that can't be settled: its task may be claimed again, by this session too."""
        held_by(claim.session).discard(claim)

    def finish(self, claim: Claim, upto_offset: int | None = None, *, output: str = "") -> None:
        """The run is over and read the log up to `upto_offset` (by default what the claim saw): exactly one effect.

        More in the log schedules the next generation, else the task waits. An offset beyond the log's end counts as the
        end: what is written later is not read yet. The last 4000 characters of `output` are kept with the task. Raises
        `ClaimLostError`.
        """
        if upto_offset is not None:
            ReadUpTo(upto_offset)  # refuses what is no offset
        self.tick()
        self._settle("finish", transitions.finish, claim, upto_offset, storable(output))

    def fail(self, claim: Claim, error: BaseException | str, *, output: str = "") -> None:
        """The run failed: due again after its back-off, or a dead letter. `output` as in `finish`.

        Raises `ClaimLostError`.
        """
        text = error if isinstance(error, str) else text_of(error)
        self.tick()
        self._settle("fail", transitions.fail, claim, storable(text), storable(output))

    def _settle(self, name: str, body: Callable[..., list[Step]], claim: Claim, *args: Any) -> None:
        try:
            self.commit(name, _only_steps(body), claim.id, claim.gen, claim.epoch, *args)
        except ClaimLostError:
            self.abandon(claim)
            raise
        self.abandon(claim)

    def are_done(self, items: Sequence[HeapItem]) -> list[bool]:
        """Whether each item will never be needed again, in their order; True is for ever.

        Raises `UnknownItemError` for an item of a task this sysdb never had.
        """
        items = list(items)
        found = self.verdicts(items)
        for item, verdict in zip(items, found, strict=True):
            if verdict is outbox.Verdict.UNKNOWN:
                raise UnknownItemError(
                    f"item of task {item.task}, generation {item.gen}: the sysdb {self.cluster!r} has neither that "
                    f"task nor its tombstone, so nothing is known of it; check that heap and sysdb belong together"
                )
            if verdict is outbox.Verdict.UNREADABLE:
                raise RecordError(f"task {item.task} has a row that can't be read, so nothing is known of its items")
        return [verdict is outbox.Verdict.DONE for verdict in found]

    def verdicts(self, items: Sequence[HeapItem]) -> list[outbox.Verdict]:
        """`are_done` that tells what it doesn't know from what is live."""
        found: list[outbox.Verdict] = []
        for at in range(0, len(items), _PAGE):
            found.extend(self.read(outbox.verdicts, items[at : at + _PAGE]))
        if len(found) != len(items):
            raise UnknownItemError(f"{len(found)} verdicts for {len(items)} items: refusing to judge any")
        return found

    def stats(self) -> dict[str, int]:
        """Counters since the sysdb was made: starts, retakes, finishes, failures, dead letters, missed deadlines."""
        begin, end = self.layout.keys.stats_range()
        rows = self.read(lambda tr, at: read_known(tr, begin, end, 0, at.keys.stat_of))
        return {name: int.from_bytes(value, "little") for name, _, value in rows}

    def _change(self, operation: str, id: UUID, rule: Callable[[TaskRow, int, int], TaskRow]) -> Task:
        def body(tr: Any, at: Layout) -> tuple[Task, list[Step]]:
            steps = transitions.change(tr, at, operation, id, rule)
            row = steps[0].after if steps else transitions.load_existing(tr, at, id)
            assert row is not None
            return _seen(tr, at, id, row), steps

        self.tick()
        return self.commit(operation, body)


def _seen(tr: Any, at: Layout, id: UUID, row: TaskRow) -> Task:
    return task_of(id, row, bytes(tr.get(at.keys.payload(id)).value or b""))


def _only_steps(body: Callable[..., list[Step]]) -> Callable[..., tuple[None, list[Step]]]:
    def wrapped(tr: Any, at: Layout, *args: Any) -> tuple[None, list[Step]]:
        return None, body(tr, at, *args)

    return wrapped
