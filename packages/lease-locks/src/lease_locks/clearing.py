"""Ending the grants that nobody wants any more: whose holders died, and that nobody came to take over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from idempotent_txn import run
from lease_locks.ending import Found, judge_grants, take_over
from lease_locks.locks import LeaseManager
from lease_locks.observer import Dead
from lease_locks.session import IDEMPOTENT
from lease_locks.tokens import FencingToken

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
        return [found.grant.token for found in self._found(tr, name)]

    def _end(self, tr: Any, name: str, token: FencingToken) -> bool:
        session = self._locks._session
        dead = [found for found in self._found(tr, name) if found.grant.token == token]
        lock = self._locks.space.lock(name)
        take_over(tr, self._locks.space, lock, dead, session.sid, session.by, session.clocks.wall_us())
        return bool(dead)

    def _found(self, tr: Any, name: str) -> list[Found]:
        locks = self._locks
        judged = judge_grants(tr, locks.space, locks.space.lock(name), locks._session.observer)
        return [Found(grant, subject, v) for grant, subject, v in judged if isinstance(v, Dead)]
