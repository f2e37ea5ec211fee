"""What a hostile reader looked for: transactions that meet, processes stopped between two steps, debts, leaks, bad input."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lease_processes import DEADLINE, children, eventually

from fdb_schema import fdb_error_code, open_database
from idempotent_txn import TransactionTimedOut, run
from lease_locks import AsyncLeaseManager, LeaseError, LeaseLost, LeaseManager
from lease_locks.grants import ending, joining, transitions
from lease_locks.grants.errors import DamagedRowError
from lease_locks.grants.observer import Dead
from lease_locks.grants.records import MaintainerRecord
from lease_locks.grants.rows import read_name
from lease_locks.locks import _let_go
from lease_locks.session import sessions
from lease_locks.session.holding import Holding, SessionCore
from lease_locks.waiting.claims import claim_of


def transactions(db: Any) -> tuple[Any, list[str]]:
    """The database, and the names of the threads that made a transaction of it."""
    made: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(db, name)

        def create_transaction(self) -> Any:
            made.append(threading.current_thread().name)
            return db.create_transaction()

    return Counted(), made


# --- several grants of one session


def test_two_grants_of_one_session_are_forced_together(locks: LeaseManager, other: LeaseManager) -> None:
    leases = [locks.acquire("n", mode="shared") for _ in range(3)]
    assert other.force_release("n", reason="all of them") == [lease.token for lease in leases]
    for lease in leases:
        assert lease.lost.wait(DEADLINE)
        assert lease.lost_reason == "forced"


HOLD_TWO = """
locks = LeaseManager(db, ttl=600.0)
leases = [locks.acquire("n", mode="shared") for _ in range(2)]
say("held")
listen()
"""


def test_two_grants_of_one_dead_session_are_taken_over_together(shared_url: str, shared_db: Any) -> None:
    with children(HOLD_TWO, url=shared_url) as [holder], LeaseManager(shared_db) as locks:
        assert holder.hear() == "held"
        holder.process.kill()
        holder.process.wait(DEADLINE)
        locks.acquire("n", timeout=DEADLINE)
        assert [e.kind for e in locks.history("n")] == ["acquired", "acquired", "stolen", "stolen", "acquired"]


def test_a_part_of_the_same_session_learns_that_the_lease_was_released(
    locks: LeaseManager, other: LeaseManager
) -> None:
    lease = locks.acquire("n")
    part = locks.join("n", lease.writer_id)
    assert part.release()
    assert not lease.held, "nobody tells a session what it did itself"
    assert other.try_acquire("n") is not None
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.release(), "repeated"


# --- a session is told once, of everything


def test_a_grant_that_ends_before_its_lease_is_kept_is_noticed(locks: LeaseManager, other: LeaseManager) -> None:
    """The heartbeat that reads the news comes between the grant's commit and the acquirer's taking note of it."""
    locks.acquire("first")
    locks.session.renew_now(DEADLINE)
    session = locks.session
    adopt = session.adopt

    def stopped(*args: Any) -> None:
        other.force_release("n", reason="while its acquirer was stopped")
        session.renew_now(DEADLINE)
        adopt(*args)

    session.adopt = stopped  # type: ignore[method-assign]
    lease = locks.acquire("n")
    assert lease.lost.wait(DEADLINE)
    assert lease.lost_reason == "forced"


def test_what_was_acquired_during_a_heartbeat_is_looked_at_by_the_next() -> None:
    core = SessionCore(15.0, lambda: 0.5, now=0.0)
    core.add("old", Holding(15.0, 0.0), core.revocation)
    core.renewal_done(core.begin_renewal(1.0), 1.0, b"1")
    assert core.revocation == b"1"
    renewal = core.begin_renewal(2.0)
    core.add("new", Holding(15.0, 2.0), core.revocation)
    core.renewal_done(renewal, 2.1, b"2")
    assert core.revocation is None, "whoever wrote 2 may have meant `new`, which this heartbeat didn't look at"
    core.renewal_done(core.begin_renewal(3.0), 3.0, b"2", [("new", "forced")])
    assert core.revocation == b"2"
    assert core.holdings["new"].reason == "forced"


def test_a_heartbeat_and_the_end_of_a_grant_conflict(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("n")
    session = locks.session
    late = locks.db.create_transaction()
    held = {1: (lease.part.lock, lease.token)}
    sessions.renew(late, locks.space, session.sid, session.record, session.revocation, held, 0)
    other.force_release("n", reason="in between")
    with pytest.raises(Exception) as failed:
        late.commit().wait()
    assert fdb_error_code(failed.value) == 1020, "no heartbeat commits after the end of a grant without noticing"


def test_a_join_and_a_release_conflict(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("n")
    other.session.start()
    late = locks.db.create_transaction()
    joining.join(late, lease.part.lock, lease.token, other.session.sid, MaintainerRecord("remote"), "me")
    lease.release()
    with pytest.raises(Exception) as failed:
        late.commit().wait()
    assert fdb_error_code(failed.value) == 1020


def test_a_session_that_ends_while_it_is_told_leaves_no_row(locks: LeaseManager, any_db: Any) -> None:
    gone = LeaseManager(any_db, cluster="demo")
    lease = gone.acquire("n")
    late = any_db.create_transaction()
    ending.force(late, locks.space, lease.part.lock, b"", "me", "a slow person", 0)
    gone.close()
    with pytest.raises(Exception) as failed:
        late.commit().wait()
    assert fdb_error_code(failed.value) == 1020
    assert any_db.get(locks.space.revocation(gone.session.sid)) is None


def test_a_join_that_ran_twice_is_one_event(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("n")
    other.session.start()
    record = MaintainerRecord("remote", 17, "host", 4)
    for _ in range(2):  # the first one's commit was reported as unknown
        run(locks.db, joining.join, lease.part.lock, lease.token, other.session.sid, record, "me", strategy="off")
    assert [e.kind for e in locks.history("n")] == ["acquired", "joined"]


# --- max_hold and those who joined


def test_a_remote_may_not_believe_longer_than_the_max_hold_of_the_grant(
    locks: LeaseManager, other: LeaseManager
) -> None:
    lease = locks.acquire("n", max_hold=2.0, ttl=600.0)
    time.sleep(0.5)
    part = other.join("n", lease.writer_id)
    assert part.remaining() <= 1.6, "what is left of the grant's, not a max_hold of its own"
    assert part.lost.wait(DEADLINE)
    assert part.lost_reason == "max_hold"
    eventually(lambda: locks.read("n") is None, "when all parts have ended it, it is free")


# --- closing, dropping, forking


def test_closing_releases_the_rest_where_one_lease_was_stolen(any_db: Any, other: LeaseManager) -> None:
    locks = LeaseManager(any_db, cluster="demo", ttl=600.0)  # no renewal notices it first
    stolen = locks.acquire("a")
    locks.acquire("b")
    # Stolen, and not noticed yet: the rows are gone and a successor holds the name.
    run(any_db, lambda tr: tr.clear_range(stolen.part.lock.holders, stolen.part.lock.queue))
    successor = other.acquire("a")
    told = False
    try:
        locks.close()
    except LeaseLost:
        told = True
    assert told or stolen.lost.is_set(), "told now, or before by the thread that renews, where that was late"
    assert other.try_acquire("b") is not None
    successor.maintain()
    assert [sid for sid, _, _ in other.sessions()] == [other.session.sid]


def test_closing_releases_many_leases_by_a_few_transactions() -> None:
    db, made = transactions(open_database("memory:"))
    locks = LeaseManager(db, cluster="demo", ttl=600.0)
    leases = [locks.acquire(f"n{n}") for n in range(120)]
    leases += [locks.acquire("shared", mode="shared") for _ in range(2)]
    made.clear()
    locks.close()
    assert len(made) <= 3 + 1 + 3, "pages of 50, the second of one name, and the session's own end"
    assert not any(one.held for one in leases)
    with LeaseManager(db, cluster="demo") as after:
        assert after.list() == []


def test_closing_releases_leases_that_one_remote_has_joined(any_db: Any, other: LeaseManager) -> None:
    locks = LeaseManager(any_db, cluster="demo", ttl=600.0)
    joined = [other.join(lease.part.name, lease.writer_id) for lease in [locks.acquire(name) for name in "abc"]]
    locks.close()
    assert other.list() == []
    for lease in joined:
        eventually(lambda lease=lease: not lease.held, "the remote is told")  # type: ignore[misc]


def test_closing_releases_the_rest_where_the_rows_of_one_lease_cannot_be_read(any_db: Any, other: LeaseManager) -> None:
    locks = LeaseManager(any_db, cluster="demo", ttl=600.0)
    damaged, *_ = [locks.acquire(name) for name in "abc"]
    run(any_db, lambda tr: tr.set(damaged.part.lock.holder(damaged.token), b"x"))
    with pytest.raises(DamagedRowError, match="'a'"):
        locks.close()
    assert other.try_acquire("b") is not None
    assert other.try_acquire("c") is not None


def test_a_block_that_fails_is_not_covered_up_by_a_lost_lease(any_db: Any, other: LeaseManager) -> None:
    def use() -> None:
        with LeaseManager(any_db, cluster="demo") as locks:
            stolen = locks.acquire("a")
            run(any_db, lambda tr: tr.clear_range(stolen.part.lock.holders, stolen.part.lock.queue))
            other.acquire("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()


def test_leases_of_a_dropped_manager_are_lost_in_time_and_leave_no_thread(any_db: Any) -> None:
    lease = LeaseManager(any_db, cluster="demo", ttl=1.0).acquire("n")
    threads = list(lease._session.upkeep._threads)
    gc.collect()
    assert lease.lost.wait(DEADLINE), "nobody renews it, and it says so"
    assert lease.lost_reason == "unreachable"
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_managers_leave_no_thread_and_no_file_behind(shared_url: str) -> None:
    def cycle() -> None:
        with LeaseManager(open_database(shared_url), cluster="demo") as locks, locks.lock("n"):
            assert locks.try_acquire("n") is None

    def watches() -> int:
        return len(os.listdir("/proc/self/fd"))

    cycle()
    gc.collect()
    threads, files = threading.active_count(), watches()
    for _ in range(20):
        cycle()
    gc.collect()
    assert threading.active_count() <= threads
    assert watches() <= files


def test_a_forked_child_ends_without_touching_the_mutex_of_its_parents_manager(shared_url: str) -> None:
    script = """
