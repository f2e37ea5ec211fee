"""Leader election: one leads, the others know who; it ends when the lease does, and no two terms of a process overlap."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import pytest
from lease_processes import DEADLINE, eventually

from fdb_schema import MainspringError
from lease_locks import LeaderElection, LeaseLost, LeaseManager, Term


class Candidate:
    """A process that stands, and what its callbacks were told, in order."""

    def __init__(self, locks: LeaseManager, identity: str, **options: Any) -> None:
        self.said: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.hold = threading.Event()
        self.hold.set()
        self.election = LeaderElection(
            locks, "controller", identity=identity, standby=0.3,
            started=self._lead, stopped=lambda why: self.said.put(("stopped", why)), **options,
        )  # fmt: skip

    def _lead(self, term: Term) -> None:
        self.said.put(("started", term))
        assert term.over.wait(DEADLINE)
        assert self.hold.wait(DEADLINE)
        self.said.put(("returned", term))

    def hears(self, what: str) -> Any:
        said, about = self.said.get(timeout=DEADLINE)
        assert said == what, about
        return about


def test_one_leads_and_another_takes_over_when_it_stops(locks: LeaseManager, other: LeaseManager) -> None:
    one, two = Candidate(locks, "one"), Candidate(other, "two")
    with one.election:
        term = one.hears("started")
        with pytest.raises(MainspringError, match="runs already"):
            one.election.run()
        with two.election:
            assert one.election.leads
            term.check()
            info = two.election.leader()
            assert info is not None
            assert (info.meta["leader"], two.election.leads) == ("one", False)
            assert two.said.empty()
            one.election.stop()
            assert sorted([one.said.get(timeout=DEADLINE)[0] for _ in range(2)]) == ["returned", "stopped"]
            later = two.hears("started")
            assert later.lease.token > term.lease.token
            assert not one.election.leads
        assert sorted([two.said.get(timeout=DEADLINE)[0] for _ in range(2)]) == ["returned", "stopped"]
    assert locks.read("controller") is None
    assert one.said.empty()


def test_a_term_ends_with_its_lease_and_the_next_begins_when_its_work_has_ended(locks: LeaseManager) -> None:
    one = Candidate(locks, "one")
    one.hold.clear()
    with one.election:
        term = one.hears("started")
        locks.force_release("controller", reason="test")
        assert one.hears("stopped") == "forced", "at once, though its work goes on"
        assert (term.reason, one.election.leads) == ("forced", False)
        with pytest.raises(LeaseLost):
            term.check()
        with pytest.raises(LeaseLost):
            term.guard(locks.db.create_transaction())
        assert locks.read("controller") is None, "it doesn't stand yet"
        one.hold.set()
        one.hears("returned")
        assert one.hears("started") is not term


def test_the_lease_is_kept_until_the_work_of_a_leader_that_stops_has_ended(
    locks: LeaseManager, other: LeaseManager
) -> None:
    one = Candidate(locks, "one")
    one.hold.clear()
    with one.election:
        one.hears("started")
        one.election.stop()
        assert one.hears("stopped") == "stopped"
        assert other.try_acquire("controller") is None
        one.hold.set()
        one.hears("returned")
    assert other.try_acquire("controller") is not None


def test_everybody_learns_who_leads(locks: LeaseManager, other: LeaseManager) -> None:
    heard: dict[str, list[str]] = {"one": [], "two": []}
    candidates = {
        name: Candidate(manager, name, new_leader=lambda info, name=name: heard[name].append(info.meta["leader"]))
        for name, manager in (("one", locks), ("two", other))
    }
    with candidates["one"].election:
        candidates["one"].hears("started")
        with candidates["two"].election:
            eventually(lambda: heard == {"one": ["one"], "two": ["one"]}, "both know of the first")
            candidates["one"].election.stop()
            candidates["two"].hears("started")
            eventually(lambda: heard["two"] == ["one", "two"], "it knows of itself")


def test_a_leader_whose_work_fails_gives_up_and_another_leads(
    locks: LeaseManager, other: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[str] = []

    def fails(term: Term) -> None:
        raise OSError("no disk")

    failing = LeaderElection(locks, "controller", started=fails, stopped=stopped.append, standby=5.0)
    two = Candidate(other, "two")
    with caplog.at_level(logging.WARNING), failing:
        eventually(lambda: stopped, "it gave up")
        with two.election:
            two.hears("started")
            failing.stop()
    assert stopped == ["failed"]
    assert "`started` failed, and leading is given up: no disk" in caplog.text


def test_work_that_returns_leads_on_and_a_callback_that_raises_is_logged(
    locks: LeaseManager, caplog: pytest.LogCaptureFixture
) -> None:
    returned, asked = threading.Event(), threading.Event()

    def stopped(why: str) -> None:
        asked.set()
        raise ValueError("a callback")

    election = LeaderElection(locks, "controller", started=lambda term: returned.set(), stopped=stopped, standby=0.3)
    with caplog.at_level(logging.WARNING), election:
        assert returned.wait(DEADLINE)
        assert election.leads
        info = election.leader()
        assert info is not None
        assert info.meta["leader"] == locks.session.by
    assert asked.is_set()
    assert "its callback `stopped` failed: a callback" in caplog.text


def test_one_that_is_stopped_before_it_stands_or_while_it_waits_leads_never(
    locks: LeaseManager, other: LeaseManager
) -> None:
    one = Candidate(locks, "one")
    one.election.stop()
    one.election.run()
    held = other.acquire("controller")
    two = Candidate(locks, "two")
    with two.election:
        eventually(lambda: len(getattr(other.read("controller"), "waiters", ())) == 1, "it waits")
    assert held.release()
    assert one.said.empty()
    assert two.said.empty()
    assert locks.read("controller") is None


def test_work_that_exits_gives_up_as_any_that_fails(locks: LeaseManager) -> None:
    stopped: queue.Queue[str] = queue.Queue()

    def exits(term: Term) -> None:
        raise SystemExit(1)

    with LeaderElection(locks, "controller", started=exits, stopped=stopped.put, standby=0.3):
        assert stopped.get(timeout=DEADLINE) == "failed"


def test_a_manager_that_is_closed_ends_its_elections_before_it_gives_the_lease_away(
    locks: LeaseManager, other: LeaseManager
) -> None:
    held_at_the_end: list[bool] = []

    def lead(term: Term) -> None:
        led.set()
        assert term.over.wait(DEADLINE)
        held_at_the_end.append(term.lease.held)

    led, stopped = threading.Event(), list[str]()
    election = LeaderElection(locks, "controller", started=lead, stopped=stopped.append, standby=DEADLINE)
    running = threading.Thread(target=election.run)
    running.start()
    assert led.wait(DEADLINE)
    locks.close()
    running.join(DEADLINE)
    assert not running.is_alive(), "it doesn't stand with a manager that is closed"
    assert (stopped, held_at_the_end) == (["stopped"], [True])
    assert other.try_acquire("controller") is not None


def test_a_standby_is_seconds(locks: LeaseManager) -> None:
    with pytest.raises(ValueError, match="standby"):
        LeaderElection(locks, "controller", started=lambda term: None, standby=0)
