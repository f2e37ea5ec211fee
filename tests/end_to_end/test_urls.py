"""What is made for a database and kept takes its URL. (`run`, called once per transaction, wants it open, and says so.)"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fdb_embedded
from fdb_datamodel import Collector, collect, validate
from fdb_schema import open_database
from futures_worker import Client
from idempotent_txn import Batcher, Cleaner
from lease_locks import LeaseManager
from s3heap_tender import SysDb


def put(tr: Any, value: bytes) -> bytes:
    tr[b"key"] = value
    return value


def look(url: str) -> bytes:
    return bytes(open_database(url)[b"key"])


def test_transactions(shared_url: str) -> None:
    assert Batcher(shared_url).run(put, b"four") == look(shared_url) == b"four"
    Cleaner(shared_url).run_once()


def test_services_and_clients(shared_url: str) -> None:
    with SysDb(shared_url, "demo") as sysdb, LeaseManager(shared_url, "demo") as locks, Client(shared_url) as client:
        assert sysdb.create_task("orders", "report").name == "report"
        assert locks.list() is not None
        future = client.submit(len, "abc")
        assert future.id
    assert validate(shared_url, "mainspring") == []
    Collector(shared_url, "mainspring")
    collect(shared_url, "mainspring")


@pytest.mark.embedded_only("the engine opens no cluster")
def test_the_engine(shared_url: str) -> None:
    fdb_embedded.open(shared_url)[b"key"] = b"five"
    assert look(shared_url) == b"five"


def test_a_future_s_questions_have_asynchronous_twins(shared_url: str) -> None:
    async def main() -> None:
        async with Client(shared_url, cluster="demo") as client:
            future = client.submit(len, "abc")
            assert await future.aid() == future.id
            assert await future.astate() == future.state() == "unclaimed"
            assert await future.adone() is future.done() is False
            known = client.put(3)
            assert await known.adone() is True

    asyncio.run(main())
