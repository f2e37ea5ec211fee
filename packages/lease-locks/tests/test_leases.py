"""What the design says of leases, bullet by bullet, on every engine."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import Any

import pytest
from lease_processes import DEADLINE, eventually

from fdb_schema import NameInvalidError, fdb_error_code
from idempotent_txn import run
from lease_locks import (
    AcquireTimeout,
    CannotMaintainLock,
    ForkedLeaseError,
    LeaseLost,
    LeaseManager,
    LockReleased,
    LockWasStolenError,
)
from lease_locks.grants import ending, transitions
from lease_locks.grants import rows as lease_rows
from lease_locks.grants.observer import Dead
from lease_locks.grants.space import HISTORY_EVENTS
from lease_locks.grants.tokens import FencingToken
from lease_locks.grants.transitions import trim_history
from lease_locks.session.clocks import SystemClocks
from lease_locks.waiting.claims import claim_of


def wait_for_waiters(locks: LeaseManager, name: str, count: int) -> None:
    def enough() -> bool:
        info = locks.read(name)
        return info is not None and len(info.waiters) == count

    eventually(enough, f"{count} waiters for {name}")


# --- acquire, release, read


def test_a_free_name_is_acquired_and_a_held_one_is_not(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.try_acquire("a")
    assert lease is not None
    lease.check()
    assert other.try_acquire("a") is None
    assert other.try_acquire("b") is not None
    assert lease.release() is True
    assert other.try_acquire("a") is not None


def test_tokens_grow_in_the_order_of_grants(locks: LeaseManager, other: LeaseManager) -> None:
    tokens = []
    for round_ in range(10):
        manager = (locks, other)[round_ % 2]
        with manager.lock("a", timeout=DEADLINE) as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert [int(t) for t in tokens] == sorted({int(t) for t in tokens})
    assert [t.hex for t in tokens] == sorted({t.hex for t in tokens})


def test_acquire_timeout_names_the_holder(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    with pytest.raises(
        AcquireTimeout, match=rf"'a' was not free within 0.1 s: held by .*:{os.getpid()} since"
    ) as failed:
        other.acquire("a", timeout=0.1)
    assert failed.value.holder is not None
    assert failed.value.holder.token == lease.token
    assert failed.value.exit_code == 75
    assert isinstance(failed.value, TimeoutError)


def test_acquire_timeout_counts_the_others_that_wait_not_itself(locks: LeaseManager, other: LeaseManager) -> None:
    locks.acquire("a")
    with pytest.raises(AcquireTimeout) as alone:
        other.acquire("a", timeout=0.01)
    assert "waiting" not in str(alone.value)


def test_acquire_and_release_are_two_transactions(any_db: Any) -> None:
    made: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(any_db, name)

        def create_transaction(self) -> Any:
            made.append(threading.current_thread().name)
            return any_db.create_transaction()

    with LeaseManager(Counted(), cluster="demo", ttl=600.0) as locks:
        for _ in range(20):
            locks.acquire("a").release()
        del made[:]
        for _ in range(20):
            locks.acquire("a").release()
        assert made == [threading.current_thread().name] * 40


def test_read_says_who_holds(locks: LeaseManager, other: LeaseManager) -> None:
    assert other.read("a") is None
    lease = locks.acquire("a", ttl=20.0, meta={"job": "train", "n": 3})
    info = other.read("a")
    assert info is not None
    assert (info.name, info.token, info.writer_id) == ("a", lease.token, lease.writer_id)
    assert (info.pid, info.mode, info.ttl) == (os.getpid(), "exclusive", 20.0)
    assert info.meta == {"job": "train", "n": 3}
    assert info.updated_at is not None
    assert info.updated_at >= info.acquired_at
    assert [m.role for m in info.maintainers] == ["orchestrator"]
    assert info.waiters == ()
    assert "/" not in lease.writer_id


def test_updated_at_moves_with_a_renewal(locks: LeaseManager) -> None:
    lease = locks.acquire("a")
    before = locks.read("a")
    lease.maintain()
    after = locks.read("a")
    assert before is not None and after is not None
    assert before.updated_at is not None and after.updated_at is not None
    assert after.updated_at > before.updated_at
    assert after.acquired_at == before.acquired_at


def test_list_shows_every_grant_of_a_prefix(locks: LeaseManager) -> None:
    names = ["x", "jobs/1", "jobs/2", "job", "jobs/ü"]
    for name in names:
        locks.acquire(name)
    assert [info.name for info in locks.list("jobs/")] == ["jobs/1", "jobs/2", "jobs/ü"]
    assert sorted(info.name for info in locks.list()) == sorted(names)
    paged: list[str] = []
    after: bytes | None = b""
    while after is not None:
        page, after = locks.page("", after, 2)
        assert len(page) <= 2
        paged += [info.name for info in page]
    assert paged == [info.name for info in locks.list()]
    before, page, after_it = locks.list("jobs/"), locks.page("jobs/", b"\x00", 100), locks.list("jobs/")
    # A heartbeat may come between two looks.
    assert page in ((before, None), (after_it, None)), "a page is of the names asked for alone"


def test_list_is_paged_and_whole(locks: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lease_locks.locks._PAGE", 3)
    for number in range(10):
        locks.acquire(f"n{number}")
    shared = [locks.acquire("n4-shared", mode="shared") for _ in range(7)]
    assert len(shared) == 7
    assert [info.name for info in locks.list("n")] == [
        *(f"n{i}" for i in range(5)),
        *["n4-shared"] * 7,
        *(f"n{i}" for i in range(5, 10)),
    ]


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 256, 7])
def test_a_bad_name_is_refused(locks: LeaseManager, name: Any) -> None:
    with pytest.raises(NameInvalidError):
        locks.acquire(name)


@pytest.mark.parametrize(
    "options", [{"ttl": 0}, {"ttl": -1}, {"mode": "write"}, {"slots": 0}, {"max_hold": 0}], ids=str
)
def test_bad_options_are_refused(locks: LeaseManager, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        locks.acquire("a", **options)


def test_release_twice_is_true(locks: LeaseManager) -> None:
    lease = locks.acquire("a")
    assert lease.release() is True
    assert lease.release() is True
    assert not lease.lost.is_set()
    with pytest.raises(LeaseLost) as failed:
        lease.check()
    assert failed.value.reason == "released"


def test_leaving_the_manager_releases_everything(any_db: Any, locks: LeaseManager) -> None:
    with LeaseManager(any_db, cluster="demo") as manager:
        for name in ("a", "b"):
            manager.acquire(name)
    assert locks.list() == []
    assert len(list(locks.sessions())) == 1, "the session's rows are gone"


def test_clusters_do_not_meet(any_db: Any, locks: LeaseManager) -> None:
    locks.acquire("a")
    with LeaseManager(any_db, cluster="another") as manager:
        assert manager.try_acquire("a") is not None


# --- modes


def test_shared_holders_are_many_and_exclude_an_exclusive_one(locks: LeaseManager, other: LeaseManager) -> None:
    shared = [manager.acquire("a", mode="shared", timeout=DEADLINE) for manager in (locks, other, other)]
    assert len({lease.token for lease in shared}) == 3
    assert locks.try_acquire("a") is None
    for lease in shared:
        assert locks.try_acquire("a") is None
        lease.release()
    exclusive = locks.try_acquire("a")
    assert exclusive is not None
    assert other.try_acquire("a", mode="shared") is None


def test_slots_admit_so_many(locks: LeaseManager, other: LeaseManager) -> None:
    leases = [manager.try_acquire("a", slots=3) for manager in (locks, other, locks)]
    assert all(leases)
    assert other.try_acquire("a", slots=3) is None
    assert other.try_acquire("a", mode="shared") is None
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(other.acquire("a", slots=3, timeout=DEADLINE)))
    waiter.start()
    wait_for_waiters(locks, "a", 1)
    assert leases[1] is not None
    leases[1].release()
    waiter.join(DEADLINE)
    assert got[0].held


def test_reentrant_is_the_same_lease_released_as_often(locks: LeaseManager, other: LeaseManager) -> None:
    with locks.lock("a", reentrant=True) as outer:
        with locks.lock("a", reentrant=True, timeout=0) as inner:
            assert inner is outer
        outer.check()
        assert other.try_acquire("a") is None
    assert other.try_acquire("a") is not None


def test_reentrance_is_by_thread(locks: LeaseManager) -> None:
    locks.acquire("a", reentrant=True)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(locks.try_acquire("a", reentrant=True)))
    thread.start()
    thread.join(DEADLINE)
    assert found == [None]


def test_max_hold_ends_it_for_the_holder_and_for_the_others(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a", max_hold=0.3)
    got = other.acquire("a", timeout=DEADLINE)
    assert lease.lost.wait(DEADLINE)
    assert lease.lost_reason == "max_hold"
    assert got.held
    kinds = [(e.kind, e.why) for e in locks.history("a")]
    assert ("expired", "max_hold") in kinds


# --- waiting


def test_waiters_are_served_first_in_first_out(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    order: list[int] = []

    def wait(number: int, manager: LeaseManager) -> None:
        with manager.lock("a", timeout=DEADLINE):
            order.append(number)

    threads = []
    for number in range(6):
        thread = threading.Thread(target=wait, args=(number, (locks, other)[number % 2]))
        thread.start()
        threads.append(thread)
        wait_for_waiters(locks, "a", number + 1)
    assert locks.try_acquire("a") is None
    lease.release()
    for thread in threads:
        thread.join(DEADLINE)
    assert order == list(range(6))


def test_a_waiter_is_woken_long_before_it_would_look_by_itself(any_db: Any) -> None:
    with LeaseManager(any_db, ttl=100.0) as locks, LeaseManager(any_db, ttl=100.0) as other:
        lease = locks.acquire("a")
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(other.acquire("a", timeout=DEADLINE)))
        thread.start()
        wait_for_waiters(locks, "a", 1)
        started = time.monotonic()
        lease.release()
        thread.join(DEADLINE)
        assert got[0].held
        assert time.monotonic() - started < 20, "by the watch, not by the look every 25 s"


def test_a_waiter_that_gives_up_leaves_nothing_behind(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    with pytest.raises(AcquireTimeout):
        other.acquire("a", timeout=0.05)
    lock = locks.space.lock("a")
    assert list(locks.db.get_range(lock.queue, lock.rows_end)) == []
    lease.release()
    assert locks.try_acquire("a") is not None


def test_try_acquire_does_not_overtake_who_waits(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a", mode="shared")
    waiter = threading.Thread(target=lambda: other.acquire("a", timeout=DEADLINE).release())
    waiter.start()
    wait_for_waiters(locks, "a", 1)
    assert locks.try_acquire("a", mode="shared") is None
    unfair = locks.try_acquire("a", mode="shared", fair=False)
    assert unfair is not None
    unfair.release()
    lease.release()
    waiter.join(DEADLINE)  # nobody holds it before the waiter's turn, either
    assert not waiter.is_alive()
    assert locks.read("a") is None


def test_a_lease_that_nobody_keeps_in_hand_is_had_again_by_its_thread(locks: LeaseManager, other: LeaseManager) -> None:
    locks.acquire("a")
    gc.collect()
    assert other.try_acquire("a") is None, "it is kept alive all the same"
    again = locks.acquire("a", reentrant=True)
    assert locks.acquire("a", reentrant=True) is again
    for _ in range(2):
        assert again.release()
        assert other.try_acquire("a") is None
    assert again.release()
    assert other.try_acquire("a") is not None


# --- losing it


def test_a_forced_holder_learns_it_at_once(any_db: Any) -> None:
    with LeaseManager(any_db, ttl=300.0) as locks, LeaseManager(any_db, ttl=300.0) as other:
        lease = locks.acquire("a")
        told: list[Any] = []
        lease.on_lost(lambda _: sys.exit())  # costs the next one nothing
        lease.on_lost(told.append)
        lease.maintain()
        assert other.force_release("a", reason="wedged") == [lease.token]
        assert lease.lost.wait(DEADLINE), "long before the next renewal, by a watch"
        assert lease.lost_reason == "forced"
        eventually(lambda: told == [lease], "the callback ran")
        for use in (lease.check, lease.maintain):
            with pytest.raises(LeaseLost) as failed:
                use()
            assert failed.value.reason == "forced"
        assert lease.remaining() == 0.0
        event = other.history("a")[-1]
        assert (event.kind, event.why, event.token) == ("forced", "wedged", lease.token)
        assert other.force_release("a", reason="again") == []


def test_on_lost_of_a_lost_lease_is_called_at_once(locks: LeaseManager) -> None:
    lease = locks.acquire("a")
    locks.force_release("a", reason="test")
    assert lease.lost.wait(DEADLINE)
    told: list[Any] = []
    lease.on_lost(told.append)
    assert told == [lease]


def test_a_stale_release_never_frees_the_successor(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    other.force_release("a", reason="test")
    successor = other.acquire("a", timeout=DEADLINE)
    with pytest.raises(LeaseLost) as failed:
        lease.release()
    assert failed.value.reason in ("forced", "stolen")
    successor.maintain()
    info = locks.read("a")
    assert info is not None
    assert info.token == successor.token


def test_a_block_whose_lease_was_taken_over_ends_with_lease_lost(locks: LeaseManager, other: LeaseManager) -> None:
    def block(name: str, error: Exception | None) -> None:
        with locks.lock(name):
            other.force_release(name, reason="test")
            other.acquire(name, timeout=DEADLINE)
            if error is not None:
                raise error

    with pytest.raises(LeaseLost):
        block("a", None)
    with pytest.raises(KeyError):
        block("b", KeyError())


def test_guard_refuses_a_lost_lease_and_conflicts_with_a_theft_in_between(
    locks: LeaseManager, other: LeaseManager
) -> None:
    lease = locks.acquire("a")
    tr = locks.db.create_transaction()
    lease.guard(tr)
    tr.set(b"effect", b"1")
    other.force_release("a", reason="test")
    with pytest.raises(Exception) as failed:
        tr.commit().wait()
    assert fdb_error_code(failed.value) == 1020
    with pytest.raises(LeaseLost):
        run(locks.db, lambda tr: (lease.guard(tr), tr.set(b"effect", b"2")))
    assert locks.db.get(b"effect") is None


def test_guarding_never_conflicts_with_renewing(locks: LeaseManager) -> None:
    lease = locks.acquire("a")
    tr = locks.db.create_transaction()
    lease.guard(tr)
    tr.set(b"effect", b"1")
    lease.maintain()
    lease.maintain()
    tr.commit().wait()
    assert locks.db.get(b"effect") == b"1"


def test_a_join_does_not_disturb_a_guarded_transaction(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    tr = locks.db.create_transaction()
    lease.guard(tr)
    tr.set(b"effect", b"1")
    other.join("a", lease.writer_id)
    tr.commit().wait()
    assert locks.db.get(b"effect") == b"1"


# --- remotes


def test_a_remote_joins_maintains_and_frees(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    remote = other.join("a", lease.writer_id)
    assert remote.token == lease.token
    info = locks.read("a")
    assert info is not None
    assert [m.role for m in info.maintainers] == ["orchestrator", "remote"]
    remote.maintain()
    assert remote.release() is True
    assert locks.read("a") is None
    eventually(lambda: not lease.held, "the orchestrator learns that its remote freed the lock")
    assert not lease.lost.is_set(), "released, not lost"
    assert lease.release() is True


def test_a_join_with_another_writer_id_is_refused(locks: LeaseManager, other: LeaseManager) -> None:
    first = locks.acquire("a")
    first.release()
    with pytest.raises(LockReleased, match="isn't held any more"):
        other.join("a", first.writer_id)
    second = locks.acquire("a")
    with pytest.raises(LockWasStolenError, match="must not run") as failed:
        other.join("a", first.writer_id)
    assert (failed.value.expected, failed.value.actual) == (first.writer_id, second.writer_id)
    assert failed.value.exit_code == 47


def test_a_join_without_a_lock_can_not_maintain(locks: LeaseManager) -> None:
    with pytest.raises(CannotMaintainLock, match="never granted"):
        locks.join("a", "0" * 28)
    with pytest.raises(CannotMaintainLock, match="isn't one"):
        locks.join("a", "who knows")


# --- history


def test_history_tells_who_did_what_and_why(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    other.join("a", lease.writer_id)
    lease.release()
    events = locks.history("a")
    assert [e.kind for e in events] == ["acquired", "joined", "released"]
    assert {e.token for e in events} == {lease.token}
    assert all(e.by.endswith(f":{os.getpid()}") for e in events)
    assert [e.version for e in events] == sorted(e.version for e in events)


def test_history_keeps_the_last_64_events(locks: LeaseManager) -> None:
    for _ in range(150):
        lease = locks.acquire("a")
        lease.release()
    events = locks.history("a")
    assert len(events) == HISTORY_EVENTS
    assert events[-1].token == lease.token
    lock = locks.space.lock("a")
    run(locks.db, trim_history, lock)
    rows = list(locks.db.get_range(lock.events, lock.events + b"\xff"))
    assert len(rows) == HISTORY_EVENTS


# --- the rest


def test_tokens_grow_where_versions_went_back(locks: LeaseManager) -> None:
    first = locks.acquire("a")
    first.release()
    lock = locks.space.lock("a")
    ahead = (int(first.token.version) + 10**15).to_bytes(8, "big") + b"\x00\x00" + (3).to_bytes(4, "big")
    locks.db.set(lock.last, ahead)  # as a copy of another cluster would have it
    second = locks.acquire("a")
    assert second.token.epoch == 4
    second.check()
    second.maintain()
    second.release()
    third = locks.acquire("a")
    assert first.token < second.token < third.token


def test_one_transaction_renews_any_number_of_leases(any_db: Any) -> None:
    with LeaseManager(any_db, ttl=60.0) as locks:
        leases = [locks.acquire(f"n{i}") for i in range(200)]
        session = locks.session
        before = any_db.get(locks.space.heartbeat(session.sid))
        deadlines = [lease.part.holding.deadline for lease in leases]
        leases[0].maintain()
        assert any_db.get(locks.space.heartbeat(session.sid)) != before
        assert all(lease.part.holding.deadline > old for lease, old in zip(leases, deadlines, strict=True))


def test_a_forked_child_neither_renews_nor_releases(locks: LeaseManager) -> None:
    lease = locks.acquire("a")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        verdict = b""
        try:
            for use in (lease.check, lease.release, lease.maintain, lease.remaining, lambda: locks.acquire("b")):
                try:
                    use()
                    verdict += b"used "
                except ForkedLeaseError:
                    verdict += b"refused "
            lease.__exit__(None, None, None)
            locks.close()
        finally:
            os.write(writer, verdict)
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read().split() == [b"refused"] * 5
    lease.maintain()
    info = locks.read("a")
    assert info is not None
    assert info.token == lease.token


def test_a_dropped_holder_row_is_noticed_by_maintain(locks: LeaseManager) -> None:
    lease = locks.acquire("a")
    run(locks.db, lambda tr: tr.clear(locks.space.lock("a").holder(lease.token)))
    with pytest.raises(LeaseLost):
        lease.maintain()


def test_a_session_proves_its_life_and_its_death(any_db: Any, locks: LeaseManager) -> None:
    with LeaseManager(any_db, cluster="demo") as manager:
        sid = manager.session_id
        assert run(any_db, lambda tr: locks.session_dead(tr, sid)) is None
    assert run(any_db, lambda tr: locks.session_dead(tr, sid)) == "its rows are gone"


def test_reading_never_takes_a_place(locks: LeaseManager, other: LeaseManager) -> None:
    locks.acquire("a")
    assert other.try_acquire("a") is None
    queue = run(locks.db, lease_rows.read_queue, locks.space.lock("a"))
    assert queue == []


# --- statements that need a clock, a queue or an observer of one's own


class Clocks(SystemClocks):
    """A machine's clocks that a test moves."""

    def __init__(self) -> None:
        object.__setattr__(self, "slept", 0.0)

    def boottime(self) -> float:
        return super().boottime() + self.slept

    def suspend(self, seconds: float) -> None:
        """The boot-time clock counts it, the monotonic one doesn't."""
        object.__setattr__(self, "slept", self.slept + seconds)

    slept: float


