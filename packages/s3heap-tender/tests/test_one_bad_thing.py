"""One object, row, task or shard that is bad stops itself and nothing else."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

import idempotent_txn
from fdb_schema import open_database
from lease_locks import LeaseManager
from s3heap_tender import Backoff, HeapStore, Scheduler, StoreUnavailableError, fsck, metrics, prune_untended
from s3heap_tender import tender as tender_module
from s3heap_tender.claims import outbox, transitions, writes
from s3heap_tender.claims.sessions import LeaseSessions
from s3heap_tender.cli import common as cli_common
from s3heap_tender.errors import StrayKeyError
from s3heap_tender.inspection import next_due
from s3heap_tender.rows import core
from s3heap_tender.rows.items import ObjectHeader, encode_object
from s3heap_tender.rows.naming import ObjectName
from s3heap_tender.rows.records import TaskRow
from s3heap_tender.rows.settings import partition_id
from s3heap_tender.stores.memory import MemoryStore


class Refusing(MemoryStore):
    """A store that serves everything but what it refuses, by the operation and the key or prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[tuple[str, str]] = set()
        self.rate = 0.0
        self.rng = random.Random(7)

    def _ask(self, what: str, key: str) -> None:
        if any(what == op and key.startswith(name) for op, name in self.refused) or self.rng.random() < self.rate:
            raise StoreUnavailableError(f"403 for {what} {key}")

    def get(self, key: str, **options: Any) -> Any:
        self._ask("get", key)
        return super().get(key, **options)

    def put(self, key: str, body: bytes, **options: Any) -> Any:
        self._ask("put", key)
        return super().put(key, body, **options)

    def delete(self, key: str, **options: Any) -> Any:
        self._ask("delete", key)
        super().delete(key, **options)

    def list(self, prefix: str, **options: Any) -> Any:
        self._ask("list", prefix)
        return super().list(prefix, **options)


@pytest.fixture
def bad(any_db: Any) -> Any:
    """A bench of four shards on a refusing store."""
    virtual: Any = sys.modules["s3heap_tender_tests_virtual"]
    return virtual.Bench(any_db, shards=4, store=Refusing())


def in_shard(bench: Any, shard: int, name: str, **options: Any) -> Any:
    id = uuid.UUID(int=(uuid.uuid4().int >> 8 << 8) | shard)
    assert bench.sysdb.layout.shard_of(id) == shard
    return bench.sysdb.create_task("p", name, cadence=0, id=id, **options)


def run_nothing(*args: Any) -> None:
    return None


def test_a_shard_that_is_not_listed_holds_up_no_other(bad: Any) -> None:
    for shard in range(4):
        in_shard(bad, shard, f"t{shard}")
    bad.tend()
    bad.store.refused.add(("list", "0002-"))
    ran: list[str] = []
    scheduler = bad.new_scheduler(lambda task, gen, epoch: ran.append(task.name))
    report = scheduler.turn()
    assert sorted(ran) == ["t0", "t1", "t3"]
    assert any("0002-" in error for error in report.errors)
    bad.store.refused.clear()
    bad.clock.sleep(10)
    scheduler.turn()
    assert len(ran) == 4


def test_an_object_that_is_not_served_holds_up_no_other(bad: Any) -> None:
    for shard in range(4):
        in_shard(bad, shard, f"t{shard}")
    bad.tend()
    [key] = [bucket.key for bucket in bad.heap.buckets() if bucket.shard == 1]
    bad.heap = bad.new_heap(bad.sysdb)
    bad.store.refused.add(("get", key))
    ran: list[str] = []
    bad.new_scheduler(lambda task, gen, epoch: ran.append(task.name)).turn()
    assert sorted(ran) == ["t0", "t2", "t3"]


