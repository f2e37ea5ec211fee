"""Actors, datasets and sessions, for people: gathered from what belongs to each, as plain values. Nothing is written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final
from uuid import UUID

from fdb_datamodel import TERMINAL, ActorStatus, Counted, FutureState, list_actors, list_workers, session_sightings
from fdb_schema import ClusterSpace
from idempotent_txn import run
from lease_locks import LeaseInfo, LeaseManager
from lease_locks.grants.info import heartbeat_time
from mainspring_dashboard.lists.kept import Kept
from mainspring_dashboard.lists.renewed import Renewed

MOST_SESSIONS: Final = 2_000
"""Sessions of each sort, clients' and leases', that are looked at."""
MOST_LEASES: Final = 1_000
"""Rows of leases and of their queues that are looked through for who holds what."""
KEPT_SECONDS: Final = 1.0
"""After which an answer is renewed for those who ask next."""
ACTOR: Final = "actor "
"""How the names of actors' futures begin."""
NAMED: Final = 4
"""Leases, and clients, that one row names."""


def actors(db: Any, space: ClusterSpace, after: UUID | None, limit: int) -> dict[str, Any]:
    """A page of actors, the newest first, and after which id the next begins."""
    cursor = after.bytes if after is not None else None
    found, following = run(db, list_actors, space, cursor, limit, strategy="off")
    return {"actors": [_actor(one) for one in found], "after": str(UUID(bytes=following)) if following else None}


def _actor(one: ActorStatus) -> dict[str, Any]:
    info, place = one.info, one.place
    return {
        "id": str(UUID(bytes=one.id)),
        "name": one.name,
        "kind": info.name.removeprefix(ACTOR),
        "state": info.state.value,
        "reason": info.reason,
        "worker": info.address,
        "place": f"{place.ip}:{place.port}" if place.ip else None,
        "starts": info.attempts,
        "waiting": one.waiting,
        "submitted": info.wall_us / 1e6 or None,
        "started": info.claimed_us / 1e6 or None,
        "ended": info.ended_us / 1e6 or None,
    }


