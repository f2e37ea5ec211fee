"""Workers: registration under an incarnation, heartbeats, and reaping of those that stopped."""

from __future__ import annotations

import contextlib
import os
from itertools import islice
from typing import NamedTuple

from fdb_datamodel.errors import AddressInUseError, DamagedFutureError, StrayKeyError, WorkerFencedError
from fdb_datamodel.lifecycle.attempts import end_attempt
from fdb_datamodel.lifecycle.endings import fail_for_good, finish
from fdb_datamodel.lifecycle.holdings import addresses, held_claims, unlist
from fdb_datamodel.lifecycle.placement import lost_pinned
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id
from fdb_datamodel.rows.forms import is_known
from fdb_datamodel.rows.ids import show_id
from fdb_datamodel.rows.records import Failure, Heartbeat, WorkerId, WorkerInfo, WorkerStatus
from fdb_datamodel.rows.space import layout_of, named_in, span
from fdb_datamodel.rows.table import FORMAT
from fdb_datamodel.transitions.assign import is_unclaimed, relocate
from fdb_schema import ClusterSpace, RecordError, Transaction, check_format, pack, prefix_end, read_range

_COUNTED = 1000
_LANES_PAGE = 64
_FIRST_BEAT = Heartbeat()
_NOTHING = b"\x14"  # the number 0 in a key


class WorkerSighting(NamedTuple):
    """What an observer saw of a worker: judged dead if `counter` stays the same for a TTL on the observer's clock."""

    id: WorkerId
    counter: int


def open_cluster(tr: Transaction, space: ClusterSpace) -> None:
    """Check that this release can read the cluster's futures; what clients and services call first.

    Where an earlier release wrote them it is refused from here on, and its workers that are registered still are fenced: they would count
    attempts wrongly. What these held is given back by `reap`, uncharged.

    Raises NewerFormatError where a newer release wrote them.
    """
    if check_format(tr, space, "futures", FORMAT) == FORMAT:
        return
    tr.set(space.format.pack(("futures",)), pack(FORMAT))
    ch = Changes(tr, space)
    _retire_all(ch)
    ch.flush()
    _clear_needless_entries(ch)


def _retire_all(ch: Changes) -> None:
    """Retire every worker, and conflict with one of an earlier release that registers meanwhile, though not with those that beat.

    It has read the format that the cluster had.
    """
    begin, end = span(ch.keys.workers)
    for at in addresses(ch):
        prefix = ch.keys.workers + ch.keys.worker(at.ip, at.port)
        ch.tr.add_read_conflict_range(begin, prefix)
        ch.tr.add_read_conflict_key(ch.keys.incarnation(at.ip, at.port))
        begin = prefix + b"\xff"
        if at.incarnation is not None:
            _retire(ch, _worker_from(at.ip, at.port, at.incarnation, None)[0], drained=True)
    ch.tr.add_read_conflict_range(begin, end)


def _clear_needless_entries(ch: Changes) -> None:
    """Format 1 had every future of the pool in the indices of ram and gpu, those that need none too."""
    for base in (ch.keys.ram, ch.keys.gpu):
        begin, end = base + b"\x02", base + b"\x03"
        lanes = [base]
        lane = end
        while rows := read_range(ch.tr, begin, end, limit=_LANES_PAGE, snapshot=True):
            for key, _ in rows:
                if not key.startswith(lane):
                    with contextlib.suppress(StrayKeyError):
                        lane = key[: named_in(key, len(base))[1]]
                        lanes.append(lane)
            last = rows[-1][0]
            begin = lane + b"\xff" if last.startswith(lane) else last + b"\x00"
        for prefix in lanes:
            ch.tr.clear_range(prefix + _NOTHING, prefix_end(prefix + _NOTHING))


def new_incarnation() -> bytes:
    """16 random bytes that name one start of a worker, and its mailbox."""
    return os.urandom(16)


