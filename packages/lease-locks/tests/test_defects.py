"""What the reference gets wrong, each as a test named after it.

Elsewhere, because they need remotes or processes: a remote that starts late, a stolen remote polluting the function's
exception, a result published between look-up and acquire, an orphan that fails, four callers of a failing function, wrong
counts in the summary (`test_runner.py`); SIGSTOP for longer than the ttl (`test_processes.py`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fdb_schema import fdb_error_code, open_database
from lease_locks import AcquireTimeout, LeaseLost, LeaseManager
from lease_locks.grants import transitions as t
from lease_locks.session.clocks import SystemClocks
from lease_locks.waiting.claims import claim_of

DEADLINE = 60.0


class Wall(SystemClocks):
    """A machine whose wall clock is wrong."""

    ahead_us: int

    def __init__(self, ahead: float) -> None:
        object.__setattr__(self, "ahead_us", int(ahead * 1e6))

    def wall_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us


class Frozen(SystemClocks):
    """The clocks of a process that is stopped while the test goes on, and that then jump."""

    ahead: float

    def __init__(self) -> None:
        object.__setattr__(self, "ahead", 0.0)

    def boottime(self) -> float:
        return super().boottime() + self.ahead

    def jump(self, seconds: float) -> None:
        object.__setattr__(self, "ahead", self.ahead + seconds)


class Unplugged:
    """A database that is out of reach while `out` is set."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.out = threading.Event()
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Any:
        if self.out.is_set():
            self.refused += 1
            raise OSError("the network is down")
        return self._db.create_transaction()


def silence(manager: LeaseManager) -> None:
    """End a manager's threads without a word to the database, as a power cut would."""
    session = manager.session
    session.upkeep.stop()
    session.upkeep.join(DEADLINE)


@pytest.fixture
def memory_db() -> Any:
    """Where what is tested is this package's clocks and threads, one engine is enough."""
    return open_database("memory:")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session ran on another host: processes can't be looked at."""
    monkeypatch.setattr("lease_locks.session.context.process_gone", lambda record: False)
    monkeypatch.setattr("lease_locks.waiting.pausing.process_gone", lambda record: False)


def test_defect_a_stalled_writer_makes_two_holders(any_db: Any) -> None:
    with LeaseManager(any_db) as a, LeaseManager(any_db) as b:
        a.session.start()
        claim = claim_of(a.session)
        stalled = any_db.create_transaction()
        granted = t.acquire(stalled, a.space, a.space.lock("n"), claim, a.session.observer)
        assert isinstance(granted, t.Granted), "as far as the stalled writer has read, the name is free"
        lease = b.acquire("n", timeout=0)
        with pytest.raises(Exception) as failed:
            stalled.commit().wait()
        assert fdb_error_code(failed.value) == 1020
        lease.maintain()
        info = a.read("n")
        assert info is not None
        assert info.token == lease.token


@pytest.mark.parametrize("late_first", [True, False], ids=["lands before the grant", "lands after the grant"])
def test_an_enqueue_that_lands_late_leaves_no_place_beside_the_grant(any_db: Any, late_first: bool) -> None:
    """Found by the simulation: such a place stood in front of everybody for as long as its process lived."""
    with LeaseManager(any_db) as a, LeaseManager(any_db) as b:
        lease = b.acquire("n")
        a.session.start()
        lock = a.space.lock("n")
        claim = claim_of(a.session)
        late, granting = any_db.create_transaction(), any_db.create_transaction()
        queued = t.acquire(late, a.space, lock, claim, a.session.observer)
        assert isinstance(queued, t.Waiting)
        lease.release()
        assert isinstance(t.acquire(granting, a.space, lock, claim, a.session.observer), t.Granted)
        first, second = (late, granting) if late_first else (granting, late)
        first.commit().wait()
        with pytest.raises(Exception) as failed:
            second.commit().wait()
        assert fdb_error_code(failed.value) == 1020


@pytest.mark.usefixtures("far")
def test_defect_an_expired_holder_renews_or_releases_over_its_successor(memory_db: Any) -> None:
    clocks = Frozen()
    with LeaseManager(memory_db, ttl=1.0, clocks=clocks) as a, LeaseManager(memory_db, ttl=30.0) as b:
        lease = a.acquire("n")
        silence(a)
        successor = b.acquire("n", timeout=DEADLINE)
        clocks.jump(10.0)
        with pytest.raises(LeaseLost):
            lease.maintain()
        a.session.renew_now(5.0)
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            lease.release()
        successor.maintain()
        info = b.read("n")
        assert info is not None
        assert info.token == successor.token


