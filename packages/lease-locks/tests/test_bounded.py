"""What must end, or stay small: a wait with a timeout whatever the database does, and the rows that work leaves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import fdb
import pytest

from fdb_schema import open_database
from idempotent_txn import TransactionTimedOut
from lease_locks import AcquireTimeout, AsyncLeaseManager, LeaseManager, acquiring
from lease_locks import locks as locks_module

DEADLINE = 60.0


class Hanging:
    """A database that answers nothing until each transaction's own timeout, while `hangs` says so."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.hangs: Callable[[], bool] = lambda: False
        self.unbounded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Any:
        tr = self._db.create_transaction()
        return Silent(tr, self) if self.hangs() else tr


class Silent:
    """A transaction whose reads end by its timeout only; without one, the test fails instead of waiting for ever."""

    def __init__(self, tr: Any, db: Hanging) -> None:
        self._tr, self._db = tr, db
        self._timeout: int | None = None
        self.options = self
        self.snapshot = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def set_timeout(self, ms: int) -> None:
        self._timeout = ms

    def _hang(self, *_: Any, **__: Any) -> Any:
        if self._timeout is None:
            self._db.unbounded += 1
            raise AssertionError("this would wait for ever")
        time.sleep(self._timeout / 1000)
        raise fdb.FDBError(1031)

    get = get_range = get_read_version = peek_read_version = _hang


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (acquiring, locks_module):
        monkeypatch.setattr(module, "GRACE", 0.2)


def test_the_registration_of_the_session_is_bounded_by_the_timeout(short: None) -> None:
    db = Hanging(open_database("memory:"))
    locks = LeaseManager(db, cluster="demo")
    db.hangs = lambda: True
    with pytest.raises(AcquireTimeout, match="did not answer"):
        locks.acquire("name", timeout=0.1)
    assert db.unbounded == 0
    with pytest.raises(AcquireTimeout, match="did not answer"):
        asyncio.run(AsyncLeaseManager(locks).acquire("name", timeout=0.1))
    db.hangs = lambda: False
    with locks:
        assert locks.acquire("name", timeout=DEADLINE).held, "it starts when the database answers"


def test_a_thread_that_registers_for_ever_holds_up_no_other(short: None) -> None:
    locks = LeaseManager(open_database("memory:"), cluster="demo")
    with locks._session._starting, pytest.raises(AcquireTimeout, match="another thread"):
        locks.acquire("name", timeout=0.1)
    locks.close()


@pytest.mark.parametrize("part", ["start_watches", "lease_infos", "attempt"])
def test_a_wait_with_a_timeout_ends_wherever_the_database_stops_answering(
    short: None, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    plain = open_database("memory:")
    db = Hanging(plain)
    with LeaseManager(plain, cluster="demo", ttl=600.0) as other, LeaseManager(db, cluster="demo", ttl=600.0) as locks:
        other.acquire("name")
        run, run_committed = locks_module.run, locks_module.run_committed
        here = threading.get_ident()
        step = threading.local()

        def waits() -> bool:
            return bool(run(plain, locks_module.lease_infos, locks.space, locks.space.lock("name"))[0].waiters)

        def which(fn: Any) -> str:
            name = fn.__name__
            return "lease_infos" if name == "<lambda>" else name

        def spied(real: Any) -> Any:
            def call(of: Any, fn: Any, *args: Any, **options: Any) -> Any:
                if threading.get_ident() == here and which(fn) == part and waits():
                    step.hangs = True
                try:
                    return real(of, fn, *args, **options)
                finally:
                    step.hangs = False

            return call

        monkeypatch.setattr(locks_module, "run", spied(run))
        monkeypatch.setattr(locks_module, "run_committed", spied(run_committed))
        db.hangs = lambda: getattr(step, "hangs", False)
        hung: list[bool] = []
        create = db.create_transaction

        def counted() -> Any:
            hung.extend([True] if db.hangs() else [])
            return create()

        db.create_transaction = counted  # type: ignore[method-assign]
        try:
            with pytest.raises(AcquireTimeout) as raised:
                locks.acquire("name", timeout=0.5)
        finally:
            db.hangs = lambda: False
        assert hung, f"{part} never hung"
        assert not isinstance(raised.value, TransactionTimedOut)
        assert (raised.value.holder is not None) == (part == "start_watches")
        assert db.unbounded == 0


class Refused:
    """A watch of a client that has too many: ready at once, with error 1032."""

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def wait(self) -> None:
        raise fdb.FDBError(1032)

    def cancel(self) -> None:
        pass


def _acquire_on_a_loop(locks: LeaseManager) -> Callable[..., Any]:
    return lambda *args, **options: asyncio.run(AsyncLeaseManager(locks).acquire(*args, **options))


@pytest.mark.parametrize("how", ["threads", "asyncio"])
def test_a_waiter_whose_watches_are_refused_does_not_spin(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    from lease_locks import aio

    looks: list[int] = []

    def refused(tr: Any, rows: Any) -> list[Any]:
        looks.append(len(rows))
        return [Refused() for _ in rows]

    monkeypatch.setattr(locks_module, "start_watches", refused)
    monkeypatch.setattr(aio, "start_watches", refused)
    with LeaseManager("memory:", cluster="demo", ttl=60.0) as locks:
        locks.acquire("name")
        wait: Any = locks.acquire if how == "threads" else _acquire_on_a_loop(locks)
        with pytest.raises(AcquireTimeout, match="held by"):
            wait("name", timeout=1.2)
    assert 1 <= len(looks) <= 4, looks
