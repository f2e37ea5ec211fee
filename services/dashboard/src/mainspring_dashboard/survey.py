"""One look through the newest futures: what went wrong with them, and how far each function is."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import FutureInfo, FutureState, list_futures, list_workers
from fdb_datamodel.reading import with_reason
from fdb_datamodel.troubles import Troubles
from fdb_schema import ClusterSpace
from idempotent_txn import run
from mainspring_dashboard.history import quantile

NEWEST: Final = 3_000
"""Futures that are looked through."""
BUDGET_SECONDS: Final = 2.0
"""After which a look reads on no further: between the futures may be millions of ids that were deleted."""
KEPT_SECONDS: Final = 3.0
PAGE: Final = 500
GROUPS: Final = 12
FUNCTIONS: Final = 50
RATE_SECONDS: Final = 60.0
"""A function's rate is that of its ends in so many seconds."""


@dataclass(slots=True)
class Function:
    """What is known of a function's futures. Times are wall times in µs, for people."""

    name: str
    counts: dict[FutureState, int] = field(default_factory=lambda: dict.fromkeys(FutureState, 0))
    seconds: list[float] = field(default_factory=list)  # from the claim to the result, of those that have one
    ended_lately: int = 0
    last_us: int = 0  # when the newest was submitted
    id: bytes = b""  # of the newest

    def add(self, info: FutureInfo, now_us: int) -> None:
        """Count a future."""
        self.counts[info.state] += 1
        ended_us = info.ended_us
        if info.state is FutureState.realized and info.claimed_us and ended_us >= info.claimed_us:
            self.seconds.append((ended_us - info.claimed_us) / 1e6)
        if info.state in (FutureState.realized, FutureState.failed) and now_us - ended_us <= RATE_SECONDS * 1e6:
            self.ended_lately += 1
        if info.wall_us >= self.last_us:
            self.last_us, self.id = info.wall_us, info.id

    def row(self) -> dict[str, Any]:
        """For JSON. left: seconds until its last future ends, at the pace of the last minute; None where that isn't known."""
        left = sum(self.counts[state] for state in (FutureState.waiting, FutureState.unclaimed, FutureState.claimed))
        rate = self.ended_lately / RATE_SECONDS
        self.seconds.sort()
        return {
            "name": self.name,
            "counts": {state.value: count for state, count in self.counts.items()},
            "median": quantile(self.seconds, 0.5),
            "slowest": self.seconds[-1] if self.seconds else None,
            "rate": rate,
            "left": left / rate if left and rate else None,
            "last": self.last_us / 1e6 if self.last_us else None,
            "id": str(UUID(bytes=self.id)),
        }


class Survey:
    """The answers of one look, kept for some seconds: any number of pages may ask. Methods block."""

    def __init__(self, db: Any, space: ClusterSpace) -> None:
        self._db = db
        self._space = space
        self._lock = threading.Lock()  # who comes while somebody looks gets the same
        self._until = 0.0
        self._kept: dict[str, Any] = {}

    def attention(self) -> dict[str, Any]:
        """Groups of failures, and of futures that nobody will run as things are.

        looked: how many futures were looked through, the newest; all: whether those are all there are.
        """
        found = self._look()
        return {**found["attention"], "looked": found["looked"], "all": found["all"]}

    def functions(self) -> dict[str, Any]:
        """How far each function is, the one used last first. looked, all: as `attention` has them."""
        found = self._look()
        return {"functions": found["functions"], "looked": found["looked"], "all": found["all"]}

    def _look(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._kept = self._read()
                self._until = time.monotonic() + KEPT_SECONDS
            return self._kept

    def _read(self) -> dict[str, Any]:
        workers = run(self._db, list_workers, self._space, strategy="off")
        troubles, functions = Troubles(), dict[str, Function]()
        cursor: bytes | None = None
        looked, now_us, until = 0, time.time_ns() // 1000, time.monotonic() + BUDGET_SECONDS
        while looked < NEWEST:
            infos, cursor = run(
                self._db, list_futures, self._space, cursor, PAGE, None, newest_first=True, strategy="off"
            )
            looked += len(infos)
            for info in infos:
                troubles.add(with_reason(info, workers))
                functions.setdefault(info.name, Function(info.name)).add(info, now_us)
            if cursor is None or time.monotonic() >= until:
                break
        latest = sorted(functions.values(), key=lambda one: -one.last_us)[:FUNCTIONS]
        return {
            "looked": looked,
            "all": cursor is None,
            "functions": [function.row() for function in latest],
            "attention": _attention(troubles),
        }


def _attention(troubles: Troubles) -> dict[str, Any]:
    groups = [
        {
            "kind": group.kind.value,
            "name": group.name,
            "what": group.what,
            "count": group.count,
            "id": str(UUID(bytes=group.id)),
            "message": group.message[:500],
            "last": group.last_us / 1e6 if group.last_us > 0 else None,
        }
        for group in troubles.listed()[:GROUPS]
    ]
    return {"groups": groups, "more": max(0, len(troubles.groups) - GROUPS), "followers": troubles.followers}
