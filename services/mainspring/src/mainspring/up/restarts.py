"""When a service that ended is started again: at once the first time, then after pauses that double; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST: Final = 0.2
LONGEST: Final = 30.0
GOOD_LIFE: Final = 30.0
_DOUBLINGS: Final = 16  # far beyond the longest; a service may fail for days


@dataclass(slots=True)
class Restarts:
    """The history of one service's ends; times are seconds of a monotonic clock."""

    failures: int = 0  # in a row, none of which followed a good life
    total: int = 0

    def ended(self, started: float, now: float) -> float:
        """The service that started at `started` has ended; seconds until it is started again.

        A life of half a minute makes good for all failures before.
        """
        self.total += 1
        if now - started >= GOOD_LIFE:
            self.failures = 0
        self.failures += 1
        return float(min(LONGEST, FIRST * 2 ** min(self.failures - 1, _DOUBLINGS)))
