"""A database that stops answering: nobody waits for ever, nothing submitted is lost, and waiting goes on when it is back."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import fdb
import pytest

import fdb_embedded
from fdb_schema import DatabaseUnreachableError, open_database
from futures_worker import Client, as_completed, database, wait
from futures_worker.client.context import worker_context
from idempotent_txn import CommitUnknownResultFatal, TransactionTimedOut

WAIT = 60.0


def square(number: int) -> int:
    return number * number


class Unreliable:
    """A database that a client uses, and that others reach all the time: `down` makes every transaction fail."""

    def __init__(self) -> None:
        self.name = f"memory:dead-{uuid.uuid4().hex}"
        self.faults = fdb_embedded.Faults(seed=1)
        self.db = fdb_embedded.open(self.name, faults=self.faults)
        self.steady = fdb_embedded.open(self.name)

    def down(self) -> None:
        self.faults.process_behind = 1.0

    def up(self) -> None:
        self.faults.process_behind = 0.0


@pytest.fixture
def unreliable(monkeypatch: pytest.MonkeyPatch) -> Unreliable:
    monkeypatch.setattr("futures_worker.database.DATABASE_SECONDS", 0.5)
    monkeypatch.setattr("futures_worker.client.session.reader.LOOK_SECONDS", 0.05)
    return Unreliable()


def test_waiting_says_that_the_database_is_gone_and_goes_on_when_it_is_back(
    unreliable: Unreliable, thread_worker: Callable[..., Any]
) -> None:
    with Client(unreliable.db, "c") as client:
        futures = client.map(square, range(3))
        client.flush()
        unreliable.down()
        for ask in (
            futures[0].result,
            futures[0].exception,
            lambda: client.gather(futures, progress=False),
            lambda: wait(futures),
            lambda: list(as_completed(futures)),
            lambda: futures[1].state(),
        ):
            with pytest.raises(DatabaseUnreachableError, match=r"no answer for 0.5 s"):
                ask()
        unreliable.up()
        thread_worker(unreliable.steady, "c")
        assert client.gather(futures, progress=False, timeout=WAIT) == [0, 1, 4]


def test_what_was_submitted_meanwhile_is_kept(unreliable: Unreliable, thread_worker: Callable[..., Any]) -> None:
    thread_worker(unreliable.steady, "c")
    with Client(unreliable.db, "c") as client:
        assert client.submit(square, 2).result(WAIT) == 4
        unreliable.down()
        future = client.submit(square, 3)
        with pytest.raises(DatabaseUnreachableError):
            future.result()
        with pytest.raises(DatabaseUnreachableError):
            client.flush()
        unreliable.up()
        assert future.result(WAIT) == 9


def test_a_client_can_be_closed_all_the_same(unreliable: Unreliable, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(unreliable.db, "c")
    client.submit(square, 1)
    client.flush()
    unreliable.down()
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(WAIT)
    assert not closing.is_alive()
    assert "others will find it gone" in caplog.text


def test_who_closes_is_told_what_could_not_be_stored(unreliable: Unreliable) -> None:
    told: list[Exception] = []

    def in_a_block() -> None:
        try:
            with Client(unreliable.db, "c") as client:
                client.submit(square, 1)
                client.flush()
                unreliable.down()
                client.submit(square, 2).result()
        except DatabaseUnreachableError as error:
            told.append(error)

    block = threading.Thread(target=in_a_block, daemon=True)
    block.start()
    block.join(WAIT)
    assert len(told) == 1, "the block ends"
    unreliable.up()


def test_await_is_told_and_works_again(unreliable: Unreliable, thread_worker: Callable[..., Any]) -> None:
    async def main() -> int:
        async with Client(unreliable.db, "c") as client:
            future = client.submit(square, 4)
            waiting = asyncio.ensure_future(_result(future))
            await asyncio.sleep(0)
            client.flush()
            unreliable.down()
            with pytest.raises(DatabaseUnreachableError):
                await waiting
            with pytest.raises(DatabaseUnreachableError):
                await client.submit(square, 5)
            unreliable.up()
            thread_worker(unreliable.steady, "c")
            return await future

    assert asyncio.run(asyncio.wait_for(main(), WAIT)) == 16


async def _result(future: Any) -> Any:
    return await future


def test_an_error_that_no_retry_mends_is_told_at_once(
    unreliable: Unreliable, thread_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("futures_worker.database.DATABASE_SECONDS", 1000.0)
    with Client(unreliable.db, "c") as client:
        future = client.submit(square, 5)
        client.flush()

        def broken(*_: Any) -> Any:
            raise OSError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(client._context().reader.mailbox, "_read", broken)
            with pytest.raises(OSError, match="the disk is gone"):
                future.result()

            async def wait_for_it() -> Any:
                return await future

            with pytest.raises(OSError, match="the disk is gone"):
                asyncio.run(asyncio.wait_for(wait_for_it(), WAIT))
        thread_worker(unreliable.steady, "c")
        assert future.result(WAIT) == 25


def test_callbacks_and_executor_futures(unreliable: Unreliable, thread_worker: Callable[..., Any]) -> None:
    with Client(unreliable.db, "c") as client:
        told = threading.Event()
        client.submit(square, 6).add_done_callback(lambda _: told.set())
        with client.executor() as executor:
            future = executor.submit(square, 7)
            unreliable.down()
            with pytest.raises(DatabaseUnreachableError):
                future.result(WAIT)
            unreliable.up()
            thread_worker(unreliable.steady, "c")
            assert executor.submit(square, 8).result(WAIT) == 64
        assert told.wait(WAIT), "a callback is kept until its future ends"


def test_futures_of_two_clients(unreliable: Unreliable, thread_worker: Callable[..., Any]) -> None:
    with Client(unreliable.db, "c") as one, Client(unreliable.db, "c") as two:
        futures = [one.submit(square, 2), two.submit(square, 3)]
        one.flush()
        two.flush()
        unreliable.down()
        with pytest.raises(DatabaseUnreachableError):
            wait(futures, timeout=WAIT)
        unreliable.up()
        thread_worker(unreliable.steady, "c")
        assert wait(futures, timeout=WAIT).not_done == set()


@pytest.mark.parametrize(("stood_still", "asked"), [([15.0], 2), ([0.0], 1), ([15.0] * 9, 3)])
def test_a_process_that_stood_still_past_the_deadline_asks_again(
    monkeypatch: pytest.MonkeyPatch, stood_still: list[float], asked: int
) -> None:
    clock = [100.0]
    runs: list[float] = []

    def stopped(*_: Any, timeout: float, **__: Any) -> str:
        runs.append(timeout)
        if len(runs) > len(stood_still):
            return "answered"
        clock[0] += timeout + stood_still[len(runs) - 1]
        raise TransactionTimedOut("the deadline passed; nothing committed")

    monkeypatch.setattr(database, "run", stopped)
    monkeypatch.setattr(database.time, "monotonic", lambda: clock[0])
    try:
        answer = database.ask(None, square)
    except DatabaseUnreachableError as error:
        answer = str(error)
    assert len(runs) == asked
    assert answer == "answered" if asked == 2 else "gave no answer for 10 s" in answer


@pytest.mark.parametrize(("code", "text"), [(1510, "disk is full"), (1511, "was removed")])
def test_what_the_disk_refuses_is_told_with_what_to_do(code: int, text: str) -> None:
    class FDBError(Exception):
        def __init__(self) -> None:
            super().__init__(f"error ({code})")
            self.code = code

    def refused(tr: Any) -> None:
        raise FDBError

    def committing(tr: Any) -> None:
        raise CommitUnknownResultFatal("the database doesn't tell") from FDBError()

    with pytest.raises(DatabaseUnreachableError, match=text) as caught:
        database.ask(open_database("memory:refusing"), refused)
    assert database.is_database_trouble(caught.value.__cause__ or caught.value) == (code == 1510)
    with pytest.raises(DatabaseUnreachableError, match=text) as caught:
        database.ask(open_database("memory:refusing"), committing)
    assert database.is_database_trouble(caught.value.__cause__ or caught.value), "it may have been recorded"


def test_a_process_of_a_worker_waits_for_a_database_that_gives_no_answer(
    unreliable: Unreliable, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = DatabaseUnreachableError("no cluster answered within 10 s")
    silent.__cause__ = fdb.FDBError(1031)  # its transaction timed out
    answers = [silent, silent, unreliable.db]

    def opened(url: str, **_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("futures_worker.client.context.open_database", opened)
    monkeypatch.setattr("futures_worker.client.context.own_cluster", lambda: (unreliable.name, "c"))
    context = worker_context()
    assert context.cluster == "c"
    context.close()
    answers[:] = [DatabaseUnreachableError("there is no cluster file"), unreliable.db]
    monkeypatch.setattr("futures_worker.client.context.own_cluster", lambda: (unreliable.name, "other"))
    with pytest.raises(DatabaseUnreachableError, match="no cluster file"):
        worker_context()
