"""Who holds a claim, and whether that one is dead: the port to lease-locks, and what stands in for it in tests.

A claim names a session of lease-locks: while its process lives, its heartbeat goes on; whether it is dead is judged by
the rules of leases (nothing but observation, no clocks compared), in the transaction that takes the claim over.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any, Protocol

from fdb_schema import RecordError


class Sessions(Protocol):
    """What the sysdb needs to know of sessions."""

    @property
    def session(self) -> str:
        """The name of this process's session."""
        ...

    def why_gone(self, tr: Any, session: str) -> str | None:
        """Why `session` is not heard of any more, for people, by one look; None where it may well live."""
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

    def why_gone(self, tr: Any, session: str) -> str | None:
        return "its session has ended" if self.is_dead(tr, session) else None

    def is_dead(self, tr: Any, session: str) -> bool:
        with self._lock:
            return session in self._ended

    def close(self) -> None:
        with self._lock:
            self._ended.add(self._session)


class LeaseSessions:
    """Sessions of lease-locks: the session of a `LeaseManager`."""

    def __init__(self, locks: Any, *, owned: bool = False) -> None:
        self.locks = locks
        self._owned = owned

    @property
    def session(self) -> str:
        return str(self.locks.session_id.hex())

    def why_gone(self, tr: Any, session: str) -> str | None:
        why = self.locks.session_dead(tr, _id_of(session))
        return None if why is None else str(why)

    def is_dead(self, tr: Any, session: str) -> bool:
        if session == self.session:
            return False
        return self.locks.session_dead(tr, _id_of(session)) is not None

    def close(self) -> None:
        if self._owned:
            self.locks.close()


def _id_of(session: str) -> bytes:
    try:
        return bytes.fromhex(session)
    except ValueError:
        raise RecordError(f"{session!r:.80} is the name of no session") from None
