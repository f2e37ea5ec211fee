"""`ls --newest` is an order of times, also of futures that a key names, and pages of it hold each once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from support.terminal import piped

import fdb_datamodel as dm
from fdb_schema import ClusterSpace, open_database
from futures_worker.cli import main
from futures_worker.operations import newest
from idempotent_txn import run

NOW = time.time_ns() // 1_000_000
BEFORE, AFTER = (
    bytes((*(NOW + by).to_bytes(6, "big"), 0x70, at, *bytes(8))) for at, by in enumerate((-3_600_000, 3_600_000))
)
KEYED = [bytes.fromhex(f"{first}cec332000050008000000000000001") for first in ("98", "f1", "42")]
FORGED = bytes.fromhex("00cec332000050008000000000000001")  # of a key too, but before all times: nobody can place it


@pytest.fixture
def where() -> Iterator[tuple[str, ...]]:
    url = f"memory:{uuid4().hex}"
    db, space = open_database(url), ClusterSpace("demo")
    run(db, dm.open_cluster, space)
    for one in (*KEYED, FORGED, AFTER, BEFORE):
        run(db, dm.submit_future, space, dm.FutureSpec(code=b"x", id=one))
    yield "--db", url, "--cluster", "demo"
    del db  # until here: a database in memory ends with its last handle


@pytest.mark.parametrize("placed", [2_000, 2, 0])
def test_the_newest_come_first(
    where: Any, placed: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(newest, "PLACED", placed)
    found = [UUID(row["id"]).bytes for row in piped(main, capfd, "ls", "--newest", *where)]
    assert sorted(found) == sorted((*KEYED, FORGED, AFTER, BEFORE)), "each once"
    assert found[0] == AFTER
    at = found.index(BEFORE)
    assert set(found[1:at]) == set(sorted(KEYED, reverse=True)[:placed]), "the keyed ones, submitted between the two"
    paged: list[bytes] = []
    while page := piped(main, capfd, "ls", "--newest", "--limit", "1", *_after(paged), *where):
        paged += [UUID(row["id"]).bytes for row in ([page] if isinstance(page, dict) else page)]
    assert paged == found


def _after(paged: list[bytes]) -> list[str]:
    return ["--after", str(UUID(bytes=paged[-1]))] if paged else []
