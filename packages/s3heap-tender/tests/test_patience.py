"""Faults that must hold nobody up: a store that never answers, rows of leases that can't be read, poisoned partitions."""

from __future__ import annotations

import sys
import threading
import uuid
from typing import Any

import pytest

import idempotent_txn
from fdb_schema import RecordError
from s3heap_tender import (
    Heap,
    HeapItem,
    HeapStore,
    OutcomeUnknownError,
    StoreUnavailableError,
    metrics,
    prune_untended,
    tender,
)
from s3heap_tender.objects.heap_io import PATIENCE_SECONDS
from s3heap_tender.runs.ownership import LeasedShards
from s3heap_tender.stores.memory import MemoryStore
from s3heap_tender.upkeep import guarding


class Silent(MemoryStore):
    """A store that answers nothing: each request costs its whole time-out, on a clock of the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False
        self.now = 0.0
        self.requests = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _ask(self, error: type[Exception]) -> None:
        self.requests += 1
        if self.silent:
            self.now += 10.0
            raise error("no answer within 10 s")

    def get(self, key: str, **options: Any) -> Any:
        self._ask(StoreUnavailableError)
        return super().get(key, **options)

    def put(self, key: str, body: bytes, **options: Any) -> Any:
        self._ask(OutcomeUnknownError)
        return super().put(key, body, **options)

    def delete(self, key: str, **options: Any) -> Any:
        self._ask(OutcomeUnknownError)
        super().delete(key, **options)

    def list(self, prefix: str, **options: Any) -> Any:
        self._ask(StoreUnavailableError)
        return super().list(prefix, **options)


def silent_heap(bench: Any) -> tuple[Silent, Heap, Any]:
    store = Silent()
    heap = Heap(store, bench.sysdb, threads=0, linger=0, sleep=store.sleep)
    heap.io._monotonic = store.monotonic
    return store, heap, tender.Tender(heap, bench.sysdb, monotonic=store.monotonic)


def test_a_write_to_a_store_that_never_answers_is_given_up_in_bounded_time(quick: Any) -> None:
    store, heap, _ = silent_heap(quick)
    task = quick.sysdb.create_task("p", "t", cadence=0)
    heap.push(task)  # its bucket is known now: the next push begins with the write
    began = store.now
    store.silent = True
    with pytest.raises(StoreUnavailableError):
        heap.push(task)
    assert store.now - began <= PATIENCE_SECONDS + 3 * 10
    store.silent = False
    heap.push(task)
    assert heap.peek() == [task.item]


def test_a_delete_that_is_never_answered_is_given_up_in_bounded_time(quick: Any) -> None:
    store, heap, _ = silent_heap(quick)
    heap.push(quick.sysdb.create_task("p", "t", cadence=0))
    [content] = heap.scan()
    store.silent, began = True, store.now
    with pytest.raises(StoreUnavailableError):
        heap.io.delete(content)
    assert store.now - began <= PATIENCE_SECONDS + 3 * 10


def test_a_silent_store_costs_a_turn_its_patience_and_the_sweep_goes_on(bench_of_16: Any) -> None:
    bench = bench_of_16
    store, _, tended = silent_heap(bench)
    idle = [bench.sysdb.create_task(f"p{n}", "t", cadence=0) for n in range(40)]
    tended.turn(prune=False, reconcile=False)
    for task in idle:
        bench.sysdb.finish(bench.sysdb.claim(task))
        bench.write(task.partition)
    store.silent, began = True, store.now
    first = tended.turn(prune=True, reconcile=True)
    assert first.swept == 40
    assert first.store_failed
    # One operation's patience at most beyond the turn's own, not one for each of 16 shards.
    assert store.now - began <= guarding.STORE_PATIENCE + PATIENCE_SECONDS + 3 * 10
    firsts = []
    for _ in range(3):
        tried: list[int] = []
        tended._push = lambda shard, report, tried=tried: tried.append(shard)
        tended.turn(prune=False, reconcile=False)
        assert sorted(tried) == list(range(16))
        firsts.append(tried[0])
    assert len(set(firsts)) == 3, "each turn begins with another shard"
    del tended._push
    store.silent = False
    assert tended.turn(prune=False, reconcile=False).pushed == 40


@pytest.fixture
def bench_of_16() -> Any:
    from fdb_schema import open_database

    virtual: Any = sys.modules["s3heap_tender_tests_virtual"]
    return virtual.Bench(open_database(f"memory:patience-{uuid.uuid4().hex}"), shards=16)


def test_a_poisoned_row_delays_no_turn(quick: Any) -> None:
    bad = quick.sysdb.create_task("bad", "t", cadence=0)
    quick.tend()
    quick.sysdb.finish(quick.sysdb.claim(bad))
    idempotent_txn.run(quick.db, lambda tr: tr.set(quick.sysdb.layout.keys.task(bad.id), b"\xc1poison"))
    quick.write("bad")
    report = quick.tender.turn(prune=False, reconcile=False)
    assert any("can't be read" in error for error in report.errors)
    assert not report.store_failed


class Lease:
    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.held = True
        self.writer_id = "w"
        self.token = type("Token", (), {"version": version})()

    def release(self) -> None:
        self.held = False


class Locks:
    """lease-locks, where some rows can't be read."""

    def __init__(self, poisoned: set[str]) -> None:
        self.poisoned = poisoned
        self.granted = 0
        self.released_badly = False

    def acquire(self, name: str, timeout: float) -> Lease:
        self.granted += 1
        return Lease(name, self.granted)

    def try_acquire(self, name: str) -> Lease:
        if name in self.poisoned:
            raise RecordError(f"the row of {name} is no record")
        return self.acquire(name, 0)

    def list(self, prefix: str) -> list[Any]:
        if "list" in self.poisoned:
            raise RecordError("a row of a tender is no record")
        return []


