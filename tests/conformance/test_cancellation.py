"""Cancelled transactions and futures."""

from __future__ import annotations

from typing import Any

import fdb
import pytest
from tests.conformance.expect import CANCELLED, fdb_error, value


def test_a_cancelled_transaction_refuses_everything(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.cancel()
    for operation in (
        lambda: tr.commit(),
        lambda: tr.get(b"k"),
        lambda: tr.get_key(fdb.KeySelector.first_greater_than(b"a")),
        lambda: tr.get_read_version(),
        lambda: tr.get_versionstamp(),
        lambda: tr.watch(b"k"),
        lambda: tr.snapshot.get(b"k"),
        lambda: tr.get_estimated_range_size_bytes(b"a", b"b"),
        lambda: tr.get_range_split_points(b"a", b"b", 1000),
        lambda: tr.on_error(fdb.FDBError(1007)),
        lambda: tr.on_error(fdb.FDBError(1020)),
    ):
        with fdb_error(CANCELLED):
            operation().wait()
    with fdb_error(CANCELLED):
        list(tr.get_range(b"a", b"b"))
    assert any_db[b"k"] is None


def test_a_reset_ends_the_cancellation(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.cancel()
    tr.reset()
    tr[b"k"] = b"v"
    tr.commit().wait()
    assert any_db[b"k"] == b"v"


def test_on_error_does_not_end_the_cancellation(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.cancel()
    with fdb_error(CANCELLED):
        tr.on_error(fdb.FDBError(1007)).wait()
    with fdb_error(CANCELLED):
        tr.commit().wait()


def test_cancellation_reaches_futures_that_wait(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    watch = tr.watch(b"k")
    tr.cancel()
    with fdb_error(CANCELLED):
        stamp.wait()
    tr.reset()
    with fdb_error(CANCELLED):
        watch.wait()


def test_a_read_that_is_done_stays_done(any_db: Any) -> None:
    any_db[b"k"] = b"v"
    tr = any_db.create_transaction()
    got = tr.get(b"k")
    assert got.wait() == b"v"
    tr.cancel()
    assert got.wait() == b"v"


def test_cancelling_twice_is_cancelling(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr.cancel()
    tr.cancel()
    with fdb_error(CANCELLED):
        tr.commit().wait()


def test_cancelling_after_the_commit_changes_nothing(any_db: Any) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"v"
    tr.commit().wait()
    version = tr.get_committed_version()
    tr.cancel()
    assert any_db[b"k"] == b"v"
    assert tr.get_committed_version() == version


def test_a_cancelled_future_says_so(any_db: Any) -> None:
    tr = any_db.create_transaction()
    watch = tr.watch(b"k")
    tr.commit().wait()
    watch.cancel()
    with fdb_error(1101):
        watch.wait()
    any_db[b"k"] = b"v"


def test_cancelling_a_future_leaves_its_transaction(any_db: Any) -> None:
    tr = any_db.create_transaction()
    stamp = tr.get_versionstamp()
    stamp.cancel()
    with fdb_error(1101):
        stamp.wait()
    tr[b"k"] = b"v"
    tr.commit().wait()
    assert any_db[b"k"] == b"v"


def test_a_transactional_function_that_cancels_raises(any_db: Any) -> None:
    @fdb.transactional
    def cancels(tr: Any) -> None:
        tr[b"k"] = b"v"
        tr.cancel()

    with fdb_error(CANCELLED):
        cancels(any_db)
    assert any_db[b"k"] is None


@pytest.mark.parametrize("code", [1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1213])
def test_on_error_prepares_another_attempt(any_db: Any, code: int) -> None:
    tr = any_db.create_transaction()
    tr.options.set_max_retry_delay(1)
    tr[b"k"] = b"lost"
    assert value(tr, b"a") is None
    tr.on_error(fdb.FDBError(code)).wait()
    any_db[b"a"] = b"new"
    assert value(tr, b"a") == b"new"
    assert value(tr, b"k") is None
    tr[b"k"] = b"kept"
    tr.commit().wait()
    assert any_db[b"k"] == b"kept"


@pytest.mark.parametrize("code", [1, 1000, 1025, 1031, 1036, 1101, 2000, 2004, 2017, 2101, 2102, 4100])
def test_on_error_raises_what_no_retry_mends(any_db: Any, code: int) -> None:
    tr = any_db.create_transaction()
    tr[b"k"] = b"lost"
    with fdb_error(code):
        tr.on_error(fdb.FDBError(code)).wait()
    with fdb_error(CANCELLED):
        tr.commit().wait()
    tr.reset()
    tr.commit().wait()


def test_on_error_without_an_error_is_a_bad_call(any_db: Any) -> None:
    tr = any_db.create_transaction()
    with fdb_error(2000):
        tr.on_error(0).wait()


@pytest.mark.embedded_only(reason="a cluster may make the cancelled commit later than the next read")
def test_a_cancelled_commit_takes_nothing_of_what_the_object_does_next(any_db: Any) -> None:
    for _ in range(20):
        any_db[b"count"] = bytes(8)
        tr = any_db.create_transaction()
        tr.add(b"count", b"\x01")
        commit = tr.commit()
        commit.cancel()
        tr.reset()
        in_time = int.from_bytes(any_db[b"count"], "little")
        tr.add(b"count", b"\x01")
        tr.commit().wait()
        assert int.from_bytes(any_db[b"count"], "little") == in_time + 1
