"""What must not be left behind, or go wrong unseen, where something comes at the worst moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fdb_schema import MainspringError, fdb_error_code, open_database
from lease_locks import Duties, Duty, LeaseLost, LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks.duties import DutyReport
from lease_locks.grants import transitions as t
from lease_locks.grants.rows import read_name, read_queue
from lease_locks.memo.functions import bind
from lease_locks.memo.runner import RequiredResultNotFound
from lease_locks.session.clocks import SystemClocks
from lease_locks.waiting.acquiring import Transact, acquiring
from lease_locks.waiting.claims import claim_of

DEADLINE = 60.0


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


def committed(db: Any, body: Any) -> Any:
    tr = db.create_transaction()
    value = body(tr)
    tr.commit().wait()
    return value


def test_a_place_taken_by_an_unknown_commit_is_given_back_with_the_result(locks: LeaseManager) -> None:
    lock = locks.space.lock("name")
    locks.acquire("name")
    results: list[str] = []
    claim = claim_of(locks.session)
    steps = acquiring(locks.session, lock, claim, None, look=lambda _: results[0] if results else None)
    step = next(steps)
    assert isinstance(step, Transact)
    # The first attempt takes a place and commits, but the client isn't told so; meanwhile the result comes.
    assert committed(locks.db, step.body).again
    assert committed(locks.db, lambda tr: len(read_queue(tr, lock))) == 1
    results.append("result")
    outcome = type("Outcome", (), {"value": committed(locks.db, step.body)})
    with pytest.raises(StopIteration) as end:
        steps.send(outcome)
    assert end.value.value == "result"
    assert committed(locks.db, lambda tr: read_queue(tr, lock)) == []


@pytest.mark.parametrize("fair", [True, False])
def test_a_first_grant_in_flight_does_not_slip_past_the_withdrawal(locks: LeaseManager, fair: bool) -> None:
    lock, space = locks.space.lock("name"), locks.space
    claim = claim_of(locks.session, fair=fair)
    late, withdrawal = locks.db.create_transaction(), locks.db.create_transaction()
    assert isinstance(t.acquire(late, space, lock, claim, locks.session.observer, first=True), t.Granted)
    t.withdraw(withdrawal, space, lock, claim)
    late.commit().wait()
    with pytest.raises(Exception) as refused:
        withdrawal.commit().wait()
    assert fdb_error_code(refused.value) == 1020
    committed(locks.db, lambda tr: t.withdraw(tr, space, lock, claim))
    assert committed(locks.db, lambda tr: read_name(tr, lock).grants) == []


def test_a_closed_manager_grants_nothing_that_nobody_would_keep() -> None:
    db = open_database("memory:")
    with LeaseManager(db, cluster="demo") as locks, LeaseManager(db, cluster="demo") as other:
        locks.acquire("before")
        locks.close()
        with pytest.raises(MainspringError, match="closed"):
            locks.try_acquire("name")
        assert other.list() == []


def test_a_callback_that_blocks_costs_no_other_lease() -> None:
    db = open_database("memory:")
    with LeaseManager(db, cluster="demo", ttl=1.0) as locks, LeaseManager(db, cluster="demo") as other:
        forced, kept = locks.acquire("forced"), locks.acquire("kept", ttl=600.0)
        called, go_on = threading.Event(), threading.Event()
        renewals = threading.Event()
        forced.on_lost(lambda _: (called.set(), go_on.wait(DEADLINE)))
        try:
            other.force_release("forced", reason="test")
            assert called.wait(DEADLINE)
            renewed = locks.session.upkeep.renew
            locks.session.upkeep.renew = lambda **options: (renewed(**options), renewals.set())  # type: ignore[method-assign, func-returns-value]
            assert renewals.wait(DEADLINE), "the heartbeat stopped while a callback ran"
            assert kept.held
        finally:
            go_on.set()


def test_a_callback_may_want_what_the_caller_of_check_holds() -> None:
    slept = [0.0]

    class Clocks(SystemClocks):
        def boottime(self) -> float:
            late = threading.current_thread().name.startswith("lease-")  # the session's own threads find out nothing
            return SystemClocks().boottime() + (0.0 if late else slept[0])

    held, done = threading.Lock(), threading.Event()

    def callback(_: Any) -> None:
        if held.acquire(timeout=DEADLINE):
            held.release()
            done.set()

    def check() -> None:
        with held, pytest.raises(LeaseLost):
            lease.check()
        found.set()

    for start in (lambda: threading.Thread(target=check, daemon=True).start(), check):  # in the main thread, too
        with LeaseManager(open_database("memory:"), cluster="demo", ttl=600.0, clocks=Clocks()) as locks:
            lease, found = locks.acquire("name"), threading.Event()
            lease.on_lost(callback)
            slept[0] += 1_000.0
            start()
            assert found.wait(1.0), "check() waits for a callback that waits for its caller"
            assert done.wait(DEADLINE)
            done.clear()


def test_a_duty_that_failed_a_thousand_times_still_pauses(locks: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    key = locks.space.cluster["duty"].pack(("broken",))
    locks.db[key] = DutyReport(failures=2_000).encode()
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None or len(waits) > 1:
                self.set()
                return True
            waits.append(timeout)
            return self.is_set()

    def fail() -> int:
        raise MainspringError("broken")

    duties = Duties(locks, [Duty("broken", 1.0, fail)], standby=0.01)
    duties._stop = Stop()
    duties._serve(duties._duties[0])
    assert waits[0] == 0.0
    assert 50.0 < waits[1] < 70.0


class Model:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def scaled(self, x: int) -> int:
        return self.factor * x

    def __call__(self, x: int) -> int:
        return self.factor + x

    @classmethod
    def named(cls, x: int) -> str:
        return f"{cls.__name__}{x}"


class Submodel(Model):
    pass


def test_the_object_of_a_method_is_part_of_the_call(locks: LeaseManager) -> None:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell)
    assert [runner.call(Model(n).scaled, 5) for n in (2, 3, 2)] == [10, 15, 10]
    assert [runner.call(Model(n), 5) for n in (2, 3, 2)] == [7, 8, 7]
    assert [runner.call(cls.named, 5) for cls in (Model, Submodel)] == ["Model5", "Submodel5"]
    assert bind("p", Model(2).scaled, (5,), {}).memo == bind("p", Model(2).scaled, (), {"x": 5}).memo


def test_blocks_that_require_results_may_end_in_any_order(locks: LeaseManager) -> None:
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell)
    first, second = runner.require_all("first"), runner.require_all("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(RequiredResultNotFound, match="second"):
        runner.call(Model(2).scaled, 1)
    second.__exit__(None, None, None)
    assert runner.call(Model(2).scaled, 1) == 2


_FORKS = """
import asyncio, os
from lease_locks.waiting.loops import in_thread

assert asyncio.run(in_thread(lambda: 1)) == 1
pid = os.fork()
if pid == 0:
    try:
        os._exit(asyncio.run(asyncio.wait_for(in_thread(lambda: 7), {deadline})))
    finally:
        os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parents_pool() -> None:
    # In a process of its own: what other tests' threads hold in the moment of a fork is held in the child for ever.
    code = _FORKS.format(deadline=DEADLINE)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=2 * DEADLINE
    )
    assert ended.stdout == "7\n", ended.stderr
