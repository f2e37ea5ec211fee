"""What the services cost, counted at proxies of the database and the store: never more because of what lies ahead."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import idempotent_txn
from fdb_schema import ClusterClock, NewerFormatError, check_format, open_database, pack
from lease_locks import LeaseManager
from s3heap_tender import Backoff, ClaimRefusedError, Heap, HeapItem, Scheduler, SysDb, Tender, prune_untended
from s3heap_tender.claims import outbox, tending
from s3heap_tender.claims.sessions import LocalSessions
from s3heap_tender.rows import core
from s3heap_tender.rows.keys import FORMAT, SUBSPACE
from s3heap_tender.rows.records import OVERLAPS
from s3heap_tender.rows.settings import new_row
from s3heap_tender.rows.states import State
from s3heap_tender.runs.ownership import LeasedShards
from s3heap_tender.stores.memory import MemoryStore

MINUTE = 60.0
ROOT = Path(__file__).parents[3]


class CountingDb:
    """A database that counts the transactions that are begun."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.begun = 0

    def create_transaction(self) -> Any:
        self.begun += 1
        return self._db.create_transaction()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class CountingStore(MemoryStore):
    """A store that counts its requests: a listing is one for each `page` of objects."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.page = 1000

    def get(self, key: str, **options: Any) -> Any:
        self.requests.append(f"get {key}")
        return super().get(key, **options)

    def put(self, key: str, body: bytes, **options: Any) -> Any:
        self.requests.append(f"put {key}")
        return super().put(key, body, **options)

    def delete(self, key: str, **options: Any) -> Any:
        self.requests.append(f"delete {key}")
        super().delete(key, **options)

    def list(self, prefix: str, **options: Any) -> Any:
        found = list(super().list(prefix, **options))
        self.requests += [f"list {prefix}"] * max(1, -(-len(found) // self.page))
        return iter(found)


@pytest.fixture
def counted() -> Any:
    """A bench of 16 shards whose database and store count."""
    virtual: Any = sys.modules["s3heap_tender_tests_virtual"]
    db = CountingDb(open_database(f"memory:costs-{uuid.uuid4().hex}"))
    return virtual.Bench(db, shards=16, store=CountingStore())


class All:
    """Every shard, without leases."""

    def __init__(self, shards: Any) -> None:
        self.owned = dict.fromkeys(shards, 0)

    def shards(self) -> dict[int, int]:
        return dict(self.owned)

    def step_down(self, shard: int) -> None: ...
    def close(self) -> None: ...


def in_virtual_time(service: Any, bench: Any, seconds: float) -> None:
    """Let a service's `run` wait on a clock of the test's, and stop it after so many of its seconds."""
    now = [0.0]

    def sleep(seconds_: float) -> None:
        now[0] += seconds_
        bench.clock.sleep(seconds_)
        if now[0] >= seconds:
            service.stop()

    def rang(bells: Any, seconds_: float) -> bool:
        if bells.wait(0):
            return True
        sleep(seconds_)
        return False

    service._monotonic = lambda: now[0]
    service._rang = rang
    service._wait = sleep
    service.run()


def idle_heap(bench: Any, tasks: int) -> None:
    """Tasks of every kind that waits: for a write, for its time, paused, dead."""
    for number in range(tasks):
        bench.sysdb.create_task(f"p{number % 7}", f"t{number}", cadence=(0, 7200)[number % 2], max_attempts=1)

    def trigger(task: Any, gen: int, epoch: int) -> None:
        if task.name.endswith("9"):
            raise RuntimeError("dead for good")

    bench.settle(trigger, seconds=3)
    for number in range(7):
        bench.write(f"p{number}")
    paused = [task for task in bench.sysdb.tasks() if task.name.endswith("4")]
    bench.tend()
    for task in paused:
        bench.sysdb.pause(task.id)
    bench.settle(trigger, seconds=130, step=10)
    bench.tender.turn(prune=None, reconcile=True)


@pytest.mark.parametrize("tasks", [20, 400])
def test_an_idle_heap_costs_a_service_at_most_a_transaction_a_second_and_no_request(
    counted: Any, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where each turn comes seconds after the last.
    monkeypatch.setattr("idempotent_txn.ids.floor.FLOOR_SECONDS", 0.0)
    idle_heap(counted, tasks)
    tender = Tender(counted.heap, counted.sysdb, ownership=All(range(16)))
    tender.turn(prune=None)  # the first turn compares heap and sysdb
    scheduler = counted.new_scheduler(lambda *args: None)
    scheduler._ownership = All(range(16))
    for service in (tender, scheduler):
        service._rng.uniform = lambda least, most: least  # looks as often as it ever does
        counted.db.begun = 0
        counted.store.requests.clear()
        in_virtual_time(service, counted, MINUTE)
        # Two a turn, which are 4 s apart but for the first two, and one that arms the bells.
        assert counted.db.begun == 33, "leases, heartbeats and counting the others take at most 24"
        assert counted.store.requests == []


def test_an_idle_turn_of_a_tender_makes_two_transactions(counted: Any) -> None:
    idle_heap(counted, 20)
    counted.db.begun = 0
    counted.store.requests.clear()
    assert counted.tender.turn().idle
    assert counted.db.begun <= 2
    assert counted.store.requests == []


def test_services_that_share_shards_ask_for_no_more_than_their_part() -> None:
    taken: dict[str, Any] = {}
    asked: list[str] = []

    class Lease:
        held = True
        writer_id = "w"

        def __init__(self, name: str) -> None:
            self.name = name
            self.token = type("Token", (), {"version": 1})()

        def release(self) -> None:
            self.held = False
            taken.pop(self.name, None)

    class Locks:
        def acquire(self, name: str, timeout: float) -> Lease:
            return taken.setdefault(name, Lease(name))

        def try_acquire(self, name: str) -> Lease | None:
            asked.append(name)
            return None if name in taken else self.acquire(name, 0)

        def list(self, prefix: str) -> list[Any]:
            return [lease for name, lease in sorted(taken.items()) if name.startswith(prefix)]

    owners = [LeasedShards(Locks(), 16) for _ in range(3)]
    for _ in range(3):
        for owner in owners:
            owner._counted_at = float("-inf")
            owner.shards()
    assert sorted(len(owner.shards()) for owner in owners) == [5, 5, 6]
    asked.clear()
    for owner in owners:
        for _ in range(20):
            owner.shards()
    assert asked == []


def test_schedulers_that_share_shards_refuse_each_other_nothing(counted: Any) -> None:
    tasks = [counted.sysdb.create_task("p", f"t{number}", cadence=0) for number in range(64)]
    counted.tend()
    ran: list[Any] = []
    schedulers = []
    for part in range(4):
        sysdb = counted.new_sysdb()
        heap = counted.new_heap(sysdb)
        schedulers.append(
            Scheduler(
                heap,
                sysdb,
                lambda task, gen, epoch: ran.append(task.id),
                concurrency=0,
                ownership=All(range(part, 16, 4)),
            )
        )
    counted.store.requests.clear()
    for scheduler in schedulers:
        scheduler.turn()
    assert sorted(ran) == sorted(task.id for task in tasks)
    assert len([request for request in counted.store.requests if request.startswith("list")]) <= 16


@pytest.mark.timeout(120)
def test_four_schedulers_that_run_side_by_side_hardly_ever_claim_what_another_has() -> None:
    db = open_database(f"memory:four-{uuid.uuid4().hex}")
    store, stop = MemoryStore(), threading.Event()
    claims: list[str] = []
    ran = threading.Semaphore(0)

    class Counting(SysDb):
        def claim(self, item: Any) -> Any:
            try:
                found = super().claim(item)
            except ClaimRefusedError as refusal:
                claims.append(refusal.reason)
                raise
            claims.append("")
            return found

    with contextlib.ExitStack() as stack:
        sysdbs = [stack.enter_context(Counting(db, shards=16)) for _ in range(5)]
        heaps = [stack.enter_context(Heap(store, sysdb)) for sysdb in sysdbs]
        services: list[Any] = [Tender(heaps[0], sysdbs[0], poll=0.05)]
        for heap, sysdb in zip(heaps[1:], sysdbs[1:], strict=True):
            services.append(Scheduler(heap, sysdb, lambda *_: ran.release(), concurrency=8, poll=0.05))
        tasks = [sysdbs[0].create_task(f"p{n}", "t", cadence=0).id for n in range(48)]
        threads = [threading.Thread(target=service.run, args=(stop,)) for service in services]
        for thread in threads:
            thread.start()
        try:
            for round_ in range(4):
                for _ in tasks:
                    assert ran.acquire(timeout=60), claims
                if round_ == 0:
                    claims.clear()  # while they began, each had yet to get its shards
                if round_ < 3:
                    idempotent_txn.run(db, lambda tr: [sysdbs[0].record_write(tr, f"p{n}") for n in range(48)] and None)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
    refused = sum(map(bool, claims))
    assert len(claims) - refused >= 3 * len(tasks)
    # Without shares of their own it is three of four. Where the machine is slow some are late, and others help.
    assert refused <= 0.4 * len(claims), claims


def test_a_scheduler_helps_where_something_is_late(counted: Any) -> None:
    counted.sysdb.create_task("p", "t", cadence=0)
    counted.tend()
    ran: list[str] = []
    helper = Scheduler(
        counted.heap, counted.sysdb, lambda task, gen, epoch: ran.append(task.name), concurrency=0, ownership=All(())
    )
    helper.turn()
    assert ran == []
    counted.clock.sleep(2.1)
    helper.turn()
    assert ran == ["t"]


def test_a_shard_whose_due_task_is_not_on_the_heap_is_listed_less_and_less(counted: Any) -> None:
    counted.sysdb.create_task("p", "t", cadence=0)  # and no tender pushes it
    scheduler = counted.new_scheduler(lambda *args: None)
    scheduler.turn()
    counted.store.requests.clear()
    for _ in range(600):
        assert scheduler.turn().started == 0
        counted.clock.sleep(0.1)
    assert len(counted.store.requests) <= 20
    counted.tend()
    assert scheduler.turn().started == 1, "a push is looked at whatever the wait"


@pytest.mark.parametrize("ahead", [10, 300])
def test_a_writes_way_to_its_run_does_not_depend_on_what_lies_ahead(
    counted: Any, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = counted.sysdb.create_task("p", "t", cadence=0)
    scheduler = counted.new_scheduler(lambda *args: None)
    counted.settle(lambda *args: None, seconds=2)
    stuck = [counted.sysdb.create_task("q", f"stuck{number}", cadence=0) for number in range(ahead)]
    for number, other in enumerate(stuck):
        counted.heap.push(HeapItem(other.partition, other.id, other.gen, other.item.due_ms))
        counted.clock.sleep(61)  # an object of its own for each
        counted.sysdb.pause(other.id)
        if number % 50 == 0:
            counted.tender.turn(prune=None, reconcile=False)
    counted.tend()
    scheduler.turn()
    counted.store.requests.clear()
    counted.store.page = 3  # so that what a listing shows is counted
    monkeypatch.setattr(
        "idempotent_txn.ids.floor.FLOOR_SECONDS", 0.0
    )  # as where each write comes seconds after the last
    counted.db.begun = 0
    counted.write("p")
    report = counted.tender.turn(prune=None, reconcile=False)
    assert (report.swept, report.pushed) == (1, 1)
    assert scheduler.turn().started == 1
    assert counted.sysdb.get(task.id).state == "waiting"
    kinds = [request.split()[0] for request in counted.store.requests]
    assert kinds.count("put") == 1
    assert len(kinds) <= 5, counted.store.requests
    assert counted.db.begun <= 27


def test_pruning_reads_no_object_of_paused_tasks_again(counted: Any) -> None:
    stuck = [counted.sysdb.create_task("q", f"stuck{number}", cadence=0) for number in range(20)]
    for other in stuck:
        counted.heap.push(other)
        counted.clock.sleep(61)
        counted.sysdb.pause(other.id)
    counted.tend()
    counted.clock.sleep(61)
    counted.tender.prune_every = 0.0
    counted.tender.turn(prune=None)
    counted.sysdb.create_task("p", "t", cadence=0)
    counted.settle(lambda *args: None, seconds=2)
    counted.clock.sleep(61)
    counted.store.requests.clear()
    counted.store.page = 1
    counted.tender._housekeeping.thorough.clear()
    assert counted.tender.turn(prune=None, reconcile=False).pruned.pruned == 1
    kinds = [request.split()[0] for request in counted.store.requests]
    assert sorted(kinds) == ["delete", "list"]
    counted.store.requests.clear()
    for _ in range(10):
        counted.clock.sleep(61)
        counted.tender.turn(prune=None, reconcile=False)
    assert counted.store.requests == []


def test_a_scheduler_forgets_the_objects_that_a_tender_elsewhere_removed(
    counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3heap_tender.objects.contents.KEPT_BEHIND", 10)
    counted.sysdb.create_task("p", "t", cadence=0)
    scheduler = counted.new_scheduler(lambda *args: None, counted.new_sysdb())
    for _ in range(12):
        counted.write("p")
        counted.tend()
        assert scheduler.turn().started == 1
        counted.clock.sleep(61)
        counted.tender.turn(prune=None, reconcile=False)
    assert len(scheduler.heap._contents._cache) <= 6  # one that is looked at, and so much of what lies before it


def test_the_bucket_that_is_written_most_is_forgotten_last(counted: Any) -> None:
    heap = counted.heap
    now = counted.clock.value // 1_000_000
    id = uuid.UUID(int=16)
    for minute in range(1, 400):
        heap.push([HeapItem(id, id, 1, now * 1000), HeapItem(id, id, minute, (now + 60 * minute) * 1000)])
    counted.store.requests.clear()
    heap.push(HeapItem(id, id, 1, now * 1000))
    assert [request.split()[0] for request in counted.store.requests] == ["put"]


def test_a_superseded_item_leaves_the_heap_once_its_bucket_is_past(counted: Any) -> None:
    task = counted.sysdb.create_task("p", "t", cadence=0, min_records=5, max_wait=600)
    counted.settle(lambda *args: None, seconds=2)
    counted.write("p")
    counted.tend()
    counted.sysdb.run_now(task.id)
    counted.settle(lambda *args: None, seconds=2)
    assert counted.heap.summary().items >= 2
    counted.clock.sleep(700)
    counted.tender.prune_every = 0.0
    counted.tender.turn(prune=None, reconcile=False)
    assert counted.heap.buckets() == []


def test_an_item_that_was_pushed_when_it_was_over_is_pruned(counted: Any) -> None:
    task = counted.sysdb.create_task("p", "t", cadence=0)
    shard = counted.sysdb.layout.shard_of(task.id)
    intents = counted.sysdb.read(outbox.read_intents, shard, None, 10)
    counted.sysdb.delete(task.id)
    counted.tender.prune_every = 0.0
    counted.clock.sleep(120)
    counted.tender.turn(prune=None, reconcile=False)
    placed = counted.heap.push(intents[0].item)  # by a tender that stood still
    tending.clear_intents(counted.sysdb, shard, [(intents[0], placed[intents[0].item])])
    counted.clock.sleep(120)
    counted.tender.turn(prune=None, reconcile=False)
    assert counted.heap.buckets() == []


def test_what_the_heap_lost_comes_back_though_comparisons_are_rare(counted: Any) -> None:
    counted.sysdb.create_task("p", "t", cadence=0)
    counted.tender.turn()
    [bucket] = counted.heap.buckets()
    counted.store.delete(bucket.key, if_match=counted.store.get(bucket.key).etag)
    now = [0.0]
    counted.tender._monotonic = lambda: now[0]
    counted.tender._housekeeping.reconciled = dict.fromkeys(range(16), 0.0)
    asked = 0
    for _ in range(60):
        asked += counted.tender.turn(prune=False).reconciled
        now[0] += 1
        counted.clock.sleep(1)
    assert asked == 1
    assert counted.settle(lambda *args: None, seconds=10) == 1


def test_the_index_says_what_the_rows_say_and_is_mended_where_it_does_not(counted: Any) -> None:
    idle_heap(counted, 40)
    assert [tending.reindex(counted.sysdb, shard) for shard in range(16)] == [0] * 16
    keys = counted.sysdb.layout.keys
    rows = {}
    for begin, end in (keys.due_range(), keys.run_range()):
        rows.update({bytes(k): bytes(v) for k, v in _range(counted.db, begin, end)})
    assert rows

    def spoil(tr: Any) -> None:
        tr.clear_range(*keys.due_range())
        tr.set(keys.due(3, 5, uuid.uuid4()), b"")

    idempotent_txn.run(counted.db, spoil)
    counted.tender.turn(prune=False, reconcile=True)
    after = {}
    for begin, end in (keys.due_range(), keys.run_range()):
        after.update({bytes(k): bytes(v) for k, v in _range(counted.db, begin, end)})
    assert after == rows


def test_a_scheduler_that_starts_reads_nothing_that_is_not_due(counted: Any) -> None:
    stuck = [counted.sysdb.create_task("q", f"stuck{number}", cadence=0) for number in range(20)]
    counted.tend()
    for other in stuck:
        counted.sysdb.pause(other.id)
    counted.clock.sleep(61)
    task = counted.sysdb.create_task("p", "t", cadence=0)
    counted.tend()
    counted.store.requests.clear()
    assert counted.new_scheduler(lambda *args: None, counted.new_sysdb()).turn().started == 1
    assert counted.sysdb.get(task.id).state == "waiting"
    assert [request.split()[0] for request in counted.store.requests if "meta" not in request][-2:] == ["list", "get"]
    assert sum("Z-" in request for request in counted.store.requests) == 1, counted.store.requests


def test_what_is_due_and_not_on_the_heap_delays_no_other_task_of_its_shard(counted: Any) -> None:
    shard_of = counted.sysdb.layout.shard_of
    lost = counted.sysdb.create_task("p", "lost", cadence=0)  # no tender pushes it
    id = next(id for id in map(uuid.UUID, map("{:032x}".format, range(1, 1000))) if shard_of(id) == shard_of(lost.id))
    scheduler = counted.new_scheduler(lambda *args: None)
    late = []
    for round_ in range(6):
        other = counted.sysdb.create_task(
            "q", f"t{round_}", cadence=40 + round_, id=uuid.UUID(int=id.int + (round_ << 64))
        )
        assert shard_of(other.id) == shard_of(lost.id)
        counted.heap.push(other)
        assert scheduler.turn().started == 1
        other = counted.sysdb.run_now(other.id)
        counted.heap.push(other)
        while counted.sysdb.get(other.id).state == "scheduled":
            counted.clock.sleep(0.5)
            scheduler.turn()
        late.append(counted.sysdb.now() - other.due)
    assert max(late) < 1.6, late


@pytest.mark.parametrize("seed", range(20))
def test_a_task_may_start_soon_after_its_due_time_so_that_what_lies_before_needs_no_look(seed: int) -> None:
    rng = random.Random(seed)
    task, now = uuid.UUID(int=seed), 10**9
    cadence, jitter = rng.choice([0.0, 1.0, 60.0]), rng.choice([0.0, 5.0])
    backoff = Backoff(0.5, obey_cadence=rng.random() < 0.7)
    row = new_row(
        "p", "t", cadence, 2, 30.0, jitter, backoff, 3, rng.choice(OVERLAPS), rng.choice(["once", "all"]), b""
    )
    row = replace(row, due=now, created=now)
    tail = 0
    for _ in range(200):
        now += rng.choice([0, 1_000, 300_000, 70_000_000])
        tail += rng.randrange(3)
        running = row.state is State.RUNNING
        step = rng.randrange(6)
        if row.dead:
            row = core.redriven(row, row.gen, task, now)
        elif step == 0 and running:
            row = core.finished(task, row, rng.randrange(tail + 1), tail, now)
        elif step == 1 and running:
            row = core.failed(task, row, "", now)
        elif step == 2 and not running and row.state is State.SCHEDULED and core.earliest_start(row) <= now:
            row = core.claimed(row, "s", tail, now)
        elif step == 3:
            row = core.requested(row, now)
        elif step == 4 and row.pending < 5:
            row = core.backfilled(row, 1, now)
        else:
            row = core.written(task, row, tail, now)
        if row.state is State.SCHEDULED:
            assert row.due <= core.earliest_start(row) <= row.due + core.LATEST_START


def test_what_no_tender_looks_after_is_looked_at_only_where_something_is_done(counted: Any) -> None:
    idle_heap(counted, 20)
    counted.clock.sleep(130)
    counted.tender.turn(prune=None, reconcile=False)
    counted.db.begun = 0
    counted.store.requests.clear()
    with LeaseManager(open_database(f"memory:{uuid.uuid4().hex}")) as locks:
        assert prune_untended(counted.heap, locks) == 0
        assert counted.db.begun <= 4
        assert counted.store.requests == []
        counted.sysdb.create_task("p", "new", cadence=0)
        counted.settle(lambda *args: None, seconds=2)
        assert prune_untended(counted.heap, locks) == 1
        counted.clock.sleep(130)
        prune_untended(counted.heap, locks)
        counted.store.requests.clear()
        assert prune_untended(counted.heap, locks) == 0
    assert counted.store.requests == []


def test_comparisons_of_heap_and_sysdb_are_spread_over_their_time(counted: Any) -> None:
    for number in range(64):
        counted.sysdb.create_task("p", f"t{number}", cadence=0)
    counted.tend()
    now = [0.0]
    counted.tender._monotonic = lambda: now[0]
    counted.tender.turn()
    keeping = counted.tender._housekeeping
    compared = []
    for _ in range(60):
        now[0] += 60
        counted.tender._seen.shards = {}
        before = dict(keeping.reconciled)
        keeping.keep(type(counted.tender.turn())(), range(16), False, None)
        compared.append(sum(before[shard] != at for shard, at in keeping.reconciled.items()))
    assert sum(compared) == 16
    assert max(compared) == 1


def test_requests_and_transactions_do_not_grow_with_the_number_of_tasks() -> None:
    tool = ROOT / "tools" / "bench_heap_requests.py"
    spec = importlib.util.spec_from_file_location("s3heap_tender_tests_bench_requests", tool)
    assert spec is not None and spec.loader is not None
    bench = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.HOUR = 600.0  # the docs' table is of an hour, and of up to 100,000 tasks
    few, many = bench.measure(60), bench.measure(600)
    for name in ("push", "run"):
        assert many[f"{name}_requests"] <= few[f"{name}_requests"] <= 3
        assert many[f"{name}_transactions"] <= few[f"{name}_transactions"] + 1 <= 14
    for service in ("tender", "scheduler"):
        assert many[f"idle_{service}_requests"] <= few[f"idle_{service}_requests"] <= 3
        assert many[f"idle_{service}_minute_requests"] <= 1
        assert many[f"idle_{service}_minute_transactions"] <= 36, "leases and heartbeats take at most 24"


def _range(db: Any, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    return idempotent_txn.run(db, lambda tr: [(row.key, row.value) for row in tr.get_range(begin, end)])


def test_a_sysdb_of_the_release_before_is_taken_over_and_that_release_refused(quick: Any) -> None:
    task = quick.sysdb.create_task("p", "t", cadence=0)
    quick.tend()
    keys = quick.sysdb.layout.keys
    space = quick.sysdb.space

    def as_before(tr: Any) -> None:
        for begin, end in (keys.due_range(), keys.run_range(), keys.done_range()):
            tr.clear_range(begin, end)
        tr.set(space.format.pack((SUBSPACE,)), pack(1))

    idempotent_txn.run(quick.db, as_before)
    sysdb = SysDb(quick.db, quick.cluster, sessions=LocalSessions(), clock=quick.clock)
    with pytest.raises(NewerFormatError):
        idempotent_txn.run(quick.db, check_format, space, SUBSPACE, FORMAT - 1)
    heap = quick.new_heap(sysdb)
    scheduler = Scheduler(heap, sysdb, lambda *args: None, concurrency=0)
    assert scheduler.turn().started == 0
    Tender(heap, sysdb).turn()
    assert scheduler.turn().started == 1
    assert sysdb.get(task.id).state == "waiting"


def test_a_start_is_stored_on_a_clock_that_was_just_moved(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = ClusterClock(quick.sysdb.space, monotonic=lambda: now[0])
    sysdb = SysDb(quick.db, quick.cluster, sessions=LocalSessions(), clock=clock, monotonic=lambda: now[0])
    task = sysdb.create_task("p", "t", cadence=0)
    now[0] += 10  # idle; meanwhile another service moved the clock, nobody knows when
    quick.clock.value += 1
    quick.sysdb.tick()
    calls: list[int] = []
    advance = clock.advance

    def noted(tr: Any) -> int:
        calls.append(1)
        now[0] += 0.01
        return advance(tr)

    monkeypatch.setattr(clock, "advance", noted)
    before = sysdb.now_micro()
    claim = sysdb.claim(task)
    assert len(calls) == 2
    assert claim.started * 1e6 > before
    sysdb.finish(claim)


@pytest.mark.timeout(60)
def test_idle_services_wake_at_a_write() -> None:
    db = open_database(f"memory:bells-{uuid.uuid4().hex}")
    ran = threading.Semaphore(0)
    stop = threading.Event()
    with SysDb(db, shards=4) as sysdb, Heap(MemoryStore(), sysdb) as heap:
        sysdb.create_task("p", "t", cadence=0)
        tender = Tender(heap, sysdb, idle_poll=3600.0)
        scheduler = Scheduler(heap, sysdb, lambda *args: ran.release(), idle_poll=3600.0)
        threads = [threading.Thread(target=service.run, args=(stop,)) for service in (tender, scheduler)]
        for thread in threads:
            thread.start()
        try:
            assert ran.acquire(timeout=20)
            for _ in range(3):
                time.sleep(0.6)  # both find nothing to do, and wait for an hour
                idempotent_txn.run(db, lambda tr: sysdb.record_write(tr, "p"))
                assert ran.acquire(timeout=20)
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
