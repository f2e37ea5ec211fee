"""A deadline: a moment of `time.monotonic` after which nothing is begun; and a transaction's own timeout, made from it."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from idempotent_txn.errors import TransactionTimedOut

LONGEST_TIMEOUT_MS: Final = 2**31 - 1
"""What FoundationDB's option takes. A transaction never lives as long."""


def deadline_after(timeout: float | None) -> float | None:
    """The deadline `timeout` seconds from now; None where there is none.

    Raises:
        ValueError: the timeout is nan.
    """
    if timeout is None or timeout == math.inf:
        return None
    if math.isnan(timeout):
        raise ValueError("timeout is a number of seconds, or None for no deadline, not nan")
    return time.monotonic() + float(timeout)


def arm(tr: Any, deadline: float, now: float) -> None:
    """Let reads fail at the deadline, not before: timeouts count whole milliseconds from the transaction's creation."""
    milliseconds = min(LONGEST_TIMEOUT_MS, max(0.0, (deadline - now) * 1000) + 1)
    tr.options.set_timeout(int(milliseconds))


_UNKNOWN: Final = "whether that committed isn't known, and it may be run again"
"""What is said of attempts of which one may have committed: with the strategy "off"."""


def armed(db: Any, deadline: float, attempt: int, nothing_committed: bool) -> Any:
    """A transaction whose reads fail at the deadline, not before: timeouts count whole milliseconds from its creation."""
    created = time.monotonic()
    if created >= deadline and attempt > 1:
        became = "nothing committed" if nothing_committed else _UNKNOWN
        raise TransactionTimedOut(f"the deadline passed after {attempt - 1} attempts; {became}")
    tr = db.create_transaction()
    tr.run_deadline = deadline
    arm(tr, deadline, created)
    return tr


def disarm(tr: Any, deadline: float, attempt: int, fn: Any, settles: bool, nothing_committed: bool) -> None:
    """Before the commit: one that timed out would still be in flight, so the deadline waits until it is settled.

    Not where the engine tells of a commit that it was never begun, which is settled at once, nor where nobody wants to know.
    """
    if time.monotonic() >= deadline:
        became = "nothing was committed" if nothing_committed else _UNKNOWN
        raise TransactionTimedOut(f"the deadline passed while {name_of(fn)} ran for the {attempt}. time; {became}")
    if settles and not hasattr(tr, "is_never_made"):
        tr.options.set_timeout(0)


def check_deadline(
    deadline: float | None, attempt: int, fn: Any, cause: BaseException, nothing_committed: bool
) -> None:
    """Raises TransactionTimedOut once the deadline has passed."""
    if deadline is not None and time.monotonic() >= deadline:
        became = "nothing committed" if nothing_committed else _UNKNOWN
        raise TransactionTimedOut(
            f"the deadline of {name_of(fn)} passed after {attempt} attempts, the last of which failed ({cause}); "
            f"{became}: give it more time, or find what it waits for or conflicts with"
        ) from cause


def name_of(fn: Any) -> str:
    """What a body is called in errors."""
    return getattr(fn, "__qualname__", None) or repr(fn)
