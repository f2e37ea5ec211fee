"""What a process may believe about the leases it maintains, and when it renews them. Pure: times come as arguments.

Times are seconds of the boot-time clock, which counts a suspend. A deadline is evaluated wherever the belief is asked
for, so that a process that was stopped believes nothing stale when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from lease_locks.grants.observer import FENCE
from lease_locks.grants.states import Belief, News, next_belief

RENEW_EVERY: Final = 1 / 3  # of the shortest ttl
RENEW_JITTER: Final = 0.1
_RETRY_FIRST: Final = 0.05
_RETRY_SHARE: Final = 0.1  # of the ttl: the longest pause between two attempts of a failing renewal


class Holding:
    """One lease as one of its maintainers sees it."""

    __slots__ = ("deadline", "hold_until", "left", "maintained", "reason", "state", "ttl", "unsettled")

    def __init__(self, ttl: float, started: float, *, max_hold: float = 0.0, maintained: bool = True) -> None:
        self.ttl = ttl
        self.maintained = maintained
        self.deadline = started + FENCE * ttl
        self.hold_until = started + max_hold if max_hold else float("inf")
        self.state = Belief.HELD
        self.reason: str | None = None
        self.left = False  # to other maintainers: this part of it is over, and releases nothing
        self.unsettled = False  # its release was asked for, and is still owed to the database

    def learn(self, news: News, reason: str | None = None) -> bool:
        """Apply a row of the table; True where the lease was lost by it."""
        before, self.state = self.state, next_belief(self.state, news)
        if self.state is Belief.LOST and before is Belief.HELD:
            self.reason = reason
            return True
        return False

    def overdue(self, now: float) -> tuple[News, str] | None:
        """The news that the clock alone brings."""
        if now >= self.hold_until:
            return News.HOLD_OVER, "max_hold"
        if now >= self.deadline:
            return News.DEADLINE, "unreachable"
        return None

    def look(self, now: float) -> Belief:
        """The belief at `now`."""
        if self.state is Belief.HELD:
            news = self.overdue(now)
            if news is not None:
                self.learn(*news)
        return self.state

    def renewed(self, started: float, now: float) -> None:
        """A heartbeat begun at `started` committed, and is known to have at `now`."""
        if self.look(now) is Belief.HELD:
            self.learn(News.RENEWED)
            self.deadline = max(self.deadline, started + FENCE * self.ttl)

    def remaining(self, now: float) -> float:
        """Seconds until the belief ends unless it is renewed; 0 where it has ended. Changes nothing."""
        if self.state is not Belief.HELD:
            return 0.0
        return max(0.0, min(self.deadline, self.hold_until) - now)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal in flight: when it began, what it is for, and what it looks at if the session was told to look."""

    started: float
    keys: frozenset[Hashable]
    looked: frozenset[Hashable]
    known: bytes | None  # revocation row


