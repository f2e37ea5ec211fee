"""Pauses between attempts: full jitter, doubling from 0.2 ms to 1 s.

FoundationDB's client starts at 10 ms, which is right for a cluster that answers in milliseconds and five hundred
commits too long for an engine that answers in microseconds.
"""

from __future__ import annotations

import random
import time
from typing import Final

FIRST_PAUSE: Final = 0.0002
LONGEST_PAUSE: Final = 1.0
_DOUBLINGS: Final = 13


def pause_before(attempt: int) -> float:
    """Seconds to wait before attempt number `attempt` (the second is 2), at random up to the doubled bound."""
    bound = FIRST_PAUSE * (1 << min(max(attempt - 2, 0), _DOUBLINGS))
    return random.random() * min(bound, LONGEST_PAUSE)


def sleep_before(attempt: int, deadline: float | None = None) -> None:
    """Sleep the pause before `attempt`, never past `deadline` (of `time.monotonic`)."""
    pause = pause_before(attempt)
    if deadline is not None:
        pause = min(pause, max(0.0, deadline - time.monotonic()))
    time.sleep(pause)
