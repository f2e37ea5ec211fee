"""Who holds a claim, and whether that one is dead: the port to lease-locks, and what stands in for it in tests.

A claim names a session of lease-locks: while its process lives, its heartbeat goes on; whether it is dead is judged by
the rules of leases (nothing but observation, no clocks compared), in the transaction that takes the claim over.
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

    def is_dead(self, tr: Any, session: str) -> bool:
        """Whether `session` is dead, so that `tr` fails to commit if it shows life meanwhile. False in doubt."""
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

    def is_dead(self, tr: Any, session: str) -> bool:
        with self._lock:
            return session in self._ended

    def close(self) -> None:
        with self._lock:
            self._ended.add(self._session)


class LeaseSessions:
    """Sessions of lease-locks: the session of a `LeaseManager`."""

    def __init__(self, locks: Any, *, owned: bool = False) -> None:
        self._locks = locks
        self._owned = owned

    @property
    def session(self) -> str:
        return str(self._locks.session_id.hex())

    def is_dead(self, tr: Any, session: str) -> bool:
        if session == self.session:
            return False
        return self._locks.session_dead(tr, bytes.fromhex(session)) is not None

    def close(self) -> None:
        if self._owned:
            self._locks.close()
