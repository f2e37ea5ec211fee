"""Reads of the lease rows: who holds a name, who keeps it alive, who waits. Functions of a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from fdb_schema import Record, RecordError, get_many, read_range
from lease_locks.grants.errors import CannotMaintainLock, DamagedRowError
from lease_locks.grants.observer import Subject, Vital
from lease_locks.grants.records import EventRecord, HolderRecord, MaintainerRecord, SessionRecord, WaiterRecord
from lease_locks.grants.space import HISTORY_EVENTS, LeaseSpace, LockKeys
from lease_locks.grants.tokens import STAMP_BYTES, FencingToken

_FIRST_PAGE = 64
_R = TypeVar("_R", bound=Record)
Damaged = list[DamagedRowError]
"""Takes the rows that can't be read, for whoever goes on without them; where it is None the first one is raised."""


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """A holder's row with those of its maintainers."""

    key: bytes
    token: FencingToken
    record: HolderRecord
    joins: tuple[tuple[bytes, bytes], ...] = ()  # (sid, raw value: versionstamp of the join + MaintainerRecord)

    @property
    def sessions(self) -> list[bytes]:
        """Every session that has a part in it, the holder's own first."""
        return [self.record.session, *(sid for sid, _ in self.joins if sid != self.record.session)]

    @property
    def alone(self) -> bool:
        """Whether it is an exclusive grant without slots: then nobody else can hold the name."""
        return self.record.mode == "exclusive" and self.record.slots == 1


@dataclass(frozen=True, slots=True)
class Place:
    """A waiter's row."""

    key: bytes
    stamp: bytes
    record: WaiterRecord


@dataclass(frozen=True, slots=True)
class NameRows:
    """What an acquirer needs to know of a name."""

    grants: list[HeldGrant]
    first: Place | None  # of the queue


def decoded(lock: LockKeys, kind: type[_R], key: bytes, value: bytes) -> _R:
    """A row's record. Raises `DamagedRowError`, which names the row."""
    try:
        return kind.decode(value)
    except RecordError as error:
        raise lock.damaged(key, error) from error


def _place(lock: LockKeys, key: bytes, value: bytes) -> Place:
    return Place(key, lock.waiter_stamp(key), decoded(lock, WaiterRecord, key, value))


def _parse(lock: LockKeys, rows: list[tuple[bytes, bytes]], damaged: Damaged | None = None) -> NameRows:
    grants: list[HeldGrant] = []
    for key, value in rows:
        try:
            if key >= lock.queue:
                return NameRows(grants, _place(lock, key, value))
            token, sid = lock.split_holder(key)
            if sid is None:
                grants.append(HeldGrant(key, token, decoded(lock, HolderRecord, key, value)))
            elif grants and grants[-1].token == token:
                last = grants[-1]
                grants[-1] = HeldGrant(last.key, last.token, last.record, (*last.joins, (sid, value)))
        except DamagedRowError as error:
            if damaged is None:
                raise
            damaged.append(error)
    return NameRows(grants, None)


def read_name(tr: Any, lock: LockKeys, *, snapshot: bool = True) -> NameRows:
    """All grants of a name and the head of its queue, in one read where there are few. Raises `DamagedRowError`."""
    rows = read_range(tr, lock.holders, lock.queue_end, limit=_FIRST_PAGE, snapshot=snapshot)
    if len(rows) == _FIRST_PAGE and rows[-1][0] < lock.queue:
        rows = read_range(tr, lock.holders, lock.queue, snapshot=snapshot)
        rows += read_range(tr, lock.queue, lock.queue_end, limit=1, snapshot=snapshot)
    return _parse(lock, rows)


def read_grant(tr: Any, lock: LockKeys, token: FencingToken, *, snapshot: bool = False) -> HeldGrant | None:
    """One grant with its maintainers; a serializable read of the whole maintainer range unless `snapshot`."""
    key = lock.holder(token)
    grants = _parse(lock, read_range(tr, key, key + b"\xff", snapshot=snapshot)).grants
    return grants[0] if grants else None


def read_grants(tr: Any, lock: LockKeys, damaged: Damaged, *, snapshot: bool = True) -> list[HeldGrant]:
    """The grants of a name that can be read."""
    return _parse(lock, read_range(tr, lock.holders, lock.queue, snapshot=snapshot), damaged).grants


