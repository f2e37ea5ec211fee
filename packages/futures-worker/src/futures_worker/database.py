"""Transactions of those who wait: none waits for ever for a database that doesn't answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fdb_schema import DatabaseUnreachableError, fdb_error_code
from idempotent_txn import TransactionTimedOut, run
from idempotent_txn.strategy import StrategyName

T = TypeVar("T")

_LATE: Final = 0.5  # seconds past a deadline that a process which runs doesn't take to notice it
_TRIES: Final = 3

DATABASE_SECONDS: Final = 10.0
"""Seconds that a database may give no answer, or only refusals worth a retry, before whoever waits is told."""


def ask(
    db: Any,
    fn: Callable[..., T],
    *args: Any,
    strategy: StrategyName | None = None,
    seconds: float | None = None,
    **kwargs: Any,
) -> T:
    """`idempotent_txn.run` for at most `seconds` (default `DATABASE_SECONDS`).

    Raises DatabaseUnreachableError then, and at once what no retry can mend.
    """
    limit = DATABASE_SECONDS if seconds is None else seconds
    left = _TRIES
    while True:
        began = time.monotonic()
        left -= 1
        try:
            return run(db, fn, *args, strategy=strategy, timeout=limit, **kwargs)
        except TransactionTimedOut as error:
            if left and time.monotonic() - began > limit + _LATE:
                continue  # it was this process that stood still (stopped, asleep): the database had no time to answer
            raise DatabaseUnreachableError(
                f"the database gave no answer for {limit:g} s: check that it runs and can be reached; what was submitted is "
                f"kept, and waiting again goes on where this wait ended ({error})"
            ) from error


def is_database_trouble(error: BaseException) -> bool:
    """Whether an error is the database's, not that of what was to be stored: the same transaction may succeed later."""
    if isinstance(error, DatabaseUnreachableError):
        return True
    code = fdb_error_code(error)
    return code is not None and not 2000 <= code < 3000  # those are of the transaction itself: too large, a bad key
