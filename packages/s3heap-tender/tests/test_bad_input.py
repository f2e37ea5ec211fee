"""Bad input: clear errors, nothing lost, nobody starved."""

from __future__ import annotations

import uuid
from typing import Any

import msgpack
import pytest

import idempotent_txn
from fdb_schema import NewerFormatError
from s3heap_tender import (
    CorruptObjectError,
    Heap,
    HeapItem,
    HeapMismatchError,
    HeapStore,
    OutcomeUnknownError,
    StoreUnavailableError,
    fsck,
)
from s3heap_tender.inspection import quarantined
from s3heap_tender.objects import quarantining
from s3heap_tender.rows.items import ObjectHeader, decode_object, encode_object
from s3heap_tender.rows.naming import ObjectName
from s3heap_tender.stores import StoredObject, port


def run_nothing(task: Any, gen: int, epoch: int) -> None:
    return None


def overwrite(store: Any, key: str, body: bytes) -> None:
    found = store.get(key)
    store.put(key, body, if_match=found.etag if isinstance(found, StoredObject) else None)


def only_key(bench: Any) -> str:
    [bucket] = bench.heap.buckets()
    return str(bucket.key)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: b"",
        lambda body: b"\x00\x00\x00\x05hello",
        lambda body: body[:-1],
        lambda body: body[:-1] + bytes([body[-1] ^ 1]),
        lambda body: body + bytes(48),
        lambda body: b"\xff\xff\xff\xff" + body,
        lambda body: body[:20],
    ],
)
def test_a_damaged_object_is_moved_aside_and_its_items_come_back(quick: Any, spoil: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    key = only_key(quick)
    body = quick.store.get(key).body
    with pytest.raises(CorruptObjectError, match=key):
        decode_object(key, spoil(body))
    overwrite(quick.store, key, spoil(body))
    assert quick.heap.peek() == []
    assert list(quick.heap.unreadable) == [key]
    report = quick.tender.turn(prune=True, reconcile=True)
    assert report.reconciled == 1
    assert any("moved" in error for error in report.errors)
    [note] = quarantined(quick.sysdb)
    assert note["key"] == key
    assert quick.store.get(note["moved_to"]).body == spoil(body)
    assert quick.settle(run_nothing, seconds=5) == 1
    assert quick.sysdb.get(task.id).state == "waiting"


def test_an_object_larger_than_any_of_the_heaps_is_removed_unread_and_its_items_come_back(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    key = only_key(quick)
    overwrite(quick.store, key, quick.store.get(key).body + bytes(10_000))
    for module in (port, quarantining):
        monkeypatch.setattr(module, "MOST_BYTES", 5_000)
    assert quick.heap.peek() == []
    assert list(quick.heap.unreadable) == [key]
    report = quick.tender.turn(prune=True, reconcile=True)
    assert report.reconciled == 1
    assert any(f"removed {key}" in error and "5,000" in error for error in report.errors)
    [note] = quarantined(quick.sysdb)
    assert (note["key"], note["moved_to"]) == (key, "")
    assert quick.settle(run_nothing, seconds=5) == 1
    assert quick.heap.unreadable == {}
    assert quick.sysdb.get(task.id).state == "waiting"


@pytest.mark.parametrize("most", [0, 10_000_000])
def test_a_heap_whose_objects_would_be_too_large_to_read_is_refused(quick: Any, most: int) -> None:
    with pytest.raises(ValueError, match="max_object_items must be 1 to"):
        Heap(quick.store, quick.sysdb, max_object_items=most)


def test_an_object_under_another_name_is_not_believed(quick: Any) -> None:
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    name = ObjectName.parse(only_key(quick))
    assert name is not None
    copy = ObjectName(name.shard, name.bucket + 60, 0).key
    quick.store.put(copy, quick.store.get(name.key).body, if_match=None)
    quick.heap.peek()
    assert "copied or renamed" in quick.heap.unreadable[copy]


def test_an_object_of_a_newer_release_is_left_alone(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    key = only_key(quick)
    head = msgpack.packb({"v": 2, "later": True})
    newer = len(head).to_bytes(4, "big") + head + b"whatever"
    with pytest.raises(NewerFormatError, match="upgrade"):
        decode_object(key, newer)
    overwrite(quick.store, key, newer)
    quick.tender.turn(prune=True, reconcile=False)
    assert quick.store.get(key).body == newer
    assert "upgrade" in quick.heap.unreadable[key]
    assert quick.sysdb.get(task.id).state == "scheduled"


def test_items_of_a_foreign_sysdb_are_kept_and_never_run(quick: Any) -> None:
    stray = HeapItem(uuid.uuid4(), uuid.uuid4(), 1, quick.clock.value // 1000)
    quick.heap.push(stray)
    started: list[Any] = []
    quick.settle(lambda *args: started.append(args), seconds=90)
    stats = quick.heap.prune()
    assert (stats.pruned, stats.retained, stats.unknown) == (0, 1, 1)
    assert started == []
    found = fsck(quick.heap, quick.sysdb)
    assert found.unknown == (stray,)
    assert not found.clean


def test_keys_that_are_none_of_the_heaps_are_named_and_left(quick: Any) -> None:
    for key in ("notes.txt", "9999-19700101T000000Z-000", "0000-19701301T000000Z-000"):
        quick.store.put(key, b"mine", if_match=None)
    found = fsck(quick.heap, quick.sysdb, repair=True)
    assert sorted(found.foreign) == ["0000-19701301T000000Z-000", "9999-19700101T000000Z-000", "notes.txt"]
    assert quick.store.get("notes.txt").body == b"mine"


def test_a_heap_of_another_sysdb_is_refused(quick: Any) -> None:
    sysdb = type(quick.sysdb)(quick.db, "another", sessions=quick.sysdb.sessions, clock=quick.clock)
    with pytest.raises(HeapMismatchError, match=r"the heap of another cluster.*a heap of its own"):
        Heap(quick.store, sysdb)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": 2}, NewerFormatError, "upgrade"),
        ({"shards": 7}, HeapMismatchError, "7 shards"),
        ({"sysdb": uuid.uuid4().bytes}, HeapMismatchError, "another prefix"),
        ({"sysdb": b"short"}, HeapMismatchError, "is this a heap"),
        ({"sysdb": "text"}, HeapMismatchError, "is this a heap"),
        ({"format": "1"}, HeapMismatchError, "is this a heap"),
        ({"bucket_seconds": 0}, HeapMismatchError, "is this a heap"),
        ({"bucket_seconds": "60"}, HeapMismatchError, "is this a heap"),
        ({"bucket_seconds": 10**12}, HeapMismatchError, "somebody changed it"),
    ],
)
def test_a_meta_object_that_does_not_fit_is_refused(
    quick: Any, change: dict[str, Any], error: Any, message: str
) -> None:
    meta = msgpack.unpackb(quick.store.get("meta").body)
    overwrite(quick.store, "meta", msgpack.packb({**meta, **change}))
    with pytest.raises(error, match=message):
        Heap(quick.store, quick.sysdb)


def test_a_meta_object_that_was_removed_is_written_as_it_was(quick: Any) -> None:
    """Processes that run go on with the heap as it is cut; one that starts must find their items, and they its."""
    store = HeapStore("memory:")
    assert Heap(store, quick.sysdb, bucket_seconds=10).bucket_seconds == 10
    before = store.get("meta")
    assert isinstance(before, StoredObject)
    store.delete("meta", if_match=before.etag)
    assert Heap(store, quick.sysdb, may_move=False).bucket_seconds == 10
    after = store.get("meta")
    assert isinstance(after, StoredObject)
    assert after.body == before.body


def test_a_meta_object_that_is_garbage_is_refused(quick: Any) -> None:
    overwrite(quick.store, "meta", b"\xc1")
    with pytest.raises(HeapMismatchError, match="is this a heap"):
        Heap(quick.store, quick.sysdb)


def test_a_heap_keeps_the_bucket_length_it_was_made_with(quick: Any) -> None:
    store = HeapStore("memory:")
    assert Heap(store, quick.sysdb, bucket_seconds=10).bucket_seconds == 10
    assert Heap(store, quick.sysdb).bucket_seconds == 10
    assert Heap(store, quick.sysdb, bucket_seconds=10).bucket_seconds == 10
    with pytest.raises(HeapMismatchError, match="buckets of 10 s, not of 60 s"):
        Heap(store, quick.sysdb, bucket_seconds=60)


def test_an_object_that_was_damaged_on_its_way_is_not_moved_aside(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    key = only_key(quick)
    sound = quick.store.get(key)
    overwrite(quick.store, key, sound.body[:-1])
    assert quick.heap.peek() == []
    assert key in quick.heap.corrupt
    overwrite(quick.store, key, sound.body)
    assert quick.heap.quarantine(key, "damaged") is None
    assert quick.heap.corrupt == {}
    assert quick.heap.peek() == [task.item]


def test_what_was_pushed_late_is_peeked_at_in_the_order_of_its_due_time(quick: Any) -> None:
    late = quick.sysdb.create_task("p", "late", cadence=0)
    quick.clock.sleep(30)
    early = quick.sysdb.create_task("p", "early", cadence=0)
    quick.heap.push(early)
    quick.clock.sleep(120)
    quick.heap.push(late)
    assert quick.heap.peek(1) == [late.item]
    assert quick.heap.peek(2) == [late.item, early.item]


def test_a_poisoned_row_keeps_its_marker_and_starves_nobody(quick: Any) -> None:
    bad = quick.sysdb.create_task("bad", "t", cadence=0)
    good = [quick.sysdb.create_task(f"good{n}", "t", cadence=0) for n in range(5)]
    quick.settle(run_nothing, seconds=2)
    key = quick.sysdb.layout.keys.task(bad.id)
    idempotent_txn.run(quick.db, lambda tr: tr.set(key, b"\xc1poison"))
    for partition in ("bad", *(f"good{n}" for n in range(5))):
        quick.write(partition)
    report = quick.tender.turn(prune=False, reconcile=False)
    assert report.swept == 5
    assert any("can't be read" in error for error in report.errors)
    assert quick.settle(run_nothing, seconds=2) == 5
    assert {quick.sysdb.get(task.id).state for task in good} == {"waiting"}
    shard = quick.sysdb.layout.shard_of(bad.partition)
    marker = quick.sysdb.layout.keys.dirty(shard, bad.partition)
    assert idempotent_txn.run(quick.db, lambda tr: tr.get(marker).present())


def test_failing_tasks_starve_nobody(quick: Any) -> None:
    for number in range(50):
        quick.sysdb.create_task("p", f"bad{number}", cadence=0, backoff=0.5, max_attempts=1000)
    good = quick.sysdb.create_task("q", "good", cadence=0)

    def trigger(task: Any, gen: int, epoch: int) -> None:
        if task.name != "good":
            raise RuntimeError("always")

    quick.settle(trigger, seconds=3)
    for _ in range(3):
        quick.write("q")
        quick.settle(trigger, seconds=2)
    assert quick.sysdb.get(good.id).gen == 4


class Broken:
    """A store that is down, until it is up again."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.url = inner.url
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if self.down and name in ("get", "put", "delete", "list"):

            def fail(*args: Any, **options: Any) -> Any:
                raise OutcomeUnknownError("down") if name in ("put", "delete") else StoreUnavailableError("down")

            return fail
        return getattr(self.inner, name)


def test_a_store_that_is_down_for_a_minute_loses_nothing(quick: Any) -> None:
    store = Broken(quick.store)
    quick.store = store
    quick.heap = quick.new_heap(quick.sysdb)
    quick.tender = type(quick.tender)(quick.heap, quick.sysdb)
    tasks = [quick.sysdb.create_task(f"p{n}", "t", cadence=0) for n in range(5)]
    quick.settle(run_nothing, seconds=3)
    store.down = True
    for number in range(5):
        quick.write(f"p{number}")
    for _ in range(60):
        report = quick.tender.turn(prune=True, reconcile=False)
        assert report.errors
        quick.clock.sleep(1)
        with pytest.raises(StoreUnavailableError):
            quick.new_scheduler(run_nothing).turn()
    assert {quick.sysdb.get(task.id).state for task in tasks} == {"scheduled"}
    store.down = False
    assert quick.settle(run_nothing, seconds=5) == 5
    assert quick.violations() == []


def test_a_sysdb_that_is_down_during_a_prune_costs_no_item(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [quick.sysdb.create_task("p", f"t{n}", cadence=0) for n in range(5)]
    quick.tend()
    for task in tasks[:3]:
        quick.sysdb.delete(task.id)
    before = {bucket.key: quick.store.get(bucket.key) for bucket in quick.heap.buckets()}
    with monkeypatch.context() as patch:

        def down(*args: Any) -> Any:
            raise ConnectionError("the database is down")

        patch.setattr(quick.sysdb, "verdicts", down)
        with pytest.raises(ConnectionError):
            quick.heap.prune()
    assert {key: quick.store.get(key) for key in before} == before
    assert quick.heap.prune().pruned == 3
    assert {item.task for item in quick.heap.peek()} == {task.id for task in tasks[3:]}


def test_a_push_beside_an_object_of_a_newer_release_goes_to_another(quick: Any) -> None:
    quick.sysdb.create_task("p", "t0", cadence=0)
    quick.tend()
    for bucket in quick.heap.buckets():
        head = msgpack.packb({"v": 2})
        overwrite(quick.store, bucket.key, len(head).to_bytes(4, "big") + head)
    quick.heap.disown(0)
    quick.heap.disown(1)
    tasks = [quick.sysdb.create_task("p", f"t{n}", cadence=0) for n in range(1, 9)]
    quick.tend()
    assert {item.task for item in quick.heap.peek()} == {task.id for task in tasks}


def test_a_deleted_bucket_comes_back_from_the_sysdb(quick: Any) -> None:
    tasks = [quick.sysdb.create_task("p", f"t{n}", cadence=0) for n in range(20)]
    quick.tend()
    running = quick.sysdb.claim(tasks[0])
    for bucket in quick.heap.buckets():
        quick.store.delete(bucket.key, if_match=quick.store.get(bucket.key).etag)
    assert fsck(quick.heap, quick.sysdb).missing == 20
    assert quick.tender.turn(prune=False, reconcile=True).reconciled == 20
    quick.tend()
    assert {item.task for item in quick.heap.peek()} == {task.id for task in tasks}
    assert fsck(quick.heap, quick.sysdb).clean
    quick.sysdb.finish(running)
    assert quick.settle(run_nothing, seconds=3) == 19


@pytest.mark.parametrize("seconds", [-90.0, 90.0])
def test_a_wall_clock_that_is_wrong_changes_nothing(quick: Any, seconds: float, monkeypatch: Any) -> None:
    import time

    from fdb_schema import ClusterClock
    from s3heap_tender import SysDb
    from s3heap_tender.claims.sessions import LocalSessions

    real = time.time
    clock = ClusterClock(quick.sysdb.space, wall=lambda: real() + seconds)
    skewed = SysDb(quick.db, quick.cluster, sessions=LocalSessions(), clock=clock)
    task = skewed.create_task("p", "t", cadence=60)
    assert abs(task.due - quick.clock.value / 1e6) < 5
    quick.tend()
    assert quick.heap.peek() == [task.item]


def test_a_stalled_push_below_the_boundary_is_made_again(quick: Any) -> None:
    from s3heap_tender.claims import outbox, tending

    task = quick.sysdb.create_task("p", "t", cadence=0)
    shard = quick.sysdb.layout.shard_of(task.id)
    [intent] = quick.sysdb.read(outbox.read_intents, shard, None, 10)
    placed = quick.heap.push(intent.item)
    quick.clock.sleep(120)
    quick.heap.prune()
    for bucket in quick.heap.buckets():
        quick.store.delete(bucket.key, if_match=quick.store.get(bucket.key).etag)
    assert tending.clear_intents(quick.sysdb, shard, [(intent, placed[intent.item])]) == 1
    quick.tend()
    assert quick.heap.peek() == [task.item]


def test_objects_overflow_into_parts_and_never_have_the_same_bytes_twice(quick: Any) -> None:
    heap = quick.new_heap(quick.sysdb, max_object_items=10)
    tasks = [quick.sysdb.create_task("p", f"t{n}", cadence=0) for n in range(45)]
    for at in range(0, 45, 9):
        heap.push(tasks[at : at + 9])
    assert sum(bucket.items for bucket in heap.buckets()) == 45
    assert max(bucket.items for bucket in heap.buckets()) <= 10
    key = heap.buckets()[0].key
    before = quick.store.get(key)
    header = decode_object(key, before.body)[0]
    again = encode_object(ObjectHeader(header.shard, header.bucket, header.part, 0, header.seq + 1, header.writer), [])
    assert again != before.body
    assert {item.task for item in heap.peek(1000)} == {task.id for task in tasks}


def test_pushing_writes_even_what_is_there(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.heap.push(task)
    before = quick.store.get(only_key(quick)).etag
    quick.heap.push([task, task])
    assert quick.store.get(only_key(quick)).etag != before
    assert quick.heap.peek() == [task.item]


def test_a_file_heap_and_an_s3_heap_do_the_same(any_store: Any, quick: Any) -> None:
    assert isinstance(any_store, HeapStore)
    quick.store = any_store
    quick.heap = quick.new_heap(quick.sysdb)
    quick.tender = type(quick.tender)(quick.heap, quick.sysdb)
    for number in range(3):
        quick.sysdb.create_task(f"p{number}", "t", cadence=1)
    assert quick.settle(run_nothing, seconds=2) == 3
    for number in range(3):
        quick.write(f"p{number}")
    assert quick.settle(run_nothing, seconds=4) == 3
    quick.clock.sleep(120)
    quick.heap.prune()
    assert quick.heap.buckets() == []
    assert quick.violations() == []