import os, sys, threading
from lease_locks import LeaseManager
locks = LeaseManager(sys.argv[1])
lease = locks.acquire("n")
held = threading.Event()
def hold():
    with locks.session.ledger.mutex:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
pid = os.fork()
if pid == 0:
    del lease, locks  # and its exit handlers run: none may wait for a thread that isn't in the child
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script, shared_url], capture_output=True, text=True, timeout=DEADLINE, env=env
    )
    assert done.stdout.strip() == "7", done.stderr


def test_letting_go_of_a_manager_in_a_forked_child_does_nothing(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(locks.session), "forked", True)
    _let_go(locks.session, None)
    monkeypatch.undo()
    assert not locks.session.upkeep._abandoned


# --- debts


def test_a_chore_that_never_succeeds_does_not_stop_the_heartbeat(locks: LeaseManager) -> None:
    lease = locks.acquire("n", ttl=2.0)
    asked = []

    def poison(tr: Any) -> None:
        asked.append(tr)
        raise KeyError("a defect of this package")

    locks.session.owe(poison)
    eventually(lambda: bool(asked) and not locks.session.ledger.owed, "it is tried, and given up")
    time.sleep(2.5)
    lease.check()


def test_a_release_that_failed_is_not_called_repeated_until_it_is_done(any_db: Any, other: LeaseManager) -> None:
    with LeaseManager(any_db, cluster="demo") as locks:
        lease = locks.acquire("n")
        failing = threading.Event()
        db = locks.db

        class Unplugged:
            def __getattr__(self, name: str) -> Any:
                return getattr(db, name)

            def create_transaction(self) -> Any:
                if failing.is_set():
                    raise OSError("the network is down")
                return db.create_transaction()

        locks.session.db = Unplugged()
        failing.set()
        for _ in range(2):
            with pytest.raises(OSError, match="network"):
                lease.release()
            assert not lease.held
        failing.clear()
        assert lease.release()
        assert other.try_acquire("n") is not None


