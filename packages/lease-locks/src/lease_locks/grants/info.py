"""What people and programs may read of leases: value objects, made from rows, never unpickling anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from fdb_schema import NameInvalidError, get_many, read_range
from lease_locks.grants.errors import DamagedRowError
from lease_locks.grants.records import HolderRecord
from lease_locks.grants.rows import Damaged, HeldGrant, read_events, read_grants, read_maintainer, read_queue
from lease_locks.grants.space import LeaseSpace, LockKeys
from lease_locks.grants.tokens import STAMP_BYTES, FencingToken


def wall_time(us: int) -> datetime:
    """A stored wall time, for people; never compared with another machine's."""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC)
    except (ValueError, OverflowError, OSError):  # no moment that a calendar has
        return datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Maintainer:
    """A process that keeps a lease alive."""

    session: str
    role: str  # orchestrator, or what it joined as
    host: str
    pid: int
    updated_at: datetime | None  # of its last heartbeat


@dataclass(frozen=True, slots=True)
class Waiter:
    """A process in a name's queue."""

    session: str
    mode: str
    host: str
    pid: int
    since: datetime


SERVICES: Final = ("duty/", "s3heap/", "memo/")
"""How the names of leases begin that services and memoizing runners hold for themselves."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A grant that stands. Times are wall times of the processes that wrote them, for people."""

    name: str
    token: FencingToken
    writer_id: str
    host: str
    pid: int
    mode: str
    ttl: float
    acquired_at: datetime
    updated_at: datetime | None  # newest heartbeat of its maintainers
    maintainers: tuple[Maintainer, ...]
    waiters: tuple[Waiter, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    slots: int = 1
    max_hold: float | None = None
    holders: int = 1  # of the name, this one among them

    def describe(self) -> str:
        """One line for an error message."""
        return f"{self.host}:{self.pid} since {self.acquired_at:%H:%M:%S} UTC (token {self.token.hex})"


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """A line of a name's history."""

    kind: str
    token: FencingToken
    by: str
    why: str
    at: datetime
    version: int  # commit version: the order of events


def heartbeat_time(data: bytes | None) -> datetime | None:
    """When a session's heartbeat row was written, by its writer's clock."""
    if data is None or len(data) < STAMP_BYTES + 8:
        return None
    us = int.from_bytes(data[STAMP_BYTES : STAMP_BYTES + 8], "big")
    return wall_time(us) if us else None


def _maintainers(
    tr: Any, space: LeaseSpace, lock: LockKeys, grant: HeldGrant, damaged: Damaged
) -> tuple[Maintainer, ...]:
    record: HolderRecord = grant.record
    heartbeats = get_many(tr, [space.heartbeat(sid) for sid in grant.sessions], snapshot=True)
    beats = dict(zip(grant.sessions, heartbeats, strict=True))
    found = []
    if record.maintained:
        at = heartbeat_time(beats[record.session])
        granted = wall_time(record.acquired_us)
        at = granted if at is None or at < granted else at  # the grant itself is the first sign of life
        found.append(Maintainer(record.session.hex(), "orchestrator", record.host, record.pid, at))
    for sid, value in grant.joins:
        try:
            joined = read_maintainer(lock, grant.token, sid, value)
        except DamagedRowError as error:
            damaged.append(error)
            continue
        at = heartbeat_time(beats.get(sid))
        since = wall_time(joined.joined_us)
        at = since if at is None or at < since else at
        found.append(Maintainer(sid.hex(), joined.role, joined.host, joined.pid, at))
    return tuple(found)


def lease_infos(tr: Any, space: LeaseSpace, lock: LockKeys) -> list[LeaseInfo]:
    """Every grant of a name, the oldest first, by snapshot. Raises `DamagedRowError`."""
    infos, damaged = readable_infos(tr, space, lock)
    if damaged:
        raise damaged[0]
    return infos


def readable_infos(tr: Any, space: LeaseSpace, lock: LockKeys) -> tuple[list[LeaseInfo], Damaged]:
    """(every grant of a name that can be read, the rows that can't be)."""
    damaged: Damaged = []
    grants = read_grants(tr, lock, damaged)
    waiters = tuple(
        Waiter(p.record.session.hex(), p.record.mode, p.record.host, p.record.pid, wall_time(p.record.since_us))
        for p in read_queue(tr, lock, damaged)
    )
    infos = []
    for grant in grants:
        record = grant.record
        maintainers = _maintainers(tr, space, lock, grant, damaged)
        infos.append(
            LeaseInfo(
                name=lock.name,
                token=grant.token,
                writer_id=grant.token.hex,
                host=record.host,
                pid=record.pid,
                mode=record.mode,
                ttl=record.ttl_ms / 1000,
                acquired_at=wall_time(record.acquired_us),
                updated_at=max((m.updated_at for m in maintainers if m.updated_at), default=None),
                maintainers=maintainers,
                waiters=waiters,
                meta=dict(record.meta or {}),
                session=record.session.hex(),
                slots=record.slots,
                max_hold=record.max_hold_ms / 1000 or None,
                holders=len(grants),
            )
        )
    return infos, damaged


def held_names(
    tr: Any, space: LeaseSpace, prefix: str, after: bytes | None, limit: int
) -> tuple[list[str], Damaged, bytes | None]:
    """A page of the names that somebody holds or waits for, in order; rows of what can be no name; and where the next page
    starts (None: it was the last)."""
    begin, end = space.names_from(prefix)
    rows = read_range(tr, max(begin, after or b""), end, limit=limit, snapshot=True)
    names: list[str] = []
    damaged: Damaged = []
    following = None
    for key, _ in rows:
        try:
            lock = space.lock(space.name_of(key))
        except (ValueError, NameInvalidError) as error:
            damaged.append(DamagedRowError(f"the leases have a row that can't be read, {key!r}: {error}", key))
            following = key + b"\x00"
            continue
        following = lock.rows_end
        if lock.holders <= key < lock.queue_end and (not names or names[-1] != lock.name):
            names.append(lock.name)
    return names, damaged, following if len(rows) == limit else None


def history(tr: Any, lock: LockKeys) -> list[LeaseEvent]:
    """The last 64 events of a name, oldest first."""

    def lines() -> Iterator[LeaseEvent]:
        for stamp, event in read_events(tr, lock):
            token = FencingToken.from_bytes(event.token) if event.token else FencingToken(event.epoch, stamp)
            at = wall_time(event.wall_us)
            yield LeaseEvent(event.kind, token, event.by, event.why, at, int.from_bytes(stamp[:8], "big"))

    return list(lines())
