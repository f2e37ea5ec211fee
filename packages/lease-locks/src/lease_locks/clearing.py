"""Ending the grants that nobody wants any more: whose holders died, and that nobody came to take over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from idempotent_txn import run
from lease_locks.locks import LeaseManager
from lease_locks.observer import Dead
from lease_locks.rows import grant_subject, read_name
from lease_locks.session import IDEMPOTENT
from lease_locks.tokens import FencingToken
from lease_locks.transitions import Claim, _take_over

ABANDONED_SECONDS: Final = 3_600.0


class AbandonedLeases:
    """Ends grants that were found dead over and over for `after` seconds of this process's clock; keep one and call it.

    The wait leaves a pending invocation's lock to whoever wants to adopt it. A grant that shows life meanwhile is left.
    """

    def __init__(
        self,
        locks: LeaseManager,
        after: float = ABANDONED_SECONDS,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locks = locks
        self._after = after
        self._monotonic = monotonic
        self._dead_since: dict[tuple[str, FencingToken], float] = {}

    def clear(self) -> int:
        """Look at every grant once; how many were ended."""
        before, self._dead_since = self._dead_since, {}
        cleared = 0
        for name in dict.fromkeys(info.name for info in self._locks.list()):
            dead = run(self._locks.db, self._dead, name, strategy=IDEMPOTENT)
            now = self._monotonic()
            for token in dead:
                since = before.get((name, token), now)
                if now - since < self._after:
                    self._dead_since[name, token] = since
                elif run(self._locks.db, self._end, name, token, strategy=IDEMPOTENT):
                    cleared += 1
        return cleared

    def _dead(self, tr: Any, name: str) -> list[FencingToken]:
        return [grant.token for grant, _, _ in self._verdicts(tr, name)]

    def _end(self, tr: Any, name: str, token: FencingToken) -> bool:
        session = self._locks._session
        for grant, subject, verdict in self._verdicts(tr, name):
            if grant.token == token:
                record = session.record
                wall = session.clocks.wall_us()
                claim = Claim(b"", session.sid, 0.0, host=record.host, pid=record.pid, wall_us=wall)
                lock = self._locks.space.lock(name)
                _take_over(tr, self._locks.space, lock, grant, subject, verdict, claim, 0)
                return True
        return False

    def _verdicts(self, tr: Any, name: str) -> list[tuple[Any, Any, Dead]]:
        lock = self._locks.space.lock(name)
        version = tr.get_read_version().wait()
        found = []
        for grant in read_name(tr, lock).grants:
            subject = grant_subject(tr, self._locks.space, lock, grant)
            verdict = self._locks._session.observer.judge(subject, version)
            if isinstance(verdict, Dead):
                found.append((grant, subject, verdict))
        return found