@pytest.mark.parametrize("bucket", [0, 60 * 60 * 24 * 365 * 1000])
def test_an_item_that_somebody_moved_to_another_bucket_is_pushed_again(bad: Any, bucket: int) -> None:
    """Whoever may write to the store delays tasks; none is lost by where he puts their items."""
    in_shard(bad, 0, "t")
    bad.tend()
    ran: list[str] = []
    [content] = bad.heap.scan(shards=[0])
    bad.store.delete(content.name.key, if_match=content.etag)
    elsewhere = encode_object(ObjectHeader(0, bucket, 0, 0, 1, b"somebody"), content.records)
    bad.store.put(ObjectName(0, bucket).key, elsewhere, if_match=None)
    bad.clock.sleep(120)
    assert bad.tender.turn(prune=False, reconcile=True).reconciled == 1
    bad.tend()
    bad.new_scheduler(lambda task, gen, epoch: ran.append(task.name)).turn()
    assert ran == ["t"]
    assert bad.tender.turn(prune=False, reconcile=True).reconciled == 0


@pytest.mark.parametrize("counter", ["log", "again"])
def test_a_counter_of_too_many_bytes_keeps_no_other_partition_from_its_runs(bad: Any, counter: str) -> None:
    for partition in ("spoilt", "sound"):
        bad.sysdb.create_task(partition, "t", cadence=0, id=uuid.UUID(int=uuid.uuid4().int >> 8 << 8))
    bad.settle(run_nothing, seconds=2)
    key = getattr(bad.sysdb.layout.keys, counter)(partition_id("spoilt"))
    idempotent_txn.run(bad.db, lambda tr: tr.set(key, b"\xff" * 20))
    bad.write("spoilt")
    bad.write("sound")
    ran: list[str] = []
    assert bad.tender.turn(prune=False, reconcile=False).errors == []
    bad.settle(lambda task, gen, epoch: ran.append(task.partition_name), seconds=2)
    assert "sound" in ran


def by_the_virtual_clock(bench: Any, trigger: Any) -> Scheduler:
    return Scheduler(bench.heap, bench.sysdb, trigger, concurrency=0, monotonic=lambda: bench.clock.value / 1e6)


def lose_a_run_and_its_item(bench: Any) -> None:
    """A scheduler dies in the midst of a run, and the heap loses all that it has."""
    task = in_shard(bench, 0, "t")
    bench.tend()
    dead = bench.new_sysdb()
    dead.claim(task)
    for listed in list(bench.store.list("0000-")):
        bench.store.delete(listed.key, if_match=listed.etag)
    dead.close()


def test_a_dead_schedulers_run_whose_item_is_gone_from_the_heap_goes_on_soon(bad: Any) -> None:
    lose_a_run_and_its_item(bad)
    ran: list[str] = []
    scheduler = by_the_virtual_clock(bad, lambda task, gen, epoch: ran.append(task.name))
    for _ in range(5):
        scheduler.turn()
        bad.tender.turn(prune=False, reconcile=False)
        bad.clock.sleep(1)
    assert ran == ["t"]


def test_a_lost_run_that_cannot_be_taken_over_costs_no_listing_at_every_turn(bad: Any) -> None:
    lose_a_run_and_its_item(bad)
    scheduler = by_the_virtual_clock(bad, run_nothing)
    before = bad.heap.io.requests["list"]
    for _ in range(100):  # no tender pushes it again
        scheduler.turn()
        bad.clock.sleep(0.2)
    assert bad.heap.io.requests["list"] - before < 15


def test_a_store_that_answers_nothing_fails_the_turn(bad: Any) -> None:
    in_shard(bad, 0, "t")
    bad.tend()
    bad.store.refused.update({("list", ""), ("get", "")})
    with pytest.raises(StoreUnavailableError):
        bad.new_scheduler(run_nothing).turn()


