"""Timeouts of transactions and databases: when they start, what they end, what survives a retry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import fdb
import pytest
from tests.conformance.expect import CANCELLED, TIMED_OUT, TOO_OLD, fdb_error

SHORT = 20
"""Milliseconds of a timeout that is to fire."""

LONG = 120_000
"""Milliseconds of a timeout that is not."""


@pytest.fixture
def db(any_db: Any) -> Iterator[Any]:
    """A database whose timeout is unset afterwards."""
    any_db.options.set_transaction_max_retry_delay(1)
    yield any_db
    any_db.options.set_transaction_timeout(0)


def let_it_fire(ms: int = SHORT) -> None:
    """Let more time pass than a short timeout has. There is no event to wait for: the timeout is the event."""
    time.sleep(ms / 1000 * 3)


def retry(tr: Any) -> None:
    tr.on_error(fdb.FDBError(TOO_OLD)).wait()


def test_a_timeout_ends_the_transaction(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    tr[b"k"] = b"v"
    let_it_fire()
    with fdb_error(TIMED_OUT):
        tr.commit().wait()
    with fdb_error(TIMED_OUT):
        tr.get(b"k").wait()
    assert db[b"k"] is None


def test_a_timeout_ends_futures_that_wait(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    stamp = tr.get_versionstamp()
    with fdb_error(TIMED_OUT):
        stamp.wait()


def test_a_timeout_survives_on_error(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1000)
    retry(tr)
    let_it_fire(1000)
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_a_timeout_that_fired_is_not_mended_by_on_error(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    let_it_fire()
    with fdb_error(TIMED_OUT):
        retry(tr)
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_a_reset_ends_the_timeout_before_and_after_it_fires(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    tr.reset()
    let_it_fire()
    tr.commit().wait()
    tr.reset()
    tr.options.set_timeout(SHORT)
    let_it_fire()
    with fdb_error(TIMED_OUT):
        tr.commit().wait()
    tr.reset()
    tr[b"k"] = b"v"
    tr.commit().wait()
    assert db[b"k"] == b"v"


def test_a_timeout_counts_from_the_beginning(db: Any) -> None:
    tr = db.create_transaction()
    tr[b"k"] = b"v"
    let_it_fire()
    tr.options.set_timeout(SHORT)
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_on_error_does_not_restart_the_clock_and_reset_does(db: Any) -> None:
    tr = db.create_transaction()
    let_it_fire(100)
    retry(tr)
    tr.options.set_timeout(100)
    with fdb_error(TIMED_OUT):
        tr.commit().wait()
    tr.reset()
    tr.options.set_timeout(LONG)
    tr.commit().wait()


def test_a_timeout_can_be_taken_back_before_it_fires_only(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1000)
    tr.options.set_timeout(0)
    let_it_fire()
    tr[b"k"] = b"v"
    tr.commit().wait()
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    let_it_fire()
    tr.options.set_timeout(0)
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_an_error_in_the_commit_does_not_restart_the_clock(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1500)
    tr[b"hot"].wait()
    tr[b"k"] = b"v"
    db[b"hot"] = b"v"
    with fdb_error(1020):
        tr.commit().wait()
    tr.on_error(fdb.FDBError(1020)).wait()
    let_it_fire(600)
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_the_database_sets_the_timeout_of_its_transactions(db: Any) -> None:
    db.options.set_transaction_timeout(SHORT)
    tr = db.create_transaction()
    let_it_fire()
    with fdb_error(TIMED_OUT):
        tr.commit().wait()
    tr.reset()
    let_it_fire()
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_the_transaction_overrides_the_database(db: Any) -> None:
    db.options.set_transaction_timeout(600)  # long enough to be overridden in time on a busy machine
    tr = db.create_transaction()
    tr.options.set_timeout(LONG)
    let_it_fire(600)
    tr[b"k"] = b"v"
    tr.commit().wait()
    db.options.set_transaction_timeout(LONG)
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    let_it_fire()
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_a_timeout_of_the_database_can_be_taken_back(db: Any) -> None:
    db.options.set_transaction_timeout(SHORT)
    db.options.set_transaction_timeout(0)
    tr = db.create_transaction()
    let_it_fire()
    tr.commit().wait()


@pytest.mark.parametrize("milliseconds", [-1, 2**31])
def test_a_timeout_outside_its_range_is_refused(db: Any, milliseconds: int) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(milliseconds)
    with fdb_error(2006):
        tr.commit().wait()


def test_a_cancelled_transaction_stays_cancelled_through_its_timeout(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    tr.cancel()
    let_it_fire()
    with fdb_error(CANCELLED):
        tr.commit().wait()


def test_a_timed_out_transaction_stays_timed_out_through_its_cancellation(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    let_it_fire()
    with fdb_error(TIMED_OUT):
        tr.get_read_version().wait()
    tr.cancel()
    with fdb_error(TIMED_OUT):
        tr.commit().wait()


def test_a_timeout_and_a_retry_limit_work_together(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(SHORT)
    tr.options.set_retry_limit(5)
    let_it_fire()
    with fdb_error(TIMED_OUT):
        retry(tr)
    tr = db.create_transaction()
    tr.options.set_timeout(LONG)
    tr.options.set_retry_limit(1)
    retry(tr)
    with fdb_error(TOO_OLD):
        retry(tr)
    with fdb_error(CANCELLED):
        tr.commit().wait()


def test_a_watch_outlives_the_timeout_of_its_committed_transaction(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(1500)
    watch = tr.watch(b"k")
    tr.commit().wait()
    let_it_fire(600)
    assert not watch.is_ready()
    db[b"k"] = b"v"
    watch.wait()
