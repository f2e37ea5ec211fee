"""Callbacks run in a thread that does nothing else: what one of them does holds up nobody who waits for something else."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel import UnknownFutureError
from futures_worker import Client
from futures_worker.client.session.callbacks import Callbacks

WAIT = 30.0


def square(n: int) -> int:
    return n * n


@pytest.fixture
def client(any_db: Any, thread_worker: Callable[..., Any]) -> Any:
    thread_worker(any_db, "test")
    with Client(any_db, "test") as client:
        yield client


def test_a_callback_of_a_refused_future_may_submit_and_wait(client: Client) -> None:
    told: list[Any] = []
    ran = threading.Event()

    def callback(future: Any) -> None:
        told.extend((future.exception(), client.submit(square, 3).result(WAIT)))
        ran.set()

    refused = client.submit(square, client.get_future(uuid.uuid4()))
    refused.add_done_callback(callback)
    assert ran.wait(WAIT)
    assert isinstance(told[0], UnknownFutureError)
    assert told[1] == 9


def test_a_callback_that_wants_what_a_waiting_thread_holds_holds_it_up_by_nothing(
    client: Client, any_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    begun, ran = threading.Event(), threading.Event()

    def callback(_: Any) -> None:
        begun.set()
        with lock:
            ran.set()

    first, second = client.submit(square, 2), client.submit(square, 3)
    with Client(any_db, "test") as other:
        other.gather([other.get_future(first.id), other.get_future(second.id)])
    monkeypatch.setattr(
        Callbacks, "start", lambda self: None
    )  # the thread that waits reads the mail, all of it at once
    first.add_done_callback(callback)
    with lock:
        began = time.monotonic()
        assert second.result(WAIT) == 9
        assert time.monotonic() - began < WAIT / 2
        assert begun.wait(WAIT)
        assert not ran.is_set()
    assert ran.wait(WAIT)


def test_closing_a_client_in_a_callback_of_its_own(any_db: Any, thread_worker: Callable[..., Any]) -> None:
    thread_worker(any_db, "test")
    client = Client(any_db, "test")
    closed = threading.Event()

    def close(_: Any) -> None:
        client.close()
        closed.set()

    client.submit(square, 2).add_done_callback(close)
    assert closed.wait(WAIT)
