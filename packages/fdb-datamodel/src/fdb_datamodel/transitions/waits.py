"""Tasks that block on other futures while they run: who waits for whom, so that a cycle is found when it closes."""

from __future__ import annotations

from collections.abc import Sequence

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, encode_id
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.records import Claim
from fdb_datamodel.rows.space import LATEST_RESULT
from fdb_schema import ClusterSpace, Transaction

MOST_WAITS_FOLLOWED = 10_000


def begin_wait(tr: Transaction, space: ClusterSpace, claim: Claim, ids: Sequence[bytes]) -> tuple[bytes, ...]:
    """Record that a running future blocks on all of `ids`, before it does or soon after; () or the cycle that this closes.

    A cycle is told as the ids from the claim's future round to itself, and nothing is recorded: the wait can't end, so the
    caller raises. Waits and dependencies are followed. Recorded waits are read serializably, so of two that close a cycle
    together one sees the other; all else by snapshot, so that futures that just end conflict with nobody. Ended futures
    wait for nothing. Again: nothing new. A wait for many is recorded in several calls; keep one under about 500 ids.

    Raises WorkerFencedError.
    """
    ch = Changes(tr, space)
    ch.fence(claim.worker)
    cycle = _find_path(ch, ids, claim.id)
    if cycle:
        return (claim.id, *cycle)
    e = encode_id(claim.id)
    for one in ids:
        ch.set(ch.keys.wait(e, encode_id(one)), codec.pack(claim.token))
    ch.flush()
    return ()


def end_wait(tr: Transaction, space: ClusterSpace, claim: Claim, ids: Sequence[bytes] | None = None) -> None:
    """Forget waits of a running future: those for `ids`, by default all. Call it when the wait or the attempt is over.

    Waits that another attempt of the future recorded are left alone.
    """
    ch = Changes(tr, space)
    e = encode_id(claim.id)
    token = codec.pack(claim.token)
    if ids is None:
        rows = [(key, value) for key, _, value in ch.read_ids(ch.keys.waits + e)]
    else:
        keys = [ch.keys.wait(e, encode_id(one)) for one in ids]
        found = zip(keys, ch.get_many(keys), strict=True)
        rows = [(key, value) for key, value in found if value is not None]
    for key, value in rows:
        if value == token:
            ch.clear(key)
    ch.flush()


def _find_path(ch: Changes, begin: Sequence[bytes], goal: bytes) -> tuple[bytes, ...]:
    """A path of waits from one of `begin` to `goal`, ends included; () if there is none within bounds."""
    came_from: dict[bytes, bytes | None] = dict.fromkeys(begin)
    queue = list(came_from)
    for one in queue:
        if one == goal:
            return _path(came_from, one)
        if len(came_from) > MOST_WAITS_FOLLOWED:
            return ()
        f = ch.load(one, snapshot=True)
        if f.ended or not f.exists:
            continue
        for upstream in _waited_for(ch, f):
            if upstream not in came_from:
                came_from[upstream] = one
                queue.append(upstream)
    return ()


def _waited_for(ch: Changes, f: FutureRows) -> list[bytes]:
    """What a future waits for: by its edges; or while it runs by the waits of this attempt; or for what it was claimed behind."""
    claim = f.claim
    if claim is None:
        rows = ch.read_ids(ch.keys.dependencies + f.e, limit=MOST_WAITS_FOLLOWED, snapshot=True)
        return [decode_id(e) for _, e, _ in rows]
    token = codec.pack(claim[0])
    rows = ch.read_ids(ch.keys.waits + f.e, limit=MOST_WAITS_FOLLOWED)
    waits = [decode_id(e) for _, e, value in rows if value == token]
    inputs = f.dependencies[:MOST_WAITS_FOLLOWED]
    found = ch.get_many([ch.keys.future(encode_id(one), LATEST_RESULT) for one in inputs], snapshot=True)
    return waits + [one for one, value in zip(inputs, found, strict=True) if value is None]


def _path(came_from: dict[bytes, bytes | None], last: bytes) -> tuple[bytes, ...]:
    path: list[bytes] = []
    at: bytes | None = last
    while at is not None:
        path.append(at)
        at = came_from[at]
    return tuple(reversed(path))
