"""`key`: which calls are one future. Never calls of different arguments, unless the very same key is given to each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fdb_datamodel.collector import Collector
from futures_worker import Client, FutureDeletedError

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