def test_a_writer_id_is_a_text_without_a_slash(locks: LeaseManager) -> None:
    lease = locks.acquire("a/b/c")
    assert isinstance(lease.writer_id, str)
    assert "/" not in lease.writer_id
    assert FencingToken.from_hex(lease.writer_id) == lease.token


def test_the_deadline_is_evaluated_at_the_call_and_not_by_a_timer(any_db: Any) -> None:
    clocks = Clocks()
    with LeaseManager(any_db, cluster="demo", ttl=600.0, clocks=clocks) as locks:
        lease = locks.acquire("a")
        assert 470 < lease.remaining() <= 480, "0.8 × ttl"
        clocks.suspend(481.0)
        # No thread has run since: what is asked is answered from the clock alone.
        assert lease.remaining() == 0.0
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            lease.guard(any_db.create_transaction())
        assert lease.lost.is_set()
        assert lease.lost_reason == "unreachable"


def test_a_suspend_counts_for_the_holder_and_not_for_the_observer(any_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lease_locks.session.context.process_gone", lambda record: False)
    monkeypatch.setattr("lease_locks.waiting.pausing.process_gone", lambda record: False)
    mine, theirs = Clocks(), Clocks()
    with (
        LeaseManager(any_db, cluster="demo", ttl=600.0, clocks=mine) as a,
        LeaseManager(any_db, cluster="demo", ttl=600.0, clocks=theirs) as b,
    ):
        lease = a.acquire("a")
        assert b.try_acquire("a") is None
        theirs.suspend(10_000.0)
        assert b.try_acquire("a") is None, "the observer slept: it has seen nothing meanwhile"
        mine.suspend(10_000.0)
        assert not lease.held


def test_maintain_renews_now(any_db: Any) -> None:
    clocks = Clocks()
    with LeaseManager(any_db, cluster="demo", ttl=600.0, clocks=clocks) as locks:
        lease = locks.acquire("a")
        clocks.suspend(400.0)
        assert lease.remaining() < 81
        lease.maintain()
        assert lease.remaining() > 470


@pytest.mark.parametrize(("holders", "observers"), [(0.5, 600.0), (600.0, 0.5)], ids=["short", "long"])
def test_the_holders_stored_ttl_counts_whatever_the_observers_is(
    any_db: Any, monkeypatch: pytest.MonkeyPatch, holders: float, observers: float
) -> None:
    monkeypatch.setattr("lease_locks.session.context.process_gone", lambda record: False)
    monkeypatch.setattr("lease_locks.waiting.pausing.process_gone", lambda record: False)
    dead = LeaseManager(any_db, cluster="demo", ttl=1000.0)
    dead.acquire("a", ttl=holders)
    dead.session.upkeep.stop()
    with LeaseManager(any_db, cluster="demo", ttl=observers) as b:
        if holders < 1:
            b.acquire("a", timeout=DEADLINE)
        else:
            with pytest.raises(AcquireTimeout):
                b.acquire("a", timeout=1.0)


def test_an_unfair_acquirer_overtakes_and_takes_no_place(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("a")
    waiter = threading.Thread(target=lambda: other.acquire("a", timeout=DEADLINE).release())
    waiter.start()
    wait_for_waiters(locks, "a", 1)
    with pytest.raises(AcquireTimeout):
        locks.acquire("a", timeout=0.05, fair=False)
    wait_for_waiters(locks, "a", 1)
    # Free, and the waiter not awake yet: in the transaction that frees it, as nothing else could be faster.
    claim = claim_of(locks.session, fair=False)

    def swap(tr: Any) -> Any:
        tr.clear(lease.part.lock.holder(lease.token))
        return transitions.acquire(tr, locks.space, lease.part.lock, claim, locks.session.observer)

    assert isinstance(run(locks.db, swap, strategy="off"), transitions.Granted)
    locks.force_release("a", reason="the test is over")
    waiter.join(DEADLINE)
    assert not waiter.is_alive()


def test_a_retry_after_an_unknown_commit_finds_its_own_grant(locks: LeaseManager) -> None:
    locks.session.start()
    lock = locks.space.lock("a")
    claim = claim_of(locks.session)

    def attempt(tr: Any) -> Any:
        return transitions.acquire(tr, locks.space, lock, claim, locks.session.observer)

    first = run(locks.db, attempt, strategy="off")
    assert first.token is None, "known when it committed"
    again = run(locks.db, attempt, strategy="off")
    info = locks.read("a")
    assert info is not None
    assert again.token == info.token
    assert [e.kind for e in locks.history("a")] == ["acquired"]


@pytest.mark.parametrize("sign", ["heartbeat", "join", "release", "forced"])
def test_a_sign_of_life_in_between_aborts_a_takeover(
    locks: LeaseManager, other: LeaseManager, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    lease = locks.acquire("a")
    other.session.start()
    monkeypatch.setattr(other.session.observer, "judge", lambda *_: Dead("as far as it has seen"))
    claim = claim_of(other.session)
    late = locks.db.create_transaction()
    found = transitions.acquire(late, other.space, lease.part.lock, claim, other.session.observer)
    assert isinstance(found, transitions.Granted)
    if sign == "heartbeat":
        lease.maintain()
    elif sign == "join":
        other.join("a", lease.writer_id)
    elif sign == "release":
        lease.release()
    else:
        locks.force_release("a", reason="in between")
    with pytest.raises(Exception) as failed:
        late.commit().wait()
    assert fdb_error_code(failed.value) == 1020


def test_a_release_wakes_one_waiter(any_db: Any) -> None:
    """Ten wait; each hand-over costs a few transactions of one waiter, not of all."""
    counts: dict[int, int] = {}

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(any_db, name)

        def create_transaction(self) -> Any:
            me = threading.get_ident()
            counts[me] = counts.get(me, 0) + 1
            return any_db.create_transaction()

    with LeaseManager(Counted(), cluster="demo", ttl=600.0) as locks:
        lease = locks.acquire("a")
        held = [threading.Event() for _ in range(10)]
        go_on = [threading.Event() for _ in range(10)]

        def wait(number: int) -> None:
            with locks.lock("a", timeout=DEADLINE):
                held[number].set()
                go_on[number].wait(DEADLINE)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(10)]
        for number, thread in enumerate(threads):
            thread.start()
            wait_for_waiters(locks, "a", number + 1)
        idents = [thread.ident or 0 for thread in threads]
        time.sleep(0.2)  # whoever just took a place has looked again
        before = [counts[ident] for ident in idents]
        lease.release()
        assert held[0].wait(DEADLINE)
        time.sleep(0.2)  # for whoever would be woken too
        after = [counts[ident] for ident in idents]
        woken = [number for number in range(10) if after[number] != before[number]]
        assert woken in ([0], [0, 1]), "the first, and the one behind it, who is first now"
        for event in go_on:
            event.set()
        for thread in threads:
            thread.join(DEADLINE)


def test_every_reason_of_a_loss_is_told(any_db: Any, other: LeaseManager) -> None:
    clocks = Clocks()
    with LeaseManager(any_db, cluster="demo", ttl=600.0, clocks=clocks) as locks:
        leases = {name: locks.acquire(name) for name in ("forced", "stolen", "expired", "unreachable")}
        leases["max_hold"] = locks.acquire("max_hold", max_hold=300.0)
        other.force_release("forced", reason="test")
        for kind, early in (("stolen", True), ("expired", False)):
            lease = leases[kind]

            def end(tr: Any, lease: Any = lease, early: bool = early) -> None:
                judged = ending.judge_grants(tr, locks.space, lease.part.lock, other.session.observer)
                dead = [ending.Found(grant, subject, Dead("test", early)) for grant, subject, _ in judged]
                ending.take_over(tr, locks.space, lease.part.lock, dead, b"", "me", 0)

            run(any_db, end, strategy="off")
        for kind in ("forced", "stolen", "expired"):
            assert leases[kind].lost.wait(DEADLINE)
            assert leases[kind].lost_reason == kind
        clocks.suspend(301.0)
        assert leases["max_hold"].lost_reason == "max_hold"
        assert leases["unreachable"].lost_reason is None
        clocks.suspend(600.0)
        assert leases["unreachable"].lost_reason == "unreachable"
