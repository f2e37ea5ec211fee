"""How far each function is, and what ran where and when: kept from what the census notices. Pure; times are wall times."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import Counted, FutureState
from mainspring_dashboard.sampling.history import quantile

SHOWN: Final = 200
RATE_SECONDS: Final = 60
"""A function's rate is that of its ends in so many seconds."""
DURATIONS: Final = 512
"""The last ones, of which the median is."""
ATTEMPTS: Final = 5_000
"""Ended attempts that the timeline keeps, the newest."""


@dataclass(slots=True)
class Pace:
    """Of one function."""

    ended: Counter[int] = field(default_factory=Counter)  # by the second
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=DURATIONS))  # from claim to end
    slowest: float | None = None

    def note(self, one: Counted) -> None:
        """An end; of what failed too it counts how long it ran."""
        self.ended[one.ended_us // 1_000_000] += 1
        if 0 < one.started_us < one.ended_us:
            took = (one.ended_us - one.started_us) / 1e6
            self.seconds.append(took)
            self.slowest = took if self.slowest is None else max(took, self.slowest)

    def rate(self, now: float) -> float:
        """Ends per second in the last minute."""
        since = int(now) - RATE_SECONDS
        for old in [second for second in self.ended if second <= since]:
            del self.ended[old]
        return self.ended.total() / RATE_SECONDS


class Paces:
    """What is told of functions beyond their counts, and the last attempts that ended."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}
        self.attempts: deque[Counted] = deque(maxlen=ATTEMPTS)
        self.noted = 0  # attempts ever

    def note(self, ended: Iterable[Counted], known: Mapping[str, Counted]) -> None:
        """Futures that ended, and the functions that there are; others are forgotten."""
        for one in ended:
            if one.name in known:
                self._paces.setdefault(one.name, Pace()).note(one)
            if one.started_us and one.ended_us:
                self.attempts.append(one)
                self.noted += 1
        for gone in self._paces.keys() - known.keys():
            del self._paces[gone]

    def rows(
        self, counts: Mapping[tuple[str, FutureState], int], known: Mapping[str, Counted], now: float
    ) -> list[dict[str, Any]]:
        """Functions for JSON, the one used last first."""
        by_name: dict[str, dict[str, int]] = {}
        for (name, state), number in counts.items():
            by_name.setdefault(name, dict.fromkeys((one.value for one in FutureState), 0))[state.value] += number
        names = sorted((name for name in by_name if name in known), key=lambda name: known[name].id, reverse=True)
        return [self._row(name, by_name[name], known[name], now) for name in names[:SHOWN]]

    def _row(self, name: str, counts: dict[str, int], latest: Counted, now: float) -> dict[str, Any]:
        """left: seconds until its last future ends, at the pace of the last minute; None where that isn't known."""
        pace = self._paces.get(name, Pace())
        rate = pace.rate(now)
        left = counts["waiting"] + counts["unclaimed"] + counts["claimed"]
        return {
            "name": name,
            "counts": counts,
            "median": quantile(sorted(pace.seconds), 0.5),
            "slowest": pace.slowest,
            "rate": rate,
            "left": left / rate if left and rate else None,
            "last": latest.submitted_us / 1e6 or None,
            "id": str(UUID(bytes=latest.id)),
        }


def attempt_row(one: Counted) -> list[Any]:
    """For the timeline: id, function, worker, begin, end or None, state; seconds since 1970."""
    ended = one.ended_us / 1e6 if one.ended_us else None
    return [str(UUID(bytes=one.id)), one.name, one.worker, one.started_us / 1e6, ended, one.state.value]
