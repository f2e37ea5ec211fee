"""The asyncio adapter: reads, commits and watches of many tasks in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fdb_embedded
from fdb_embedded import aio


@pytest.fixture
def db() -> Iterator[Any]:
    database = fdb_embedded.open(":memory:")
    yield database
    fdb_embedded.close(database)


def test_reads_and_commits(db: Any) -> None:
    async def body() -> None:
        tr = db.create_transaction()
        assert await aio(tr.get(b"k")) is None
        tr[b"k"] = b"v"
        await aio(tr.commit())
        tr = db.create_transaction()
        assert await aio(tr.get(b"k")) == b"v"
        assert [row.value for row in await aio(tr.get_range(b"a", b"z"))] == [b"v"]
        assert await aio(tr.get_read_version()) > 0

    asyncio.run(body())


def test_commits_of_many_tasks(db: Any) -> None:
    async def add(number: int) -> None:
        tr = db.create_transaction()
        tr.add(b"count", (1).to_bytes(8, "little"))
        tr[b"row%d" % number] = b""
        await aio(tr.commit())

    async def body() -> None:
        await asyncio.gather(*(add(number) for number in range(300)))

    asyncio.run(body())
    assert db[b"count"] == (300).to_bytes(8, "little")


def test_a_watch_wakes_its_task_and_is_cancelled_with_it(db: Any) -> None:
    async def body() -> None:
        tr = db.create_transaction()
        first, second = tr.watch(b"k"), tr.watch(b"other")
        await aio(tr.commit())
        waiting = asyncio.create_task(aio(first))
        left = asyncio.create_task(aio(second))
        await asyncio.sleep(0)
        db[b"k"] = b"v"
        await asyncio.wait_for(waiting, 30)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert second.is_ready()

    asyncio.run(body())


def test_errors_are_raised(db: Any) -> None:
    fdb = fdb_embedded.load()

    async def body() -> None:
        tr = db.create_transaction()
        with pytest.raises(fdb.FDBError) as error:
            await aio(tr.get(b"\xff/x"))
        assert error.value.code == 2004

    asyncio.run(body())
