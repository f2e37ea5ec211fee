"""`as_completed` with `add`, results and asyncio; `gather` of nested futures, and of some that failed."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from futures_worker import Client, Future, as_completed, gather

WAIT = 60.0
Pair = namedtuple("Pair", "left right")


def triple(x: int) -> int:
    return 3 * x


def invert(x: int) -> float:
    return 1 / x


@pytest.fixture
def client(any_url: str, thread_worker: Callable[..., Any]) -> Iterator[Client]:
    with Client(any_url, "test", max_retries=0) as client:
        thread_worker(client._context.db, "test")
        yield client


@pytest.fixture
def idle(any_url: str) -> Iterator[Client]:
    """A client of a cluster without workers."""
    with Client(any_url, "test") as client:
        yield client


def test_what_is_added_comes_too(client: Client) -> None:
    coming = as_completed([client.submit(triple, 1)], timeout=WAIT)
    values = []
    for future in coming:
        values.append(future.result())
        if len(values) < 4:
            coming.add(client.submit(triple, values[-1]))
    assert values == [3, 9, 27, 81]
    assert coming.count() == 0
    coming.update([future, future])  # also after the end, and again what has come
    assert coming.count() == 1
    assert list(coming) == [future]
    assert list(coming) == []
    with pytest.raises(TypeError, match="as_completed takes futures, found 1"):
        coming.add(1)  # type: ignore[arg-type]


def test_another_thread_adds_while_one_waits(idle: Client, thread_worker: Callable[..., Any]) -> None:
    first, second = idle.submit(triple, 1), idle.submit(triple, 2)
    coming = as_completed([first], timeout=WAIT)
    found: list[Future[int]] = []
    waiting = threading.Thread(target=lambda: found.extend(coming))
    waiting.start()
    coming.add(second)
    thread_worker(idle._context.db, "test")
    waiting.join(WAIT)
    assert {*found} == {first, second}


def test_results_come_with_their_futures(client: Client) -> None:
    futures = client.map(triple, range(5))
    assert dict(as_completed(futures, WAIT, with_results=True)) == {future: 3 * at for at, future in enumerate(futures)}
    good, bad = client.submit(invert, 2), client.submit(invert, 0)
    pairs = dict(as_completed([good, bad], WAIT, with_results=True, errors="return"))
    assert pairs[good] == 0.5
    assert isinstance(pairs[bad], ZeroDivisionError)
    assert list(as_completed([good, bad], WAIT, with_results=True, errors="skip")) == [(good, 0.5)]
    coming = as_completed([bad], WAIT, with_results=True)
    with pytest.raises(ZeroDivisionError):
        next(coming)
    assert list(coming) == []
    with pytest.raises(
        ValueError, match='errors is "raise", "return" or "skip", found "ignore"'.replace('"ignore"', "'ignore'")
    ):
        as_completed([], with_results=True, errors="ignore")


def test_asyncio_takes_them_as_they_end(client: Client) -> None:
    async def main() -> list[float]:
        coming = as_completed([client.submit(triple, 1)], WAIT, with_results=True, errors="skip")
        values: list[float] = []
        async for _, value in coming:
            values.append(value)
            if len(values) < 3:
                coming.update([client.submit(triple, int(value)), client.submit(invert, 0)])
        assert coming.count() == 0
        return values

    assert asyncio.run(main()) == [3, 9, 27]


def test_asyncio_raises_what_a_task_raised_and_goes_on_behind_it(client: Client) -> None:
    async def main() -> None:
        good, bad = client.submit(triple, 2), client.submit(invert, 0)
        coming = as_completed([good, bad], WAIT, with_results=True)
        came: list[Any] = []
        for _ in range(2):
            try:
                came.append(await anext(coming))
            except ZeroDivisionError as error:
                came.append(type(error))
        assert sorted(came, key=str) == sorted([(good, 6), ZeroDivisionError], key=str)
        with pytest.raises(StopAsyncIteration):
            await anext(coming)

    asyncio.run(main())


def test_asyncio_gives_up_in_time_and_waits_again_after_a_cancellation(
    idle: Client, thread_worker: Callable[..., Any]
) -> None:
    async def main() -> None:
        future = idle.submit(triple, 1)
        with pytest.raises(TimeoutError, match=r"1 of 1 futures did not end within 0\.01 s"):
            async for _ in as_completed([future], timeout=0.01):
                pass
        coming = as_completed([future])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(coming), 0.01)
        thread_worker(idle._context.db, "test")
        assert await asyncio.wait_for(anext(coming), WAIT) is future

    asyncio.run(main())


def test_a_loop_that_was_left_leaves_nothing_waiting(client: Client) -> None:
    futures = client.map(triple, range(3))
    gc.disable()
    try:
        for _ in as_completed(futures, timeout=WAIT):
            break
        assert not client._context().expected.has_groups, "without the garbage collector"
    finally:
        gc.enable()


def test_gather_keeps_the_shape(client: Client) -> None:
    a, b, c = client.map(triple, [1, 2, 3])
    assert client.gather([a, b]) == [3, 6]
    assert client.gather((a, b)) == (3, 6)
    assert client.gather({"a": a, "b": [b, (c, a)], "n": []}) == {"a": 3, "b": [6, (9, 3)], "n": []}
    assert client.gather([Pair(a, {"x": b})]) == [Pair(3, {"x": 6})]
    assert gather(future for future in (a, a, b)) == [3, 3, 6]
    with pytest.raises(TypeError, match=r"gather takes futures, found 7 \(int\) in place 'b'\[1\]"):
        gather({"a": a, "b": [b, 7]})
    with pytest.raises(TypeError, match=r"gather takes futures, found 7 \(int\) in place 1"):
        gather([a, 7])
    with pytest.raises(TypeError, match="gather takes several futures, found one"):
        gather(a)  # type: ignore[call-overload]


def test_gather_returns_or_skips_what_failed(client: Client) -> None:
    good, bad = client.submit(triple, 1), client.submit(invert, 0)
    with pytest.raises(ZeroDivisionError):
        client.gather({"x": [good, bad]})
    found = client.gather({"x": [good, bad], "y": bad}, errors="return")
    assert found["x"][0] == 3
    assert isinstance(found["x"][1], ZeroDivisionError)
    assert client.gather({"x": [good, bad], "y": bad, "z": Pair(good, bad)}, errors="skip") == {"x": [3], "z": (3,)}
    assert client.gather([bad], errors="skip") == []
    with pytest.raises(ValueError, match='errors is "raise", "return" or "skip"'):
        client.gather([good], errors="hide")
