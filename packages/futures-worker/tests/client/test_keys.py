"""`key`: which calls are one future. Never calls of different arguments, unless the very same key is given to each."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel.collector import Collector
from futures_worker import Client, FutureDeletedError
from futures_worker.client.basis.intake import Intake
from futures_worker.client.session.session import Session

WAIT = 60.0


def square(n: int, plus: int = 0) -> int:
    return n * n + plus


@pytest.fixture
def client(any_db: Any, thread_worker: Callable[..., Any]) -> Any:
    thread_worker(any_db, "test")
    with Client(any_db, "test") as client:
        yield client


def test_a_key_of_map_is_a_prefix_and_each_item_has_its_own_result(client: Client) -> None:
    assert client.gather(client.map(square, range(20), key="k")) == [n * n for n in range(20)]
    assert client.gather(client.options(key="bound").map(square, range(20))) == [n * n for n in range(20)]


def test_equal_items_under_one_prefix_are_one_future_whoever_maps_them(client: Client, any_db: Any) -> None:
    first = client.map(square, [1, 2, 1], key="k")
    assert first[0].id == first[2].id != first[1].id
    with Client(any_db, "test") as other:
        again = other.map(square, [2, 3], key="k")
        assert again[0].id == first[1].id
        assert other.gather(again) == [4, 9]
    assert client.map(square, [2], key="other")[0].id != first[1].id
    assert client.map(square, [2], plus=1, key="k")[0].result(WAIT) == 5


def test_whether_equal_parts_of_an_item_are_one_object_makes_no_difference(client: Client) -> None:
    text = "".join(["durable", " futures"])
    same, two = [text, text], [text, "".join(["durable", " futures"])]
    first, second = client.map(len, [same, two], key="parts")
    assert first.id == second.id


def test_the_order_in_which_a_process_iterates_over_a_set_makes_no_difference() -> None:
    program = (
        "from futures_worker.payload import arguments_digest as name\n"
        "sets = {'alpha', 'beta', 'gamma'}, {frozenset(['x', 'y', 'z']): [{1, 'q', None}]}\n"
        "print(name(sets, {}), name(({'alpha', 'beta', 'delta'},), {}), name((frozenset(),), {}), name((set(),), {}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(set(found.pop().split())) == 4


def test_futures_among_the_items_tell_them_apart(client: Client) -> None:
    one, two = client.submit(square, 2), client.submit(square, 3)
    assert client.gather(client.map(square, [one, two], key="k")) == [16, 81]


def test_a_key_is_used_up_until_the_tombstone_of_its_future_has_gone(client: Client, any_db: Any) -> None:
    def fails() -> None:
        raise ValueError("the first")

    assert "the first" in str(client.submit(fails, key="failed", max_retries=0).exception(WAIT))
    assert "the first" in str(client.submit(square, 1, key="failed").exception(WAIT))
    first = client.submit(square, 2, key="k")
    assert first.result(WAIT) == 4
    client.delete(first)
    with pytest.raises(FutureDeletedError):
        client.submit(square, 3, key="k").result(WAIT)
    collector = Collector(any_db, "test", tombstones=-1.0)  # at once
    assert sum(collector.whole_pass().tombstones for _ in range(3)) == 1
    assert client.submit(square, 3, key="k").result(WAIT) == 9


def test_map_takes_a_key_per_item(client: Client) -> None:
    futures = client.map(square, [3, 4], key=["three", "four"])
    assert client.gather(futures) == [9, 16]
    assert client.submit(square, 4, key="four").id == futures[1].id
    with pytest.raises(ValueError, match="3 keys for 2 items"):
        client.map(square, [3, 4], key=["a", "b", "c"])


def test_what_makes_many_futures_of_one_key_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="an executor's calls are many"):
        client.executor(key="k")
    with pytest.raises(ValueError, match="pieces of work are many"):
        client.dataset([[1], [2]], key="k")


def test_who_waits_is_told_though_another_thread_submits_the_same_key(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread looked whether the key is known before this one submitted, and goes on when this one waits."""
    looked, waits = threading.Event(), threading.Event()
    submit, expect = Session.submit, Session.expect

    def late(session: Session, *args: Any) -> Any:
        if threading.current_thread() is other:
            looked.set()
            assert waits.wait(WAIT)
        return submit(session, *args)

    def expected(session: Session, *args: Any) -> None:
        expect(session, *args)
        waits.set()

    monkeypatch.setattr(Session, "submit", late)
    futures: list[Any] = []

    def same() -> None:  # nobody here runs it
        futures.append(client.submit(square, 1, key="k", resources={"gpu": 1}))

    other = threading.Thread(target=same, daemon=True)
    other.start()
    assert looked.wait(WAIT)
    same()
    monkeypatch.setattr(Session, "expect", expected)
    ends: list[BaseException | None] = []
    waiter = threading.Thread(target=lambda: ends.append(futures[0].exception(WAIT)), daemon=True)
    waiter.start()
    other.join(WAIT)
    client.delete(futures[1])
    waiter.join(WAIT)
    assert isinstance(ends[0], FutureDeletedError)


def test_a_key_that_another_thread_is_about_to_submit_is_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    about, go_on = threading.Event(), threading.Event()
    add = Intake.add

    def slow(intake: Any, entry: Any) -> None:
        if threading.current_thread() is other:
            about.set()
            assert go_on.wait(WAIT)
        add(intake, entry)

    monkeypatch.setattr(Intake, "add", slow)
    other = threading.Thread(target=lambda: client.submit(square, 2, key="k"), daemon=True)
    other.start()
    assert about.wait(WAIT)
    try:
        assert client.submit(square, 2, key="k").result(WAIT) == 4
    finally:
        go_on.set()
        other.join(WAIT)


@pytest.mark.parametrize("ended", [True, False])
def test_a_key_that_was_submitted_before_is_let_go_with_its_handles(client: Client, any_db: Any, ended: bool) -> None:
    resources = None if ended else {"gpu": 1}
    made = [client.submit(square, n, key=f"k{n}", resources=resources) for n in range(5)]
    if ended:
        client.gather(made)
    client.flush()
    with Client(any_db, "test") as other:
        session = other._context()
        for n in range(5):
            other.submit(square, n, key=f"k{n}", resources=resources)
        other.flush()
        client.delete_all(made)  # mailed to the other one, if it was still to end
        session.reader.read()
        gc.collect()
        session.life.release_dropped()
        assert not session.pending
        assert not session.life._held
