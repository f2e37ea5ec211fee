"""Retry limits of transactions and databases, and what resets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fdb
import pytest
from tests.conformance.expect import CANCELLED, TOO_OLD, fdb_error


@pytest.fixture
def db(any_db: Any) -> Iterator[Any]:
    """A database whose transactions back off for a millisecond at most."""
    any_db.options.set_transaction_max_retry_delay(1)
    yield any_db
    any_db.options.set_transaction_retry_limit(-1)
    any_db.options.set_transaction_max_retry_delay(1000)


def retry(tr: Any) -> None:
    tr[b"k"] = b"v"
    tr.on_error(fdb.FDBError(TOO_OLD)).wait()


def used_up(tr: Any) -> None:
    """The next retry is refused, and the transaction is cancelled by it."""
    with fdb_error(TOO_OLD):
        retry(tr)
    with fdb_error(CANCELLED):
        retry(tr)
    with fdb_error(CANCELLED):
        tr.commit().wait()


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_transaction_is_retried_as_often_as_its_limit(db: Any, limit: int) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(limit)
    for _ in range(limit):
        retry(tr)
    used_up(tr)


def test_the_limit_survives_retries_without_being_set_again(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(2)
    retry(tr)
    retry(tr)
    used_up(tr)


def test_minus_one_is_no_limit(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(-1)
    for _ in range(20):
        retry(tr)


def test_a_reset_forgets_the_limit_and_the_count(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(1)
    retry(tr)
    with fdb_error(TOO_OLD):
        retry(tr)
    tr.reset()
    for _ in range(3):
        retry(tr)
    tr.reset()
    tr.options.set_retry_limit(1)
    retry(tr)
    used_up(tr)


def test_retries_count_before_the_limit_is_set(db: Any) -> None:
    tr = db.create_transaction()
    retry(tr)
    retry(tr)
    tr.options.set_retry_limit(1)
    used_up(tr)


def test_the_limit_can_be_raised_between_retries(db: Any) -> None:
    tr = db.create_transaction()
    for limit in (1, 2, 3, 4):
        tr.options.set_retry_limit(limit)
        retry(tr)
    tr.options.set_retry_limit(4)
    used_up(tr)


def test_the_database_sets_the_limit_of_its_transactions(db: Any) -> None:
    db.options.set_transaction_retry_limit(1)
    tr = db.create_transaction()
    retry(tr)
    used_up(tr)
    tr.reset()
    retry(tr)
    used_up(tr)


@pytest.mark.parametrize(("of_database", "of_transaction"), [(1, 2), (2, 1), (0, 3), (3, 0)])
def test_the_transaction_overrides_the_database(db: Any, of_database: int, of_transaction: int) -> None:
    db.options.set_transaction_retry_limit(of_database)
    tr = db.create_transaction()
    tr.options.set_retry_limit(of_transaction)
    for _ in range(of_transaction):
        retry(tr)
    used_up(tr)
    tr.reset()
    for _ in range(of_database):
        retry(tr)
    used_up(tr)


def test_an_error_that_is_not_retried_ends_the_transaction_whatever_the_limit(db: Any) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(5)
    with fdb_error(2000):
        tr.on_error(fdb.FDBError(2000)).wait()
    with fdb_error(CANCELLED):
        retry(tr)


@pytest.mark.parametrize("limit", [-2, -100])
def test_a_limit_below_minus_one_is_refused(db: Any, limit: int) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(limit)
    with fdb_error(2006):
        tr.commit().wait()


def test_a_transactional_function_raises_when_its_retries_are_used_up(db: Any) -> None:
    attempts = []

    @fdb.transactional
    def conflicting(tr: Any) -> None:
        tr.options.set_retry_limit(2)
        tr.get(b"hot").wait()
        db[b"hot"] = b"%d" % len(attempts)
        attempts.append(1)
        tr[b"k"] = b"v"

    with fdb_error(1020):
        conflicting(db)
    assert len(attempts) == 3
