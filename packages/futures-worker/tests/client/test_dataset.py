"""Datasets: partitions are futures, each step one future per partition."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdb_datamodel import describe_future
from futures_worker import Client, FutureDeletedError
from futures_worker.client.dataset import _join, _overlap
from idempotent_txn import run


@pytest.fixture
def client(any_db: Any, thread_worker: Callable[..., Any]) -> Iterator[Client]:
    thread_worker(any_db, "data")
    with Client(any_db, "data") as client:
        yield client


def even(number: int) -> bool:
    return number % 2 == 0


def test_steps_are_called_by_what_they_do_and_by_the_caller_s_function(client: Client) -> None:
    numbers = client.dataset([[1, 2], [3]])
    steps = numbers, numbers.map(str), numbers.filter(even), numbers.map(lambda n: n), numbers.repartition(3, 60)
    for step, name in zip(steps, ("put", "map(str)", "filter(even)", "map(<lambda>)", "repartition"), strict=True):
        one = step.wait(60).partitions[0]
        info = run(client._context.db, describe_future, client._context.space, one._record.id)
        assert (info.name, info.details.get("keep", False)) == (name, False)
    mine = client.dataset([[1]], name="mine").map(str).wait(60).partitions[0]
    assert run(client._context.db, describe_future, client._context.space, mine._record.id).name == "mine"


def test_steps_over_partitions(client: Client) -> None:
    numbers = client.dataset([range(10), [10, 11], client.submit(list, range(12, 20)), []])
    assert len(numbers) == 4
    assert numbers.collect(60) == list(range(20))
    assert numbers.count(60) == 20
    squares = numbers.map(lambda n: n * n).filter(even)
    assert squares.collect(60) == [n * n for n in range(0, 20, 2)]
    assert numbers.flat_map(range).count(60) == sum(range(20))
    assert numbers.map_partitions(sorted).map_partitions(lambda part: [len(part)]).collect(60) == [10, 2, 8, 0]
    assert numbers.reduce(operator.add, timeout=60) == 190
    assert numbers.map(str).reduce(operator.add, ">", timeout=60) == ">" + "".join(map(str, range(20)))
    assert list(numbers.wait(60)) == numbers.collect(60)
    assert repr(numbers) == "<Dataset of 4 partitions>"


def test_repartition_keeps_order_and_balances(client: Client) -> None:
    numbers = client.dataset([range(7), [], range(7, 10), range(10, 31)])
    for number in (1, 3, 8, 40):
        again = numbers.repartition(number, timeout=60)
        lengths = [len(part.result(60)) for part in again.partitions]
        assert len(lengths) == number
        assert max(lengths) - min(lengths) <= 1
        assert again.collect(60) == list(range(31))
    numbers.delete()
    assert again.collect(60) == list(range(31)), "the new partitions stand by themselves"
    with pytest.raises(FutureDeletedError):
        client.get_future(numbers.partitions[0].id).result(60)


def test_parts_that_have_no_slices_are_joined_as_others() -> None:
    """As what a generator made, which is read while it is iterated over."""
    assert _join([(dict.fromkeys(range(5)), 3, 5), ([5, 6, 7], 0, 2)]) == [3, 4, 5, 6]


def test_nothing_and_wrong_things(client: Client) -> None:
    nothing = client.dataset([])
    assert nothing.collect() == []
    assert nothing.map(str).repartition(3).collect(60) == []
    assert nothing.reduce(operator.add, 5) == 5
    with pytest.raises(TypeError, match="empty dataset"):
        client.dataset([[], []]).reduce(operator.add, timeout=60)
    with pytest.raises(ValueError, match="1 partition or more"):
        nothing.repartition(0)
    with pytest.raises(TypeError, match="partitions"):
        client.dataset("text")
    with pytest.raises(TypeError, match="no option"):
        client.dataset([], nonsense=1)
    with pytest.raises(ZeroDivisionError):
        client.dataset([[1, 0]], max_retries=0).map(lambda n: 1 // n).collect(60)


def test_a_reduce_of_many_partitions_goes_by_levels(client: Client) -> None:
    numbers = client.dataset([[n] for n in range(70)])
    assert numbers.map(str).reduce(operator.add, timeout=60) == "".join(map(str, range(70))), "in order"


def test_overlap_covers_everything_once() -> None:
    rng = random.Random(3)
    for _ in range(200):
        counts = [rng.randrange(5) for _ in range(rng.randrange(6))]
        total, number = sum(counts), rng.randrange(1, 9)
        seen = [
            (at, item)
            for index in range(number)
            for at, start, stop in _overlap(counts, total * index // number, total * (index + 1) // number)
            for item in range(start, stop)
        ]
        assert seen == [(at, item) for at, count in enumerate(counts) for item in range(count)]


def test_partitions_of_one_dataset_are_marked_as_such(client: Client) -> None:
    numbers = client.dataset([range(10), [10, 11], client.submit(list, range(3))])
    squares = numbers.map(str).wait(60)
    pieces = numbers.repartition(2, timeout=60).wait(60)
    client.submit(even, 2).result(60)
    marks = [
        {
            run(client._context.db, describe_future, client._context.space, one._record.id).details.get("dataset")
            for one in each.partitions
        }
        for each in (squares, pieces)
    ]
    assert [len(mark) for mark in marks] == [1, 1]
    assert None not in marks[0] | marks[1]
    assert marks[0] != marks[1]
    put = [
        run(client._context.db, describe_future, client._context.space, one._record.id).details.get("dataset")
        for one in numbers.partitions
    ]
    assert put[0] == put[1] is not None
    assert put[2] is None, "a future that was given stays whose it was"
