"""Who holds a claim, and whether that one is dead: the port to lease-locks, and what stands in for it in tests.

A claim names a session. A session is one lease on a name of its own: while its process lives, the lease is renewed
with all the process's others; when it is dead by the lease's rules (nothing but observation, no clocks compared),
taking the lease succeeds, and only then may its claims be retaken.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any, Protocol


class Sessions(Protocol):
    """What the sysdb needs to know of sessions."""

    @property
    def session(self) -> str:
        """The name of this process's session."""
        ...

    def is_dead(self, session: str) -> bool:
        """Whether `session` is dead for good. False while there is any doubt."""
        ...

    def close(self) -> None:
        """End this session: its claims may be retaken at once."""
        ...


class LocalSessions:
    """Sessions of one process that end when they are told to; for tests and simulations."""

    _ended: set[str] = set()
    _lock = threading.Lock()

    def __init__(self, session: str | None = None) -> None:
        self._session = session or uuid.uuid4().hex

    @property
    def session(self) -> str:
        return self._session

    def is_dead(self, session: str) -> bool:
        with self._lock:
            return session in self._ended

    def close(self) -> None:
        with self._lock:
            self._ended.add(self._session)


class LeaseSessions:
    """Sessions as leases of lease-locks: `s3heap/session/NAME`."""

    PREFIX = "s3heap/session/"

    def __init__(self, locks: Any) -> None:
        self._locks = locks
        self._lease: Any = None
        self._session = ""
        self._lock = threading.Lock()
        self._dead: set[str] = set()

    @property
    def session(self) -> str:
        """This process's session; a new one where the lease of the last was lost (its claims are lost with it)."""
        with self._lock:
            if self._lease is None or self._lease.lost.is_set():
                self._session = uuid.uuid4().hex
                self._lease = self._locks.acquire(self.PREFIX + self._session, timeout=30)
            return self._session

    def is_dead(self, session: str) -> bool:
        with self._lock:
            if session == self._session and self._lease is not None and not self._lease.lost.is_set():
                return False
            if session in self._dead:
                return True
        lease = self._locks.try_acquire(self.PREFIX + session)
        if lease is None:
            return False
        lease.release()
        with self._lock:
            self._dead.add(session)
        return True

    def close(self) -> None:
        with self._lock:
            if self._lease is not None and not self._lease.lost.is_set():
                self._lease.release()
            self._lease = None