def test_maintain_says_lost_when_the_database_kept_silent_until_the_deadline(locks: LeaseManager) -> None:
    lease = locks.acquire("n", ttl=0.5)

    def silent(*, verify: bool, timeout: float) -> None:
        time.sleep(timeout + 0.01)
        raise TransactionTimedOut("no answer")

    locks.session.upkeep.renew = silent  # type: ignore[method-assign]
    with pytest.raises(LeaseLost) as failed:
        lease.maintain()
    assert failed.value.reason == "unreachable"


def test_a_try_that_fails_only_reads(any_db: Any, other: LeaseManager) -> None:
    db, made = transactions(any_db)
    with LeaseManager(db, cluster="demo") as locks:
        locks.session.start()
        lease = other.acquire("n")
        before = any_db.get(locks.space.lock("n").pointers), len(locks.history("n"))
        del made[:]
        assert locks.try_acquire("n") is None
        mine = [name for name in made if not name.startswith("lease-")]
        assert len(mine) == 2, "one look, and one to name the holder in the error"
        assert (any_db.get(locks.space.lock("n").pointers), len(locks.history("n"))) == before
        lease.check()


# --- reentrance


def test_reentrance_never_turns_a_shared_lease_into_an_exclusive_one(locks: LeaseManager) -> None:
    lease = locks.acquire("n", mode="shared", reentrant=True)
    with pytest.raises(LeaseError, match="release it first"):
        locks.acquire("n", reentrant=True, timeout=0)
    assert locks.acquire("n", mode="shared", reentrant=True) is lease


