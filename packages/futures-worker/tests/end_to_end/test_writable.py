"""What code may do with an array doesn't depend on its size: results and arguments belong to whoever got them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

WAIT = 60.0
Cluster = Callable[..., Any]


def zeros(count: int) -> Any:
    return np.zeros(count, dtype=np.uint8)


def add_one(array: Any) -> Any:
    array += 1
    return array


def each(array: Any) -> Any:
    for _ in range(3):
        yield array.copy()


@pytest.mark.parametrize("size", [100, 5_000, 15_000, 20_000, 3_000_000])
def test_results_and_arguments_can_be_written_to_and_nobody_else_sees_it(shared_cluster: Cluster, size: int) -> None:
    client = shared_cluster(workers=2).client()
    future = client.submit(zeros, size)
    assert client.submit(add_one, future).result(WAIT).sum() == size
    mine = future.result(WAIT)
    mine += 7
    assert client.get_future(future.id).result(WAIT).sum() == 0
    again = client.submit(add_one, future).result(WAIT)
    again += 1
    assert again.sum() == 2 * size
    put = client.put(zeros(size))
    put.result(WAIT)[:] = 9
    assert client.submit(np.sum, put).result(WAIT) == 0
    with client.executor() as executor:
        (found,) = executor.map(zeros, [size], timeout=WAIT)
        found.sort()
        assert found.flags.writeable
    for item in client.submit(each, future).stream(timeout=WAIT):
        item += 1
        assert item.sum() == size


def test_a_large_result_is_still_read_where_it_lies(shared_cluster: Cluster) -> None:
    client = shared_cluster(workers=2).client()
    array = client.submit(zeros, 8_000_000).result(WAIT)
    base = array
    while getattr(base, "base", None) is not None:
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    assert type(owner).__name__ == "mmap"


def test_what_its_maker_made_read_only_stays_so(shared_cluster: Cluster) -> None:
    client = shared_cluster(workers=2).client()

    def frozen(count: int) -> Any:
        array = np.zeros(count)
        array.flags.writeable = False
        return array

    for count in (10, 10_000):
        assert not client.submit(frozen, count).result(WAIT).flags.writeable
