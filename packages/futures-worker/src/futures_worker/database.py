"""Transactions of those who wait: none waits for ever for a database that doesn't answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fdb_schema import DatabaseUnreachableError, fdb_error_code
from idempotent_txn import TransactionTimedOut, run
from idempotent_txn.strategy import StrategyName

T = TypeVar("T")

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
    try:
        return run(db, fn, *args, strategy=strategy, timeout=limit, **kwargs)
    except TransactionTimedOut as error:
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
