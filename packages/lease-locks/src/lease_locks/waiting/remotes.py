"""How a remote becomes a maintainer of a grant that stands."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from idempotent_txn import run, run_committed
from lease_locks.grants import joining
from lease_locks.grants.errors import LeaseError
from lease_locks.grants.records import MaintainerRecord
from lease_locks.grants.rows import HeldGrant
from lease_locks.grants.tokens import FencingToken
from lease_locks.lease import Lease, in_hand
from lease_locks.session.holding import Holding
from lease_locks.session.part import Part
from lease_locks.session.session import Session
from lease_locks.session.upkeep import IDEMPOTENT


def join(
    session: Session, name: str, token: FencingToken, role: str, also: Callable[[Any, HeldGrant], Any] | None = None
) -> Lease:
    """A remote's part of the grant that `token` names; see `LeaseManager.join`. `also(tr, grant)` runs in the transaction."""
    session.start()
    lock = session.space.lock(name)
    record = MaintainerRecord(role, session.clocks.wall_us(), session.record.host, session.record.pid)
    known = session.revocation

    started = session.clocks.boottime()
    at = token
    key = secrets.token_bytes(16)

    def joined(tr: Any) -> HeldGrant:
        nonlocal at, started
        grant = joining.join(tr, lock, token, session.sid, record, session.by)
        at = grant.token
        if also is not None:
            also(tr, grant)
        started = session.clocks.boottime()  # about to commit: a sign of life, however long the database was silent
        return grant

    try:
        outcome = run_committed(session.db, joined, strategy=IDEMPOTENT)
        grant = outcome.value
        if outcome.commit is not None:
            version: int | None = outcome.commit.version
        else:
            version = run(session.db, joining.joined_at, lock, grant.token, session.sid, strategy=IDEMPOTENT)
        holding = Holding(grant.record.ttl_ms / 1000, started, max_hold=joining.hold_left(grant, version))
        part = Part(key, lock, grant.token, grant.record.mode, role, holding)
        session.adopt(part, known)
        return in_hand(session, part)
    except LeaseError:  # refused: nothing was written
        raise
    except BaseException:  # else the session would keep a lease that nobody has in hand
        session.unjoin(lock, at, key)
        raise