def test_of_several_leases_of_a_name_the_thread_has_again_one_that_it_still_holds(
    locks: LeaseManager, other: LeaseManager
) -> None:
    first, second = (locks.acquire("n", mode="shared") for _ in range(2))
    second.release()
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(other.acquire, "n", timeout=DEADLINE)
        eventually(lambda: (info := locks.read("n")) and info.waiters, "the other one waits")
        assert locks.acquire("n", mode="shared", reentrant=True, timeout=0) is first, (
            "behind the waiter it would wait for itself"
        )
        first.release()
        first.release()
        waiter.result(DEADLINE).release()


def test_a_thread_with_the_number_of_an_ended_one_does_not_get_its_lease(locks: LeaseManager) -> None:
    numbers, got = [], []

    def take() -> None:
        numbers.append(threading.get_ident())
        try:
            got.append(locks.acquire("n", reentrant=True, timeout=0))
        except TimeoutError:
            got.append(None)

    for _ in range(20):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join(DEADLINE)
    assert len(set(numbers)) < len(numbers), "numbers of threads are given again"
    assert [lease for lease in got if lease is not None] == got[:1]


# --- cancellations of the async twin


def test_a_cancellation_that_comes_when_it_is_granted_gives_the_lease_back(any_db: Any) -> None:
    async def use() -> None:
        async with AsyncLeaseManager(any_db) as locks:
            session = locks.sync.session
            adopt, granted, go_on = session.adopt, threading.Event(), threading.Event()

            def stopped(*args: Any) -> None:
                adopt(*args)
                granted.set()
                go_on.wait(DEADLINE)

            session.adopt = stopped  # type: ignore[method-assign]
            task = asyncio.create_task(locks.acquire("a"))
            await asyncio.to_thread(granted.wait, DEADLINE)
            for _ in range(3):  # a cancelled task may be cancelled again
                task.cancel()
                await asyncio.sleep(0.01)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            session.adopt = adopt  # type: ignore[method-assign]
            assert session.ledger.parts == []
            assert await locks.read("a") is None

    asyncio.run(use())


# --- what was cleared, and what was interrupted


def test_an_idle_session_that_was_cleared_is_written_again_with_its_next_lease(
    any_db: Any, other: LeaseManager
) -> None:
    """A janitor can't tell a session without leases from a dead one. Without its rows nobody could tell it of an end."""
    with LeaseManager(any_db, cluster="demo", ttl=600.0) as locks:
        session = locks.session
        eventually(lambda: session.upkeep._watch is not None, "it watches its row")
        run(any_db, sessions.clear_session, locks.space, session.sid)
        lease = locks.acquire("n")
        eventually(lambda: session.sid in [sid for sid, _, _ in other.sessions()], "its rows are back")
        other.force_release("n", reason="test")
        assert lease.lost.wait(DEADLINE)
        assert lease.lost_reason == "forced"


@pytest.mark.parametrize("kept", [True, False], ids=["after it was kept", "before it was kept"])
def test_an_interrupted_join_leaves_nothing_behind(locks: LeaseManager, other: LeaseManager, kept: bool) -> None:
    lease, _ = locks.acquire("n"), other.acquire("other")
    session = other.session
    adopt = session.adopt

    def interrupted(*args: Any) -> None:
        if kept:
            adopt(*args)
        raise KeyboardInterrupt

    session.adopt = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        other.join("n", lease.writer_id)
    eventually(lambda: not session.ledger.owed, "it owes nothing")
    info = locks.read("n")
    assert info is not None
    assert [m.role for m in info.maintainers] == ["orchestrator"]
    assert [one.name for one in session.ledger.parts] == ["other"]


@pytest.mark.parametrize("late_first", [True, False], ids=["lands while it is given up", "lands afterwards"])
def test_a_grant_that_lands_late_leaves_nothing_behind(locks: LeaseManager, late_first: bool) -> None:
    claim, lock, session = claim_of(locks.session), locks.space.lock("n"), locks.session
    late, giving_up = locks.db.create_transaction(), locks.db.create_transaction()
    granted = transitions.acquire(late, locks.space, lock, claim, session.observer, first=True)  # which reads no place
    assert isinstance(granted, transitions.Granted)
    transitions.withdraw(giving_up, locks.space, lock, claim)
    first, second = (late, giving_up) if late_first else (giving_up, late)
    first.commit().wait()
    with pytest.raises(Exception) as failed:
        second.commit().wait()
    assert fdb_error_code(failed.value) == 1020