class Datasets:
    """Datasets, by the marks of their partitions among the futures that are kept."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._renewed = Renewed("datasets", self._gather, KEPT_SECONDS)

    def page(self, skip: int, limit: int) -> dict[str, Any]:
        """The newest first. looked, all: among how many futures, and whether there are no others."""
        parts, said = self._renewed()
        page = list(parts)[skip : skip + limit]
        following = skip + limit if len(parts) > skip + limit else None
        return {"datasets": [_dataset(mark, parts[mark]) for mark in page], **said, "skip": following}

    def _gather(self) -> tuple[dict[bytes, list[Counted]], dict[str, Any]]:
        looked = list(self._kept)
        parts: dict[bytes, list[Counted]] = defaultdict(list)
        for one in looked:
            if one.dataset:
                parts[one.dataset].append(one)
        newest = sorted(parts, reverse=True)  # a mark begins with the time, as ids do
        return {mark: parts[mark] for mark in newest}, {"looked": len(looked), "all": self._kept.all}


def _dataset(mark: bytes, parts: list[Counted]) -> dict[str, Any]:
    first = min(parts, key=lambda one: one.id)
    ended = all(one.state in TERMINAL for one in parts)
    counts = Counter(one.state.value for one in parts)
    return {
        "id": mark.hex(),
        "name": first.name,
        "first": str(UUID(bytes=first.id)),
        "partitions": len(parts),
        "counts": {state.value: counts[state.value] for state in FutureState},
        "workers": len({one.worker for one in parts if one.worker and not one.worker.startswith(":")}),
        "submitted": first.submitted_us / 1e6 or None,
        "ended": max(one.ended_us for one in parts) / 1e6 if ended else None,
    }


class Sessions:
    """Who is connected: processes with clients, those with leases, and workers; what each holds and waits for."""

    def __init__(self, db: Any, space: ClusterSpace, locks: LeaseManager, kept: Kept) -> None:
        self._db = db
        self._space = space
        self._locks = locks
        self._kept = kept
        self._renewed = Renewed("sessions", self._gather, KEPT_SECONDS)

    def page(self, skip: int, limit: int) -> dict[str, Any]:
        """A page of processes, those that wait for a lease first, and after them by host.

        cut: whether there are more sessions, or leases, than were looked at. looked, all: as of `Datasets`, for `futures`.
        """
        rows, said = self._renewed()
        following = skip + limit if len(rows) > skip + limit else None
        return {"sessions": [_shown(row) for row in rows[skip : skip + limit]], **said, "skip": following}

    def _gather(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        clients = run(self._db, session_sightings, self._space, MOST_SESSIONS, strategy="off")
        looked = list(self._kept)
        unended = Counter(one.session for one in looked if one.state not in TERMINAL)
        for one in clients:
            row = _row(rows, one.host, one.pid)
            row["beat"] = max(row["beat"] or 0.0, one.wall_us / 1e6) or None
            row["clients"].append({"session": one.id.hex(), "futures": unended.get(one.id, 0)})
        holders = list(islice(self._locks.sessions(), MOST_SESSIONS))
        for _, record, heartbeat in holders:
            row = _row(rows, record.host, record.pid)
            at = heartbeat_time(heartbeat)
            row["beat"] = max(row["beat"] or 0.0, at.timestamp() if at else 0.0) or None
            row["command"] = record.command or row["command"]
            row["started"] = record.started_us / 1e6 or row["started"]
        for worker in run(self._db, list_workers, self._space, strategy="off"):
            row = _row(rows, worker.info.host, worker.info.pid)
            row["worker"] = f"{worker.id.ip}:{worker.id.port}"
            row["started"] = row["started"] or worker.info.wall_us / 1e6 or None
            if worker.heartbeat is not None:
                row["beat"] = max(row["beat"] or 0.0, worker.heartbeat.wall_us / 1e6) or None
        leases, more = self._locks.page("", None, MOST_LEASES)
        _note_leases(rows, leases)
        ordered = sorted(rows.values(), key=lambda row: (not row["waits"], row["host"], row["pid"]))
        cut = more is not None or MOST_SESSIONS in (len(clients), len(holders))
        return ordered, {"processes": len(ordered), "cut": cut, "looked": len(looked), "all": self._kept.all}


def _row(rows: dict[tuple[str, int], dict[str, Any]], host: str, pid: int) -> dict[str, Any]:
    empty = {"host": host, "pid": pid, "worker": None, "command": "", "started": None, "beat": None}
    return rows.setdefault((host, pid), {**empty, "clients": [], "holds": {}, "waits": {}})


def _note_leases(rows: dict[tuple[str, int], dict[str, Any]], leases: Iterable[LeaseInfo]) -> None:
    for lease in leases:
        for one in lease.maintainers:
            _row(rows, one.host, one.pid)["holds"][lease.name] = lease.acquired_at.timestamp()
        for waiter in lease.waiters:
            row = _row(rows, waiter.host, waiter.pid)
            row["waits"][lease.name] = {
                "name": lease.name, "mode": waiter.mode, "since": waiter.since.timestamp(), "holder": f"{lease.host}:{lease.pid}"
            }  # fmt: skip


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """With what it names cut to what a row of a table takes, and how many there are."""
    holds, waits, clients = list(row["holds"]), list(row["waits"].values()), row["clients"]
    return {
        **row,
        "clients": sorted(clients, key=lambda one: -one["futures"])[:NAMED],
        "clients_in_all": len(clients),
        "holds": holds[:NAMED],
        "holds_in_all": len(holds),
        "waits": sorted(waits, key=lambda one: one["since"])[:NAMED],
        "waits_in_all": len(waits),
    }
