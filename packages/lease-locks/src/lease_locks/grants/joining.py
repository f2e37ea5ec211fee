"""What remotes and holders ask of a grant that stands: join it, guard a transaction by it, give up what it adopted.

Functions of a transaction, each one row of `states.GRANT_ROWS` or none, each safe to run twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from lease_locks.grants.ending import how_ended, write_event
from lease_locks.grants.errors import CannotMaintainLock, LeaseLost, LockReleased, LockWasStolenError
from lease_locks.grants.observer import VERSIONS_PER_SECOND
from lease_locks.grants.records import EventRecord, HolderRecord, MaintainerRecord
from lease_locks.grants.rows import HeldGrant, decoded, read_grant, read_name
from lease_locks.grants.space import LockKeys, stamped_value
from lease_locks.grants.states import Event, Grant, next_grant
from lease_locks.grants.tokens import STAMP_BYTES, FencingToken

_NOTHING: Final = 1e-6  # seconds: over at once, and not the 0.0 of "no limit"


def join(tr: Any, lock: LockKeys, token: FencingToken, session: bytes, record: MaintainerRecord, by: str) -> HeldGrant:
    """HELD ─joined─▶ HELD: `session` becomes a maintainer in the transaction that finds the grant still there.

    The holder's row is read serializably, so a takeover in between aborts this. A grant that adopted `token` is joined
    in its place. An expired grant that nobody took over is alive again by this.

    Raises:
        LockWasStolenError: somebody else holds the name.
        LockReleased: nobody does.
        CannotMaintainLock: there never was a grant of this name.
    """
    found = tr.get(lock.holder(token))
    if not found.present():
        for grant in read_name(tr, lock, snapshot=False).grants:
            if bytes(token) in grant.record.adopts:
                token = grant.token
                found = tr.get(lock.holder(token))
                break
    if not found.present():
        _refuse_join(tr, lock, token)
    next_grant(Grant.HELD, Event.JOINED)
    holder = decoded(lock, HolderRecord, lock.holder(token), found.value)
    key = lock.maintainer(token, session)
    before = tr.snapshot.get(key).value
    tr.set_versionstamped_value(key, stamped_value(record.encode()))
    if before is None or before[STAMP_BYTES:] != record.encode():  # else an attempt of this very join had committed
        write_event(
            tr, lock, 0, EventRecord("joined", bytes(token), token.epoch, by, session, record.role, record.joined_us)
        )
    return HeldGrant(lock.holder(token), token, holder)


def hold_left(grant: HeldGrant, version: int | None) -> float:
    """Seconds of the grant's max_hold that are left to who joined it by a commit of `version`; 0.0 where it has none.

    By the age of its token, not by a clock. The commit's version is used and not the one it read, which may be older
    than the time that passed where nobody commits; versions that jump ahead only make it less.
    """
    if not grant.record.max_hold_ms:
        return 0.0
    if version is None:
        return _NOTHING
    age = (version - grant.token.version) / VERSIONS_PER_SECOND
    return max(_NOTHING, grant.record.max_hold_ms / 1000 - max(0.0, age))


def joined_at(tr: Any, lock: LockKeys, token: FencingToken, session: bytes) -> int | None:
    """The commit version of the session's join, by snapshot; None where its row is gone."""
    row: bytes | None = tr.snapshot.get(lock.maintainer(token, session)).value
    return None if row is None else int.from_bytes(row[:8], "big")


def _refuse_join(tr: Any, lock: LockKeys, token: FencingToken) -> None:
    grants = read_name(tr, lock, snapshot=False).grants
    if grants:
        other = grants[0]
        raise LockWasStolenError(
            f"lock {lock.name!r} belongs to writer {other.token.hex} ({other.record.host}:{other.record.pid}), "
            f"not to {token.hex}: this remote must not run",
            token.hex,
            other.token.hex,
        )
    if not tr.get(lock.last).present():
        raise CannotMaintainLock(f"lock {lock.name!r} was never granted, so {token.hex} can't be its writer")
    reason, why = how_ended(tr, lock, token)
    raise LockReleased(
        f"lock {lock.name!r} isn't held any more; writer {token.hex} was {reason} ({why}): this remote must not run",
        token.hex,
    )


def guard(tr: Any, lock: LockKeys, token: FencingToken) -> None:
    """Make `tr` fail to commit unless the grant is still there: one serializable read, which no renewal disturbs.

    Raises `LeaseLost` where it is gone already.
    """
    if not tr.get(lock.holder(token)).present():
        reason, why = how_ended(tr, lock, token)
        raise LeaseLost(f"lease {lock.name!r} (token {token.hex}) is lost: {why}", reason)


def unadopt(tr: Any, lock: LockKeys, token: FencingToken) -> bool:
    """Give up the remotes that the grant adopted, unless one has joined; True where given up.

    Afterwards such a remote is refused at its join, so that another may be started.
    """
    grant = read_grant(tr, lock, token)
    if grant is None:
        guard(tr, lock, token)
        return False
    if any(sid != grant.record.session for sid, _ in grant.joins):
        return False
    if grant.record.adopts:
        tr.set(grant.key, replace(grant.record, adopts=()).encode())
    return True
