"""Clearing what nobody wants any more: grants of the dead that nobody came to take over, and old histories of memo locks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from fdb_schema import read_version
from idempotent_txn import run
from lease_locks.errors import DamagedRowError
from lease_locks.grants.ending import Found, judge_grants, take_over
from lease_locks.grants.observer import VERSIONS_PER_SECOND, Dead
from lease_locks.grants.rows import read_name
from lease_locks.grants.tokens import FencingToken
from lease_locks.locks import LeaseManager
from lease_locks.session.upkeep import IDEMPOTENT

ABANDONED_SECONDS: Final = 3_600.0
HISTORY_SECONDS: Final = 7 * 86_400.0
MEMO_NAMES: Final = "memo/"
_A_ROUND: Final = 256
"""Names that one round of `OldHistories` looks at."""
_A_PAGE: Final = 64
"""Names that one transaction of `AbandonedLeases` judges."""


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
        names = list(dict.fromkeys(info.name for info in self._locks.list()))
        for first in range(0, len(names), _A_PAGE):
            dead = run(self._locks.db, self._dead, names[first : first + _A_PAGE], strategy=IDEMPOTENT)
            now = self._monotonic()
            for name, token in dead:
                since = before.get((name, token), now)
                if now - since < self._after:
                    self._dead_since[name, token] = since
                elif run(self._locks.db, self._end, name, token, strategy=IDEMPOTENT):
                    cleared += 1
        return cleared

    def _dead(self, tr: Any, names: list[str]) -> list[tuple[str, FencingToken]]:
        dead = []
        for name in names:
            # What a damaged row is, the listing has named: what else there is of the name stays until it is mended.
            with contextlib.suppress(DamagedRowError):
                dead += [(name, found.grant.token) for found in self._found(tr, name)]
        return dead

    def _end(self, tr: Any, name: str, token: FencingToken) -> bool:
        session = self._locks.session
        dead = [found for found in self._found(tr, name) if found.grant.token == token]
        lock = self._locks.space.lock(name)
        take_over(tr, self._locks.space, lock, dead, session.sid, session.by, session.clocks.wall_us())
        return bool(dead)

    def _found(self, tr: Any, name: str) -> list[Found]:
        locks = self._locks
        judged = judge_grants(tr, locks.space, locks.space.lock(name), locks.session.observer)
        return [Found(grant, subject, v) for grant, subject, v in judged if isinstance(v, Dead)]


class OldHistories:
    """Forgets the histories of memo locks, of which there is one for every call ever computed; keep one and call it.

    Only events go. The last token stays: without it a name granted again after the cluster's versions went back (a
    restored copy) would give a token below an earlier one. It is one small row for each name.
    """

    def __init__(self, locks: LeaseManager, after: float = HISTORY_SECONDS) -> None:
        self._locks = locks
        self._after = after
        self._at, self._end = locks.space.histories_from(MEMO_NAMES)

    def clear(self, names: int = _A_ROUND) -> int:
        """Look at up to `names` histories, from where the last round ended; how many were forgotten."""
        cleared = 0
        for _ in range(names):
            at, forgotten = run(self._locks.db, self._look, self._at, strategy=IDEMPOTENT)
            cleared += forgotten
            if at is None:
                self._at, _ = self._locks.space.histories_from(MEMO_NAMES)
                break
            self._at = at
        return cleared

    def _look(self, tr: Any, at: bytes) -> tuple[bytes | None, bool]:
        """(where the next history begins, whether the one at `at` was forgotten); (None, False) at the end."""
        space = self._locks.space
        first = list(tr.snapshot.get_range(at, self._end, limit=1))
        if not first:
            return None, False
        lock = space.lock(space.name_of(first[0].key))
        past = lock.events + b"\xff"
        newest = list(tr.snapshot.get_range(lock.events, past, limit=1, reverse=True))
        version = int.from_bytes(lock.event_stamp(newest[0].key)[:8], "big")
        if (read_version(tr) - version) / VERSIONS_PER_SECOND < self._after:
            return past, False
        # Serializable: every grant writes the last token, so one that lands meanwhile refuses this. A pending remote
        # needs a holder to join, so nothing is pending where there is none.
        tr.get(lock.last).wait()
        rows = read_name(tr, lock, snapshot=False)
        if rows.grants or rows.first is not None:
            return past, False
        tr.clear_range(lock.events, past)
        return past, True
