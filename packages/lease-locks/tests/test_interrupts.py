"""An interrupt (Ctrl-C, which a program may catch) at any moment costs no lease its renewals and leaves no row behind."""

from __future__ import annotations

import functools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lease_processes import DEADLINE, eventually

from fdb_schema import open_database
from lease_locks import LeaseManager


class Interrupt(BaseException):
    """As KeyboardInterrupt, which would end the test run where it is not caught."""


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    manager = LeaseManager(open_database("memory:"), cluster="demo", ttl=2.0)
    with manager:
        yield manager
        began = time.monotonic()
    assert time.monotonic() - began < 8, "closing waits for threads that wait for a lock nobody gives back"


def interrupt(body: Callable[[], Any], times: int, longest: float) -> None:
    """Run `body` again and again until it was interrupted so many times, each after a random while."""

    def refuse(number: int, frame: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, refuse)
    draw = random.Random(times)
    done = 0
    try:
        while done < times:
            try:
                signal.setitimer(
                    signal.ITIMER_REAL, draw.uniform(1e-5, longest), 0.5
                )  # again where a callback swallowed it
                while True:
                    body()
            except Interrupt:
                done += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_a_thread(body: Callable[[], Any]) -> Any:
    """What a call returns that has a thread of its own, so that a lock this one has kept is noticed."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(body()), daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert found, "it waits for a lock that an interrupt left locked"
    return found[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_checks_stop_no_renewal(locks: LeaseManager) -> None:
    lease = locks.acquire("kept")
    interrupt(lease.check, 300, 2e-4)
    in_a_thread(lease.check)
    renewed: list[float] = []
    holding = lease.part.holding
    first = holding.deadline
    eventually(lambda: holding.deadline > first or renewed.append(0), "it is renewed")
    assert lease.held


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it came in a weak reference's callback
def test_interrupted_acquisitions_and_releases_leave_nothing_behind(locks: LeaseManager) -> None:
    kept = locks.acquire("kept")

    def use() -> None:
        mine = None
        try:
            mine = locks.acquire("name", timeout=DEADLINE)
            mine.release()
        except Interrupt:  # once in a call: as a program's own `finally`
            if mine is not None:
                mine.release()
            raise

    interrupt(use, 100, 5e-3)
    in_a_thread(kept.check)
    eventually(lambda: [info.name for info in locks.list()] == ["kept"], "what was acquired is given back")
    eventually(lambda: [lease.name for lease in locks.session.ledger.parts] == ["kept"], "nothing else is renewed")
    locks.acquire("name", timeout=DEADLINE).release()
    assert kept.held


@pytest.mark.parametrize("where", ["session.ledger.look", "session.ledger.note", "session.ledger.end_grant"])
@pytest.mark.parametrize("block", [False, True])
def test_a_lease_whose_release_is_interrupted_before_it_asks_the_database_is_released(
    block: bool, where: str, locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = locks
    *parts, name = where.split(".")
    for part in parts:
        owner = getattr(owner, part)
    whole = getattr(owner, name)
    came: list[Any] = []

    def interrupted(*arguments: Any) -> Any:
        if not came:
            came.append(arguments)
            raise Interrupt
        return whole(*arguments)

    lease = locks.acquire("name")
    monkeypatch.setattr(owner, name, interrupted)
    end: Callable[[], Any] = functools.partial(lease.__exit__, None, None, None) if block else lease.release
    with pytest.raises(Interrupt):
        end()
    assert came
    eventually(lambda: locks.list() == [], "it is given back")
    assert not lease.held
    assert lease.release()


def test_leases_that_one_remote_has_joined_are_released_where_that_is_interrupted(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise Interrupt

    with LeaseManager(locks.db, cluster="demo") as remote:
        leases = [locks.acquire(name) for name in "ab"]
        for lease in leases:
            remote.join(lease.name, lease.writer_id)
        with monkeypatch.context() as patched:
            patched.setattr(locks.session.ledger, "look", interrupted)
            with pytest.raises(Interrupt):
                locks.session.release_all([lease.part for lease in leases])
        eventually(lambda: remote.list() == [], "they are given back")


def test_an_interrupt_at_the_end_of_an_inner_block_releases_no_outer_one(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise Interrupt

    with locks.lock("name", reentrant=True) as outer:
        with locks.lock("name", reentrant=True) as inner:
            with monkeypatch.context() as patched:
                patched.setattr(type(inner), "release", interrupted)
                with pytest.raises(Interrupt):
                    inner.__exit__(None, None, None)
            assert inner.held
        assert outer.held


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loss_that_an_interrupted_thread_finds_out_is_told(locks: LeaseManager) -> None:
    for number in range(20):
        lease = locks.acquire(f"lost-{number}", max_hold=0.001)

        def look(lease: Any = lease) -> None:
            assert not (lease.lost.is_set() and lease.held)

        interrupt(look, 3, 2e-4)
        in_a_thread(lambda lease=lease: lease.lost.wait(DEADLINE))  # type: ignore[misc]
        assert lease.lost_reason == "max_hold"
