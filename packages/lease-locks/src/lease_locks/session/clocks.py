"""The clocks a process reads, in one place, so that a test may bring its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from lease_locks.session.host import boottime


class Clocks(Protocol):
    """Three clocks with three purposes; none is ever compared with another machine's."""

    def boottime(self) -> float:
        """Seconds, a suspend included: for what this process may believe."""

    def monotonic(self) -> float:
        """Seconds, a suspend not included: for what this process observed of others."""

    def wall_us(self) -> int:
        """µs since 1970: stored for people to read."""


@dataclass(frozen=True, slots=True)
class SystemClocks:
    """The clocks of this machine."""

    def boottime(self) -> float:
        return boottime()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000
