"""Which claims this process knows that it holds, by session: one of its own that it doesn't know of runs nowhere.

A claim whose commit was never answered, or whose run ended in a way that could not be stored, is the session's in the
sysdb, and nobody's in the process. Its session lives, so nobody else would take it over.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from s3heap_tender.rows.records import Claim

_lock = threading.Lock()
_SESSIONS: Final[dict[str, HeldClaims]] = {}


def _after_fork_in_child() -> None:
    """The claims are the parent's, and a thread of it may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _SESSIONS.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


class HeldClaims:
    """The claims of one session, as its process knows them. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[tuple[UUID, int]] = set()
        self._claiming: Counter[UUID] = Counter()

    @contextmanager
    def claiming(self, task: UUID) -> Iterator[None]:
        """While a claim of the task is under way, what it gets is not lost."""
        with self._lock:
            self._claiming[task] += 1
        try:
            yield
        finally:
            with self._lock:
                self._claiming[task] -= 1
                if not self._claiming[task]:
                    del self._claiming[task]

    def add(self, claim: Claim) -> None:
        """The claim is known; call it within `claiming`."""
        with self._lock:
            self._held.add((claim.id, claim.epoch))

    def discard(self, claim: Claim) -> None:
        """The claim is settled, or given up."""
        with self._lock:
            self._held.discard((claim.id, claim.epoch))

    def knows(self, task: UUID) -> bool:
        """Whether some claim of the task is known, or under way."""
        with self._lock:
            return self._claiming[task] > 0 or any(held == task for held, _ in self._held)

    def lost(self, task: UUID, epoch: int, *, claiming: int = 1) -> bool:
        """Whether the session's claim of that epoch is nobody's; `claiming` are the caller's own claims under way."""
        with self._lock:
            return (task, epoch) not in self._held and self._claiming[task] <= claiming


def held_by(session: str) -> HeldClaims:
    """What this process knows of the session's claims."""
    with _lock:
        found = _SESSIONS.get(session)
        if found is None:
            found = _SESSIONS[session] = HeldClaims()
        return found


def forget(session: str) -> None:
    """The session has ended."""
    with _lock:
        _SESSIONS.pop(session, None)