class RenewalPlan:
    """When the session's heartbeat is due: every ttl/3 (±10 %) of the shortest ttl, and soon again after a failure."""

    def __init__(self, ttl: float, jitter: Callable[[], float]) -> None:
        self._session_ttl = ttl
        self._jitter = jitter  # uniform in [0, 1)
        self._failures = 0
        self._last_start: float | None = None
        self._share = self._draw()
        self._retry_at: float | None = None

    def _draw(self) -> float:
        return RENEW_EVERY * (1 + RENEW_JITTER * (2 * self._jitter() - 1))

    def due(self, shortest_ttl: float | None, since: float) -> float:
        """When the next heartbeat is due; `since`: when there began to be anything to renew."""
        if self._retry_at is not None:
            return self._retry_at
        start = since if self._last_start is None else max(self._last_start, since)
        return start + self._share * min(self._session_ttl, shortest_ttl or self._session_ttl)

    def succeeded(self, started: float) -> None:
        self._last_start = started if self._last_start is None else max(started, self._last_start)
        self._failures, self._retry_at, self._share = 0, None, self._draw()

    def failed(self, now: float, shortest_ttl: float | None) -> None:
        """The attempt failed: again soon, for as long as anything is left to renew. It never leaves the schedule."""
        longest = _RETRY_SHARE * min(self._session_ttl, shortest_ttl or self._session_ttl)
        pause = min(longest, _RETRY_FIRST * 2 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at = now + pause * (0.5 + self._jitter())


class SessionCore:
    """All holdings of one session: events in, what is lost and due out."""

    def __init__(self, ttl: float, jitter: Callable[[], float], now: float) -> None:
        self.plan = RenewalPlan(ttl, jitter)
        self.holdings: dict[Hashable, Holding] = {}
        self.revocation: bytes | None = None  # the row as it was when all holdings were known to stand
        self._began = now

    def add(self, key: Hashable, holding: Holding, known: bytes | None = None) -> bool:
        """Keep a lease; `known`: `revocation` as it was before the lease was asked for.

        True where the session was told to look in between: perhaps because this very lease ended already, so it has to
        look again.
        """
        self.holdings[key] = holding
        if known == self.revocation:
            return False
        self.revocation = None
        return True

    def drop(self, key: Hashable) -> Holding | None:
        return self.holdings.pop(key, None)

    def shortest_ttl(self) -> float | None:
        return min((h.ttl for h in self.holdings.values()), default=None)

    def renewal_due(self) -> float:
        return self.plan.due(self.shortest_ttl(), self._began)

    def active_since(self, now: float) -> None:
        """There is something to renew again, after a time without: a new grant needs no heartbeat at once."""
        self._began = now

    def renewal_due_for(self, ttl: float) -> float:
        """When a heartbeat is due for a lease of `ttl`, if it were the only one."""
        return self.plan.due(ttl, self._began)

    def next_deadline(self) -> float:
        """When the clock alone ends the next belief; infinity where there is none."""
        return min(
            (min(h.deadline, h.hold_until) for h in self.holdings.values() if h.state is Belief.HELD),
            default=float("inf"),
        )

    def lost_by(self, now: float) -> list[tuple[Hashable, Holding]]:
        """The holdings that the clock ended; each is told once."""
        lost = []
        for key, holding in list(self.holdings.items()):
            before = holding.state
            if before is Belief.HELD and holding.look(now) is Belief.LOST:
                lost.append((key, holding))
        return lost

    def begin_renewal(self, now: float) -> Renewal:
        keys = frozenset(k for k, h in self.holdings.items() if h.maintained and h.state is Belief.HELD)
        return Renewal(now, keys, frozenset(self.holdings), self.revocation)

    def renewal_done(
        self, renewal: Renewal, now: float, revocation: bytes | None, ended: Iterable[tuple[Hashable, str]] = ()
    ) -> list[tuple[Hashable, Holding]]:
        """The heartbeat committed; `revocation`: the row it read; `ended`: (key, reason) of grants it found gone.

        Returns what is lost by that.
        """
        self.plan.succeeded(renewal.started)
        if self.revocation == renewal.known and revocation != renewal.known:
            # What was acquired meanwhile was not looked at: it may be what the session was told of.
            self.revocation = revocation if renewal.looked.issuperset(self.holdings) else None
        lost = []
        for key, reason in ended:
            holding = self.holdings.get(key)
            if holding is None:
                continue
            news = News.RELEASED if reason == "released" else News.ENDED
            if holding.learn(news, reason):
                lost.append((key, holding))
        for key in renewal.keys:
            holding = self.holdings.get(key)
            if holding is not None:
                before = holding.state
                holding.renewed(renewal.started, now)
                if before is Belief.HELD and holding.state is Belief.LOST:
                    lost.append((key, holding))
        return lost

    def renewal_failed(self, now: float) -> None:
        self.plan.failed(now, self.shortest_ttl())