def test_a_grant_that_came_unnoticed_is_released_by_who_gives_up(locks: LeaseManager) -> None:
    claim, lock, session = claim_of(locks.session), locks.space.lock("n"), locks.session
    run(locks.db, lambda tr: transitions.acquire(tr, locks.space, lock, claim, session.observer, first=True))
    assert run(locks.db, lambda tr: read_name(tr, lock)).grants
    run(locks.db, transitions.withdraw, locks.space, lock, claim)
    assert not run(locks.db, lambda tr: read_name(tr, lock)).grants


def test_a_heartbeat_of_who_waits_keeps_its_place(locks: LeaseManager, other: LeaseManager) -> None:
    lock, waits, comes = locks.space.lock("n"), claim_of(other.session), claim_of(locks.session)
    held = locks.acquire("n")
    run(other.db, lambda tr: transitions.acquire(tr, other.space, lock, waits, other.session.observer))
    held.release()

    class Hasty:
        """Takes everybody for dead."""

        def judge(self, *args: Any) -> Any:
            return Dead("it seemed so")

        def forget(self, key: Any) -> None: ...

    tr = locks.db.create_transaction()
    hasty: Any = Hasty()
    granted = transitions.acquire(tr, locks.space, lock, comes, hasty, enqueue=False)
    assert isinstance(granted, transitions.Granted)
    heartbeat = other.space.heartbeat(other.session.sid)
    run(other.db, lambda tr: tr.set(heartbeat, tr.get(heartbeat).value))
    with pytest.raises(Exception) as failed:
        tr.commit().wait()
    assert fdb_error_code(failed.value) == 1020
    assert run(locks.db, lambda tr: read_name(tr, lock)).first is not None


def test_a_join_that_lands_after_it_was_given_up_fails(locks: LeaseManager, other: LeaseManager) -> None:
    lease = locks.acquire("n")
    other.session.start()
    lock, late = locks.space.lock("n"), locks.db.create_transaction()
    joining.join(late, lock, lease.token, other.session.sid, MaintainerRecord(), "late")
    other.session.unjoin(lock, lease.token, b"key")
    eventually(lambda: not other.session.ledger.owed, "it owes nothing")
    with pytest.raises(Exception) as failed:
        late.commit().wait()
    assert fdb_error_code(failed.value) == 1020
    lease.check()


# --- bad input


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "3"}, "timeout"),
        ({"ttl": "3"}, "ttl"),
        ({"slots": 1.5}, "slots"),
        ({"slots": "a"}, "slots"),
        ({"slots": 10**30}, "slots"),
        ({"meta": {"a": object}}, "meta"),  # a type has one name in every process
        ({"meta": {"a": "x" * 200_000}}, "meta"),
        ({"meta": {1: 2}}, "meta"),
        ({"meta": "text"}, "meta"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_options_are_named_and_leave_nothing(locks: LeaseManager, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        locks.acquire("n", **options)
    assert locks.history("n") == []
    assert locks.try_acquire("n") is not None


def test_what_is_shorter_than_a_millisecond_is_stored_as_one(locks: LeaseManager) -> None:
    claim = claim_of(locks.session, ttl=0.0004, max_hold=0.0004)
    lock = locks.space.lock("n")

    def body(tr: Any) -> Any:
        transitions.acquire(tr, locks.space, lock, claim, locks.session.observer)

    run(locks.db, body)
    (grant,) = run(locks.db, read_name, lock).grants
    assert (grant.record.ttl_ms, grant.record.max_hold_ms) == (1, 1), "0 would be no limit"


def test_who_waits_beside_the_dead_looks_for_the_end_of_the_living_only() -> None:
    """A process that has ended ends a wait at once: one that was seen to have would end it again and again."""
    db = open_database("memory:")
    with LeaseManager(db, ttl=30.0) as dead, LeaseManager(db) as living, LeaseManager(db) as waiter:
        for one in (dead, living):
            one.acquire("a", mode="shared")
        session, lock = waiter.session, waiter.space.lock("a")
        session.observer._gone = lambda record: record.ttl_ms == 30_000
        claim = claim_of(session, fair=False)
        found = run(db, transitions.acquire, session.space, lock, claim, session.observer, strategy="off")
        assert isinstance(found, transitions.Waiting)
        assert [vital.session for one in found.processes for vital in one.vitals] == [living.session.sid]
