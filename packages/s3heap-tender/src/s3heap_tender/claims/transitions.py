"""The sysdb's transactions on tasks: functions over `tr`, each naming its operation of the state table.

They compose: none opens a transaction. Each returns `Step`s, what it did to each task, which the caller traces once
the commit is known. All may run several times; only the commit counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from fdb_schema import RecordError, get_many, pack, read_clock
from s3heap_tender.claims import index
from s3heap_tender.claims.writes import depend_on_no_write, log_of, seeing
from s3heap_tender.errors import ClaimRefusedError, TaskExistsError, TaskNotFoundError
from s3heap_tender.rows import core
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.keys import stamped
from s3heap_tender.rows.known import read_known
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.output import MAX_OUTPUT_TEXT
from s3heap_tender.rows.records import Claim, DeadLetterRow, Dirty, RunOutput, TaskRow, item_of, task_of
from s3heap_tender.rows.states import State, check_change


@dataclass(frozen=True, slots=True)
class Step:
    """One task's change in one transaction, for the trace."""

    operation: str
    task: UUID
    before: TaskRow | None
    after: TaskRow | None
    now: int  # cluster clock, µs
    extra: dict[str, Any] = field(default_factory=dict)


def count(tr: Any, at: Layout, name: str, by: int = 1) -> None:
    """Add to a statistic, without a conflict."""
    tr.add(at.keys.stat(name), by.to_bytes(8, "little"))


def load(tr: Any, at: Layout, task: UUID, *, snapshot: bool = False) -> TaskRow | None:
    """The task's row; None where there is none."""
    data = (tr.snapshot if snapshot else tr).get(at.keys.task(task)).value
    return None if data is None else TaskRow.decode(data)


def load_existing(tr: Any, at: Layout, task: UUID) -> TaskRow:
    """The task's row. Raises `TaskNotFoundError`."""
    row = load(tr, at, task)
    if row is None:
        raise TaskNotFoundError(
            f"task {task} was deleted" if tr.get(at.keys.tomb(task)).present() else f"there is no task {task}"
        )
    return row


