"""A client that nobody has any more, and that wasn't closed, ends by itself: nothing of it stays in the process or in the database."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel import UnknownFutureError, describe_future, session_sightings
from fdb_schema import ClusterSpace
from futures_worker import Client
from futures_worker.client.basis import processes
from futures_worker.client.basis.session_life import SessionLife
from idempotent_txn import run

WAIT = 30.0
SPACE = ClusterSpace("test")


def square(n: int) -> int:
    return n * n


class Counter:
    def count(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def work(any_db: Any, thread_worker: Callable[..., Any]) -> None:
    thread_worker(any_db, "test")


def sessions(db: Any) -> set[bytes]:
    return {sighting.id for sighting in run(db, session_sightings, SPACE)}


def is_stored(db: Any, future_id: bytes) -> bool:
    try:
        run(db, describe_future, SPACE, future_id)
    except UnknownFutureError:
        return False
    return True


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("mainspring-")}


def until(over: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not over():
        gc.collect()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_client_that_was_dropped_leaves_no_thread_and_no_session(any_db: Any) -> None:
    before = ours()
    for _ in range(3):
        future = Client(any_db, "test").submit(square, 3)
        gc.collect()
        assert future.result(WAIT) == 9  # a handle keeps its client
        assert sessions(any_db)
        del future
        until(lambda: not sessions(any_db) and ours() <= before)


def test_a_client_that_was_unpickled_and_dropped_leaves_none_either(shared_url: str) -> None:
    with Client(shared_url, "test") as client:
        client.submit(square, 1)
        client.flush()
        before, alone = ours(), sessions(client._context.db)
        packed = pickle.dumps(client)
        for _ in range(3):
            other = pickle.loads(packed)
            other.submit(square, 2)
            other.flush()
            assert sessions(client._context.db) > alone
            del other
            until(lambda: sessions(client._context.db) == alone and ours() <= before)


def test_what_a_dropped_client_submitted_last_is_stored(any_db: Any) -> None:
    ids = [Client(any_db, "test").submit(square, n)._record.id for n in range(5)]
    until(lambda: all(is_stored(any_db, one) for one in ids) and not sessions(any_db))
    with Client(any_db, "test") as client:
        assert client.gather([client.get_future(one) for one in ids]) == [0, 1, 4, 9, 16]


def test_a_session_that_nobody_had_any_more_when_it_began_is_ended_at_once(any_db: Any) -> None:
    gone = threading.Event()
    kept = SessionLife(any_db, SPACE, b"k" * 16, seconds=4 * WAIT)
    kept.abandon(gone.set)
    kept.begin()  # what was submitted last is stored now
    assert gone.wait(WAIT), "what isn't heard is done with the next beat"
    kept.close()


def test_a_client_with_actors_of_its_own_lives_as_long_as_the_process(any_db: Any) -> None:
    client = Client(any_db, "test")
    client.actor(Counter)
    context = client._context
    identity = id(context)
    del client, context
    gc.collect()
    (kept,) = [one for one in processes.open_contexts() if id(one) == identity]
    kept.close()
