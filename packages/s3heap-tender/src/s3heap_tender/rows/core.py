"""The pure core: what each operation makes of a task's row, given the cluster clock and the log's end.

No I/O: a row goes in, the next row comes out. `transitions` wraps these in transactions; the protocol model and the
history checker say what must hold of them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Final
from uuid import UUID

from fdb_schema.clock import ADVANCE_SECONDS
from fdb_schema.serving.figures import counted
from s3heap_tender.errors import ClaimLostError, ClaimRefusedError, TransitionError
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.records import MICROSECONDS, NEVER_STARTED, Backoff, TaskRow
from s3heap_tender.rows.states import State

TICK: Final = int(ADVANCE_SECONDS * MICROSECONDS)
MAX_PENDING: Final = 1000
MAX_ERROR_TEXT: Final = 1000
LONGEST_SECONDS: Final = 1e9
LAST_DUE: Final = 200_000_000_000 * MICROSECONDS  # beyond it a heap has no name for a bucket


def draw(task: UUID, *numbers: int) -> float:
    """A number in [0, 1) that depends on the arguments alone: seeded jitter."""
    seed = task.bytes + b"".join(number.to_bytes(8, "big") for number in numbers)
    return int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") / 2**64


def cadence_floor(row: TaskRow) -> int:
    """The due time before which the cadence allows no new generation."""
    return 0 if row.last_start == NEVER_STARTED else row.last_start + row.leeway + row.cadence


def earliest_start(row: TaskRow) -> int:
    """The first clock reading at which the row's generation may start.

    A run begins at most two ticks of the clock after the start that is stored, or its leeway after that (`SysDb.begin`), so
    the next keeps so much more than the cadence.
    """
    if row.last_start == NEVER_STARTED or not row.cadence:
        return row.due
    if row.attempt and not row.backoff.obey_cadence:
        return row.due
    return max(row.due, cadence_floor(row) + 2 * TICK)


LATEST_START: Final = 2 * TICK
"""The most by which `earliest_start` comes after the due time: no due time is given before the cadence allows one."""


def spread_again(task: UUID, row: TaskRow, resumed_at: int) -> int:
    """When a run may start that an outage, which ended at `resumed_at`, made wait for longer than it is to be spread.

    It waited with others, whose jitter is used up as its own is: they are spread once more.
    """
    if not row.jitter or row.due + row.jitter >= resumed_at:
        return 0
    return resumed_at + int(draw(task, row.gen, row.attempt) * row.jitter)


def _at(
    row: TaskRow, due: int, *, new_gen: bool, waiting_for_records: bool = False, asked_for: bool = False
) -> TaskRow:
    """The row scheduled at `due`, rounded up to a ms.

    A generation never gets a due time back that it had before: an item once superseded is done for ever, so a pruner
    may remove it whatever happens between its judgement and its write.
    """
    due = -(-min(due, LAST_DUE) // 1000) * 1000
    past: tuple[int, ...] = ()
    if not new_gen:
        # Every due time given from now on is at or after the last start, so only such ones could come back.
        past = tuple(earlier for earlier in row.past_dues if earlier >= row.last_start)
        while due in past:
            due += 1000
        if due != row.due:
            past = (*past, row.due)
    gen = row.gen + 1 if new_gen else row.gen
    fresh = {"attempt": 0, "failures": 0, "asked_for": asked_for} if new_gen else {}
    return replace(
        row,
        state=State.SCHEDULED,
        gen=gen,
        live_gen=gen,
        due=due,
        waiting_for_records=waiting_for_records,
        session="",
        past_dues=past,
        **fresh,  # type: ignore[arg-type]
    )


def _next_generation(task: UUID, row: TaskRow, tail: int, now: int) -> TaskRow:
    """The next generation, for a row with writes to read or runs asked for."""
    if row.pending:
        return _next_asked_for(row, now)
    spread = int(draw(task, row.gen + 1) * row.jitter)
    if unread(row, tail) >= row.min_records or row.max_wait is None:
        return _at(row, max(now, cadence_floor(row)) + spread, new_gen=True)
    return _at(row, max(now + row.max_wait, cadence_floor(row)), new_gen=True, waiting_for_records=True)


def _next_asked_for(row: TaskRow, now: int) -> TaskRow:
    return _at(replace(row, pending=row.pending - 1), max(now, cadence_floor(row)), new_gen=True, asked_for=True)


def unread(row: TaskRow, tail: int) -> int:
    """Records that no run is known to have read, and writes that were said to lie below the log's known end."""
    return max(0, tail - row.completion) + max(0, row.again - row.again_done)