def put_intent(tr: Any, at: Layout, task: UUID, row: TaskRow) -> None:
    """Ask for a push of the row's generation, in the transaction that scheduled it."""
    value = row.gen.to_bytes(8, "big") + (row.due // 1000).to_bytes(8, "big") + row.partition.bytes
    shard = at.shard_of(task)
    tr.set_versionstamped_value(at.keys.intent(shard, task), stamped(value))
    index.ring(tr, at, shard)


def store(tr: Any, at: Layout, operation: str, task: UUID, before: TaskRow | None, after: TaskRow, now: int) -> Step:
    """Write the row a core function made, and the intent where the item it needs on the heap is a new one."""
    check_change(operation, None if before is None else before.state, after.state, task)
    if before is not None:
        after = replace(after, step=before.step + 1)
    tr.set(at.keys.task(task), after.encode())
    index.changed(tr, at, task, before, after, now)
    was_active = before is not None and before.state is not State.WAITING
    if after.state is State.WAITING:
        tr.clear(at.keys.active(at.shard_of(task), task))
    elif not was_active:
        tr.set(at.keys.active(at.shard_of(task), task), b"")
    if after.state is State.SCHEDULED and (
        before is None or before.state is not State.SCHEDULED or (before.gen, before.due) != (after.gen, after.due)
    ):
        put_intent(tr, at, task, after)
    elif before is not None and before.paused and not after.paused:
        index.ring_pushed(tr, at, at.shard_of(task))  # its item is on the heap already, and no push tells of it
    return Step(operation, task, before, after, now)


def create(tr: Any, at: Layout, task: UUID, row: TaskRow, payload: bytes) -> tuple[TaskRow, list[Step]]:
    """A2 → B2: row, generation 1 due now, intent. The same name with the same settings is the task there is.

    Raises `TaskExistsError` where the name is taken with other settings.
    """
    keys = at.keys
    known = tr.get(keys.name(row.partition, row.name)).value
    if known is not None:
        there = UUID(bytes=bytes(known))
        found = load_existing(tr, at, there)
        if settings(found) != settings(row) or (tr.get(keys.payload(there)).value or b"") != payload:
            raise TaskExistsError(
                f"partition {row.partition} has a task named {row.name!r} ({there}) with other settings: "
                f"delete it first, or give the new one another name"
            )
        return found, []
    if tr.get(keys.task(task)).present() or tr.get(keys.tomb(task)).present():
        raise TaskExistsError(f"task id {task} was used before; ids are never used again")
    now = read_clock(tr, keys.space)
    due = -(-now // 1000) * 1000
    row = replace(row, due=due, created=now)
    tr.set(keys.name(row.partition, row.name), task.bytes)
    tr.set(keys.part(row.partition, task), b"")
    if payload:
        tr.set(keys.payload(task), payload)
    return row, [store(tr, at, "create", task, None, row, now)]


def settings(row: TaskRow) -> tuple[Any, ...]:
    """What the creator of a task chose."""
    return (
        row.cadence,
        row.min_records,
        row.max_wait,
        row.jitter,
        row.backoff,
        row.max_attempts,
        row.overlap,
        row.catch_up,
    )


def task_id_of_name(tr: Any, at: Layout, partition: UUID, name: str) -> UUID | None:
    """The id of a partition's task; None where it has none of that name."""
    known = tr.get(at.keys.name(partition, name)).value
    return None if known is None else UUID(bytes=bytes(known))


def delete(tr: Any, at: Layout, task: UUID) -> list[Step]:
    """Any row → A: row, intent and dead letters go, a tombstone stays. Deleting again changes nothing."""
    row = load(tr, at, task)
    keys = at.keys
    if row is None:
        if tr.get(keys.tomb(task)).present():
            return []
        raise TaskNotFoundError(f"there is no task {task}")
    check_change("delete", row.state, None, task)
    for key in (
        keys.task(task),
        keys.payload(task),
        keys.output(task),
        keys.part(row.partition, task),
        keys.name(row.partition, row.name),
        keys.active(at.shard_of(task), task),
        keys.intent(at.shard_of(task), task),
    ):
        tr.clear(key)
    tr.clear_range(*keys.dlq_range(task))
    now = read_clock(tr, keys.space)
    index.changed(tr, at, task, row, None, now)
    tr.set(keys.tomb(task), row.partition.bytes + now.to_bytes(8, "big"))
    return [Step("delete", task, row, None, now)]


@dataclass(frozen=True, slots=True)
class Swept:
    """What one transaction did for the tasks of a dirty partition."""

    steps: list[Step]
    after: UUID | None  # the task to go on after; None once all are handled
    unreadable: tuple[UUID, ...] = ()  # tasks whose rows can't be read


def sweep(tr: Any, at: Layout, marker: Dirty, after: UUID | None, limit: int, *, keep: bool = False) -> Swept:
    """C → B for the tasks of a dirty partition, at most `limit` of them from `after` on.

    Once all are handled the marker is cleared iff it is still the one that was read; it stays where a task's row can't be
    read, or where `keep` says so. Reads of tasks that need nothing are snapshots: a running task's `finish` and a paused
    one's `resume` re-read the log themselves, and conflict with a write they did not see.
    """
    keys = at.keys
    begin, end = keys.part_range(marker.partition)
    if after is not None:
        begin = keys.part(marker.partition, after) + b"\x00"
    tasks = [task for task, _, _ in read_known(tr, begin, end, limit, keys.task_of)]
    tail, again = log_of(tr, at, marker.partition)
    now = read_clock(tr, keys.space)
    steps: list[Step] = []
    unreadable: list[UUID] = []
    values = get_many(tr, [keys.task(task) for task in tasks], snapshot=True)
    for task, value in zip(tasks, values, strict=True):
        try:
            row = None if value is None else TaskRow.decode(bytes(value))
        except RecordError:
            unreadable.append(task)
            continue
        if _after_writes(task, row, tail, again, now) is None:
            continue
        row = load(tr, at, task)
        changed = _after_writes(task, row, tail, again, now)
        if row is not None and changed is not None:
            steps.append(store(tr, at, "sweep", task, row, changed, now))
    if len(tasks) == limit:
        return Swept(steps, tasks[-1], tuple(unreadable))
    if not unreadable and not keep:
        tr.compare_and_clear(keys.dirty(marker.shard, marker.partition), marker.value)
    return Swept(steps, None, tuple(unreadable))


def _after_writes(task: UUID, row: TaskRow | None, tail: int, again: int, now: int) -> TaskRow | None:
    """The row that writes make of this one; None where they change nothing."""
    if row is None:
        return None
    seen = replace(row, again=again)
    changed = core.written(task, seen, tail, now)
    return None if changed is seen else changed


def claim(
    tr: Any, at: Layout, item: HeapItem, session: str, is_over: Callable[[Any, TaskRow], bool]
) -> tuple[Claim, list[Step]]:
    """Start the item's generation, G1 enforced; or take it over where the run that holds it `is_over(tr, row)`.

    Raises `ClaimRefusedError`.
    """
    keys = at.keys
    row = load(tr, at, item.task)
    now = read_clock(tr, keys.space)
    operation = "claim"
    try:
        core.refuse_claim(item.task, row, item, now)
    except ClaimRefusedError as refusal:
        if refusal.reason != "running" or row is None or not is_over(tr, row):
            raise
        if row.paused:
            raise ClaimRefusedError(
                f"task {item.task} is paused; its run, which died, goes on after resume", reason="paused"
            ) from None
        operation = "retake"
    assert row is not None
    row, tail = seeing(tr, at, row)
    after = replace(core.claimed(row, session, tail, now), started_wall=time.time_ns() // 1000)
    step = store(tr, at, operation, item.task, row, after, now)
    count(tr, at, "starts" if operation == "claim" else "retakes")
    if operation == "claim" and now - core.earliest_start(row) > max(row.cadence, 60_000_000):
        count(tr, at, "missed_deadlines")
    assert step.after is not None
    payload = tr.get(keys.payload(item.task)).value or b""
    view = task_of(item.task, step.after, bytes(payload))
    claimed = Claim(view, row.gen, after.epoch, row.attempt, after.claim_tail, session, now / 1_000_000)
    return claimed, [replace(step, extra={"tail": tail})]


def begin(tr: Any, at: Layout, task: UUID, gen: int, epoch: int, leeway: int) -> tuple[int, list[Step]]:
    """The claim's run begins now, or up to `leeway` µs later, and not when the claim says. Raises `ClaimLostError`."""
    row = core.check_claim(task, load(tr, at, task), gen, epoch)
    now = read_clock(tr, at.keys.space)
    return now, [store(tr, at, "begin", task, row, core.begun(row, leeway, now), now)]


def finish(
    tr: Any, at: Layout, task: UUID, gen: int, epoch: int, upto_offset: int | None, output: str = ""
) -> list[Step]:
    """B1 → C1, or B1 → B1 with an intent where the log has more. Raises `ClaimLostError`.

    Without an offset the run read what there was when its attempt was first claimed.
    """
    before = core.check_claim(task, load(tr, at, task), gen, epoch)
    row, tail = seeing(tr, at, before)
    now = read_clock(tr, at.keys.space)
    upto = row.claim_tail if upto_offset is None else upto_offset
    after = core.finished(task, row, upto, tail, now)
    if after.state is State.WAITING:
        depend_on_no_write(tr, at, row)
    count(tr, at, "finishes")
    keep_output(tr, at, task, RunOutput(gen, epoch, True, now, output))
    extra = {"upto": upto, "stated": upto_offset is not None, "tail": tail, "held": [gen, epoch]}
    return [replace(store(tr, at, "finish", task, before, after, now), extra=extra)]


def keep_output(tr: Any, at: Layout, task: UUID, output: RunOutput) -> None:
    """The end of what the run printed, in the place of what an earlier one did; a run that printed nothing leaves none."""
    if output.text:
        tr.set(at.keys.output(task), replace(output, text=output.text[-MAX_OUTPUT_TEXT:]).encode())
    else:
        tr.clear(at.keys.output(task))


def fail(tr: Any, at: Layout, task: UUID, gen: int, epoch: int, error: str, output: str = "") -> list[Step]:
    """B1 → B1 plus an intent: the generation is due again later, or is a dead letter. Raises `ClaimLostError`."""
    row = core.check_claim(task, load(tr, at, task), gen, epoch)
    now = read_clock(tr, at.keys.space)
    after = core.failed(task, row, error, now)
    count(tr, at, "failures")
    keep_output(tr, at, task, RunOutput(gen, epoch, False, now, output))
    if after.dead:
        letter = DeadLetterRow(
            row.partition, row.name, row.attempt, after.failures, now, after.last_error, row.claim_tail
        )
        tr.set(at.keys.dead_letter(task, gen), letter.encode())
        count(tr, at, "dead_letters")
    step = store(tr, at, "dead_letter" if after.dead else "fail", task, row, after, now)
    return [replace(step, extra={"held": [gen, epoch]})]


def redrive(tr: Any, at: Layout, task: UUID, gen: int) -> list[Step]:
    """B → B plus an intent: a dead letter's generation is due again. Raises `TransitionError`."""
    row = load_existing(tr, at, task)
    now = read_clock(tr, at.keys.space)
    after = core.redriven(row, gen, task, now)
    tr.clear(at.keys.dead_letter(task, gen))
    return [store(tr, at, "redrive", task, row, after, now)]


def change(tr: Any, at: Layout, operation: str, task: UUID, body: Callable[[TaskRow, int, int], TaskRow]) -> list[Step]:
    """An API request (pause, resume, run_now, backfill): `body(row, tail, now)` gives the next row.

    The log's end is read as `finish` reads it: a row left waiting conflicts with a write that was not seen.
    """
    row = load_existing(tr, at, task)
    seen, tail = seeing(tr, at, row)
    now = read_clock(tr, at.keys.space)
    after = body(seen, tail, now)
    if after == seen:
        return []
    if after.state is State.WAITING:
        depend_on_no_write(tr, at, row)
    return [store(tr, at, operation, task, row, after, now)]


def reconcile(tr: Any, at: Layout, task: UUID, missing: HeapItem) -> list[Step]:
    """Ask for a push of an item that is missing from the heap, where the row still needs it and no intent is pending."""
    row = load(tr, at, task)
    if row is None or row.state is State.WAITING or item_of(task, row) != missing:
        return []
    if tr.get(at.keys.intent(at.shard_of(task), task)).present():
        return []
    put_intent(tr, at, task, row)
    after = replace(row, step=row.step + 1)
    check_change("reconcile", row.state, after.state, task)
    tr.set(at.keys.task(task), after.encode())
    return [Step("reconcile", task, row, after, read_clock(tr, at.keys.space))]


def quarantine(tr: Any, at: Layout, shard: int, key: str, reason: str, moved_to: str) -> None:
    """Remember an object that couldn't be read, and where its bytes went."""
    tr.set(at.keys.quarantine(shard, key), pack({"reason": reason, "moved_to": moved_to}))
