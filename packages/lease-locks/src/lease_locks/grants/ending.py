"""How grants end: taken over, released, left, forced. Functions of a transaction, each a row of `states.GRANT_ROWS`.

Each is safe to run twice. None opens a transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fdb_schema import add_read_conflict_keys, read_range, read_version
from lease_locks.grants.errors import DamagedRowError
from lease_locks.grants.observer import Alive, Dead, Observer, Subject
from lease_locks.grants.records import EventRecord
from lease_locks.grants.rows import (
    Damaged,
    HeldGrant,
    grant_subject,
    read_events,
    read_grant,
    read_grants,
    read_name,
    read_queue,
)
from lease_locks.grants.space import LeaseSpace, LockKeys, stamped_key, stamped_value
from lease_locks.grants.states import Event, Grant, next_grant
from lease_locks.grants.tokens import FencingToken

_ONE = (1).to_bytes(8, "little")


def write_event(tr: Any, lock: LockKeys, order: int, record: EventRecord) -> None:
    """Add a line to the name's history; `order` tells the events of one transaction apart."""
    tr.set_versionstamped_key(stamped_key(lock.events, order), record.encode())


@dataclass(frozen=True, slots=True)
class Found:
    """A grant as an acquirer judged it."""

    grant: HeldGrant
    subject: Subject
    verdict: Dead


def judge_grants(
    tr: Any, space: LeaseSpace, lock: LockKeys, observer: Observer
) -> list[tuple[HeldGrant, Subject, Alive | Dead]]:
    """Every grant of a name with what was observed of it and the verdict; by snapshot, after the reads returned."""
    grants = read_name(tr, lock).grants
    subjects = [grant_subject(tr, space, lock, grant) for grant in grants]
    version = read_version(tr)
    return [(grant, subject, observer.judge(subject, version)) for grant, subject in zip(grants, subjects, strict=True)]


def take_over(
    tr: Any, space: LeaseSpace, lock: LockKeys, dead: list[Found], session: bytes, by: str, wall_us: int
) -> None:
    """HELD ─expired─▶ ENDED, or ─stolen─▶ where its processes are gone before the ttl passed, for each of `dead`.

    The holder's record, the whole maintainer range and every maintainer's heartbeat become serializable reads: a
    heartbeat, a join, a release or a forced end that lands in between aborts this.
    """
    for order, found in enumerate(dead):
        grant, verdict = found.grant, found.verdict
        kind = Event.STOLEN if verdict.early else Event.EXPIRED
        next_grant(Grant.HELD, kind)
        tr.add_read_conflict_range(grant.key, grant.key + b"\xff")
        add_read_conflict_keys(tr, [space.heartbeat(vital.session) for vital in found.subject.vitals])
        _end(tr, lock, grant)
        write_event(tr, lock, order, _ended(grant, kind, by, session, verdict.why, wall_us))
    _tell(tr, space, [sid for found in dead for sid in found.grant.sessions])


def _ended(grant: HeldGrant, kind: Event, by: str, session: bytes, why: str, wall_us: int) -> EventRecord:
    return EventRecord(str(kind), bytes(grant.token), grant.token.epoch, by, session, why, wall_us)


def _end(tr: Any, lock: LockKeys, grant: HeldGrant) -> None:
    """Remove a grant's rows."""
    if grant.joins:
        tr.clear_range(grant.key, grant.key + b"\xff")
    else:
        tr.clear(grant.key)  # a join that lands meanwhile read this row, and whoever ends a grant read where joins go
    if not grant.alone:
        tr.add(lock.bell, _ONE)


def _tell(tr: Any, space: LeaseSpace, sids: Iterable[bytes], told: set[bytes] | None = None) -> None:
    """Have sessions look at their grants; once a transaction, since what it writes can't be read again in it.

    `told`: those that this transaction has told already; it gets the others, too.
    """
    told = set() if told is None else told
    for sid in dict.fromkeys(sids):
        if sid in told:
            continue
        told.add(sid)
        key = space.revocation(sid)
        # Read serializably: a session whose rows are cleared meanwhile gets none back, one that writes them now is told.
        if tr.get(key).present():
            tr.set_versionstamped_value(key, stamped_value())