def test_an_object_that_is_not_written_holds_up_the_items_of_its_bucket_only(bad: Any) -> None:
    now = in_shard(bad, 0, "now")
    later = in_shard(bad, 0, "later", min_records=5, max_wait=300)
    bad.settle(run_nothing, seconds=2)
    bad.write("p")  # `now` is due now, `later` in five minutes, in another object
    bad.clock.sleep(90)  # the bucket of this minute is a new one
    bucket = f"0000-{_stamp(bad.clock.value // 1_000_000)}"
    bad.store.refused.add(("put", bucket))
    report = bad.tender.turn(prune=False, reconcile=False)
    assert report.pushed == 1
    assert any(bucket in error for error in report.errors)
    assert [bad.sysdb.describe(task.id).intent_pending for task in (now, later)] == [True, False]


def _stamp(seconds: int) -> str:
    return time.strftime("%Y%m%dT%H%M00Z", time.gmtime(seconds))


def test_a_few_objects_that_are_never_written_hold_up_no_other(bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them end a round, and the next begins with what is left."""
    monkeypatch.setattr(tender_module, "PAGE", 4)
    # By their ids, the three come first.
    far = [bad.sysdb.create_task("p", f"far{n}", cadence=0, id=uuid.UUID(int=n << 8)) for n in range(1, 4)]
    bad.tend()
    refused = set()
    for n, task in enumerate(far):
        claim = bad.sysdb.claim(bad.sysdb.get(task.id))
        key = ObjectName(0, bad.heap.bucket_of(int(bad.sysdb.now()) + (n + 1) * 600)).key
        refused.add(("put", key))
        bad.store.refused.add(("put", key))
        monkeypatch.setattr(core, "backoff_seconds", lambda *_, n=n: (n + 1) * 600.0)
        bad.sysdb.fail(claim, "again")
    for n in range(4, 14):
        bad.sysdb.create_task("p", f"near{n}", cadence=0, id=uuid.UUID(int=n << 8))
    for _ in range(2):
        assert len(bad.tender.turn(prune=False, reconcile=False).errors) >= 1
    pending = bad.sysdb.read(outbox.read_intents, 0, None, 100)
    assert {intent.item.task for intent in pending} == {task.id for task in far}
    bad.store.refused.clear()
    bad.tend()
    assert bad.sysdb.read(outbox.read_intents, 0, None, 100) == []


def test_a_few_objects_that_are_never_served_keep_no_other_from_being_pruned(bad: Any) -> None:
    for n in range(5):
        task = bad.sysdb.create_task("p", f"t{n}", cadence=0, id=uuid.UUID(int=n << 8))
        bad.tend()
        bad.sysdb.finish(bad.sysdb.claim(task), 0)
        bad.clock.sleep(120)
    bad.sysdb.tick()
    heap = bad.new_heap(bad.sysdb)
    bad.store.refused |= {("get", name.key) for name in heap.names(0)[:3]}
    for prune in (lambda: heap.prune_done(0), lambda: heap.prune(shards=[0])):
        with pytest.raises(StoreUnavailableError):
            prune()
        with contextlib.suppress(StoreUnavailableError):
            prune()
        assert len(heap.names(0)) == 3


@pytest.mark.parametrize("raised", [False, True])
def test_a_boundary_that_is_yet_to_come_sends_no_push_to_its_bucket(bad: Any, raised: bool) -> None:
    key = bad.sysdb.layout.keys.boundary(0)
    idempotent_txn.run(bad.db, lambda tr: tr.set(key, (4_000_000_000).to_bytes(8, "little")))
    in_shard(bad, 0, "t")
    if raised:
        bad.tender.turn(prune=True, reconcile=False)
        assert idempotent_txn.run(bad.db, writes.read_counter, key) <= bad.sysdb.now()
    assert bad.tender.turn(prune=False, reconcile=False).late == 0
    ran: list[str] = []
    bad.new_scheduler(lambda task, gen, epoch: ran.append(task.name)).turn()
    assert ran == ["t"]
    assert bad.sysdb.read(outbox.read_intents, 0, None, 100) == []
    assert metrics(bad.sysdb).cursor_lag > 0


def test_runs_go_on_where_a_tenth_of_the_requests_is_refused(bad: Any) -> None:
    tasks = [in_shard(bad, number % 4, f"t{number}") for number in range(12)]
    scheduler = bad.new_scheduler(run_nothing)
    bad.store.rate = 0.1
    good = 0
    for _ in range(48):
        bad.tender.turn(prune=False, reconcile=False)
        try:
            good += not scheduler.turn().errors
        except StoreUnavailableError:
            pass
        bad.clock.sleep(0.5)
    assert {bad.sysdb.get(task.id).state for task in tasks} == {"waiting"}
    assert good > 24


def test_an_object_that_is_not_served_keeps_no_other_from_being_pruned(bad: Any) -> None:
    tasks = [in_shard(bad, 0, f"t{number}") for number in range(3)]
    for task in tasks:
        bad.heap.push(task)
        bad.clock.sleep(60)  # each in a bucket of its own
    for task in tasks:
        bad.sysdb.delete(task.id)
    first = bad.heap.buckets()[0].key
    bad.store.refused.add(("get", first))
    stats = bad.heap.prune()
    assert (stats.pruned, stats.unreadable) == (2, (first,))


def spoil(bench: Any, task: Any, damage: dict[str, Any] | None = None) -> None:
    """Make the task's row one that no release wrote: by these numbers, or altogether."""
    key = bench.sysdb.layout.keys.task(task.id)

    def body(tr: Any) -> None:
        row = TaskRow.decode(bytes(tr.get(key).value))
        tr.set(key, replace(row, **damage).encode() if damage else b"\xc1poison")

    idempotent_txn.run(bench.db, body)


def test_a_row_that_cannot_be_read_keeps_no_other_from_being_pushed(bad: Any) -> None:
    tasks = [in_shard(bad, 0, f"t{number}") for number in range(4)]
    spoil(bad, tasks[1])
    report = bad.tender.turn(prune=False, reconcile=False)
    assert report.pushed == 3
    assert any(str(tasks[1].id) in error for error in report.errors)
    assert bad.settle(run_nothing, seconds=2) == 3


def test_a_row_that_cannot_be_read_keeps_no_other_from_being_pruned(bad: Any) -> None:
    tasks = [in_shard(bad, 0, f"t{number}") for number in range(4)]
    bad.tend()
    for task in tasks[:2]:
        bad.sysdb.delete(task.id)
    spoil(bad, tasks[2])
    stats = bad.heap.prune()
    assert (stats.pruned, stats.retained) == (2, 2)
    assert {item.task for item in bad.heap.peek()} == {tasks[3].id}


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"gen": 2**64 - 1},
        {"gen": -1},
        {"step": 2**64 - 1},
        {"epoch": 2**64 - 1},
        {"jitter": -(2**60)},
        {"leeway": -1},
        {"past_dues": ("x",)},
    ],
    ids=str,
)
def test_a_damaged_row_keeps_no_task_of_its_partition_from_its_run(bad: Any, damage: dict[str, Any]) -> None:
    tasks = [in_shard(bad, 0, f"t{number}") for number in range(4)]
    bad.settle(run_nothing, seconds=2)
    spoil(bad, tasks[0], damage)
    bad.write("p")
    report = bad.tender.turn(prune=False, reconcile=False)
    assert report.swept == 3
    assert any("can't be read" in error for error in report.errors)
    assert bad.settle(run_nothing, seconds=2) == 3
    marker = bad.sysdb.layout.keys.dirty(bad.sysdb.layout.shard_of(tasks[0].partition), tasks[0].partition)
    assert idempotent_txn.run(bad.db, lambda tr: tr.get(marker).present()), "the write is not forgotten"


