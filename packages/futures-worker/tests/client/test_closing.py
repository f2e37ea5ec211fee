"""To close a client tells everybody who waits through it, and what fails to begin to wait leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel import UnknownFutureError
from fdb_schema import MainspringError
from futures_worker import Client, as_completed, wait
from futures_worker.client.session.callbacks import Callbacks
from futures_worker.client.shell import WorkerPoolShell

WAIT = 30.0


def square(n: int) -> int:
    return n * n


def by_two_clients(client: Client, other: Client) -> object:
    return wait([client.submit(square, 1), other.submit(square, 2)], timeout=WAIT)


def as_they_complete(client: Client, other: Client) -> object:
    return list(as_completed([client.submit(square, 1), other.submit(square, 2)], timeout=WAIT))


def by_asyncio(client: Client, other: Client) -> object:
    async def main() -> int:
        async with asyncio.timeout(WAIT):
            return await client.submit(square, 1)

    return asyncio.run(main())


def by_executor(client: Client, other: Client) -> object:
    return client.executor().submit(square, 1).result(WAIT)


def by_shell(client: Client, other: Client) -> object:
    return WorkerPoolShell(client)(["a remote"]).result(WAIT)


@pytest.mark.parametrize("ask", [by_two_clients, as_they_complete, by_asyncio, by_executor, by_shell])
def test_closing_tells_who_is_told_by_another_thread(
    any_db: Any, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Client, Client], object]
) -> None:
    waits = threading.Event()  # once a thread reads for whoever waits
    start = Callbacks.start

    def started(callbacks: Callbacks) -> None:
        start(callbacks)
        waits.set()

    monkeypatch.setattr(Callbacks, "start", started)
    trouble: list[BaseException] = []

    def waiter() -> None:
        try:
            ask(client, other)
        except BaseException as error:
            trouble.append(error)

    with Client(any_db, "test") as client, Client(any_db, "test") as other:
        thread = threading.Thread(target=waiter, daemon=True)
        thread.start()
        assert waits.wait(WAIT)
        client.close()
        thread.join(WAIT / 2)
        assert not thread.is_alive()
    assert isinstance(trouble[0], MainspringError)
    assert "closed" in str(trouble[0])


def test_who_asks_to_be_told_as_the_client_closes_is_told(any_db: Any) -> None:
    told: list[BaseException] = []
    client = Client(any_db, "test")
    callbacks = client._context().callbacks
    client.close()
    callbacks.watch(object(), told.append)
    assert "closed" in str(told[0])


def test_a_wait_for_several_that_can_not_begin_leaves_nothing_behind(any_db: Any) -> None:
    with Client(any_db, "test") as client:
        for _ in range(3):
            with pytest.raises(UnknownFutureError):
                wait([client.get_future(uuid.uuid4())], timeout=WAIT)
        assert not client._context().expected.has_groups


def test_who_comes_to_wait_just_as_the_client_is_closed_does_not(any_db: Any) -> None:
    """A thread that had looked whether it is open."""
    client = Client(any_db, f"c{uuid.uuid4().hex[:12]}")
    client.submit(square, 1).id
    reader = client._context().reader
    client.close()
    reader.wait(lambda: False, WAIT)
    assert reader.mailbox._watch is None, "it would have waited for mail"