def register_worker(
    tr: Transaction,
    space: ClusterSpace,
    worker: WorkerId,
    info: WorkerInfo | None = None,
    replaces: WorkerSighting | None = None,
) -> WorkerId:
    """Make `worker` the live incarnation of its address, with a first heartbeat; returns it.

    `replaces` is the incarnation the caller judged dead (its pid is gone on this boot, or its counter stood still for a
    TTL). What that one held is then given back by `reap`. Again with the same incarnation: nothing.

    Raises AddressInUseError if another incarnation is registered, or has beaten since it was seen; WorkerFencedError if
    this incarnation was declared dead; NewerFormatError.
    """
    if len(worker.incarnation) != 16:
        raise ValueError(f"an incarnation is 16 bytes (new_incarnation()), not {len(worker.incarnation)}")
    open_cluster(tr, space)
    ch = Changes(tr, space)
    info = info or WorkerInfo(wall_us=ch.wall_us)
    row, dead = ch.get_many([ch.keys.incarnation(worker.ip, worker.port), ch.keys.dead_worker(worker)])
    live = codec.incarnation_of(row)
    if live == worker.incarnation:
        return worker
    if dead is not None:
        raise WorkerFencedError(f"worker {worker} was declared dead: start as a new incarnation")
    if live is not None and not (replaces is not None and replaces.id.incarnation == live and _fence(ch, replaces)):
        raise AddressInUseError(
            f"{worker.ip}:{worker.port} of cluster {space.cluster!r} belongs to live incarnation {live.hex()[:8]}: "
            f"stop that worker, wait until its heartbeat has stood still for the TTL, or choose another port"
        )
    _list_forgotten(ch, worker)
    ch.set(ch.keys.incarnation(worker.ip, worker.port), codec.pack_worker_info(worker.incarnation, info))
    beat = Heartbeat(0, info.wall_us, info.slots, info.total, info.slots, info.total, info.object_store)
    ch.set(ch.keys.heartbeat(worker.ip, worker.port), codec.pack_heartbeat(beat))
    ch.flush()
    return worker


def heartbeat(tr: Transaction, space: ClusterSpace, worker: WorkerId, beat: Heartbeat) -> None:
    """A worker's sign of life: a write without a read of the heartbeat, in a transaction of its own or with a turn.

    The incarnation is read, as by every transaction of a worker. Raises WorkerFencedError.
    """
    ch = Changes(tr, space)
    ch.fence(worker)
    tr.set(ch.keys.heartbeat(worker.ip, worker.port), codec.pack_heartbeat(beat))


def is_live(tr: Transaction, space: ClusterSpace, worker: WorkerId) -> bool:
    """Whether this incarnation is the registered one (a serializable read: the fence)."""
    return Changes(tr, space).is_live(worker)


def list_workers(tr: Transaction, space: ClusterSpace, *, count: bool = True, first: int = 0) -> list[WorkerStatus]:
    """Every registered worker, by snapshot; claims and assignments are counted up to 1,000 each, unless not `count`.

    first: only so many, the first in the order of their addresses.
    """
    found = []
    for worker, info, beat in _registered(tr, space, first):
        if not count:
            found.append(WorkerStatus(worker, info, beat))
            continue
        claims = held_claims(Changes(tr, space), worker.ip, worker.port, _COUNTED, snapshot=True, readable=True)
        prefix = layout_of(space).assignment_rows(worker.ip, worker.port)
        assigned = read_range(tr, prefix, prefix + b"\xff", limit=_COUNTED, snapshot=True)
        found.append(WorkerStatus(worker, info, beat, len(claims), len(assigned)))
    return found


def anything_to_reap(tr: Transaction, space: ClusterSpace) -> bool:
    """Whether some dead incarnation may still hold what `reap` gives back; by snapshot."""
    return bool(read_range(tr, *span(layout_of(space).dead_workers), limit=1, snapshot=True))


def sightings(tr: Transaction, space: ClusterSpace) -> list[WorkerSighting]:
    """Every registered incarnation and its heartbeat counter, by snapshot: what an observer compares over time."""
    return [WorkerSighting(worker, beat.counter if beat else 0) for worker, _, beat in _registered(tr, space)]


