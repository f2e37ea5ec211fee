"""Workers: registration under an incarnation, heartbeats, and reaping of those that stopped."""

from __future__ import annotations

from typing import NamedTuple

from fdb_schema import ClusterSpace, Transaction

from ..records import Heartbeat, WorkerId, WorkerInfo, WorkerStatus


class WorkerSighting(NamedTuple):
    """What an observer saw of a worker: judged dead if `counter` stays the same for a TTL on the observer's clock."""

    id: WorkerId
    counter: int


def new_incarnation() -> bytes:
    """16 random bytes that name one start of a worker, and its mailbox."""
    raise NotImplementedError


def register_worker(
    tr: Transaction,
    space: ClusterSpace,
    worker: WorkerId,
    info: WorkerInfo | None = None,
    replaces: WorkerSighting | None = None,
) -> WorkerId:
    """Make `worker` the live incarnation of its address, with a first heartbeat; returns it.

    `replaces` is the incarnation the caller judged dead (its pid is gone on this boot, or its counter stood still for a
    TTL). Its claims are then to be given back by `reap`. Again with the same incarnation: nothing.

    Raises AddressInUseError if another incarnation is registered, or has beaten since it was seen.
    """
    raise NotImplementedError


def heartbeat(tr: Transaction, space: ClusterSpace, worker: WorkerId, beat: Heartbeat) -> None:
    """A blind write of the worker's sign of life; run it in a transaction of its own."""
    raise NotImplementedError


def is_live(tr: Transaction, space: ClusterSpace, worker: WorkerId) -> bool:
    """Whether this incarnation is the registered one (a serializable read: the fence)."""
    raise NotImplementedError


def list_workers(tr: Transaction, space: ClusterSpace) -> list[WorkerStatus]:
    """Every registered worker, by snapshot."""
    raise NotImplementedError


def sightings(tr: Transaction, space: ClusterSpace) -> list[WorkerSighting]:
    """Every registered incarnation and its heartbeat counter, by snapshot: what an observer compares over time."""
    raise NotImplementedError


def find_worker(tr: Transaction, space: ClusterSpace, ip: str, port: int) -> WorkerStatus | None:
    """The live incarnation of an address; None if there is none."""
    raise NotImplementedError


def unregister_worker(tr: Transaction, space: ClusterSpace, worker: WorkerId) -> None:
    """A worker's orderly end: it is fenced as if dead; what it still holds is given back, uncharged."""
    raise NotImplementedError


def declare_dead(tr: Transaction, space: ClusterSpace, sighting: WorkerSighting) -> bool:
    """Fence an incarnation whose counter stood still for a TTL; whether it did (False: it has beaten or was replaced).

    Reads the heartbeat serializably. What it held is given back by `reap`, by anyone.
    """
    raise NotImplementedError


def reap(tr: Transaction, space: ClusterSpace, limit: int = 100) -> bool:
    """Give back one page of what dead incarnations held: claims (charged as lost), assignments, mail; True if more is left."""
    raise NotImplementedError
