"""Why a task is not running: its state and everything that may hold it back, as one transaction sees them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fdb_schema.clock import ClockReading
from fdb_schema.serving.figures import counted
from s3heap_tender.claims import transitions, writes
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.rows import core
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import MICROSECONDS, NEVER_STARTED, RunOutput, Task, TaskRow, task_of
from s3heap_tender.rows.states import State

LATE_SECONDS: Final = 5.0
STILL_SECONDS: Final = 15.0
"""So old is the clock's row, by this machine's wall time and only for people, where no service runs: idle ones write it oftener."""
STILL: Final = "nobody moves the cluster clock"


@dataclass(frozen=True, slots=True)
class Description:
    """A task, and why it is not running. Times are seconds of the cluster clock."""

    task: Task
    now: float
    reasons: tuple[str, ...]  # empty while it runs, unless the run's scheduler is gone
    log_end: int
    unread: int  # records
    intent_pending: bool
    dirty: bool
    not_before: float | None  # when the scheduled generation may start
    dead_letters: tuple[int, ...]  # generations
    output: str = ""  # the end of what the last run printed
    output_gen: int | None = None  # of which generation


def describe(sysdb: SysDbBase, id: UUID) -> Description:
    """The task as one transaction sees it. Raises `TaskNotFoundError`."""

    def body(tr: Any, at: Layout) -> Description:
        keys = at.keys
        row = transitions.load_existing(tr, at, id)
        clock = _clock(tr, keys)
        now = clock.value
        tail = writes.read_counter(tr, keys.log(row.partition))
        intent = tr.get(keys.intent(at.shard_of(id), id)).present()
        dirty = tr.get(keys.dirty(at.shard_of(row.partition), row.partition)).present()
        letters = tuple(gen for (_, gen), _, _ in read_known(tr, *keys.dlq_range(id), 0, keys.dead_letter_of))
        start = core.earliest_start(row) if row.state is State.SCHEDULED else None
        kept = tr.get(keys.output(id)).value
        output = None if kept is None else RunOutput.decode(bytes(kept))
        return Description(
            task=task_of(id, row),
            now=now / MICROSECONDS,
            reasons=tuple(_reasons(row, clock, tail, intent, dirty) or _of_run(sysdb, tr, row)),
            log_end=tail,
            unread=max(0, tail - row.completion),
            intent_pending=intent,
            dirty=dirty,
            not_before=None if start is None else start / MICROSECONDS,
            dead_letters=letters,
            output="" if output is None else output.text,
            output_gen=None if output is None else output.gen,
        )

    return sysdb.read(body)


def _of_run(sysdb: SysDbBase, tr: Any, row: TaskRow) -> list[str]:
    """What keeps a run from ending: a scheduler that died, as far as it can be told here."""
    why = sysdb.sessions.why_gone(tr, row.session) if row.state is State.RUNNING else None
    return [] if why is None else [f"its scheduler is gone ({why}): the next one that looks takes the run over"]


def _clock(tr: Any, keys: Any) -> ClockReading:
    data = tr.snapshot.get(keys.space.clock_key).value
    return ClockReading() if data is None else ClockReading.decode(data)


def _reasons(row: TaskRow, clock: ClockReading, tail: int, intent: bool, dirty: bool) -> list[str]:
    if row.state is State.RUNNING:
        return []
    reasons = []
    if row.dead:
        reasons.append(
            f"generation {row.gen} failed {counted(row.failures, 'time')} ({row.last_error or 'no error text'}): "
            f"redrive it to run again"
        )
    if row.paused:
        reasons.append("it is paused: resume it to run again")
    if row.state is State.WAITING:
        if dirty:
            reasons.append("it was written to and the tender has not swept that yet: is a tender running?")
        elif tail <= row.completion:
            reasons.append("it waits for a write: everything written so far was read")
        return reasons
    wait = (core.earliest_start(row) - clock.value) / MICROSECONDS
    still = clock.wall > 0 and time.time() - clock.wall / MICROSECONDS > STILL_SECONDS
    if still and not reasons:
        left = f" ({wait:.1f} s to go)" if wait > 0 else ""
        reasons.append(f"{STILL}{left}: is a {'tender' if intent or wait > 0 else 'scheduler'} running?")
    elif wait > 0:
        reasons.append(_not_yet(row, wait, tail, core.cadence_floor(row) - clock.value))
    elif not reasons:
        reasons.append(_overdue(-wait, intent))
    return reasons


def _not_yet(row: TaskRow, wait: float, tail: int, floor: int) -> str:
    if row.waiting_for_records:
        return (
            f"{tail - row.completion} of {row.min_records} records are there: it runs in {wait:.1f} s (max_wait), "
            f"or when there are enough"
        )
    if row.failures and floor <= 0:
        return f"its last run failed ({row.last_error}): it runs again in {wait:.1f} s (back-off)"
    if row.last_start != NEVER_STARTED and floor > 0:
        return f"its cadence allows the next start in {wait:.1f} s"
    return f"it is due in {wait:.1f} s"


def _overdue(late: float, intent: bool) -> str:
    if intent:
        return "it is due and not on the heap yet: is a tender running?"
    if late > LATE_SECONDS:
        return f"it has been due for {late:.1f} s: is a scheduler running, and has it room?"
    return "it is due: a scheduler will start it"
