"""A deleted task's tombstone goes when nothing of it is left on the heap, and what comes later all the same never runs."""

from __future__ import annotations

import uuid
from typing import Any

import msgpack
import pytest

import idempotent_txn
from s3heap_tender import ClaimRefusedError, TaskNotFoundError, Tender, UnknownItemError, fsck
from s3heap_tender.claims import outbox
from s3heap_tender.stores import StoredObject
from s3heap_tender.trace import Trace

KEEP = 3600.0


def tombstones(bench: Any) -> list[uuid.UUID]:
    return [tombstone.task for tombstone in bench.sysdb.read(outbox.read_tombstones, None, 100)]


def tender(bench: Any) -> Tender:
    return Tender(bench.heap, bench.sysdb, keep_tombstones=KEEP)


def deleted_task(bench: Any) -> Any:
    task = bench.sysdb.create_task("p", "t", cadence=0)
    bench.tend()
    bench.sysdb.delete(task.id)
    return task


def test_a_tombstone_is_kept_for_its_time_and_then_dropped(bench: Any) -> None:
    task = deleted_task(bench)
    bench.heap.prune()
    assert tender(bench).turn(prune=False, reconcile=True).forgotten == 0
    bench.clock.sleep(KEEP - 1)
    assert tender(bench).turn(prune=False, reconcile=True).forgotten == 0
    assert tombstones(bench) == [task.id]
    bench.clock.sleep(2)
    assert tender(bench).turn(prune=False, reconcile=True).forgotten == 1
    assert tombstones(bench) == []
    with pytest.raises(TaskNotFoundError, match="there is no task"):
        bench.sysdb.delete(task.id)
    assert bench.violations() == []


def test_a_tombstone_stays_while_something_of_its_task_is_on_the_heap(quick: Any) -> None:
    task = deleted_task(quick)
    quick.clock.sleep(KEEP + 1)
    assert tender(quick).turn(prune=False, reconcile=True).forgotten == 0
    assert quick.sysdb.are_done([task.item]) == [True]
    assert quick.heap.prune().pruned == 1
    assert tender(quick).turn(prune=False, reconcile=True).forgotten == 1
    with pytest.raises(UnknownItemError, match="nothing is known"):
        quick.sysdb.are_done([task.item])


def test_a_tombstone_stays_while_an_object_of_its_shard_cannot_be_read(quick: Any) -> None:
    task = deleted_task(quick)
    quick.clock.sleep(KEEP + 1)
    [bucket] = quick.heap.buckets()
    found = quick.store.get(bucket.key)
    head = msgpack.packb({"v": 2})
    assert isinstance(found, StoredObject)
    newer = quick.store.put(bucket.key, len(head).to_bytes(4, "big") + head, if_match=found.etag)
    assert tender(quick).turn(prune=False, reconcile=True).forgotten == 0
    assert tombstones(quick) == [task.id]
    quick.store.delete(bucket.key, if_match=newer)
    assert tender(quick).turn(prune=False, reconcile=True).forgotten == 1


def test_what_is_pushed_after_its_tombstone_went_never_runs_and_is_shown(quick: Any) -> None:
    task = deleted_task(quick)
    other = quick.sysdb.create_task("p", "other", cadence=0)
    quick.heap.prune()
    quick.clock.sleep(KEEP + 1)
    tender(quick).turn(prune=False, reconcile=True)
    quick.heap.push(task.item)  # by a process that slept longer than anyone may
    started: list[Any] = []
    quick.settle(lambda task, gen, epoch: started.append(task.id), seconds=3)
    assert started == [other.id]
    with pytest.raises(ClaimRefusedError) as refusal:
        quick.sysdb.claim(task.item)
    assert refusal.value.reason == "deleted"
    assert fsck(quick.heap, quick.sysdb).unknown == (task.item,)


def test_an_intent_of_a_task_that_was_forgotten_is_not_pushed(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    shard = quick.sysdb.layout.shard_of(task.id)
    intents = quick.sysdb.read(outbox.read_intents, shard, None, 10)
    quick.sysdb.delete(task.id)
    quick.clock.sleep(KEEP + 1)
    late = tender(quick)
    report = late.turn(prune=False, reconcile=True)
    assert report.forgotten == 1
    late.push(shard, intents, report)
    assert quick.heap.buckets() == []


def test_tombstones_of_shards_that_another_tender_owns_are_left_to_it(quick: Any) -> None:
    for number in range(4):
        quick.sysdb.delete(quick.sysdb.create_task("p", f"t{number}", id=uuid.UUID(int=number + 1)).id)
    quick.clock.sleep(KEEP + 1)

    class First:
        def shards(self) -> dict[int, int]:
            return {0: 0}

        def step_down(self, shard: int) -> None: ...
        def close(self) -> None: ...

    half = Tender(quick.heap, quick.sysdb, ownership=First(), keep_tombstones=KEEP)
    assert half.turn(prune=False, reconcile=True).forgotten == 2
    assert {task.int % 2 for task in tombstones(quick)} == {1}


def test_deleting_ever_so_many_tasks_leaves_no_row(quick: Any) -> None:
    quick.sysdb.trace = Trace()
    for number in range(600):
        quick.sysdb.delete(quick.sysdb.create_task("p", f"t{number}", payload=b"x").id)
    quick.clock.sleep(KEEP + 1)
    assert tender(quick).turn(prune=True, reconcile=True).forgotten == 600
    keys = quick.sysdb.layout.keys
    for begin, end in (keys.tomb_range(), keys.tasks_range(), keys.intent_range(), keys.active_range()):
        assert idempotent_txn.run(quick.db, lambda tr, b=begin, e=end: list(tr[b:e])) == []


def test_forgetting_what_was_never_deleted_is_found_by_the_checker(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.sysdb.trace.line("forget", task=task.id)
    assert any("never deleted" in found for found in quick.violations(drained=False))
