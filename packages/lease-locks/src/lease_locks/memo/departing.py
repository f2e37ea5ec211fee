"""How an orchestrator leaves an invocation whose remote goes on: the lock stays with the remote, a maintainer of it.

An orchestrator that is interrupted, or whose manager is closed, must not free the lock of a remote that runs: whoever
calls next would compute a second time. It only stops maintaining: a remote that joined keeps the lock by its own
heartbeats, and one that is pending is adopted by the next orchestrator once the lock expired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from idempotent_txn import run
from lease_locks.grants import ending
from lease_locks.grants.rows import read_grant
from lease_locks.grants.states import Event, Grant, next_grant
from lease_locks.lease import Lease
from lease_locks.locks import LeaseManager
from lease_locks.memo.rows import MemoKeys
from lease_locks.memo.stored.records import AttemptRecord
from lease_locks.session.upkeep import IDEMPOTENT

log = logging.getLogger("lease_locks")


class Departures:
    """The invocations that a runner of this process has computed now, each to be left where the runner ends first."""

    def __init__(self, locks: LeaseManager, attaches: Callable[[], bool]) -> None:
        self._locks = locks
        self._attaches = attaches
        self._under_way: dict[bytes, tuple[MemoKeys, Lease]] = {}
        locks.before_close(self)

    def begin(self, keys: MemoKeys, lease: Lease) -> None:
        """The Shell is about to be called, or a remote adopted, under `lease`."""
        self._under_way[bytes(lease.token)] = keys, lease

    def end(self, lease: Lease) -> None:
        """The invocation is over, or left."""
        self._under_way.pop(bytes(lease.token), None)

    def close(self) -> None:
        """Leave whatever is under way; called before the manager releases its leases."""
        for keys, lease in list(self._under_way.values()):
            self.leave(keys, lease)

    def leave(self, keys: MemoKeys, lease: Lease) -> bool:
        """Stop maintaining `lease`; True where the lock stays with a remote, False where it is released."""
        session, holding = self._locks.session, lease.part.holding
        if session.forked:
            return False
        if holding.left:
            return True
        # Whatever this process believes of its own part: a remote that joined keeps the lock by its own heartbeats.
        lock = self._locks.space.lock(lease.name)
        # Before the transaction: a remote in this process keeps its part.
        session.ended_elsewhere(lease.part, freed=False)

        def depart(tr: Any) -> bool:
            grant = read_grant(tr, lock, lease.token)
            if grant is None:
                return False
            attempt = AttemptRecord.found(tr.get(keys.attempt(bytes(lease.token))).value)
            pending = self._attaches() and attempt is not None and bool(attempt.handle)
            # A remote of this very process that has ended without its outcome: this session would keep its row alive.
            ended = not session.ledger.remotes(lease.name, lease.token.stamp)
            joined = any(sid != session.sid or not ended for sid, _ in grant.joins)
            if joined or grant.record.adopts or pending:
                next_grant(Grant.HELD, Event.LEFT)
                tr.set(grant.key, replace(grant.record, maintained=False, left=True).encode())
                return True
            # Nobody could follow a remote that has not joined yet; it is refused at its join from now on.
            wall = session.clocks.wall_us()
            ending.release(tr, self._locks.space, lock, lease.token, session.sid, session.by, "left", wall)
            return False

        try:
            stays = run(self._locks.db, depart, strategy=IDEMPOTENT, timeout=10.0)
        except BaseException as error:
            holding.left = True
            session.owe(depart)
            if not isinstance(error, Exception):
                raise
            log.warning("the lock of %s is left later: %s", keys.memo, error)
            return True
        holding.left = True
        if stays:
            log.info("%s is left to its remote; call again to await its outcome", keys.memo)
        return stays