def has_work(row: TaskRow, tail: int) -> bool:
    """Whether there is anything for a next generation to do."""
    return unread(row, tail) > 0 or row.pending > 0


def written(task: UUID, row: TaskRow, tail: int, now: int) -> TaskRow:
    """After a write: a waiting task is scheduled; one waiting for enough records is moved up. Else unchanged."""
    if row.paused:
        return row
    if row.state is State.WAITING and has_work(row, tail):
        return _next_generation(task, row, tail, now)
    if row.state is State.SCHEDULED and row.waiting_for_records and unread(row, tail) >= row.min_records:
        due = max(now, cadence_floor(row))
        return _at(row, min(due, row.due), new_gen=False)
    return row


def refuse_claim(task: UUID, row: TaskRow | None, item: HeapItem, now: int) -> None:
    """Raise `ClaimRefusedError` unless the item may start now, or is held by a session (reason "running")."""
    if row is None:
        raise ClaimRefusedError(f"task {task} was deleted; nothing of it runs any more", reason="deleted")
    if row.gen != item.gen or row.due // 1000 != item.due_ms or row.state is State.WAITING:
        raise ClaimRefusedError(
            f"task {task}: the item of generation {item.gen} due at {item.due_ms} ms is superseded; the task is "
            f"{row.state.value} with generation {row.gen} due at {row.due // 1000} ms",
            reason="superseded",
        )
    if row.state is State.RUNNING:
        raise ClaimRefusedError(
            f"task {task}: generation {row.gen} is running in session {row.session} (epoch {row.epoch})",
            reason="running",
            session=row.session,
        )
    if row.dead:
        raise ClaimRefusedError(
            f"task {task}: generation {row.gen} failed {counted(row.failures, 'time')} and is a dead letter; redrive it to run again",
            reason="dead",
        )
    if row.paused:
        raise ClaimRefusedError(f"task {task} is paused; resume it to run again", reason="paused")
    start = earliest_start(row)
    if now < start:
        raise ClaimRefusedError(
            f"task {task}: generation {row.gen} may start in {(start - now) / MICROSECONDS:.3f} s, not yet",
            reason="not_due",
            not_before=start,
        )


