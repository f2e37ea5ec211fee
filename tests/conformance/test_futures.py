"""Futures of the binding: readiness, callbacks, waiting for any, lazily read values."""

from __future__ import annotations

import threading
from typing import Any

import fdb
from tests.conformance.expect import WAIT, fdb_error


def test_values_are_read_lazily_and_compare_as_bytes(any_db: Any) -> None:
    any_db[b"k"] = b"value"
    tr = any_db.create_transaction()
    got = tr.get(b"k")
    assert got == b"value"
    assert got == b"value"
    assert got != b"other"
    assert got < b"valuf"
    assert got + b"!" == b"value!"
    assert b"<" + got == b"<value"
    assert got[1:3] == b"al"
    assert got.startswith(b"va")
    assert len(got) == 5
    assert bytes(got) == b"value"
    assert hash(got) == hash(b"value")
    key = tr.get_key(fdb.KeySelector.first_greater_or_equal(b"a"))
    assert key == b"k"
    assert {key: 1}[b"k"] == 1


def test_many_reads_run_before_any_is_waited_for(any_db: Any) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(100):
            tr[b"%03d" % i] = b"%d" % i

    fill(any_db)
    tr = any_db.create_transaction()
    futures = [tr.get(b"%03d" % i) for i in range(100)]
    assert [int(bytes(f)) for f in futures] == list(range(100))


def test_a_future_becomes_ready(any_db: Any) -> None:
    tr = any_db.create_transaction()
    got = tr.get(b"k")
    got.block_until_ready()
    assert got.is_ready()
    assert got.wait() == None  # noqa: E711  the binding's Value compares with None
    commit = tr.commit()
    commit.wait()
    assert commit.is_ready()


def test_callbacks_run_for_every_kind_of_future(any_db: Any) -> None:
    tr = any_db.create_transaction()
    left = threading.Semaphore(0)
    futures = [
        tr.get(b"k"),
        tr.get_key(fdb.KeySelector.first_greater_or_equal(b"a")),
        tr.get_read_version(),
        tr.get_approximate_size(),
        tr.get_versionstamp(),
    ]
    tr[b"x"] = b""
    futures.append(tr.commit())
    for future in futures:
        future.on_ready(lambda _: left.release())
    for _ in futures:
        assert left.acquire(timeout=WAIT)


def test_waiting_for_any_of_several(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    got = tr.get(b"k")
    assert fdb.Future.wait_for_any(stamp, got) == 1


def test_errors_come_out_of_every_way_to_wait(any_db: Any) -> None:
    tr = any_db.create_transaction()
    bad = tr.get(b"\xff")
    with fdb_error(2004):
        bad.wait()
    with fdb_error(2004):
        bytes(bad)
    with fdb_error(2004):
        assert bad != b"x"


def test_transactions_of_many_threads_share_a_database(any_db: Any) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                any_db[b"%d/%d" % (number, i)] = b"%d" % i
                assert any_db[b"%d/%d" % (number, i)] == b"%d" % i
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not errors
    assert len(any_db[:]) == 160


def test_threads_read_through_one_transaction(any_db: Any) -> None:
    @fdb.transactional
    def fill(tr: Any) -> None:
        for i in range(50):
            tr[b"%02d" % i] = b"%d" % i

    fill(any_db)
    tr = any_db.create_transaction()
    results: dict[int, list[bytes]] = {}

    def read(number: int) -> None:
        results[number] = [bytes(tr.get(b"%02d" % i).wait()) for i in range(50)]

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert results == {n: [b"%d" % i for i in range(50)] for n in range(4)}