@pytest.mark.parametrize("session", [b"\xff\xfe", b"no session's name"])
def test_a_run_of_no_session_keeps_no_scheduler_from_its_work(bad: Any, session: bytes) -> None:
    running = in_shard(bad, 0, "running")
    bad.sysdb.claim(running)
    in_shard(bad, 0, "due")
    bad.tend()
    index = bad.sysdb.layout.keys.run(0, running.id)
    row = bad.sysdb.read(transitions.load, running.id)

    def spoiled(tr: Any) -> None:
        tr.set(index, session)
        name = session.decode(errors="replace")
        tr.set(bad.sysdb.layout.keys.task(running.id), replace(row, session=name).encode())

    idempotent_txn.run(bad.db, spoiled)
    sysdb = bad.new_sysdb()
    with LeaseManager(bad.db, bad.cluster) as locks:
        sysdb._sessions = LeaseSessions(locks)
        assert bad.new_scheduler(run_nothing, sysdb).turn().started == 1
        assert metrics(sysdb).orphaned == 0
    assert bad.sysdb.get(running.id).state == "running"


def test_a_row_that_cannot_be_read_keeps_no_listing_from_its_reader(bad: Any) -> None:
    tasks = [in_shard(bad, 0, f"t{number}") for number in range(3)]
    bad.tend()
    spoil(bad, tasks[0])
    left = {task.id for task in tasks[1:]}
    assert {task.id for task in bad.sysdb.tasks()} == left
    assert {task.id for task in bad.sysdb.tasks("p")} == left
    assert {task.id for task in next_due(bad.sysdb)} == left
    assert metrics(bad.sysdb).active == 3
    assert not fsck(bad.heap, bad.sysdb).unknown