def find_worker(tr: Transaction, space: ClusterSpace, ip: str, port: int) -> WorkerStatus | None:
    """The live incarnation of an address; None if there is none."""
    ch = Changes(tr, space)
    row, beat = ch.get_many([ch.keys.incarnation(ip, port), ch.keys.heartbeat(ip, port)], snapshot=True)
    if row is None:
        return None
    return WorkerStatus(*_worker_from(ip, port, row, beat))


def unregister_worker(tr: Transaction, space: ClusterSpace, worker: WorkerId) -> None:
    """A worker's orderly end: it is fenced as if dead; what it still holds `reap` gives back, uncharged."""
    ch = Changes(tr, space)
    if ch.is_live(worker):
        _retire(ch, worker, drained=True)
        ch.flush()


def declare_dead(tr: Transaction, space: ClusterSpace, sighting: WorkerSighting) -> bool:
    """Fence an incarnation whose counter stood still for a TTL; whether it is fenced now.

    False: it has beaten since. Reads the heartbeat serializably. What it held is given back by `reap`, by anyone.
    """
    ch = Changes(tr, space)
    if not ch.is_live(sighting.id):
        return True
    fenced = _fence(ch, sighting)
    ch.flush()
    return fenced


def reap(tr: Transaction, space: ClusterSpace, limit: int = 100) -> bool:
    """Give back one page of what dead incarnations held: claims (charged as lost), assignments, mail.

    True if more is left: call again. A worker runs it until False before its first claim. Only rows whose token matches
    the future's claim are touched, so it never takes what another incarnation claimed.
    """
    ch = Changes(tr, space)
    dead = _dead(ch)
    if not dead:
        return False
    key, value = dead[0]
    ip, port, incarnation = space["dead_workers"].unpack(key)
    worker = WorkerId(ip, port, incarnation)
    left = limit - _reap_claims(ch, worker, limit, drained=value == codec.pack(True))
    if left > 0:
        left -= _reap_assignments(ch, worker, left)
    if left > 0:
        ch.clear(key)
        mailbox = ch.keys.mailbox(incarnation)
        tr.clear_range(mailbox, mailbox + b"\xff")
        tr.clear(ch.keys.session_bell(incarnation))
        ch.bells.discard(ch.keys.session_bell(incarnation))
        ch.mail.pop(incarnation, None)
    finish(ch)
    return left <= 0 or len(dead) > 1


def _dead(ch: Changes) -> list[tuple[bytes, bytes]]:
    """Two of the rows of dead incarnations; keys that are no incarnation's are stepped over."""
    begin, end = span(ch.keys.dead_workers)
    limit = 2
    while True:
        rows = ch.read(begin, end, limit=limit)
        found = [row for row in rows if is_known(ch.keys, "dead_workers", row[0])]
        if len(found) > 1 or len(rows) < limit:
            return found
        limit *= 8


def _reap_claims(ch: Changes, worker: WorkerId, limit: int, drained: bool) -> int:
    done = 0
    rows = [held for held in held_claims(ch, worker.ip, worker.port) if held.incarnation == worker.incarnation]
    ch.load_ahead(held.id for held in rows[:limit])
    for held in rows:
        if done == limit:
            return done
        done += 1
        f = ch.load(held.id)
        claim = f.claim
        if not f.claimed or claim is None or claim[0] != held.token or claim[1] != worker:
            unlist(ch, held)
        elif drained:
            end_attempt(ch, f, Failure("drained", f"worker {worker} was drained"), returned=True)
        else:
            end_attempt(ch, f, Failure("worker-lost", f"worker {worker} died while it ran future {show_id(f.id)}"))
    return done


