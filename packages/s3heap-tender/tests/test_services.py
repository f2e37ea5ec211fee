"""Tender and scheduler as services: threads, real leases, takeovers, triggers. Real time, embedded engine."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import idempotent_txn
from lease_locks import LeaseManager, MemoizingPicklingRunner
from lease_locks.memo.shells import samethread_shell
from s3heap_tender import (
    ClaimRefusedError,
    Heap,
    HeapStore,
    ReadUpTo,
    Scheduler,
    SysDb,
    Tender,
    futures_trigger,
    history,
    keep_output,
    memoized_trigger,
    run_key,
    subprocess_trigger,
)
from s3heap_tender.claims.sessions import LeaseSessions
from s3heap_tender.runs.ownership import LeasedShards
from s3heap_tender.trace import Trace

DEADLINE = 60.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for something other threads bring about."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen in {DEADLINE:.0f} s"
        time.sleep(0.02)
    return found


class Service:
    def __init__(self, db: Any, store: HeapStore) -> None:
        self.db = db
        self.lines: list[str] = []
        self.stack = ExitStack()
        self.sysdb = self.stack.enter_context(SysDb(db, "svc", shards=4, trace=Trace(lines=self.lines)))
        self.heap = self.stack.enter_context(Heap(store, self.sysdb))
        self.store = store

    @contextmanager
    def running(self, service: Any) -> Iterator[None]:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                service.run()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            service.stop()
            thread.join(DEADLINE)
            assert not thread.is_alive()
            assert failures == []


@pytest.fixture
def service(shared_db: Any) -> Iterator[Service]:
    made = Service(shared_db, HeapStore("memory:"))
    with made.stack:
        yield made


def test_writes_cause_runs_and_nothing_breaks(service: Service) -> None:
    runs: list[tuple[str, int]] = []
    tasks = [service.sysdb.create_task(f"p{n}", "t", cadence=0.3) for n in range(8)]
    tender = Tender(service.heap, service.sysdb, poll=0.02)
    scheduler = Scheduler(
        service.heap, service.sysdb, lambda task, gen, epoch: runs.append((task.id, gen)), concurrency=4, poll=0.02
    )
    with service.running(tender), service.running(scheduler):
        for _ in range(3):
            for number in range(8):
                idempotent_txn.run(service.db, lambda tr, n=number: service.sysdb.record_write(tr, f"p{n}"))
            time.sleep(0.1)
        until(
            lambda: all(
                t.state == "waiting" and t.completion_offset == 3 for t in (service.sysdb.get(x.id) for x in tasks)
            ),
            "a run for every write",
        )
    assert {id for id, _ in runs} == {task.id for task in tasks}
    assert [str(found) for found in history.check(service.lines)] == []


def test_a_tender_owns_shards_under_leases_and_shares_them(service: Service) -> None:
    with LeaseManager(service.db, cluster="svc") as one, LeaseManager(service.db, cluster="svc") as two:
        first = LeasedShards(one, 4)
        assert sorted(first.shards()) == [0, 1, 2, 3]
        assert all(epoch > 0 for epoch in first.shards().values())
        second = LeasedShards(two, 4)
        until(lambda: len(first.shards()) == 2, "the first to leave two shards")
        until(lambda: len(second.shards()) == 2, "the second to take two shards")
        assert set(first.shards()) | set(second.shards()) == {0, 1, 2, 3}
        shard = next(iter(first.shards()))
        first.step_down(shard)
        first.close()
        until(lambda: len(second.shards()) == 4, "the second to take all shards")
        second.close()


def test_an_owner_steps_down_at_its_first_lost_condition(service: Service) -> None:
    task = service.sysdb.create_task("p", "t", cadence=0)
    shard = service.sysdb.layout.shard_of(task.id)
    with LeaseManager(service.db, cluster="svc") as locks:
        ownership = LeasedShards(locks, 4)
        tender = Tender(service.heap, service.sysdb, ownership=ownership)
        tender.turn(prune=False, reconcile=False)
        epoch = ownership.shards()[shard]
        assert service.heap.writer(shard).owner
        stranger = Heap(service.store, service.sysdb, threads=0)
        stranger.push(task)
        service.sysdb.run_now(task.id)
        other = service.sysdb.create_task("p", "another", cadence=0, id=_same_shard(service, shard))
        report = tender.turn(prune=False, reconcile=False)
        assert any("steps down" in error for error in report.errors)
        assert not service.heap.writer(shard).owner
        assert tender.turn(prune=False, reconcile=False).errors == []
        assert ownership.shards()[shard] > epoch
        assert other.item in service.heap.peek()
        ownership.close()


def _same_shard(service: Service, shard: int) -> Any:
    while True:
        id = uuid.uuid4()
        if service.sysdb.layout.shard_of(id) == shard:
            return id


def test_a_claim_is_retaken_once_its_lease_session_is_dead(service: Service) -> None:
    task = service.sysdb.create_task("p", "t", cadence=0)
    locks = LeaseManager(service.db, cluster="svc", ttl=4.0)
    holder = SysDb(service.db, "svc", sessions=LeaseSessions(locks, owned=True))
    holder.claim(task)
    with pytest.raises(ClaimRefusedError) as refusal:
        service.sysdb.claim(task)
    assert refusal.value.reason == "running"
    time.sleep(5.0)  # longer than the ttl: the holder lives, so its claim stays
    with pytest.raises(ClaimRefusedError):
        service.sysdb.claim(task)
    holder.close()

    def retake() -> Any:
        try:
            return service.sysdb.claim(task)
        except ClaimRefusedError:
            return None

    assert until(retake, "the takeover").epoch == 2


def test_a_scheduler_that_stops_waits_for_its_runs(service: Service) -> None:
    service.sysdb.create_task("p", "t", cadence=0)
    began, go = threading.Event(), threading.Event()

    def trigger(task: Any, gen: int, epoch: int) -> None:
        began.set()
        assert go.wait(DEADLINE)

    Tender(service.heap, service.sysdb).turn()
    scheduler = Scheduler(service.heap, service.sysdb, trigger, poll=0.02)
    with service.running(scheduler):
        assert began.wait(DEADLINE)
        scheduler.stop()
        go.set()
    assert service.sysdb.stats()["finishes"] == 1


def test_a_trigger_may_return_a_future_or_how_far_it_read(service: Service) -> None:
    pool = ThreadPoolExecutor(1)
    outcomes: dict[str, Any] = {
        "future": lambda: pool.submit(lambda: ReadUpTo(3)),
        "offset": lambda: ReadUpTo(3),
        "number": lambda: 3,
        "none": lambda: None,
    }
    ids = {name: service.sysdb.create_task("p", name, cadence=0).id for name in outcomes}
    service.sysdb.mark_dirty("p", 4)
    Tender(service.heap, service.sysdb).turn()
    Scheduler(service.heap, service.sysdb, lambda task, gen, epoch: outcomes[task.name](), concurrency=0).turn()
    read = {name: service.sysdb.get(id).completion_offset for name, id in ids.items()}
    assert read == {"future": 3, "offset": 3, "number": 4, "none": 4}
    pool.shutdown()


def run_once(service: Service, trigger: Any, **settings: Any) -> Any:
    task = service.sysdb.create_task("p", "t", cadence=0, backoff=0.0, **settings)
    Tender(service.heap, service.sysdb).turn()
    Scheduler(service.heap, service.sysdb, trigger, concurrency=0).turn()
    return service.sysdb.get(task.id)


def test_a_subprocess_trigger_passes_payload_and_identity(service: Service) -> None:
    code = (
        "import os, sys; assert sys.stdin.buffer.read() == b'in'; "
        "assert os.environ['S3HEAP_GEN'] == '1' and os.environ['S3HEAP_NAME'] == 't'; print('upto=7')"
    )
    service.sysdb.mark_dirty("p", 7)
    after = run_once(service, subprocess_trigger([sys.executable, "-c", code]), payload=b"in")
    assert (after.state, after.completion_offset, after.last_error) == ("waiting", 7, "")


def test_the_end_of_what_a_run_printed_is_kept_and_no_more(service: Service) -> None:
    code = "import sys; [print('line', n) for n in range(300_000)]; print('the end')"
    after = run_once(service, subprocess_trigger([sys.executable, "-c", code]))
    found = service.sysdb.describe(after.id)
    assert (found.output_gen, found.output.splitlines()[-1]) == (1, "the end")
    assert 3000 < len(found.output) <= 4000
    service.sysdb.run_now(after.id)
    Tender(service.heap, service.sysdb).turn()
    scheduler = Scheduler(service.heap, service.sysdb, lambda task, gen, epoch: None, concurrency=0)
    until(lambda: scheduler.turn().finished, "the next generation's run")
    assert service.sysdb.describe(after.id).output == ""  # the last run printed nothing


def test_any_trigger_may_keep_an_output_also_of_a_failed_run(service: Service) -> None:
    def trigger(task: Any, gen: int, epoch: int) -> None:
        keep_output("x" * 10_000 + "why")
        raise RuntimeError("no")

    after = run_once(service, trigger)
    found = service.sysdb.describe(after.id)
    assert (after.state, len(found.output), found.output[-4:]) == ("scheduled", 4000, "xwhy")
    service.sysdb.delete(after.id)
    key = service.sysdb.layout.keys.output(after.id)
    assert not idempotent_txn.run(service.db, lambda tr: tr.get(key).present())


def test_a_command_is_over_when_it_ends_whatever_it_left_running(service: Service, tmp_path: Any) -> None:
    pid = tmp_path / "pid"
    began = time.monotonic()
    after = run_once(service, subprocess_trigger(["sh", "-c", f"sleep 600 & echo $! > {pid}; echo done"]))
    assert (after.state, service.sysdb.describe(after.id).output) == ("waiting", "done\n")
    until(lambda: _is_gone(int(pid.read_text())), "the end of what the command left running")
    assert time.monotonic() - began < 300


def test_a_payload_that_nobody_reads_holds_nobody_up(service: Service) -> None:
    after = run_once(service, subprocess_trigger(["true"]), payload=b"x" * 64_000)
    assert after.state == "waiting"


def test_a_command_that_cannot_be_started_is_a_failed_run(service: Service) -> None:
    after = run_once(service, subprocess_trigger(["/no/such/command"]))
    assert (after.state, after.attempt) == ("scheduled", 1)
    assert "/no/such/command can't be started: No such file" in after.last_error


def test_a_run_that_is_stopped_with_its_scheduler_has_not_failed(service: Service) -> None:
    stop = threading.Event()
    task = service.sysdb.create_task("p", "t", cadence=0)
    Tender(service.heap, service.sysdb).turn()
    scheduler = Scheduler(service.heap, service.sysdb, subprocess_trigger(["sleep", "600"], stop=stop), concurrency=1)
    scheduler.turn()
    until(lambda: service.sysdb.get(task.id).state == "running", "the start")
    stop.set()
    assert scheduler.drain(DEADLINE)
    after = service.sysdb.get(task.id)
    assert (after.state, after.attempt, after.last_error) == ("running", 0, "")


def test_a_subprocess_that_fails_says_why(service: Service) -> None:
    trigger = subprocess_trigger([sys.executable, "-c", "import sys; sys.exit('no space')"])
    after = run_once(service, trigger)
    assert (after.state, after.attempt) == ("scheduled", 1)
    assert "exited with 1: no space" in after.last_error


def test_a_subprocess_that_takes_too_long_is_killed_with_its_children(service: Service, tmp_path: Any) -> None:
    pid = tmp_path / "pid"
    code = f"import subprocess, time; p = subprocess.Popen(['sleep', '600']); open({str(pid)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    after = run_once(service, subprocess_trigger([sys.executable, "-c", code], timeout=5.0))
    assert "longer than 5 s" in after.last_error
    text = pid.read_text() if pid.exists() else ""
    if text:  # on a busy machine the command may be killed before it started its child
        until(lambda: _is_gone(int(text)), "the end of the command's child")


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Client:
    """What a futures client offers a trigger: futures by key."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}

    def submit(self, function: Any, *args: Any, key: str) -> Future[Any]:
        if key not in self.futures:
            future: Future[Any] = Future()
            future.set_result(function(*args))
            self.futures[key] = future
        return self.futures[key]


