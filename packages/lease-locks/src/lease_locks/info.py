"""What people and programs may read of leases: value objects, made from rows, never unpickling anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fdb_schema import get_many, read_range
from lease_locks.records import HolderRecord
from lease_locks.rows import HeldGrant, read_events, read_maintainer, read_name, read_queue
from lease_locks.space import LeaseSpace, LockKeys
from lease_locks.tokens import STAMP_BYTES, FencingToken


def wall_time(us: int) -> datetime:
    """A stored wall time, for people; never compared with another machine's."""
    return datetime.fromtimestamp(us / 1e6, UTC)


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


def _heartbeat_time(data: bytes | None) -> datetime | None:
    if data is None or len(data) < STAMP_BYTES + 8:
        return None
    us = int.from_bytes(data[STAMP_BYTES : STAMP_BYTES + 8], "big")
    return wall_time(us) if us else None


def _maintainers(tr: Any, space: LeaseSpace, grant: HeldGrant) -> tuple[Maintainer, ...]:
    record: HolderRecord = grant.record
    heartbeats = get_many(tr, [space.heartbeat(sid) for sid in grant.sessions], snapshot=True)
    beats = dict(zip(grant.sessions, heartbeats, strict=True))
    found = []
    if record.maintained:
        at = _heartbeat_time(beats[record.session])
        granted = wall_time(record.acquired_us)
        at = granted if at is None or at < granted else at  # the grant itself is the first sign of life
        found.append(Maintainer(record.session.hex(), "orchestrator", record.host, record.pid, at))
    for sid, value in grant.joins:
        joined = read_maintainer(value)
        at = _heartbeat_time(beats.get(sid))
        since = wall_time(joined.joined_us)
        at = since if at is None or at < since else at
        found.append(Maintainer(sid.hex(), joined.role, joined.host, joined.pid, at))
    return tuple(found)


def lease_infos(tr: Any, space: LeaseSpace, lock: LockKeys) -> list[LeaseInfo]:
    """Every grant of a name, the oldest first, by snapshot."""
    grants = read_name(tr, lock).grants
    if not grants:
        return []
    waiters = tuple(
        Waiter(p.record.session.hex(), p.record.mode, p.record.host, p.record.pid, wall_time(p.record.since_us))
        for p in read_queue(tr, lock)
    )
    infos = []
    for grant in grants:
        record = grant.record
        maintainers = _maintainers(tr, space, grant)
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
    return infos


def held_names(tr: Any, space: LeaseSpace, prefix: str, after: str | None, limit: int) -> tuple[list[str], str | None]:
    """A page of the names that somebody holds, in order, and where the next page starts (None: it was the last)."""
    begin, end = space.names_from(prefix)
    if after is not None:
        begin = space.lock(after).rows_end
    names: list[str] = []
    rows = read_range(tr, begin, end, limit=limit, snapshot=True)
    name: str | None = None
    for key, _ in rows:
        name = space.name_of(key)
        if key.startswith(space.lock(name).holders) and (not names or names[-1] != name):
            names.append(name)
    return names, name if len(rows) == limit else None


def history(tr: Any, lock: LockKeys) -> list[LeaseEvent]:
    """The last 64 events of a name, oldest first."""

    def lines() -> Iterator[LeaseEvent]:
        for stamp, event in read_events(tr, lock):
            token = FencingToken.from_bytes(event.token) if event.token else FencingToken(event.epoch, stamp)
            at = wall_time(event.wall_us)
            yield LeaseEvent(event.kind, token, event.by, event.why, at, int.from_bytes(stamp[:8], "big"))

    return list(lines())