def test_a_dead_letter_that_cannot_be_read_hides_no_other(bad: Any) -> None:
    tasks = [in_shard(bad, 0, f"t{number}", max_attempts=1) for number in range(3)]
    for task in tasks:
        bad.sysdb.fail(bad.sysdb.claim(task), "broken")
    key = bad.sysdb.layout.keys.dead_letter(tasks[1].id, 1)
    idempotent_txn.run(bad.db, lambda tr: tr.set(key, b"\xc1poison"))
    assert {letter.task for letter in bad.sysdb.dead_letters()} == {tasks[0].id, tasks[2].id}


def test_an_intent_that_cannot_be_read_is_asked_for_again(bad: Any) -> None:
    tasks = [in_shard(bad, 0, f"t{number}") for number in range(2)]
    key = bad.sysdb.layout.keys.intent(0, tasks[0].id)
    idempotent_txn.run(bad.db, lambda tr: tr.set(key, b"poison"))
    assert bad.tender.turn(prune=False, reconcile=False).pushed == 1
    assert bad.tender.turn(prune=False, reconcile=True).reconciled == 1
    assert bad.settle(run_nothing, seconds=2) == 2


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(initial=1e300, maximum=1e300),
        Backoff(initial=1.0, factor=1e300, maximum=float("inf")),
        Backoff(initial=1e12, maximum=1e12, jitter=1e300),
    ],
)
def test_a_back_off_far_ahead_stops_its_own_task_only(bad: Any, backoff: Backoff) -> None:
    far = in_shard(bad, 0, "far", backoff=backoff)
    near = in_shard(bad, 0, "near", backoff=0.1)
    ran: list[str] = []

    def trigger(task: Any, gen: int, epoch: int) -> None:
        ran.append(task.name)
        if len(ran) <= 4:
            raise RuntimeError("no")

    bad.settle(trigger, seconds=10)
    assert bad.sysdb.get(near.id).state == "waiting"
    assert bad.sysdb.get(far.id).due > 1e8 or ran.count("far") > 1


def test_a_back_off_that_is_no_number_is_refused_and_wedges_no_row_that_has_it() -> None:
    with pytest.raises(ValueError, match="backoff must have"):
        core_row(float("nan"))
    assert 600.0 <= core.backoff_seconds(Backoff(initial=float("nan")), 1, 0.5) <= 660.0
    assert core.backoff_seconds(Backoff(maximum=float("nan")), 1, 0.5) <= 600.0


