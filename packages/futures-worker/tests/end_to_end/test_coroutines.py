"""Coroutine functions as tasks, streams and methods of actors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from futures_worker import current_client

WAIT = 60.0


async def doubled(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


async def together(count: int) -> list[int]:
    return list(await asyncio.gather(*(doubled(n) for n in range(count))))


async def asks(count: int) -> int:
    futures = current_client().map(pow, range(count), [2] * count)
    return sum([await future for future in futures])


async def raises() -> None:
    raise LookupError("not here")


async def counts(stop: int) -> AsyncIterator[int]:
    for number in range(stop):
        await asyncio.sleep(0)
        yield number


async def fails_midway() -> AsyncIterator[int]:
    yield 1
    raise LookupError("midway")


class Diary:
    def __init__(self) -> None:
        self.lines: list[str] = []

    async def write(self, line: str) -> int:
        await asyncio.sleep(0.01)
        self.lines.append(line)
        return len(self.lines)


def test_a_coroutine_function_is_a_task(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    assert client.submit(doubled, 4).result(timeout=WAIT) == 8
    assert client.gather(client.map(doubled, range(5)), progress=False, timeout=WAIT) == [0, 2, 4, 6, 8]
    began = time.monotonic()
    assert client.submit(together, 50).result(timeout=WAIT) == [2 * n for n in range(50)]
    assert time.monotonic() - began < WAIT / 2
    assert client.submit(asks, 10).result(timeout=WAIT) == 285, "its waits give the only slot back"
    with pytest.raises(LookupError, match="not here") as caught:
        client.submit(raises, max_retries=0).result(timeout=WAIT)
    assert "raises" in str(caught.value.__cause__)
    with pytest.raises(TypeError, match="is a coroutine function"):
        client.submit(doubled, 1, durable=True)


def test_an_asynchronous_generator_is_a_stream(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    future = client.submit(counts, 250)
    assert list(future.stream(timeout=WAIT)) == list(range(250))
    assert client.submit(counts, 5).result(timeout=WAIT) == list(range(5))
    stream = client.submit(fails_midway, max_retries=0).stream(timeout=WAIT)
    assert next(stream) == 1
    with pytest.raises(LookupError, match="midway"):
        next(stream)


def test_methods_of_an_actor_may_be_coroutines(shared_cluster: Any) -> None:
    client = shared_cluster(workers=1, slots=1).client()
    diary = client.actor(Diary)
    assert [call.result(timeout=WAIT) for call in [diary.write(str(n)) for n in range(5)]] == [1, 2, 3, 4, 5]
    client.kill_actor(diary)