def _reap_assignments(ch: Changes, worker: WorkerId, limit: int) -> int:
    prefix = ch.keys.assignment_rows(worker.ip, worker.port)
    done = 0
    for key, _, value in ch.read_ids(prefix):
        try:
            incarnation, _, pinned, _ = codec.unpack_assignment(value)
        except RecordError as error:
            raise DamagedFutureError(decode_id(key[len(prefix) :]), str(error), key) from error
        if incarnation != worker.incarnation:
            continue
        if done == limit:
            return done
        done += 1
        f = ch.load(decode_id(key[len(prefix) :]))
        if not f.exists or not is_unclaimed(ch, f) or f.placement[2] is None:
            ch.clear(key)
        elif pinned:
            fail_for_good(ch, f, lost_pinned(f, worker))
        else:
            relocate(ch, f, None)
    return done


def _worker_from(ip: str, port: int, row: bytes, beat: bytes | None) -> tuple[WorkerId, WorkerInfo, Heartbeat | None]:
    """A worker from its rows. A damaged one is shown by what can be read, its incarnation; it keeps nobody from working."""
    try:
        incarnation, info = codec.unpack_worker_info(row)
    except RecordError:
        incarnation, info = codec.incarnation_of(row) or b"", WorkerInfo(host="its row is damaged")
    try:
        return WorkerId(ip, port, incarnation), info, codec.unpack_heartbeat(beat) if beat else None
    except RecordError:
        return WorkerId(ip, port, incarnation), info, None


def _fence(ch: Changes, sighting: WorkerSighting) -> bool:
    """Retire a registered incarnation if its heartbeat is still as sighted."""
    worker = sighting.id
    beat = ch.get_many([ch.keys.heartbeat(worker.ip, worker.port)])[0]
    if beat is not None:
        with contextlib.suppress(RecordError):  # a damaged one shows no counter, and none is what was seen
            if codec.unpack_heartbeat(beat).counter != sighting.counter:
                return False
    _retire(ch, worker, drained=False)
    return True


def _retire(ch: Changes, worker: WorkerId, *, drained: bool) -> None:
    ch.clear(ch.keys.incarnation(worker.ip, worker.port))
    ch.clear(ch.keys.heartbeat(worker.ip, worker.port))
    ch.set(ch.keys.dead_worker(worker), codec.pack(drained))
    ch.ring_pool()  # somebody is to reap


def list_forgotten(tr: Transaction, space: ClusterSpace) -> int:
    """List as dead who holds something at an address and isn't registered there; how many. `reap` gives back what they held.

    Whose row is damaged or gone was fenced by that: it is the live one in no transaction of its own any more.
    """
    ch = Changes(tr, space)
    found = 0
    for at in addresses(ch):
        row = ch.get_many([ch.keys.incarnation(at.ip, at.port)])[0]
        found += _list_forgotten(ch, WorkerId(at.ip, at.port, codec.incarnation_of(row) or b""))
    if found:
        ch.ring_pool()  # somebody is to reap
    ch.flush()
    return found


def _list_forgotten(ch: Changes, worker: WorkerId) -> int:
    """List as dead who holds something at this address and isn't this worker: its row was damaged, so nobody could declare it dead."""
    forgotten: set[bytes] = set()
    held = held_claims(ch, worker.ip, worker.port, snapshot=True, readable=True)  # whoever reaps meets the others
    forgotten.update(one.incarnation for one in held)
    for _, _, value in ch.read_ids(ch.keys.assignment_rows(worker.ip, worker.port), snapshot=True):
        with contextlib.suppress(RecordError):
            forgotten.add(codec.unpack_assignment(value)[0])
    keys = [ch.keys.dead_worker(WorkerId(worker.ip, worker.port, one)) for one in forgotten - {worker.incarnation}]
    unlisted = [key for key, listed in zip(keys, ch.get_many(keys), strict=True) if listed is None]
    for key in unlisted:
        ch.set(key, codec.pack(False))
    return len(unlisted)


def _registered(
    tr: Transaction, space: ClusterSpace, first: int = 0
) -> list[tuple[WorkerId, WorkerInfo, Heartbeat | None]]:
    """Every registered worker, or the `first` ones in the order of their addresses."""
    found = (
        _worker_from(at.ip, at.port, at.incarnation, at.heartbeat)
        for at in addresses(Changes(tr, space))
        if at.incarnation is not None  # others have only what their dead ones left
    )
    return list(islice(found, first or None))
