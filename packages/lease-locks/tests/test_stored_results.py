"""What is stored of calls: of any size, told where it is damaged, and collected where an upload was not finished."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import memo_functions as functions
import pytest

from fdb_schema import LEASE_PIN, BlobDamagedError, collect_blob, open_database, unpin_blob
from idempotent_txn import run
from lease_locks import LeaseManager, MemoizingPicklingRunner, samethread_shell
from lease_locks.memo import orchestrator, remote, rows
from lease_locks.memo.functions import bind
from lease_locks.memo.stored import payloads


@pytest.fixture
def locks() -> Iterator[LeaseManager]:
    with LeaseManager(open_database("memory:"), cluster="demo") as manager:
        yield manager


def runner_of(locks: LeaseManager) -> MemoizingPicklingRunner:
    return MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")


def blob_rows(locks: LeaseManager, kind: str) -> list[Any]:
    space = locks.space.cluster.blobs
    return [row for row in locks.db.get_range_startswith(space.key()) if space.unpack(bytes(row.key))[1] == kind]


def test_a_result_may_be_larger_than_a_blob_elsewhere(locks: LeaseManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdb_schema.blobs.MAX_BLOB_BYTES", 1_000_000)
    runner = runner_of(locks)
    data = runner.call(functions.big, 7_000_000)
    assert len(data) == 7_000_000
    assert runner.call(functions.big, 7_000_000) == data
    assert runner.call(functions.length, data) == 7_000_000


def test_a_damaged_result_is_told_and_computed_again_once_it_is_forgotten(locks: LeaseManager) -> None:
    runner = runner_of(locks)
    first = runner.call(functions.big, 300_000)
    chunk = blob_rows(locks, "chunk")[1]
    locks.db[bytes(chunk.key)] = bytes(255 - byte for byte in bytes(chunk.value))
    uri = bind("demo", functions.big, (300_000,), {}).memo.uri
    with pytest.raises(BlobDamagedError, match=f"lease-locks invalidate {uri}"):
        runner.call(functions.big, 300_000)
    assert runner.invalidate(functions.big, 300_000) == 1
    assert len(runner.call(functions.big, 300_000)) == len(first)


def test_an_upload_under_way_is_pinned_by_the_session_whose_end_lets_it_be_collected(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "refer", lambda *_: 1 / 0)  # it ends between the upload and the row that needs it
    with pytest.raises(ZeroDivisionError):
        runner_of(locks).call(functions.length, b"x" * 300_000)
    (pin,) = blob_rows(locks, "pin")
    name = locks.space.cluster.blobs.unpack(bytes(pin.key))[2]
    assert name == LEASE_PIN + locks.session.sid
    assert locks.db[locks.space.session(locks.session.sid)]
    assert locks.space.cluster["lease"].pack(("s", locks.session.sid)) == locks.space.session(locks.session.sid)


def test_a_result_that_is_forgotten_while_it_is_read_is_computed_again(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, other, runs = runner_of(locks), runner_of(locks), list[int]()

    def large(size: int) -> bytes:
        runs.append(size)
        return bytes(size)

    assert runner.call(large, 40_000) == bytes(40_000)
    fetch, forgets = payloads.fetch, [1, 1]

    def read(*args: Any) -> bytes:
        if forgets:
            forgets.pop()
            assert other.invalidate(large, 40_000) == 1
        return fetch(*args)

    monkeypatch.setattr("lease_locks.memo.runner.fetch", read)
    assert runner.call(large, 40_000) == bytes(40_000)  # also what was computed just now was forgotten
    assert runs == [40_000] * 3
    forgets.append(1)
    assert not runner.peek(large, 40_000)


@pytest.mark.parametrize("size", [10, 40_000])
def test_a_call_that_is_forgotten_as_it_begins_is_made(locks: LeaseManager, size: int) -> None:
    def forgetting(args: Any) -> None:
        forgotten.append(runner.invalidate(len, bytes(size)))
        samethread_shell(args)

    forgotten: list[int] = []
    runner = MemoizingPicklingRunner(locks, shell=forgetting, pipeline_id="demo")
    assert runner.call(len, bytes(size)) == size
    assert forgotten == [1]
    assert runner.peek(len, bytes(size)) == size


def upper(data: bytes) -> bytes:
    return data.upper()


def test_a_shell_that_exits_after_its_call_was_forgotten_leaves_nothing(locks: LeaseManager) -> None:
    exits: Future[int] = Future()

    def lingering_shell(args: list[str]) -> Future[int]:
        samethread_shell(args)
        return exits

    runner = MemoizingPicklingRunner(locks, shell=lingering_shell, pipeline_id="demo")
    assert len(runner.call(functions.big, 10)) == 10
    assert runner.invalidate(functions.big, 10) == 1
    exits.set_result(0)
    assert list(runner.rows.scan(locks.db)) == []


def test_equal_data_of_another_call_that_is_forgotten_takes_nothing_along(
    locks: LeaseManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads of one session share their pin, so that between an upload and the row that refers to it the blob may go."""
    stored: list[str] = []

    def forgotten(session: Any, data: bytes, what: str) -> Any:
        payload = payloads.store(session, data, what)
        stored.append(what)
        if stored.count(what) == 1 and payload.digest is not None:
            digest = payload.digest
            run(locks.db, lambda tr: unpin_blob(tr, locks.space.cluster, digest, LEASE_PIN + session.sid))
            run(locks.db, collect_blob, locks.space.cluster, digest)
        return payload

    for module in (orchestrator, remote):
        monkeypatch.setattr(module, "store", forgotten)
    runner = MemoizingPicklingRunner(locks, shell=samethread_shell, pipeline_id="demo")
    assert runner.call(upper, b"a" * 50_000) == b"A" * 50_000
    assert len(stored) == 4, "each twice"
    assert runner.call(upper, b"a" * 50_000) == b"A" * 50_000
    assert len(stored) == 4
