"""The tender's transactions: sweeping dirty partitions, clearing intents, raising boundaries, asking for pushes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from s3heap_tender import outbox, transitions
from s3heap_tender.items import HeapItem
from s3heap_tender.records import Dirty, Intent, Tombstone
from s3heap_tender.sysdb_base import SysDbBase
from s3heap_tender.transitions import Layout, Step

SWEEP_TASKS: Final = 200
SWEEP_PARTITIONS: Final = 50
CLEAR_INTENTS: Final = 500


def sweep(sysdb: SysDbBase, markers: Sequence[Dirty]) -> int:
    """Handle dirty partitions: their waiting tasks are scheduled. Returns how many tasks changed."""
    changed = at = 0
    while at < len(markers):
        handled, more = _sweep_batch(sysdb, markers[at : at + SWEEP_PARTITIONS])
        at += handled
        changed += more
    return changed


def _sweep_batch(sysdb: SysDbBase, markers: Sequence[Dirty]) -> tuple[int, int]:
    """As many of the partitions as fit into one transaction; returns how many those were, and the tasks changed."""

    def body(tr: Any, at: Layout) -> tuple[tuple[int, int, list[tuple[Dirty, UUID]]], list[Step]]:
        steps: list[Step] = []
        unfinished: list[tuple[Dirty, UUID]] = []
        handled = 0
        for marker in markers:
            room = SWEEP_TASKS - len(steps)
            if room <= 0:
                break
            done, after = transitions.sweep(tr, at, marker, None, room)
            handled += 1
            steps.extend(done)
            if after is not None:
                unfinished.append((marker, after))
        return (handled, len(steps), unfinished), steps

    handled, changed, unfinished = sysdb.commit("sweep", body)
    for marker, start in unfinished:
        after: UUID | None = start
        while after is not None:
            more, after = _sweep_page(sysdb, marker, after)
            changed += more
    return handled, changed


def _sweep_page(sysdb: SysDbBase, marker: Dirty, after: UUID) -> tuple[int, UUID | None]:
    def body(tr: Any, at: Layout) -> tuple[tuple[int, UUID | None], list[Step]]:
        steps, resume_after = transitions.sweep(tr, at, marker, after, SWEEP_TASKS)
        return (len(steps), resume_after), steps

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