def release(
    tr: Any,
    space: LeaseSpace,
    lock: LockKeys,
    token: FencingToken,
    session: bytes,
    by: str,
    why: str,
    wall_us: int,
    told: set[bytes] | None = None,
) -> str:
    """HELD ─released─▶ ENDED by a maintainer; whatever a successor holds is never touched.

    Returns "freed", "repeated" (released before), "succeeded" (ended otherwise, and somebody else holds the name) or
    "ended" (ended otherwise, nobody holds it). Reads the grant with its maintainers serializably.
    `told`: sessions that this transaction has told already, where it releases several.
    """
    grant = read_grant(tr, lock, token)
    if grant is not None:
        next_grant(Grant.HELD, Event.RELEASED)
        _end(tr, lock, grant)
        _tell(tr, space, [sid for sid in grant.sessions if sid != session], told)
        write_event(tr, lock, 0, _ended(grant, Event.RELEASED, by, session, why, wall_us))
        return "freed"
    if how_ended(tr, lock, token)[0] == "released":
        return "repeated"
    return "succeeded" if read_name(tr, lock).grants else "ended"


def how_ended(tr: Any, lock: LockKeys, token: FencingToken) -> tuple[str, str]:
    """(reason, why) of the end of `token`, from the history; ("stolen", …) where the history has forgotten it."""
    wanted = bytes(token)
    for _, event in reversed(read_events(tr, lock)):
        if event.token == wanted and event.kind in ("released", "expired", "stolen", "forced"):
            why = f"{event.kind} by {event.by}" + (f": {event.why}" if event.why else "")
            return event.kind, why
    return "stolen", "ended so long ago that the history doesn't say how"


def leave(
    tr: Any,
    space: LeaseSpace,
    lock: LockKeys,
    token: FencingToken,
    session: bytes,
    by: str,
    why: str,
    wall_us: int,
    *,
    joined: bool = False,
) -> bool:
    """HELD ─left─▶ HELD: stop counting as a maintainer; ─expired─▶ ENDED where nobody else maintains it.

    `joined`: the part to leave is that of a remote, otherwise the holder's own; a session may have both.

    For a session that lost the lease but lives on: its heartbeats must not keep the grant. True where it ended. A holder that
    never maintained it may believe in it for a while yet: then a remote leaves it to expire.
    """
    grant = read_grant(tr, lock, token)
    if grant is None:
        return True
    if joined:
        others = not grant.record.left or any(sid != session for sid, _ in grant.joins)
    else:
        others = bool(grant.joins)  # a remote of this very session is another maintainer
    if others:
        next_grant(Grant.HELD, Event.LEFT)
        if joined:
            tr.clear(lock.maintainer(token, session))
        else:
            tr.set(grant.key, replace(grant.record, maintained=False, left=True).encode())
        return False
    next_grant(Grant.HELD, Event.EXPIRED)
    _end(tr, lock, grant)
    _tell(tr, space, [sid for sid in grant.sessions if sid != session])
    write_event(tr, lock, 0, _ended(grant, Event.EXPIRED, by, session, why, wall_us))
    return True


def _all_sessions(tr: Any, space: LeaseSpace) -> list[bytes]:
    found = []
    for key, _ in read_range(tr, space.sessions, space.sessions + b"\xff", snapshot=True):
        with contextlib.suppress(DamagedRowError):
            found.append(space.session_of(key)[0])
    return found


def force(
    tr: Any, space: LeaseSpace, lock: LockKeys, session: bytes, by: str, why: str, wall_us: int
) -> tuple[list[HeldGrant], Damaged]:
    """HELD ─forced─▶ ENDED for every grant of the name, on a person's word. Returns what was ended and its damaged rows, which
    are removed: whose grant one was nobody knows, so every session is told to look at its own."""
    damaged: Damaged = []
    grants = read_grants(tr, lock, damaged, snapshot=False)
    for order, grant in enumerate(grants):
        next_grant(Grant.HELD, Event.FORCED)
        _end(tr, lock, grant)
        write_event(tr, lock, order, _ended(grant, Event.FORCED, by, session, why, wall_us))
    told = [sid for grant in grants for sid in grant.sessions]
    if damaged:
        told += _all_sessions(tr, space)
    read_queue(tr, lock, damaged, snapshot=False)
    for row in damaged:
        tr.clear(row.key)
    _tell(tr, space, told)
    return grants, damaged
