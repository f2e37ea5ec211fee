"""A lease as its holder, or a remote that joined it, has it in hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lease_locks.errors import LeaseLost
from lease_locks.holding import Holding
from lease_locks.joining import guard
from lease_locks.space import LockKeys
from lease_locks.states import Belief
from lease_locks.tokens import FencingToken

if TYPE_CHECKING:
    from lease_locks.session import Session


HOLDER: Final = "orchestrator"
"""The role of who acquired the lease; any other is that of a remote which joined it."""


class Lease:
    """One grant, kept alive by this process until it is released or lost. Thread-safe.

    Whether it is still held is evaluated at each call, not by a timer: `check`, `remaining`, `guard` and `held` are true
    at the moment they are asked, after any stop or suspend of this process.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_depth",
        "_holding",
        "_key",
        "_leave",
        "_lingers",
        "_lock",
        "_owner",
        "_session",
        "lost",
        "mode",
        "name",
        "role",
        "token",
        "ttl",
    )

    def __init__(
        self,
        session: Session,
        lock: LockKeys,
        token: FencingToken,
        holding: Holding,
        key: bytes,
        mode: str,
        role: str,
    ) -> None:
        self._session = session
        self._lock = lock
        self._holding = holding
        self._key = key
        self._depth = 1
        self._owner: Any = None  # the thread or task that acquired it, and may do so again
        self._lingers = False  # once lost, its row stays until its user has ended what it protects
        self._leave: Callable[[Any], Any] | None = None  # the transaction that ends the row of a lost one that lingers
        self._callbacks: list[Callable[[Lease], Any]] = []
        self.name = lock.name
        self.token = token  # fencing token: orderable, int(), .hex
        self.ttl = holding.ttl  # seconds
        self.mode = mode  # "exclusive" or "shared"
        self.role = role  # "orchestrator", or what it joined as
        self.lost = threading.Event()

    @property
    def writer_id(self) -> str:
        """What a remote needs to join: a text without "/"."""
        return self.token.hex

    @property
    def lost_reason(self) -> str | None:
        """expired, stolen, forced, unreachable or max_hold; None while it isn't lost."""
        self._session.look(self)
        return self._holding.reason

    @property
    def held(self) -> bool:
        """Whether this process may believe, now, that it holds the lease."""
        return self._session.look(self) is Belief.HELD

    def check(self) -> None:
        """Raises `LeaseLost` unless the lease is held now."""
        state = self._session.look(self)
        if state is not Belief.HELD:
            raise self._not_held(state)

    def remaining(self) -> float:
        """Seconds that this process may still believe without another renewal; 0 where it may not."""
        return self._session.remaining(self)

    def maintain(self) -> None:
        """Renew now. Raises `LeaseLost` where the lease is gone."""
        self.check()
        try:
            self._session.renew_now(timeout=self.remaining())
        except Exception:
            self.check()  # the deadline passed meanwhile
            raise
        self.check()

    def release(self, timeout: float | None = None) -> bool:
        """Give the lease back: True if that freed it, now or before; False if it had ended and nobody holds the name.

        Raises `LeaseLost` if a successor holds the name; the successor's lease is never touched. Raises
        `TransactionTimedOut` where the database doesn't answer within `timeout` seconds (None: 10): the lease is not held any more then,
        and is free as soon as the database answers, or expires.
        """
        if self._depth > 1:
            self._session.assert_not_forked()
            self._depth -= 1
            return True
        return self._session.release(self, timeout)

    def guard(self, tr: Any) -> None:
        """Make `tr`, the caller's own transaction, fail to commit if the lease is no longer held.

        One read of the holder's row; renewals never conflict with it. Raises `LeaseLost` where it is lost already.
        """
        self.check()
        guard(tr, self._lock, self.token)

    def on_lost(self, callback: Callable[[Lease], Any]) -> None:
        """Call `callback(lease)` once when the lease is lost, in a thread of its own; where it is lost already, here and now."""
        self._session.assert_not_forked()
        with self._session.mutex:
            if not self.lost.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def _not_held(self, state: Belief) -> LeaseLost:
        if state is Belief.RELEASED:
            return LeaseLost(f"lease {self.name!r} (token {self.token.hex}) was released: acquire it again", "released")
        reason = self._holding.reason or "stolen"
        return LeaseLost(f"lease {self.name!r} (token {self.token.hex}) is lost: {_MEANING[reason]}", reason)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._session.forked:
            return  # a child made by fork() inside the block: the lease is its parent's
        try:
            if not self.release():
                raise LeaseLost(
                    f"lease {self.name!r} (token {self.token.hex}) ended before its block did "
                    f"({self._holding.reason or 'ended'}): what the block did may have met another holder",
                    self._holding.reason or "expired",
                )
        except Exception:
            if error is None:
                raise

    def __reduce__(self) -> Any:
        raise TypeError(
            f"lease {self.name!r} is this process's and can't be pickled: send its name and writer_id, and join it there"
        )

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} token={self.token.hex} {self.role} {self._holding.state}>"


_MEANING = {
    "unreachable": "no renewal reached the database in time, so another process may hold it",
    "expired": "its heartbeats stopped for a whole ttl and it was taken over",
    "stolen": "it was taken over",
    "forced": "a person released it by force",
    "max_hold": "it was held for its max_hold",
}
