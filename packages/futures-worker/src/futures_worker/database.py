"""Transactions of those who wait: none waits for ever for a database that doesn't answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fdb_schema import DatabaseUnreachableError, fdb_error_code
from idempotent_txn import CommitUnknownResultFatal, TransactionTimedOut, run, run_committed, run_repeatable
from idempotent_txn.attempts.strategy import StrategyName

T = TypeVar("T")

log = logging.getLogger("futures_worker")

_LATE: Final = 0.5  # seconds past a deadline that a process which runs doesn't take to notice it
_TRIES: Final = 3

REFUSED_SECONDS: Final = 0.2
"""Between two attempts of `run_patiently`."""

FILE_NOT_FOUND: Final = 1511
"""The code of a database that is there no more: nothing mends that in this process."""

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

    Raises DatabaseUnreachableError then, and where the database's disk refuses or is gone; at once what no retry can mend.
    """
    limit = DATABASE_SECONDS if seconds is None else seconds
    return _answered(run, db, fn, args, kwargs, strategy, limit)  # type: ignore[no-any-return]


def ask_stamped(db: Any, fn: Callable[..., T], *args: Any) -> tuple[T, bytes | None]:
    """`ask`, and the versionstamp (10 bytes) of the commit: None of what only read, or where it can't be told any more."""
    outcome = _answered(run_committed, db, fn, args, {}, None, DATABASE_SECONDS)
    return outcome.value, None if outcome.commit is None else outcome.commit.versionstamp


def _answered(
    how: Callable[..., Any],
    db: Any,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    strategy: StrategyName | None,
    limit: float,
) -> Any:
    left = _TRIES
    while True:
        began = time.monotonic()
        left -= 1
        try:
            if strategy == "off":  # safe to make again: no commit in flight is waited for
                return run_repeatable(db, fn, *args, timeout=limit, **kwargs)
            return how(db, fn, *args, strategy=strategy, timeout=limit, **kwargs)
        except TransactionTimedOut as error:
            if left and time.monotonic() - began > limit + _LATE:
                continue  # it was this process that stood still (stopped, asleep): the database had no time to answer
            raise DatabaseUnreachableError(
                f"the database gave no answer for {limit:g} s: check that it runs and can be reached; what was submitted is "
                f"kept, and waiting again goes on where this wait ended ({error})"
            ) from error
        except Exception as error:
            answer = (
                error.__cause__ if isinstance(error, CommitUnknownResultFatal) else error
            )  # to who asked for the commit
            why = None if answer is None else _DISK.get(fdb_error_code(answer) or 0)
            if why is None:
                raise
            raise DatabaseUnreachableError(f"the database refuses ({error}): {why}") from error


def run_patiently(db: Any, fn: Callable[..., T], *args: Any, strategy: StrategyName | None = None, **kwargs: Any) -> T:
    """`idempotent_txn.run`, again for as long as the database refuses: of a task's process, which has worked for what it writes."""
    return patiently(lambda: run(db, fn, *args, strategy=strategy, **kwargs), is_database_trouble)


def patiently(ask: Callable[[], T], is_trouble: Callable[[BaseException], bool]) -> T:
    """What `ask()` returns, which is called again for as long as it raises what is the database's trouble."""
    told = False
    while True:
        try:
            return ask()
        except Exception as error:
            if not is_trouble(error):
                raise
            if not told:
                log.warning("the database refuses (%s): what this task has done is kept, and tried again", error)
            told = True
        time.sleep(REFUSED_SECONDS)


_DISK: Final = {
    1510: "its disk is full, or fails: free some space on it (what the database writes to its log names the place); what was "
    "submitted is kept, and waiting again goes on where this wait ended",
    FILE_NOT_FOUND: "its directory was removed, or replaced by another, while it was open: restore a dump or a copy, and begin "
    "again in a new process",
}


def is_silence(error: BaseException) -> bool:
    """Whether a database could not be opened as it gave no answer: what it is, and the way to it, may be right."""
    cause = error.__cause__ if isinstance(error, DatabaseUnreachableError) else None
    return cause is not None and (isinstance(cause, TransactionTimedOut) or is_database_trouble(cause))


def is_database_trouble(error: BaseException) -> bool:
    """Whether an error is the database's, not that of what was to be stored: the same transaction may succeed later.

    A commit whose outcome the database doesn't tell is, too: whatever this package writes may be written twice.
    """
    if isinstance(error, (DatabaseUnreachableError, CommitUnknownResultFatal)):
        return True
    code = fdb_error_code(error)
    # 2000 and on: of the transaction itself, which is too large, or names a bad key.
    return code is not None and code != FILE_NOT_FOUND and not 2000 <= code < 3000
