"""A lease as its holder, or a remote that joined it, has it in hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from lease_locks.grants.errors import LeaseLost
from lease_locks.grants.joining import guard
from lease_locks.grants.states import Belief
from lease_locks.session.part import Part
from lease_locks.session.session import Session


class Lease:
    """One grant, kept alive by this process until it is released or lost. Thread-safe.

    Whether it is still held is evaluated at each call, not by a timer: `check`, `remaining`, `guard` and `held` are true
    at the moment they are asked, after any stop or suspend of this process.
    """

    __slots__ = ("__weakref__", "_session", "lost", "mode", "name", "part", "role", "token", "ttl")

    def __init__(self, session: Session, part: Part) -> None:
        self._session = session
        self.part = part  # what the session keeps of it
        self.name = part.name
        self.token = part.token  # fencing token: orderable, int(), .hex
        self.ttl = part.holding.ttl  # seconds
        self.mode = part.mode  # "exclusive" or "shared"
        self.role = part.role  # "orchestrator", or what it joined as
        self.lost = part.lost

    @property
    def writer_id(self) -> str:
        """What a remote needs to join: a text without "/"."""
        return self.token.hex

    @property
    def lost_reason(self) -> str | None:
        """expired, stolen, forced, unreachable or max_hold; None while it isn't lost."""
        self._session.ledger.look(self.part)
        return self.part.holding.reason

    @property
    def held(self) -> bool:
        """Whether this process may believe, now, that it holds the lease."""
        return self._session.ledger.look(self.part) is Belief.HELD

    def check(self) -> None:
        """Raises `LeaseLost` unless the lease is held now."""
        state = self._session.ledger.look(self.part)
        if state is not Belief.HELD:
            raise self._not_held(state)

    def remaining(self) -> float:
        """Seconds that this process may still believe without another renewal; 0 where it may not."""
        return self._session.ledger.remaining(self.part)

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
        self._session.assert_not_forked()
        if self.part.depth > 1:
            self.part.depth -= 1
            return True
        return self._session.release(self.part, timeout)

    def guard(self, tr: Any) -> None:
        """Make `tr`, the caller's own transaction, fail to commit if the lease is no longer held.

        One read of the holder's row; renewals never conflict with it. Raises `LeaseLost` where it is lost already.
        """
        self.check()
        guard(tr, self.part.lock, self.token)

    def on_lost(self, callback: Callable[[Lease], Any]) -> None:
        """Call `callback(lease)` once when the lease is lost, in a thread of its own; where it is lost already, here and now."""
        self._session.assert_not_forked()
        with self._session.ledger.mutex:
            if not self.lost.is_set():
                self.part.on_lost.append(lambda: callback(self))
                return
        callback(self)

    def _not_held(self, state: Belief) -> LeaseLost:
        if state is Belief.RELEASED:
            return LeaseLost(f"lease {self.name!r} (token {self.token.hex}) was released: acquire it again", "released")
        reason = self.part.holding.reason or "stolen"
        return LeaseLost(f"lease {self.name!r} (token {self.token.hex}) is lost: {_MEANING[reason]}", reason)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if self._session.forked:
                return  # a child made by fork() inside the block: the lease is its parent's
            if not self.release():
                raise LeaseLost(
                    f"lease {self.name!r} (token {self.token.hex}) ended before its block did "
                    f"({self.part.holding.reason or 'ended'}): what the block did may have met another holder",
                    self.part.holding.reason or "expired",
                )
        except Exception:
            if error is None:
                raise
        except BaseException:
            if self.part.depth <= 1:
                self._session.release_later([self.part])  # an interrupt may come before the release began
            raise

    def __reduce__(self) -> Any:
        raise TypeError(
            f"lease {self.name!r} is this process's and can't be pickled: send its name and writer_id, and join it there"
        )

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} token={self.token.hex} {self.role} {self.part.holding.state}>"


def in_hand(session: Session, part: Part) -> Lease:
    """The lease over what the session keeps: the one that is in hand already, where it still is."""
    lease = None if part.handle is None else part.handle()
    if lease is None:
        lease = Lease(session, part)
        part.handle = weakref.ref(lease)
    return lease


_MEANING = {
    "unreachable": "no renewal reached the database in time, so another process may hold it",
    "expired": "its heartbeats stopped for a whole ttl and it was taken over",
    "stolen": "it was taken over",
    "forced": "a person released it by force",
    "max_hold": "it was held for its max_hold",
}