def test_a_futures_trigger_attaches_to_the_future_of_the_same_attempt(service: Service) -> None:
    client, calls = Client(), []
    trigger = futures_trigger(client, lambda task, gen, epoch: calls.append((gen, task.attempt)))
    after = run_once(service, trigger)
    assert after.state == "waiting"
    assert list(client.futures) == [f"{after.id}/1/0"]
    trigger(after, 1, 2)
    assert calls == [(1, 0)]
    assert run_key(after, 1) == (str(after.id), 1, 0)


_COUNTED: list[tuple[Any, int, int]] = []


def counted(id: Any, gen: int, attempt: int) -> int:
    _COUNTED.append((id, gen, attempt))
    return 5


def test_a_memoized_trigger_computes_an_attempt_once(service: Service) -> None:
    with LeaseManager(service.db, cluster="svc") as locks:
        runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id=uuid.uuid4().hex)
        trigger = memoized_trigger(runner, counted)
        service.sysdb.mark_dirty("p", 5)
        after = run_once(service, trigger)
        assert after.completion_offset == 5
        assert trigger(after, 1, 2) == 5  # as a scheduler would that takes the run over
        assert [(after.id, 1, 0)] == _COUNTED


def test_services_of_two_sysdbs_are_not_mixed(service: Service) -> None:
    other = SysDb(service.db, "other")
    with pytest.raises(ValueError, match="another sysdb"):
        Tender(service.heap, other)
    with pytest.raises(ValueError, match="another sysdb"):
        Scheduler(service.heap, other, lambda task, gen, epoch: None)