def read_queue(tr: Any, lock: LockKeys, damaged: Damaged | None = None, *, snapshot: bool = True) -> list[Place]:
    """The waiters of a name, first in first out."""
    places = []
    for key, value in read_range(tr, lock.queue, lock.queue_end, snapshot=snapshot):
        try:
            places.append(_place(lock, key, value))
        except DamagedRowError as error:
            if damaged is None:
                raise
            damaged.append(error)
    return places


def read_ahead(tr: Any, lock: LockKeys, stamp: bytes) -> tuple[bool, Place | None]:
    """(whether the place `stamp` is still there, the waiter just before it)."""
    mine = lock.waiter(stamp)
    rows = read_range(tr, lock.queue, mine + b"\x00", limit=2, reverse=True, snapshot=True)
    present = bool(rows) and rows[0][0] == mine
    ahead = rows[1:] if present else rows
    if not ahead:
        return present, None
    key, value = ahead[0]
    return present, _place(lock, key, value)


def read_vitals(tr: Any, space: LeaseSpace, sids: list[bytes], counts: dict[bytes, bool]) -> tuple[Vital, ...]:
    """The sessions' rows and heartbeats, by snapshot: a look never conflicts with a renewal.

    A session's row that can't be read is as one that isn't there: nothing is known of its processes.
    """
    keys = [key for sid in sids for key in (space.session(sid), space.heartbeat(sid))]
    values = get_many(tr, keys, snapshot=True)
    return tuple(
        Vital(
            sid,
            _session_record(values[2 * i]),
            values[2 * i + 1],
            counts.get(sid, True),
        )
        for i, sid in enumerate(sids)
    )


def _session_record(value: bytes | None) -> SessionRecord | None:
    try:
        return None if value is None else SessionRecord.decode(value)
    except RecordError:
        return None


def grant_subject(tr: Any, space: LeaseSpace, lock: LockKeys, grant: HeldGrant) -> Subject:
    """A grant as something to observe."""
    joined = {sid for sid, _ in grant.joins}
    counts = {grant.record.session: grant.record.maintained or grant.record.session in joined}
    return Subject(
        key=(lock.name, grant.token),
        since=grant.token.stamp,
        ttl=grant.record.ttl_ms / 1000,
        vitals=read_vitals(tr, space, grant.sessions, counts),
        marks=tuple(value for _, value in grant.joins),
        max_hold=grant.record.max_hold_ms / 1000,
    )


def place_subject(tr: Any, space: LeaseSpace, lock: LockKeys, place: Place, default_ttl: float) -> Subject:
    """A place in a queue as something to observe."""
    vitals = read_vitals(tr, space, [place.record.session], {})
    record = vitals[0].record
    return Subject(
        key=(lock.name, "q", place.stamp),
        since=place.stamp,
        ttl=record.ttl_ms / 1000 if record else default_ttl,
        vitals=vitals,
    )


def session_subject(tr: Any, space: LeaseSpace, sid: bytes) -> Subject | None:
    """A session as something to observe; None where its row is gone. Raises `DamagedRowError`."""
    vitals = read_vitals(tr, space, [sid], {})
    record = vitals[0].record
    if record is None:
        key = space.session(sid)
        if tr.snapshot.get(key).present():
            raise DamagedRowError(f"session {sid.hex()} has a row that can't be read, {key!r}", key)
        return None
    return Subject(key=("session", sid), since=b"\x00" * STAMP_BYTES, ttl=record.ttl_ms / 1000, vitals=vitals)


def read_maintainer(lock: LockKeys, token: FencingToken, sid: bytes, value: bytes) -> MaintainerRecord:
    """The record of a maintainer's row. Raises `DamagedRowError`."""
    return decoded(lock, MaintainerRecord, lock.maintainer(token, sid), value[STAMP_BYTES:])


def read_events(tr: Any, lock: LockKeys, limit: int = HISTORY_EVENTS) -> list[tuple[bytes, EventRecord]]:
    """The newest events of a name as (versionstamp, record), oldest first, by snapshot. Of a row that can't be read, only that."""
    rows = read_range(tr, lock.events, lock.events + b"\xff", limit=limit, reverse=True, snapshot=True)
    return [(lock.event_stamp(key), _event(value)) for key, value in reversed(rows)]


def _event(value: bytes) -> EventRecord:
    try:
        record = EventRecord.decode(value)
        if record.token:
            FencingToken.from_bytes(record.token)
        return record
    except (RecordError, CannotMaintainLock) as error:
        return EventRecord("unreadable", why=str(error))