def test_a_shard_whose_lease_cannot_be_read_is_tended_without_it(quick: Any) -> None:
    owned = LeasedShards(Locks({"s3heap/shard/2"}), 4)
    shards = owned.shards()
    assert sorted(shards) == [0, 1, 2, 3]
    assert shards[2] == 0
    assert all(shards[n] > 0 for n in (0, 1, 3))
    tended = tender.Tender(quick.heap, quick.sysdb, ownership=LeasedShards(Locks({"s3heap/shard/0"}), 2))
    quick.sysdb.create_task("p", "t1", cadence=0, id=uuid.UUID(int=2))
    quick.sysdb.create_task("p", "t2", cadence=0, id=uuid.UUID(int=3))
    assert tended.turn(prune=False, reconcile=False).pushed == 2
    assert (quick.heap.writer(0).owner, quick.heap.writer(1).owner) == (False, True)


def test_a_janitor_prunes_a_shard_whose_lease_cannot_be_read(quick: Any) -> None:
    for number in (2, 3):
        quick.sysdb.create_task("p", f"t{number}", cadence=0, id=uuid.UUID(int=number))
    quick.tend()
    for task in list(quick.sysdb.tasks()):
        quick.sysdb.delete(task.id)
    locks = Locks({"s3heap/shard/0"})
    assert prune_untended(quick.heap, locks) == 2
    quick.clock.sleep(300)
    prune_untended(quick.heap, locks)  # what is past is settled, and asked for no more
    before = dict(quick.heap.io.requests)
    assert prune_untended(quick.heap, locks) == 0
    assert quick.heap.io.requests == before


def test_tenders_that_cannot_be_counted_hold_no_tender_up() -> None:
    assert sorted(LeasedShards(Locks({"list"}), 4).shards()) == [0, 1, 2, 3]


def test_a_lease_that_cannot_be_released_keeps_no_other_from_being_given_up() -> None:
    locks = Locks(set())
    owned = LeasedShards(locks, 3)
    owned.shards()
    leases = list(owned._held.values())

    def refuse() -> None:
        raise ConnectionError("the database is down")

    leases[0].release = refuse  # type: ignore[method-assign]
    owned.close()
    assert [lease.held for lease in leases] == [True, False, False]


def test_a_shard_that_is_owned_no_more_is_written_as_anybody_may(quick: Any) -> None:
    class Mine:
        now = {0: 7, 1: 8}

        def shards(self) -> dict[int, int]:
            return dict(self.now)

        def step_down(self, shard: int) -> None:
            raise AssertionError("nobody else wrote")

        def close(self) -> None:
            pass

    mine = Mine()
    tended = tender.Tender(quick.heap, quick.sysdb, ownership=mine)
    tended.turn(prune=False, reconcile=False)
    assert quick.heap.writer(0).owner
    mine.now = {1: 8}
    tended.turn(prune=False, reconcile=False)
    assert not quick.heap.writer(0).owner
    assert quick.heap.writer(1).owner


def test_a_session_that_cannot_be_read_keeps_its_claims_and_starves_nobody(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = quick.sysdb.create_task("p", "held", cadence=0)
    quick.sysdb.create_task("p", "free", cadence=0)
    quick.tend()
    other = quick.new_sysdb()
    other.claim(held)

    def unreadable(tr: Any, session: str) -> bool:
        raise RecordError("the session's row is no record")

    monkeypatch.setattr(quick.sysdb.sessions, "is_dead", unreadable)
    ran: list[str] = []
    quick.settle(lambda task, gen, epoch: ran.append(task.name), seconds=3)
    assert ran == ["free"]
    assert quick.sysdb.get(held.id).state == "running"


def test_conflicts_of_tenders_are_counted_for_every_process(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0, id=uuid.UUID(int=2))
    quick.tend()
    quick.new_heap(quick.sysdb).push(task)  # another process writes the bucket that the tender's heap knows
    quick.sysdb.create_task("p", "another", cadence=0, id=uuid.UUID(int=4))
    quick.tend()
    assert metrics(quick.sysdb).conflicts == 1
    quick.tend()
    assert metrics(quick.sysdb).conflicts == 1


def test_a_push_that_is_interrupted_before_it_leads_its_group_hangs_nobody(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heap = Heap(HeapStore("memory:"), quick.sysdb, threads=0, linger=0)
    writer = heap.writer(0)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_lead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.push(0, [HeapItem(uuid.uuid4(), uuid.UUID(int=0), 1, 0).pack()])
    later = threading.Thread(
        target=writer.push, args=(0, [HeapItem(uuid.uuid4(), uuid.UUID(int=2), 1, 0).pack()]), daemon=True
    )
    later.start()
    later.join(5)
    assert not later.is_alive()


def test_a_push_waits_for_whoever_writes_its_bucket_and_shares_his_fate(quick: Any) -> None:
    """A failed write fails everyone whose items were in it, and nobody after."""
    store, _, _ = silent_heap(quick)
    heap = Heap(store, quick.sysdb, linger=0.2, sleep=store.sleep)
    heap.io._monotonic = store.monotonic
    items = [HeapItem(uuid.uuid4(), uuid.UUID(int=2 * n), 1, 0) for n in range(4)]
    store.silent = True
    errors: list[BaseException] = []

    def push(item: HeapItem) -> None:
        try:
            heap.push(item)
        except StoreUnavailableError as error:
            errors.append(error)

    threads = [threading.Thread(target=push, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 4
    store.silent = False
    heap.push(items)
    assert {r for c in heap.scan() for r in c.records} == {item.pack() for item in items}
    heap.close()