def core_row(initial: float) -> Any:
    from s3heap_tender.rows.settings import new_row

    return new_row("p", "t", 1.0, 1, None, 0, initial, 5, "skip", "once", b"")


@pytest.mark.parametrize("before", [float("nan"), float("inf"), float("-inf")])
def test_a_moment_that_is_no_time_is_refused(quick: Any, before: float) -> None:
    with pytest.raises(ValueError, match="a time in seconds"):
        quick.heap.peek(before=before)
    assert quick.heap.peek(before=1e300) == []


def test_a_directory_beside_the_objects_is_none_of_the_heaps(quick: Any, tmp_path: Path) -> None:
    quick.store = HeapStore(f"file:{tmp_path / 'heap'}")
    (tmp_path / "heap" / "lost+found").mkdir()
    (tmp_path / "heap" / ".Trash.of.someone").mkdir()
    quick.heap = quick.new_heap(quick.sysdb)
    quick.sysdb.create_task("p", "t", cadence=0)
    quick.heap.push(list(quick.sysdb.tasks()))
    HeapStore(f"file:{tmp_path / 'heap'}")
    assert fsck(quick.heap, quick.sysdb).clean


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_listed(
    any_db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual: Any = sys.modules["s3heap_tender_tests_virtual"]
    bench = virtual.Bench(any_db, shards=1, store=HeapStore(f"file:{tmp_path}", fsync=False))
    bench.sysdb.create_task("p", "t", cadence=0)
    bench.tend()
    [name] = [path.name for path in tmp_path.iterdir() if path.name.startswith("0000-")]
    lost = f"{name[:-3]}001"
    (tmp_path / lost).write_bytes(bytes(100))

    def refusing(path: Any, *args: Any, **options: Any) -> Any:
        if Path(path).name == lost:
            raise PermissionError(13, "Permission denied")
        return open(path, *args, **options)

    monkeypatch.setattr("s3heap_tender.stores.file.open", refusing, raising=False)
    ran: list[str] = []
    report = bench.new_scheduler(lambda task, gen, epoch: ran.append(task.name)).turn()
    assert ran == ["t"]
    assert any(f"{lost} can't be read" in error for error in report.errors)


def test_a_tender_that_starts_while_the_store_is_away_waits_and_says_so(tmp_path: Path) -> None:
    database = f"embedded:{tmp_path / 'db'}"
    open_database(database)
    command = [sys.executable, "-m", "s3heap_tender", "tend", "--db", database, "--store", "s3://heap/x"]
    child = subprocess.Popen(
        [*command, "--endpoint-url", "http://127.0.0.1:9"],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/bin", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    )
    try:
        assert child.stderr is not None
        said = next(line for line in child.stderr if "store is away" in line)
        assert "asked again" in said
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_service_that_is_told_to_end_while_the_store_is_away_ends(
    quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def away(*_: Any, **options: Any) -> Any:
        stop.set()
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(cli_common, "HeapStore", away)
    with ExitStack() as stack, pytest.raises(typer.Exit) as ended:
        cli_common.open_heap_on(stack, quick.sysdb, "s3://away", {}, patient=True, stop=stop)
    assert ended.value.exit_code == 0


def test_an_object_of_a_newer_release_does_not_keep_what_is_done_elsewhere(quick: Any) -> None:
    key = ObjectName(0, 0).key
    body = encode_object(ObjectHeader(0, 0, 0, 0, 1, b"writer"), [])
    quick.store.put(key, body.replace(b"\xa1v\x01", b"\xa1v\x02"), if_match=None)
    tasks = [quick.sysdb.create_task("p", f"t{n}") for n in range(40)]
    quick.tend()
    for task in tasks:
        quick.sysdb.delete(task.id)
    quick.clock.sleep(120)
    quick.sysdb.tick()
    quick.heap.prune_done(0, limit=2)
    assert [name.key for name in quick.heap.names(0)] == [key]


# --- keys that no release wrote

STRAYS: list[tuple[Any, ...]] = [
    ("x",),
    (-5, b"x" * 16),
    (None,),
    (b"x" * 15,),
    (b"x" * 16, b"x" * 16, b"x" * 16),
    (0, "x"),
    (0, b"short"),
    (5, 5, 5, 5),
    (1 << 70, b"x" * 16),
    (b"\x00",),
    ((), ()),
    ("~", "~"),
    (uuid.UUID(int=5), uuid.UUID(int=5)),
]
TORN = [b"\x00", b"\x01", b"\x02x", b"\x15", b"\x16\x00\x01", b"\x1d\x09" + b"\x01" * 9, b"\xfe", b"\xfe\xff"]
PLACES = {
    **{name: (name,) for name in ("heap", "task", "tomb", "dlq", "quarantine", "stats")},
    **{name: (name, 0) for name in ("active", "due", "run", "done", "intent", "dirty")},
    "part": ("part", partition_id("p").bytes),
}


def is_stray(bench: Any, key: bytes, kind: str) -> bool:
    try:
        bench.sysdb.layout.keys._read(key, kind)
    except StrayKeyError:
        return True
    return False


@pytest.mark.parametrize("place", PLACES)
def test_a_key_that_nothing_here_wrote_ends_no_turn_and_hides_nothing(bad: Any, place: str) -> None:
    base = bad.sysdb.layout.keys.space["s3heap"]
    prefix = base[PLACES[place][0]]
    for part in PLACES[place][1:]:
        prefix = prefix[part]
    planted = [prefix.pack(stray) for stray in STRAYS] + [prefix.key() + torn for torn in TORN]
    planted += [prefix.key() + torn + b"%04d" % n for n in range(300) for torn in (b"\x00", b"\xfe")]
    planted = [key for key in planted if is_stray(bad, key, PLACES[place][0])]

    def plant(tr: Any) -> None:
        for key in planted:
            tr.set(key, b"")

    idempotent_txn.run(bad.db, plant)
    tasks = [in_shard(bad, shard, name) for shard, name in ((0, "first"), (0, "last"), (1, "other"))]
    ran: list[str] = []
    scheduler = bad.new_scheduler(lambda task, gen, epoch: ran.append(task.name))
    for _ in range(3):
        bad.tend()
        assert scheduler.turn().errors == []
        bad.clock.sleep(5)
    assert sorted(ran) == ["first", "last", "other"]
    for _ in range(2):
        bad.write("p")
        for _ in range(6):
            bad.tend()
            assert scheduler.turn().errors == []
            bad.clock.sleep(5)
    assert sorted(ran) == sorted(["first", "last", "other"] * 3)
    bad.clock.sleep(300)
    assert bad.tender.turn(prune=True, reconcile=True).errors == []
    assert bad.heap.summary().items == 0
    assert fsck(bad.heap, bad.sysdb, repair=True).missing == 0
    assert (
        {task.id for task in bad.sysdb.tasks()} == {task.id for task in bad.sysdb.tasks("p")} == {t.id for t in tasks}
    )
    assert next_due(bad.sysdb) == []
    assert bad.sysdb.dead_letters() == []
    assert metrics(bad.sysdb, bad.heap).starts == bad.sysdb.stats()["starts"] == 9
    assert bad.sysdb.describe(tasks[0].id).dead_letters == ()
    with LeaseManager(bad.db, cluster="elsewhere") as locks:
        prune_untended(bad.heap, locks)
    bad.sysdb.delete(tasks[0].id)
    bad.clock.sleep(300)
    assert bad.tender.turn(prune=True, reconcile=True).errors == []
