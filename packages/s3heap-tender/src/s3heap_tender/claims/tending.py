"""The tender's transactions: sweeping dirty partitions, clearing intents, raising boundaries, asking for pushes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from fdb_schema import RecordError, read_ahead
from s3heap_tender.claims import index, outbox, transitions
from s3heap_tender.claims.sysdb_base import SysDbBase
from s3heap_tender.claims.transitions import Step, Swept
from s3heap_tender.rows.items import HeapItem
from s3heap_tender.rows.layout import Layout
from s3heap_tender.rows.records import Dirty, Intent, TaskRow, Tombstone

SWEEP_TASKS: Final = 200
SWEEP_PARTITIONS: Final = 50
CLEAR_INTENTS: Final = 500
INDEX_PAGE: Final = 1000


def sweep(sysdb: SysDbBase, markers: Sequence[Dirty]) -> tuple[int, dict[UUID, Dirty]]:
    """Handle dirty partitions: their waiting tasks are scheduled.

    Returns how many tasks changed, and the tasks whose rows can't be read, each with its partition's marker, which stays.
    """
    changed = at = 0
    unreadable: dict[UUID, Dirty] = {}
    while at < len(markers):
        handled, more = _sweep_batch(sysdb, markers[at : at + SWEEP_PARTITIONS], unreadable)
        at += handled
        changed += more
    return changed, unreadable


def _sweep_batch(sysdb: SysDbBase, markers: Sequence[Dirty], unreadable: dict[UUID, Dirty]) -> tuple[int, int]:
    """As many of the partitions as fit into one transaction; returns how many those were, and the tasks changed."""

    def body(tr: Any, at: Layout) -> tuple[list[Swept], list[Step]]:
        steps: list[Step] = []
        swept: list[Swept] = []
        # What each partition's turn begins with is on its way before the first is looked at.
        ahead = read_ahead(tr, [span for marker in markers for span in _first_reads(at, marker)])
        for marker in markers:
            room = SWEEP_TASKS - len(steps)
            if room <= 0:
                break
            swept.append(transitions.sweep(tr, at, marker, None, room))
            steps.extend(swept[-1].steps)
        del ahead
        return swept, steps

    swept = sysdb.commit("sweep", body)
    changed = sum(len(done.steps) for done in swept)
    for marker, done in zip(markers, swept, strict=False):
        unreadable.update(dict.fromkeys(done.unreadable, marker))
        keep = bool(done.unreadable)
        while done.after is not None:
            done = _sweep_page(sysdb, marker, done.after, keep)
            unreadable.update(dict.fromkeys(done.unreadable, marker))
            keep = keep or bool(done.unreadable)
            changed += len(done.steps)
    return len(swept), changed


def _first_reads(at: Layout, marker: Dirty) -> list[tuple[bytes, bytes, int]]:
    keys = at.keys
    begin, end = keys.part_range(marker.partition)
    counters = (keys.log(marker.partition), keys.again(marker.partition))
    return [(begin, end, SWEEP_TASKS), *((key, key + b"\x00", 1) for key in counters)]


def _sweep_page(sysdb: SysDbBase, marker: Dirty, after: UUID, keep: bool) -> Swept:
    def body(tr: Any, at: Layout) -> tuple[Swept, list[Step]]:
        swept = transitions.sweep(tr, at, marker, after, SWEEP_TASKS, keep=keep)
        return swept, swept.steps

    return sysdb.commit("sweep", body)


def clear_intents(sysdb: SysDbBase, shard: int, pushed: Sequence[tuple[Intent, int]]) -> int:
    """Clear the intents that were pushed, each with the bucket it went to. Returns how many came too late and stay."""
    late = 0
    for start in range(0, len(pushed), CLEAR_INTENTS):
        page = pushed[start : start + CLEAR_INTENTS]

        def body(tr: Any, at: Layout, page: Sequence[tuple[Intent, int]] = page) -> tuple[int, list[Step]]:
            return outbox.clear_intents(tr, at, shard, page), []

        late += sysdb.commit("clear", body)
    return late


def raise_boundary(sysdb: SysDbBase, shard: int, bucket: int) -> int:
    """Allow no more pushes to buckets of the shard that start before `bucket`; returns the boundary in force."""
    return sysdb.commit("boundary", lambda tr, at: (outbox.raise_boundary(tr, at, shard, bucket), []))


def reconcile(sysdb: SysDbBase, missing: Sequence[HeapItem]) -> int:
    """Ask for a push of each item that the heap lacks and the sysdb still needs. Returns how many were asked for."""
    asked = 0
    for start in range(0, len(missing), SWEEP_TASKS):
        page = missing[start : start + SWEEP_TASKS]

        def body(tr: Any, at: Layout, page: Sequence[HeapItem] = page) -> tuple[int, list[Step]]:
            steps = [step for item in page for step in transitions.reconcile(tr, at, item.task, item)]
            return len(steps), steps

        asked += sysdb.commit("reconcile", body)
    return asked


def settle_done(sysdb: SysDbBase, keys: Sequence[bytes]) -> None:
    """What these notes told of is off the heap."""
    for start in range(0, len(keys), CLEAR_INTENTS):
        page = keys[start : start + CLEAR_INTENTS]

        def body(tr: Any, at: Layout, page: Sequence[bytes] = page) -> tuple[None, list[Step]]:
            index.clear_done(tr, at, page)
            return None, []

        sysdb.commit("pruned", body)


def reindex(sysdb: SysDbBase, shard: int) -> int:
    """Mend the index of a shard where it differs from the rows of its tasks; returns how many tasks that were."""
    found: dict[UUID, list[bytes]] = {}
    there: dict[bytes, bytes] = {}
    last: bytes | None = None
    while page := sysdb.read(index.entries, shard, last, INDEX_PAGE):
        for key, value, task in page:
            found.setdefault(task, []).append(key)
            there[key] = value
        last = page[-1][0]
    wrong: set[UUID] = set()
    after: UUID | None = None
    while page_of_rows := sysdb.read(outbox.active_rows, shard, after, INDEX_PAGE):
        for task, row in page_of_rows:
            keys = found.pop(task, [])
            right = index.entry(sysdb.layout, task, row) if isinstance(row, TaskRow) else None
            if isinstance(row, TaskRow) and keys != ([] if right is None else [right[0]]):
                wrong.add(task)
                found[task] = keys
            elif right is not None and there.get(right[0]) != right[1]:
                wrong.add(task)
        after = page_of_rows[-1][0]
    todo = sorted(wrong | found.keys())
    for start in range(0, len(todo), SWEEP_TASKS):
        page_of_tasks = todo[start : start + SWEEP_TASKS]

        def body(tr: Any, at: Layout, page: Sequence[UUID] = page_of_tasks) -> tuple[None, list[Step]]:
            for task in page:
                try:
                    row = transitions.load(tr, at, task)
                except RecordError:
                    continue
                index.mend(tr, at, task, row, found.get(task, ()))
            return None, []

        sysdb.commit("reindex", body)
    return len(todo)


def forget(sysdb: SysDbBase, tombstones: Sequence[Tombstone]) -> None:
    """Clear the tombstones of tasks of which nothing is on the heap nor on its way there."""
    for start in range(0, len(tombstones), CLEAR_INTENTS):
        page = tombstones[start : start + CLEAR_INTENTS]

        def body(tr: Any, at: Layout, page: Sequence[Tombstone] = page) -> tuple[None, list[Step]]:
            for tombstone in page:
                tr.compare_and_clear(at.keys.tomb(tombstone.task), tombstone.value)
            return None, []

        for tombstone in page:
            sysdb.trace.line("forget", task=tombstone.task)
        sysdb.commit("forget", body)


def count_conflicts(sysdb: SysDbBase, conflicts: int) -> None:
    """Add lost conditions to the statistics that every process sees."""

    def body(tr: Any, at: Layout) -> tuple[None, list[Step]]:
        transitions.count(tr, at, "conflicts", conflicts)
        return None, []

    sysdb.commit("stats", body)


def note_quarantined(sysdb: SysDbBase, shard: int, key: str, reason: str, moved_to: str) -> None:
    """Remember an object that couldn't be read, and where its bytes went."""

    def body(tr: Any, at: Layout) -> tuple[None, list[Step]]:
        transitions.quarantine(tr, at, shard, key, reason, moved_to)
        return None, []

    sysdb.commit("quarantine", body)