def claimed(row: TaskRow, session: str, tail: int, now: int) -> TaskRow:
    """The row once a session holds it.

    A retake goes on with an attempt whose run may have read the log long ago, and may be only waited for: what was
    written since the attempt was first claimed is not covered by it.
    """
    retake = row.state is State.RUNNING
    pending = row.pending
    # What a run that catches up itself comes late by is no reason for others, or they would never end.
    if row.catch_up == "all" and row.cadence and not (retake or row.attempt or row.asked_for):
        pending = min(MAX_PENDING, pending + max(0, now - earliest_start(row)) // row.cadence)
    return replace(
        row,
        state=State.RUNNING,
        epoch=row.epoch + 1,
        session=session,
        last_start=now,
        leeway=max(0, row.last_start + row.leeway - now),
        claim_tail=row.claim_tail if retake else tail,
        claim_again=row.claim_again if retake else row.again,
        pending=pending,
        waiting_for_records=False,
    )


def begun(row: TaskRow, leeway: int, now: int) -> TaskRow:
    """The row of a run that begins only now, or up to `leeway` µs later: the next keeps its cadence from there."""
    return replace(row, last_start=max(row.last_start, now), leeway=leeway)


def check_claim(task: UUID, row: TaskRow | None, gen: int, epoch: int) -> TaskRow:
    """The row, where the claim (gen, epoch) still holds it. Raises `ClaimLostError`."""
    if row is None:
        raise ClaimLostError(f"task {task} was deleted while generation {gen} ran; its outcome is refused")
    if row.state is not State.RUNNING or row.gen != gen or row.epoch != epoch:
        raise ClaimLostError(
            f"task {task}: the claim of generation {gen}, epoch {epoch} no longer holds it; it is {row.state.value} with "
            f"generation {row.gen}, epoch {row.epoch}"
        )
    return row


def finished(task: UUID, row: TaskRow, upto_offset: int, tail: int, now: int) -> TaskRow:
    """After a run that read the log up to `upto_offset`: scheduled again where there is more, else waiting.

    Nobody has read what isn't written: an offset beyond the log's end would hide the writes to come.
    """
    completion = max(row.completion, min(upto_offset, tail))
    row = replace(row, completion=completion, again_done=max(row.again_done, row.claim_again), last_error="")
    if has_work(row, tail) and not row.paused:
        return _next_generation(task, row, tail, now)
    return replace(
        row,
        state=State.WAITING,
        live_gen=row.gen + 1,
        session="",
        attempt=0,
        failures=0,
        waiting_for_records=False,
    )


def backoff_seconds(policy: Backoff, failures: int, drawn: float) -> float:
    """How long a generation waits after so many failures: a number of seconds, whatever the policy holds."""
    try:
        delay = min(policy.maximum, policy.initial * policy.factor ** min(failures - 1, 64))
        delay *= 1 + policy.jitter * drawn
    except OverflowError:
        delay = policy.maximum
    if math.isnan(delay):
        return Backoff().maximum
    return max(0.0, min(delay, LONGEST_SECONDS))


def failed(task: UUID, row: TaskRow, error: str, now: int) -> TaskRow:
    """After a run that failed: the same generation later, or dead after `max_attempts`."""
    failures = row.failures + 1
    row = replace(row, attempt=row.attempt + 1, failures=failures, last_error=error[:MAX_ERROR_TEXT])
    policy = row.backoff
    due = now + int(backoff_seconds(policy, failures, draw(task, row.gen, row.attempt)) * MICROSECONDS)
    if policy.obey_cadence:
        due = max(due, cadence_floor(row))
    return replace(_at(row, due, new_gen=False), dead=failures >= row.max_attempts)


def redriven(row: TaskRow, gen: int, task: UUID, now: int) -> TaskRow:
    """A dead letter tried again: the same generation, a new attempt."""
    if not row.dead or row.gen != gen:
        raise TransitionError(
            f"task {task}: generation {gen} is no dead letter (the task is {row.state.value} with generation {row.gen})"
        )
    return replace(
        _at(row, max(now, cadence_floor(row)), new_gen=False), dead=False, attempt=row.attempt + 1, failures=0
    )


def resumed(task: UUID, row: TaskRow, tail: int, now: int) -> TaskRow:
    """A pause ended: writes that came meanwhile cause one run.

    A pause is no outage, so what became due meanwhile is due now where its claim would count the runs that were missed.
    """
    row = written(task, replace(row, paused=False), tail, now)
    if row.catch_up == "all" and row.state is State.SCHEDULED and not row.dead and row.due < now:
        return _at(row, now, new_gen=False, waiting_for_records=row.waiting_for_records)
    return row


def requested(row: TaskRow, now: int) -> TaskRow:
    """Run now, as soon as the cadence allows; while running, as the overlap policy says."""
    due = max(now, cadence_floor(row))
    if row.state is State.WAITING:
        return _at(row, due, new_gen=True)
    if row.state is State.SCHEDULED:
        return row if row.dead or row.due <= due else _at(row, due, new_gen=False)
    if row.overlap == "buffer_one":
        return replace(row, pending=max(row.pending, 1))
    if row.overlap == "buffer_all":
        return replace(row, pending=min(MAX_PENDING, row.pending + 1))
    if row.overlap == "cancel_other":
        return _at(replace(row, epoch=row.epoch + 1), due, new_gen=True)
    return row


def backfilled(row: TaskRow, runs: int, now: int) -> TaskRow:
    """`runs` more generations, a cadence apart."""
    if row.pending + runs > MAX_PENDING:
        raise TransitionError(
            f"{runs} more runs would make {row.pending + runs} pending; the limit is {MAX_PENDING}: wait for some to run"
        )
    row = replace(row, pending=row.pending + runs)
    if row.state is State.WAITING and not row.paused:
        return _next_asked_for(row, now)
    return row


def is_done(row: TaskRow, item: HeapItem) -> bool:
    """Whether an item will never be needed again: its generation is over, or the same one has another due time."""
    return item.gen < row.live_gen or (item.gen == row.gen and item.due_ms != row.due // 1000)