def test_defect_a_living_holder_whose_clock_is_off_is_stolen(memory_db: Any) -> None:
    with (
        LeaseManager(memory_db, ttl=2.0, clocks=Wall(3600.0)) as ahead,
        LeaseManager(memory_db, ttl=2.0, clocks=Wall(-3600.0)) as behind,
        LeaseManager(memory_db, ttl=2.0) as right,
    ):
        leases = [ahead.acquire("ahead"), behind.acquire("behind")]
        refused: list[str] = []

        def steal(name: str) -> None:
            try:
                right.acquire(name, timeout=3.0)
            except AcquireTimeout:
                refused.append(name)

        thieves = [threading.Thread(target=steal, args=(lease.name,)) for lease in leases]
        for thief in thieves:
            thief.start()
        for thief in thieves:
            thief.join(DEADLINE)
        assert sorted(refused) == ["ahead", "behind"]
        for lease in leases:
            lease.check()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("ahead", [3600.0, -3600.0], ids=["an hour ahead", "an hour behind"])
def test_defect_a_dead_holder_whose_clock_is_off_stays_for_an_hour(memory_db: Any, ahead: float) -> None:
    a = LeaseManager(memory_db, ttl=1.0, clocks=Wall(ahead))
    a.acquire("n")
    silence(a)
    with LeaseManager(memory_db, ttl=1.0) as b:
        started = time.monotonic()
        b.acquire("n", timeout=DEADLINE)
        assert time.monotonic() - started >= 1.0, "and not before its ttl either"


def test_defect_one_failed_renewal_ends_the_maintenance(memory_db: Any) -> None:
    db = Unplugged(memory_db)
    with LeaseManager(db, ttl=3.0) as a, LeaseManager(memory_db, ttl=3.0) as b:
        lease = a.acquire("n")
        db.out.set()
        until = time.monotonic() + DEADLINE
        while db.refused < 3:
            assert time.monotonic() < until, "a renewal that fails is tried again and again"
            time.sleep(0.01)
        db.out.clear()
        with pytest.raises(AcquireTimeout):
            b.acquire("n", timeout=4.0)
        lease.check()


def test_defect_a_holder_that_is_cut_off_goes_on_believing(memory_db: Any) -> None:
    db = Unplugged(memory_db)
    with LeaseManager(db, ttl=3.0) as a:
        lease = a.acquire("n")
        told = threading.Event()
        lease.on_lost(lambda _: told.set())
        db.out.set()
        assert lease.lost.wait(DEADLINE)
        assert lease.lost_reason == "unreachable"
        assert told.wait(DEADLINE)
        with pytest.raises(LeaseLost) as failed:
            lease.check()
        assert failed.value.reason == "unreachable"
        db.out.clear()
        again = a.acquire("n", timeout=DEADLINE)
        assert again.token > lease.token, "what it had lost it left in the database too, as soon as that answered"
        with pytest.raises(LeaseLost):
            lease.maintain()


def test_defect_a_waiter_polls(any_db: Any) -> None:
    """A release wakes the first waiter by a watch: a hand-over takes far less than any look at heartbeats."""
    with LeaseManager(any_db, ttl=400.0) as a:
        lease = a.acquire("n")
        order: list[int] = []

        def wait(number: int) -> None:
            with a.lock("n", timeout=DEADLINE):
                order.append(number)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(10)]
        for number, thread in enumerate(threads):
            thread.start()
            until = time.monotonic() + DEADLINE
            while (info := a.read("n")) is None or len(info.waiters) <= number:
                assert time.monotonic() < until
                time.sleep(0.002)
        lease.release()
        for thread in threads:
            thread.join(DEADLINE)
        assert order == list(range(10))


def test_defect_renewing_costs_two_writes_a_lease(memory_db: Any) -> None:
    """2,000 leases of one process: at most 4 commits per ttl in all."""
    commits = []

    class Counting(Unplugged):
        def create_transaction(self) -> Any:
            tr = super().create_transaction()
            if threading.current_thread().name == "lease-renewal":
                commits.append(time.monotonic())
            return tr

    ttl = 4.0
    with LeaseManager(Counting(memory_db), ttl=ttl) as a:
        leases = [a.acquire(f"n{i}") for i in range(2_000)]
        del commits[:]
        started = time.monotonic()
        time.sleep(ttl)
        turns = (time.monotonic() - started) / ttl
        renewals = len(commits)
        assert renewals <= 4 * turns + 2, f"{renewals} transactions in {turns:.1f} ttl"
        assert all(lease.held for lease in leases)
