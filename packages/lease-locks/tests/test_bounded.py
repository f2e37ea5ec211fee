"""What must end, or stay small: a wait with a timeout whatever the database does, and the rows that work leaves."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdb
import memo_functions as functions
import pytest
from silent_database import Hanging

from fdb_schema import open_database
from fdb_schema.cli import run_app
from idempotent_txn import TransactionTimedOut
from lease_locks import (
    AcquireTimeout,
    AsyncLeaseManager,
    LeaseManager,
    MemoizingPicklingRunner,
    OldHistories,
    aio,
    samethread_shell,
)
from lease_locks.grants.info import lease_infos
from lease_locks.grants.tokens import FencingToken
from lease_locks.waiting import acquiring, loops, threads

DEADLINE = 60.0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquiring, "GRACE", 0.2)


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
    with locks.session._starting, pytest.raises(AcquireTimeout, match="another thread"):
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
        run, run_committed = threads.run, threads.run_committed
        here = threading.get_ident()
        step = threading.local()

        def waits() -> bool:
            return bool(run(plain, lease_infos, locks.space, locks.space.lock("name"))[0].waiters)

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

        monkeypatch.setattr(threads, "run", spied(run))
        monkeypatch.setattr(threads, "run_committed", spied(run_committed))
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
    looks: list[int] = []

    def refused(tr: Any, rows: Any) -> list[Any]:
        looks.append(len(rows))
        return [Refused() for _ in rows]

    monkeypatch.setattr(threads, "start_watches", refused)
    monkeypatch.setattr(loops, "start_watches", refused)
    with LeaseManager("memory:", cluster="demo", ttl=60.0) as locks:
        locks.acquire("name")
        wait: Any = locks.acquire if how == "threads" else _acquire_on_a_loop(locks)
        with pytest.raises(AcquireTimeout, match="held by"):
            wait("name", timeout=1.2)
    assert 1 <= len(looks) <= 4, looks


def test_an_invocation_that_fails_and_fails_keeps_its_last_attempts(tmp_path: Path) -> None:
    with LeaseManager("memory:", cluster="demo") as locks:
        runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")
        for _ in range(9):
            with pytest.raises(functions.Refusal):
                runner.call(functions.fails, str(tmp_path))
        [(memo, found)] = runner.rows.scan(locks.db, "demo")
        tokens = sorted(bytes.fromhex(column[4:]) for column in found if column.startswith("att:"))
        granted = [bytes(event.token) for event in locks.history(memo.lock_name) if event.kind == "acquired"]
        assert len(granted) == 9
        assert tokens == granted[-5:]


def test_old_histories_of_memo_locks_are_forgotten_and_tokens_still_grow() -> None:
    with LeaseManager("memory:", cluster="demo") as locks:
        tokens = {}
        for name in ("memo/1/f", "memo/2/f", "memo/3/f", "other"):
            lease = locks.acquire(name)
            tokens[name] = lease.token
            lease.release()
        locks.acquire("memo/2/f")
        assert OldHistories(locks, after=86_400.0).clear() == 0, "they are young"
        sweep = OldHistories(locks, after=0.0)
        assert [sweep.clear(names=1) for _ in range(4)] == [1, 0, 1, 0], "one name a round, and the held one stays"
        assert [len(locks.history(name)) for name in ("memo/1/f", "memo/2/f", "memo/3/f", "other")] == [0, 3, 0, 2]
        last = locks.space.lock("memo/1/f").last
        assert locks.db.get(last) is not None
        # A cluster whose versions went back: the last token is from its future.
        ahead = (int.from_bytes(bytes(locks.db.get(last))[:8], "big") + 10**12).to_bytes(8, "big") + bytes(6)
        locks.db[last] = ahead
        assert sweep.clear() == 0
        lease = locks.acquire("memo/1/f")
        assert lease.token > FencingToken(0, ahead[:10])
        assert lease.token > tokens["memo/1/f"]


def test_releasing_leaving_a_block_and_closing_are_bounded_where_the_database_does_not_answer() -> None:
    plain = open_database("memory:")
    db = Hanging(plain)
    locks = LeaseManager(db, cluster="demo", ttl=600.0)
    locks.session.close_seconds = 0.3
    first, second = locks.acquire("first"), locks.acquire("second")
    for n in range(20):
        locks.acquire(f"more-{n}")
    db.hangs = lambda: True
    began = time.monotonic()
    with pytest.raises(TransactionTimedOut):
        first.release()
    assert not first.held, "whatever became of it"
    with pytest.raises(KeyError, match="the block's own"), second:
        raise KeyError("the block's own")
    with pytest.raises(TransactionTimedOut):
        locks.close()
    assert time.monotonic() - began < 10.0, "one limit for all leases"
    assert db.unbounded == 0


def test_what_a_release_owes_is_paid_when_the_database_answers_again() -> None:
    plain = open_database("memory:")
    db = Hanging(plain)
    with LeaseManager(plain, cluster="demo") as other, LeaseManager(db, cluster="demo", ttl=2.0) as locks:
        lease = locks.acquire("name")
        db.hangs = lambda: True
        with pytest.raises(TransactionTimedOut):
            lease.release(timeout=0.1)
        db.hangs = lambda: False
        other.acquire("name", timeout=DEADLINE).release()
        assert lease.release(), "and is known to have been freed"


def test_a_thread_that_holds_a_name_already_holds_it_again_however_it_got_it() -> None:
    with LeaseManager(open_database("memory:"), cluster="demo") as locks:
        first = locks.acquire("name")
        again = locks.acquire("name", timeout=0, reentrant=True)
        assert again is first
        assert again.release()
        assert first.held
        first.release()
        assert not first.held


@pytest.mark.parametrize(
    "command",
    [
        *(
            "ls",
            "show a",
            "history a",
            "watch a --for 0.1",
            "sessions",
            "doctor",
            "runs",
            "summarize",
            "inspect memo:p",
        ),
        *("prune --older-than 9", "invalidate memo:p/f"),
    ],
)
def test_a_command_ends_where_the_database_does_not_answer(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    from lease_locks.cli import app, leases, opening

    db = Hanging(open_database("memory:"))
    db.hangs = lambda: True
    monkeypatch.setattr(opening, "open_database", lambda *_, **__: db)
    monkeypatch.setattr(opening, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(leases, "GRACE", 0.1)
    monkeypatch.setattr(sys, "argv", ["lease-locks", *command.split()])
    with pytest.raises(SystemExit) as ended:
        run_app(app)
    assert ended.value.code == 4
    assert db.unbounded == 0


@pytest.mark.parametrize("ask", [lambda locks: locks.acquire("a"), lambda locks: locks.acquire("a", timeout=3600.0)])
def test_a_wait_on_a_loop_can_be_cancelled_where_the_database_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[AsyncLeaseManager], Any]
) -> None:
    monkeypatch.setattr(loops, "_LONGEST_TRY", 0.1)
    db = Hanging(open_database("memory:"))

    async def cancelled() -> None:
        locks = AsyncLeaseManager(db, "demo", 1.0)
        for registered in (False, True):
            db.hangs = lambda: True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(locks), 0.3)
            db.hangs = lambda: False
            if not registered:
                await locks.__aenter__()
        async with asyncio.timeout(DEADLINE):
            (await locks.acquire("a")).check()
        await locks.close()

    asyncio.run(cancelled())
    assert db.unbounded == 0


def test_a_cancelled_call_on_a_loop_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch, any_db: Any) -> None:
    monkeypatch.setattr(aio, "PATIENCE", 0.1)
    monkeypatch.setattr(loops, "PATIENCE", 0.1)
    answers, asked = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        asked.set()
        assert answers.wait(DEADLINE)

    async def cancelled() -> None:
        async with AsyncLeaseManager(any_db) as locks, AsyncLeaseManager(any_db) as remotes:
            lease = await locks.acquire("a")
            await remotes.acquire("other")
            join = remotes.sync.join
            monkeypatch.setattr(remotes.sync, "join", lambda *args: (slow(), join(*args))[1])
            for ask in (lambda: loops.in_thread(slow), lambda: remotes.join("a", lease.writer_id)):
                asked.clear()
                task = asyncio.ensure_future(ask())
                await asyncio.to_thread(asked.wait, DEADLINE)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            answers.set()
            session = remotes.sync.session
            async with asyncio.timeout(DEADLINE):  # its join comes late, and is left again
                while "joined" not in [e.kind for e in await locks.history("a")]:  # noqa: ASYNC110 - another thread's
                    await asyncio.sleep(0.005)
                while session.ledger.owed or len(session.ledger.parts) > 1:  # noqa: ASYNC110 - the renewal thread's
                    await asyncio.sleep(0.005)
                while len((await locks.list("a"))[0].maintainers) > 1:  # noqa: ASYNC110 - another session's
                    await asyncio.sleep(0.005)

    asyncio.run(cancelled())


class Slow:
    """A database whose next transaction begins after a minute, by the clocks that it is."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.armed = False
        self.ahead = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Any:
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            self.ahead += 60.0
        return self._db.create_transaction()

    def boottime(self) -> float:
        return time.monotonic() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000


def test_a_lease_that_is_had_after_a_silence_of_the_database_is_held() -> None:
    plain = open_database("memory:")
    db = Slow(plain)
    with LeaseManager(db, cluster="demo", clocks=db) as locks, LeaseManager(plain, cluster="demo") as other:
        db.armed = True
        lease = locks.acquire("a")
        lease.check()
        assert 0.0 < lease.remaining() <= 12.0
        lease.release()
        theirs = other.acquire("a")
        db.armed = True
        locks.join("a", theirs.writer_id).check()
        assert not db.armed
