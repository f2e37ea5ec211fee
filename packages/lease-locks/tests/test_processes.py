"""Real processes, real SIGKILL, real SIGSTOP, over a database that they share."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from lease_processes import DEADLINE, children

import lease_locks.waiting.pausing
from lease_locks import LeaseManager

HOLD = """
locks = LeaseManager(db, ttl=float(sys.argv[2]))
lease = locks.acquire("a")
say(lease.writer_id)
while True:
    word = listen()
    if word == "look":
        say(lease.held, lease.lost.is_set(), lease.lost_reason)
    elif word == "effect":
        def write(tr):
            lease.guard(tr)
            tr.set(b"effect", lease.writer_id.encode())
        from idempotent_txn import run
        try:
            run(db, write)
            say("written")
        except LeaseLost as error:
            say("refused", error.reason)
    elif word == "maintain":
        try:
            lease.maintain()
            say("maintained")
        except LeaseLost as error:
            say("refused", error.reason)
    elif word == "release":
        try:
            say(lease.release())
        except LeaseLost as error:
            say("refused", error.reason)
"""

WAIT = """
locks = LeaseManager(db, ttl=float(sys.argv[2]))
say("ready")
listen()
lease = locks.acquire("a", timeout=60)
say("got", lease.writer_id)
listen()
lease.release()
say("released")
listen()
"""


def test_a_killed_holder_on_this_host_is_succeeded_at_once_though_its_ttl_is_long(
    shared_url: str, shared_db: Any
) -> None:
    with children(HOLD, url=shared_url, args=("600",)) as [holder], LeaseManager(shared_db, ttl=600.0) as locks:
        first = holder.hear()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(locks.acquire("a", timeout=DEADLINE)))
        thread.start()
        holder.signal(signal.SIGKILL)
        thread.join(DEADLINE)
        assert got, "long before 600 s: its process is gone"
        assert got[0].writer_id > first
        kinds = [(e.kind, e.why) for e in locks.history("a")]
        assert ("stolen", "its processes are gone") in kinds


def test_a_killed_holder_of_another_host_is_succeeded_after_its_ttl_and_never_before(
    shared_url: str, shared_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another host's processes can't be looked at.
    monkeypatch.setattr("lease_locks.session.context.process_gone", lambda record: False)
    monkeypatch.setattr(lease_locks.waiting.pausing, "process_gone", lambda record: False)
    ttl = 2.0
    with children(HOLD, url=shared_url, args=(str(ttl),)) as [holder], LeaseManager(shared_db, ttl=ttl) as locks:
        holder.hear()
        got: list[float] = []

        def take() -> None:
            locks.acquire("a", timeout=DEADLINE)
            got.append(time.monotonic())

        thread = threading.Thread(target=take)
        thread.start()
        while (info := locks.read("a")) is None or not info.waiters:
            time.sleep(0.01)
        holder.tell("maintain")
        assert holder.hear() == "maintained"
        renewed = time.monotonic()
        holder.signal(signal.SIGKILL)
        thread.join(DEADLINE)
        assert got, "the waiter was served"
        assert got[0] - renewed >= ttl
        assert [e.kind for e in locks.history("a")] == ["acquired", "expired", "acquired"]


def test_a_living_holder_is_never_succeeded(shared_url: str, shared_db: Any) -> None:
    with children(HOLD, url=shared_url, args=("4",)) as [holder], LeaseManager(shared_db, ttl=4.0) as locks:
        writer = holder.hear()
        with pytest.raises(TimeoutError):
            locks.acquire("a", timeout=5.0)  # longer than 1.1 × ttl
        info = locks.read("a")
        assert info is not None
        assert info.writer_id == writer


def test_a_holder_stopped_for_longer_than_its_ttl_believes_nothing_when_it_goes_on(
    shared_url: str, shared_db: Any
) -> None:
    with children(HOLD, url=shared_url, args=("2",)) as [holder], LeaseManager(shared_db, ttl=2.0) as locks:
        first = holder.hear()
        holder.signal(signal.SIGSTOP)
        lease = locks.acquire("a", timeout=DEADLINE)
        assert lease.writer_id > first
        holder.signal(signal.SIGCONT)
        holder.tell("look")
        held, lost, reason = holder.hear().split()
        assert (held, lost) == ("False", "True")
        assert reason in ("unreachable", "expired")
        for word in ("maintain", "effect", "release"):
            holder.tell(word)
            assert holder.hear().split()[0] == "refused", word
        lease.maintain()
        info = locks.read("a")
        assert info is not None
        assert info.writer_id == lease.writer_id, "its release did not free the successor's lease"
        assert shared_db.get(b"effect") is None


def test_a_killed_waiter_is_skipped(shared_url: str, shared_db: Any) -> None:
    with children(WAIT, WAIT, url=shared_url, args=("600",)) as waiters, LeaseManager(shared_db, ttl=600.0) as locks:
        lease = locks.acquire("a")
        for number, waiter in enumerate(waiters):
            waiter.hear()
            waiter.tell("go")
            while (info := locks.read("a")) is None or len(info.waiters) <= number:
                time.sleep(0.01)
        waiters[0].signal(signal.SIGKILL)
        waiters[0].process.wait(DEADLINE)
        lease.release()
        assert waiters[1].hear().startswith("got")
        waiters[1].tell("release")
        assert waiters[1].hear() == "released"
        lock = locks.space.lock("a")
        assert list(shared_db.get_range(lock.queue, lock.rows_end)) == []


COUNT = """
from idempotent_txn import run
locks = LeaseManager(db, ttl=30.0)
say("ready")
listen()
for _ in range(int(sys.argv[2])):
    with locks.lock("counter", timeout=60):
        count = int(bytes(db.get(b"count") or b"0"))  # read and written apart: only the lease makes it right
        db.set(b"count", str(count + 1).encode())
say("done")
listen()
"""


def test_processes_count_right_under_a_lease(shared_url: str, shared_db: Any) -> None:
    with children(COUNT, COUNT, COUNT, url=shared_url, args=("40",)) as counters:
        for counter in counters:
            counter.hear()
        for counter in counters:
            counter.tell("go")
        for counter in counters:
            assert counter.hear() == "done"
    assert bytes(shared_db.get(b"count")) == b"120"


def test_a_forced_holder_in_another_process_learns_it(shared_url: str, shared_db: Any) -> None:
    with children(HOLD, url=shared_url, args=("600",)) as [holder], LeaseManager(shared_db) as locks:
        holder.hear()
        assert locks.force_release("a", reason="by hand")
        until = time.monotonic() + DEADLINE
        while True:
            holder.tell("look")
            said = holder.hear()
            if said == "False True forced":
                break
            assert time.monotonic() < until, said
            time.sleep(0.02)


def test_sessions_of_killed_processes_are_cleared(shared_url: str, shared_db: Any) -> None:
    with children(HOLD, url=shared_url, args=("600",)) as [holder], LeaseManager(shared_db) as locks:
        holder.hear()
        locks.acquire("b")
        assert locks.clear_dead_sessions() == 0
        holder.signal(signal.SIGKILL)
        holder.process.wait(DEADLINE)
        assert locks.clear_dead_sessions() == 1
        assert [record.pid for _, record, _ in locks.sessions()] != [holder.process.pid]
        # Its lease is still there, and without its session's rows it expires by its own.
        info = locks.read("a")
        assert info is not None
        assert info.pid == holder.process.pid
