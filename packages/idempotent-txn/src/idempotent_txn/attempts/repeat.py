"""Transactions of this package's own that are safe to run twice: repeated until one commit is acknowledged.

The retry loop can't use itself to find out what became of a commit; these few bodies need nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fdb_schema import fdb_error_code
from idempotent_txn.attempts.backoff import sleep_before
from idempotent_txn.attempts.classification import RESOLVED_THEN_RETRIED, RETRYABLE_IN_BODY
from idempotent_txn.attempts.deadline import arm

T = TypeVar("T")


def until_committed(db: Any, body: Callable[[Any], T]) -> tuple[T, int]:
    """Run `body(tr)`, which is safe to run twice, until a commit is acknowledged: (its value, the commit version).

    The version is -1 where the body only read.
    """
    attempt = 1
    while True:
        tr = db.create_transaction()
        try:
            value = body(tr)
            tr.commit().wait()
            return value, int(tr.get_committed_version())
        except Exception as error:
            code = fdb_error_code(error)
            if code not in RETRYABLE_IN_BODY and code not in RESOLVED_THEN_RETRIED:
                raise
        attempt += 1
        sleep_before(attempt)


def until_read(db: Any, body: Callable[[Any], T], deadline: float | None = None) -> T:
    """Run `body(tr)`, which only reads, until it succeeds; with a `deadline` (of `time.monotonic`) the last error is raised then."""
    attempt = 1
    while True:
        tr = db.create_transaction()
        if deadline is not None:
            arm(tr, deadline, time.monotonic())
        try:
            return body(tr)
        except Exception as error:
            code = fdb_error_code(error)
            if code not in RETRYABLE_IN_BODY and code not in RESOLVED_THEN_RETRIED:
                raise
            if deadline is not None and time.monotonic() >= deadline:
                raise
        attempt += 1
        sleep_before(attempt)
