"""Claiming ahead along chains: a future that waits for nothing but another claim of the same worker is claimed with it.

Such a claim holds no input of that upstream yet: the worker hands the result on itself, and realizes both in one turn. If
the upstream ends otherwise the worker gives the claim back, and the future is placed by its upstream's state like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdb_datamodel.lifecycle.starts import Chosen, start
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id, is_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.records import Claim, WorkerId
from fdb_datamodel.rows.requirements import Capacity, Shape, fits, less
from fdb_datamodel.rows.space import EDGE
from fdb_schema import add_read_conflict_keys, read_range


def claim_ahead(ch: Changes, worker: WorkerId, claims: Sequence[Claim], free: Shape, capacity: Capacity) -> list[Claim]:
    """Claim up to `capacity.ahead` futures, of `ahead_seconds`, along the chains that begin at `claims` (just made), each after what it waits for.

    A chain goes on while its last future has one dependent, which waits for it alone and fits what is free beside it. All
    is read by snapshot; the two ends of each edge are read-conflict keys, since whatever takes a future out of Waiting
    clears them.
    """
    chosen: list[Chosen] = []
    expected: set[bytes] = set()
    conflicts: list[bytes] = []
    left = capacity.ahead_seconds
    for head in claims:
        at = head.id if head.listened else None
        while at is not None and len(chosen) < capacity.ahead:
            found = _follower(ch, worker, at, free)
            if found is None:
                break
            down, edges = found
            cost = capacity.cost(down.code)
            if cost > left:
                break
            left -= cost
            for key in edges:
                ch.clear(key)
            conflicts += edges
            shape, _, locality = down.placement
            free = less(free, shape)
            chosen.append(Chosen(down.id, down.e, shape, down, locality is not None))
            expected.add(at)
            at = down.id if down.listened else None
    if not chosen:
        return []
    add_read_conflict_keys(ch.tr, conflicts)
    return start(ch, worker, chosen, expected)


def _follower(ch: Changes, worker: WorkerId, upstream: bytes, free: Shape) -> tuple[FutureRows, list[bytes]] | None:
    """The only dependent of a future, if it waits for nothing else and may run here, and both ends of the edge."""
    keys, e = ch.keys, encode_id(upstream)
    prefix = keys.listeners + e + EDGE
    rows = read_range(ch.tr, prefix, prefix + b"\xff", limit=2, snapshot=True)
    down_e = rows[0][0][len(prefix) :] if len(rows) == 1 else b""
    if not is_id(down_e):
        return None
    edges = [rows[0][0], keys.dependency(down_e, e)]
    if any(key in ch.writes for key in edges):
        return None  # this transaction has decided something else
    prefix = keys.futures + down_e
    at = len(prefix)
    stored = read_range(ch.tr, prefix, prefix + b"\xff", snapshot=True)
    down = FutureRows(decode_id(down_e), down_e, {key[at:]: value for key, value in stored})
    if not down.exists or down.ended or down.claimed or down.backing_off:
        return None
    if len(down.dependencies) > 1:
        prefix = keys.dependencies + down_e
        if len(read_range(ch.tr, prefix, prefix + b"\xff", limit=2, snapshot=True)) > 1:
            return None
    if down.option("max_worker_losses") == 0 or down.option("limits"):
        return None  # the loss of a claim that never began would count; a permit is taken when it may begin
    shape, _, locality = down.placement
    if (locality is not None and locality.worker != worker) or not fits(shape, free):
        return None
    return down, edges
