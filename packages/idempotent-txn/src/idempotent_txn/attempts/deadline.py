"""A deadline: a moment of `time.monotonic` after which nothing is begun; and a transaction's own timeout, made from it."""

from __future__ import annotations

import math
import time
from typing import Any, Final

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
