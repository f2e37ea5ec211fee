"""The whole path with real workers: submit, run, result; arguments, futures as arguments, options, collections."""

from __future__ import annotations

import asyncio
import math
import operator
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from fdb_datamodel import FutureState, UnknownFutureError
from futures_worker import Client, as_completed, current_client, gather, wait

WAIT = 60.0


def add(a: Any, b: Any = 0, *, times: int = 1) -> Any:
    return (a + b) * times


def test_a_round_trip(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    future = client.submit(add, 1, b=2, times=10)
    assert future.result(timeout=WAIT) == 30
    assert future.exception() is None
    assert future.done()
    assert future.state() == FutureState.realized == "realized"
    assert isinstance(future.id, UUID)
    assert client.submit(math.factorial, 10).result(WAIT) == 3628800
    assert client.submit(lambda: None).result(WAIT) is None
    assert client.submit(os.getpid).result(WAIT) not in (os.getpid(), demo.workers[0].pid)
    demo.check()


def test_map_gather_wait_and_as_completed(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    squares = client.map(operator.mul, range(300), range(300), batch=50)
    assert client.gather(squares, progress=False) == [n * n for n in range(300)]
    assert gather(squares, progress=False)[-1] == 299 * 299
    assert sorted(f.result() for f in as_completed(client.map(abs, range(-50, 0)), timeout=WAIT)) == list(range(1, 51))
    done, not_done = wait(client.map(abs, [1, 2, 3]), timeout=WAIT)
    assert len(done) == 3
    assert not_done == set()
    client.await_all(squares, timeout=WAIT)
    assert client.gather([]) == []
    demo.check()


def test_wait_returns_at_the_first(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    slow = client.submit(time.sleep, 30)
    quick = client.submit(abs, -1)
    done, not_done = wait([slow, quick], timeout=WAIT, return_when="FIRST_COMPLETED")
    assert (done, not_done) == ({quick}, {slow})
    bad = client.submit(operator.truediv, 1, 0, max_retries=0)
    done, not_done = wait([slow, bad], timeout=WAIT, return_when="FIRST_EXCEPTION")
    assert (done, not_done) == ({bad}, {slow})
    with pytest.raises(ZeroDivisionError):
        client.gather([slow, bad], progress=False)
    assert [type(e) for e in client.gather([bad], errors="return")] == [ZeroDivisionError]
    with pytest.raises(TimeoutError, match="1 of 1"):
        client.gather([slow], timeout=0.2)
    with pytest.raises(TimeoutError, match="1 of 2"):
        list(as_completed([slow, quick], timeout=0.2))
    assert slow.cancel()


def test_futures_as_arguments_anywhere(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    one = client.submit(add, 1)
    two = client.submit(add, one, 1)
    nested = client.submit(lambda d, k: (d["deep"][0], d["deep"][1], k), {"deep": [one, two]}, k=two)
    assert nested.result(WAIT) == (1, 2, 2)
    total = client.submit(sum, client.map(add, range(100)))
    assert total.result(WAIT) == 4950
    demo.check()


def test_a_chain_of_dependents(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    future = client.submit(add, 0)
    for _ in range(300):
        future = client.submit(add, future, 1)
    assert future.result(WAIT) == 300
    demo.check()


def test_a_tree_of_dependents(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    layer = client.map(add, range(256))
    while len(layer) > 1:
        layer = [client.submit(add, a, b) for a, b in zip(layer[::2], layer[1::2], strict=True)]
    assert layer[0].result(WAIT) == sum(range(256))
    demo.check()


def test_large_results_and_arguments(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    array = client.submit(np.arange, 1_000_000)
    np.testing.assert_array_equal(array.result(WAIT), np.arange(1_000_000))
    assert array.size_in_bytes > 8_000_000
    assert client.submit(np.sum, array).result(WAIT) == 499999500000
    text = "x" * 300_000
    assert client.submit(len, text).result(WAIT) == 300_000
    bytes_of_5_mb = os.urandom(5_000_000)
    assert client.submit(len, bytes_of_5_mb).result(WAIT) == 5_000_000
    captured = os.urandom(1_000_000)
    assert client.submit(lambda: len(captured)).result(WAIT) == 1_000_000
    demo.check()


def test_put(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    small = client.put({"a": 1})
    assert small.result(WAIT) == {"a": 1}
    assert client.submit(operator.getitem, small, "a").result(WAIT) == 1
    large = client.put(np.arange(100_000))
    assert client.submit(np.sum, large).result(WAIT) == 4999950000
    assert large.result(WAIT)[-1] == 99_999
    demo.check()


def test_names_keys_and_bound_options(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()

    def about(**keywords: Any) -> dict[str, Any]:
        return keywords

    assert client.submit(about, name="mine", other=1).result(WAIT) == {"other": 1}
    assert client.options(name="mine", max_retries=1).submit(about, timeout=5, name="fn's own").result(WAIT) == {
        "timeout": 5,
        "name": "fn's own",
    }
    with pytest.raises(TypeError, match="max_retrys"):
        client.options(max_retrys=3)
    one = client.submit(time.time, key="once")
    again = demo.client().submit(time.time, key="once")
    assert again.id == one.id
    assert again.result(WAIT) == one.result(WAIT)


def test_a_future_is_found_by_the_key_it_was_submitted_with(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client, other = demo.client(), demo.client()
    future = client.submit(pow, 2, 9, key="order 17")
    assert client.get_future(key="order 17") == future  # also before anybody has flushed it
    assert future.result(WAIT) == 512
    found = other.get_future(key="order 17")
    assert (found.id, found.result(WAIT)) == (future.id, 512)
    with pytest.raises(UnknownFutureError):
        other.get_future(key="order 18").state()
    with pytest.raises(TypeError, match="found neither"):
        other.get_future()
    with pytest.raises(TypeError, match="and the key 'order 17'"):
        other.get_future(future.id, key="order 17")
    with pytest.raises(ValueError, match="key is a text of 1 to 500 characters, found ''"):
        other.get_future(key="")


def test_a_future_is_found_by_its_id_after_its_submitter_died(cluster: Callable[..., Any]) -> None:
    demo = cluster(workers=0)
    program = (
        "import sys, os, operator; from futures_worker import Client\n"
        "client = Client(sys.argv[1], sys.argv[2])\n"
        "print(client.submit(operator.add, 40, 2).id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    died = subprocess.run([sys.executable, "-c", program, demo.url, demo.name], capture_output=True, text=True)
    assert died.returncode == -9, died.stderr
    future = demo.client().get_future(died.stdout.strip())
    assert future.state() == FutureState.unclaimed
    assert not future.done()
    demo.start()
    assert future.result(WAIT) == 42
    assert demo.client().get_future(future.id).result(WAIT) == 42


def test_what_is_submitted_survives_a_client_that_just_ends(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    program = (
        "import sys; from futures_worker import Client\n"
        "client = Client(sys.argv[1], sys.argv[2])\n"
        "for n in range(100): client.submit(pow, n, 2, key=f'k{n}')\n"
    )
    subprocess.run([sys.executable, "-c", program, demo.url, demo.name], check=True, timeout=WAIT)
    client = demo.client()
    assert client.gather([client.submit(pow, 0, 0, key=f"k{n}") for n in range(100)]) == [n * n for n in range(100)]


def test_threads_share_a_client(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    results: dict[int, list[int]] = {}

    def work(number: int) -> None:
        futures = [client.submit(add, number, n) for n in range(40)]
        results[number] = [future.result(WAIT) for future in futures]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert results == {number: [number + n for n in range(40)] for number in range(8)}


@pytest.mark.embedded_only("the official client doesn't survive a fork")
def test_a_forked_child_uses_its_parents_client(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    before = client.submit(add, 20, 1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if before.result(WAIT) == 21 and client.submit(add, 1, 1).result(WAIT) == 2:
                status = 0
            client.close()
        finally:
            os._exit(status)
    assert before.result(WAIT) == 21
    assert os.waitpid(pid, 0)[1] == 0
    assert client.submit(add, 2, 2).result(WAIT) == 4


def test_callbacks_and_await(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    told: list[int] = []
    enough = threading.Event()

    def tell(future: Any) -> None:
        told.append(future.result() + client.submit(add, 1).result(WAIT))  # a callback may wait itself
        enough.set()

    future = client.submit(add, 5)
    future.add_done_callback(tell)
    assert enough.wait(WAIT)
    assert told == [6]
    future.add_done_callback(tell)
    assert told == [6, 6]

    async def main() -> list[int]:
        async with Client(demo.url, demo.name) as other:
            return await asyncio.gather(*(_awaited(f) for f in other.map(add, range(20))))

    assert asyncio.run(main()) == list(range(20))


async def _awaited(future: Any) -> Any:
    return await future


def test_nested_futures_with_one_worker_of_one_slot(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1, slots=1)

    def fib(n: int) -> int:
        if n < 2:
            return n
        client = current_client()
        a, b = client.submit(fib, n - 1), client.submit(fib, n - 2)
        return int(a.result(WAIT) + b.result(WAIT))

    assert demo.client().submit(fib, 5).result(WAIT) == 5
    demo.check()


def test_a_future_in_a_closure_or_a_result_stays_a_future(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=1)
    client = demo.client()
    inner = client.submit(add, 1, 1)

    def through_closure() -> int:
        return int(inner.result(WAIT)) + 1

    assert client.submit(through_closure).result(WAIT) == 3

    def makes_one() -> Any:
        return current_client().submit(add, 10, 1)

    with client:
        made = client.submit(makes_one).result(WAIT)
        assert made.result(WAIT) == 11


class Tally:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def note(self) -> int:
        self.seen.append(1)
        return len(self.seen)


def counting() -> Callable[..., Any]:
    count = 0

    def next_one() -> int:
        nonlocal count
        count += 1
        return count

    return next_one


def append_to(seen: list[int]) -> int:
    seen.append(1)
    return len(seen)


def appending(seen: Any = None, *, to: list[int] = []) -> int:  # noqa: B006
    return append_to(to)


def taking(ones: Iterator[int]) -> Callable[..., Any]:
    return lambda: next(ones, "none is left")


@pytest.mark.parametrize(
    "function",
    [Tally().note, counting(), partial(append_to, []), appending, taking(iter([1])), lambda inner=counting(): inner()],
    ids=["method", "nonlocal", "partial", "default", "iterator", "nested"],
)
def test_every_run_begins_with_what_was_submitted(
    shared_cluster: Callable[..., Any], function: Callable[..., Any]
) -> None:
    with shared_cluster(workers=1, slots=1).client() as client:
        assert [client.submit(function).result(WAIT) for _ in range(3)] == [1, 1, 1]


def test_a_retry_begins_with_what_was_submitted(shared_cluster: Callable[..., Any]) -> None:
    steps = iter(["raise", "return"])

    def take() -> None:
        if next(steps) == "raise":
            raise ValueError

    with shared_cluster(workers=1, slots=1).client() as client, pytest.raises(ValueError):
        client.submit(take, max_retries=1).result(WAIT)


def test_two_clusters_on_one_database(cluster: Callable[..., Any]) -> None:
    one = cluster(workers=1, name="one")
    two = cluster(workers=1, name="two")
    assert one.client().submit(add, 1).result(WAIT) == 1
    assert two.client().submit(add, 2).result(WAIT) == 2
    one.check()
    two.check()


def test_executor(shared_cluster: Callable[..., Any]) -> None:
    demo = shared_cluster(workers=2)
    client = demo.client()
    with client.executor() as executor:
        assert executor.submit(pow, 2, 10).result(WAIT) == 1024
        assert list(executor.map(abs, range(-20, 0), timeout=WAIT)) == list(range(20, 0, -1))
        assert list(executor.map(pow, range(20), [2] * 20, chunksize=6)) == [n * n for n in range(20)]
        failed = executor.submit(operator.truediv, 1, 0)
        with pytest.raises(ZeroDivisionError):
            failed.result(WAIT)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)
    assert client.submit(abs, -3).result(WAIT) == 3


def test_a_client_leaves_nothing_behind(shared_cluster: Callable[..., Any]) -> None:
    from fdb_datamodel import ClusterSpace
    from fdb_schema import open_database, read_range

    demo = shared_cluster(workers=1)
    db = open_database(demo.url)
    space = ClusterSpace(demo.name)

    def rows_naming(session: bytes) -> list[bytes]:
        span = space.range(())
        rows = read_range(db.create_transaction(), span.start, span.stop)
        return [key for key, _ in rows if session in key]

    before = threading.active_count()
    with Client(demo.url, demo.name) as client:
        assert client.gather(client.map(add, range(10)), progress=False) == list(range(10))
        session = client._context().id
    assert rows_naming(session) == []
    end = time.monotonic() + WAIT
    while threading.active_count() > before + 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before + 1  # an engine may keep one thread per database
    with pytest.raises(Exception, match="closed"):
        client.submit(abs, 1)
