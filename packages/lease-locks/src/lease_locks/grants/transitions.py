"""The lease's transitions: functions of a transaction, each one row of `states.GRANT_ROWS`, each safe to run twice.

Who may call them, what is read serializably (so that a change in between aborts the commit) and what they write is said
at each. None opens a transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdb_schema import add_read_conflict_keys, read_version
from lease_locks.grants.ending import Found, release, take_over, write_event
from lease_locks.grants.observer import Alive, Dead, Observer, Subject
from lease_locks.grants.records import EventRecord, HolderRecord, WaiterRecord
from lease_locks.grants.rows import (
    HeldGrant,
    Place,
    grant_subject,
    place_subject,
    read_ahead,
    read_name,
)
from lease_locks.grants.space import HISTORY_EVENTS, LeaseSpace, LockKeys, stamped_key, stamped_value
from lease_locks.grants.states import Event, Grant, next_grant
from lease_locks.grants.tokens import STAMP_BYTES, FencingToken

TRIM_ONE_IN = 16  # a grant out of so many trims its name's history
PRESENT = b""  # in `Waiting.watch`: the row is there, with whatever value
_ONE = (1).to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class Claim:
    """What an acquirer asks for, the same in every attempt."""

    owner: bytes  # 16 random bytes, new for each call of acquire
    session: bytes
    ttl: float
    mode: str = "exclusive"
    slots: int = 1
    fair: bool = True
    max_hold: float = 0.0
    maintained: bool = True
    adopt: bool = False  # take on the pending remotes of a dead holder
    meta: dict[str, Any] | None = None
    host: str = ""
    pid: int = 0
    wall_us: int = 0

    @property
    def by(self) -> str:
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is the claim's once this commits. `token` is known where an earlier attempt had committed."""

    epoch: int
    token: FencingToken | None = None
    adopts: tuple[FencingToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody is before the claim."""

    watch: tuple[tuple[bytes, bytes | None], ...] = ()  # (key, `PRESENT` or its value): a change may end the wait
    look_in: float = 0.0  # seconds until heartbeats should be looked at again
    holder: HeldGrant | None = None
    again: bool = False  # this transaction took a place, or skipped a dead waiter: look again once it committed
    processes: tuple[Subject, ...] = ()  # whose processes' end, on this host, would end the wait


def _admits(claim: Claim, grants: list[HeldGrant]) -> bool:
    """Whether the claim may hold the name beside `grants`."""
    if not grants:
        return True
    if claim.mode == "shared":
        return all(g.record.mode == "shared" for g in grants)
    if any(g.record.mode == "shared" for g in grants):
        return False
    return len(grants) < min(claim.slots, *(g.record.slots for g in grants))


def acquire(
    tr: Any,
    space: LeaseSpace,
    lock: LockKeys,
    claim: Claim,
    observer: Observer,
    *,
    queued: bool = False,
    enqueue: bool = True,
    first: bool = False,
    draw: Callable[[], float] = random.random,
) -> Granted | Waiting:
    """ABSENT ─acquired─▶ HELD where nobody is before the claim; otherwise take a place in the queue, or just say so.

    Reads serializably: the name's last token, which every grant writes, so of two grants at once one conflicts. A
    holder that is taken over is read serializably in full, heartbeats included. A claim that already holds the name
    (an earlier attempt committed) is told its token.

    `queued`: whether an attempt before may have taken a place in the queue. `enqueue`: whether to take one. `first`: no
    attempt of this claim came before, so none can be in flight.
    """
    place = find_place(tr, lock, claim.owner) if queued else None
    if place is not None:
        present, ahead = read_ahead(tr, lock, place)
        if not present:
            place = None  # skipped as dead while this process was stopped, or granted by an attempt before
        elif ahead is not None:
            return _behind(tr, space, lock, claim, observer, ahead) or Waiting(again=True)
    last_read = tr.get(lock.last)
    rows = read_name(tr, lock)
    for grant in rows.grants:
        if grant.record.owner == claim.owner:
            _leave_queue(tr, lock, claim, find_place(tr, lock, claim.owner))
            return Granted(grant.token.epoch, grant.token, _adopted(grant.record))
    while claim.fair and place is None and rows.first is not None:
        if enqueue:
            return _enqueue(tr, lock, claim)
        waiting = _behind(tr, space, lock, claim, observer, rows.first)
        if waiting is not None:
            return waiting
        rows = read_name(tr, lock)
    adopts: list[FencingToken] = []
    order = 0  # of this transaction's events: the ends first, then the grant
    if not _admits(claim, rows.grants):
        subjects = [grant_subject(tr, space, lock, grant) for grant in rows.grants]
        version = read_version(tr)
        verdicts = [observer.judge(subject, version) for subject in subjects]
        living = [g for g, verdict in zip(rows.grants, verdicts, strict=True) if isinstance(verdict, Alive)]
        if not _admits(claim, living):
            if enqueue and claim.fair and place is None:
                return _enqueue(tr, lock, claim)
            look_in = min(verdict.look_in for verdict in verdicts if isinstance(verdict, Alive))
            watched = _watched(tr, lock, rows.grants)
            alive = [s for s, verdict in zip(subjects, verdicts, strict=True) if isinstance(verdict, Alive)]
            return Waiting(watched, look_in, living[0], processes=tuple(alive))
        dead = [
            Found(grant, subject, verdict)
            for grant, subject, verdict in zip(rows.grants, subjects, verdicts, strict=True)
            if isinstance(verdict, Dead)
        ]
        take_over(tr, space, lock, dead, claim.session, claim.by, claim.wall_us)
        order = len(dead)
        for found in dead:
            observer.forget(found.subject.key)
            if claim.adopt:
                adopts += [*_adopted(found.grant.record), found.grant.token]
    granted = _grant(tr, lock, claim, last_read.value, adopts, order, draw)
    if claim.fair and not first:
        _leave_queue(tr, lock, claim, place)
    return granted


def _adopted(record: HolderRecord) -> tuple[FencingToken, ...]:
    return tuple(FencingToken.from_bytes(token) for token in record.adopts)


def _watched(tr: Any, lock: LockKeys, grants: list[HeldGrant]) -> tuple[tuple[bytes, bytes | None], ...]:
    """What to watch at the head of the queue: the holder's own row, or the bell where there are several."""
    if len(grants) == 1 and grants[0].alone:
        return ((grants[0].key, PRESENT),)
    return ((lock.bell, tr.snapshot.get(lock.bell).value),)


def _grant(
    tr: Any,
    lock: LockKeys,
    claim: Claim,
    last: bytes | None,
    adopts: list[FencingToken],
    order: int,
    draw: Callable[[], float],
) -> Granted:
    next_grant(Grant.ABSENT, Event.ACQUIRED)
    if not order and draw() * TRIM_ONE_IN < 1:
        trim_history(tr, lock)  # before this transaction's own events, which it can't read
    epoch = 0
    if last is not None:
        epoch = int.from_bytes(last[STAMP_BYTES : STAMP_BYTES + 4], "big")
        if int.from_bytes(last[:8], "big") > read_version(tr):
            # Versions went back (a restored copy, a switch to another cluster): the token must grow all the same.
            epoch += 1
    record = HolderRecord(
        owner=claim.owner,
        session=claim.session,
        ttl_ms=max(1, round(claim.ttl * 1000)),
        mode=claim.mode,
        slots=claim.slots,
        max_hold_ms=max(1, round(claim.max_hold * 1000)) if claim.max_hold else 0,
        maintained=claim.maintained,
        acquired_us=claim.wall_us,
        adopts=tuple(bytes(token) for token in adopts),
        meta=claim.meta or None,
        host=claim.host,
        pid=claim.pid,
    )
    tr.set_versionstamped_key(lock.holder_stamped(epoch), record.encode())
    tr.set_versionstamped_value(lock.last, stamped_value(epoch.to_bytes(4, "big")))
    why = "adopts the remote of " + ", ".join(token.hex for token in adopts) if adopts else ""
    write_event(tr, lock, order, EventRecord("acquired", b"", epoch, claim.by, claim.session, why, claim.wall_us))
    return Granted(epoch, None, tuple(adopts))


def trim_history(tr: Any, lock: LockKeys) -> None:
    """Forget all but the newest `HISTORY_EVENTS` events. Reads by snapshot: two trims clear the same rows."""
    span = (lock.events, lock.events + b"\xff")
    newest = list(tr.snapshot.get_range(*span, limit=HISTORY_EVENTS, reverse=True))
    if len(newest) == HISTORY_EVENTS:
        tr.clear_range(lock.events, newest[-1].key)


def _enqueue(tr: Any, lock: LockKeys, claim: Claim) -> Waiting:
    """Take the last place, once: the pointer is read serializably, so a second attempt finds the first one's place."""
    if not tr.get(lock.pointer(claim.owner)).present():
        waiter = WaiterRecord(claim.owner, claim.session, claim.mode, claim.slots, claim.wall_us, claim.host, claim.pid)
        tr.set_versionstamped_key(stamped_key(lock.queue), waiter.encode())
        tr.set_versionstamped_value(lock.pointer(claim.owner), stamped_value())
    return Waiting(again=True)


def _leave_queue(tr: Any, lock: LockKeys, claim: Claim, place: bytes | None) -> None:
    """Give the claim's place back.

    An attempt to take one may still be in flight: reading the pointer refuses this transaction where that one lands
    before it, clearing the pointer refuses that one where it lands after it.
    """
    pointer = lock.pointer(claim.owner)
    if place is not None:
        tr.clear(lock.waiter(place))
    tr.add_read_conflict_key(pointer)
    tr.clear(pointer)


def find_place(tr: Any, lock: LockKeys, owner: bytes) -> bytes | None:
    """The versionstamp of the owner's place in the queue."""
    data: bytes | None = tr.snapshot.get(lock.pointer(owner)).value
    return data


def _behind(
    tr: Any, space: LeaseSpace, lock: LockKeys, claim: Claim, observer: Observer, ahead: Place
) -> Waiting | None:
    """Wait for the waiter ahead, or skip it where it is dead (None): its heartbeat is then read serializably."""
    subject = place_subject(tr, space, lock, ahead, claim.ttl)
    verdict = observer.judge(subject, read_version(tr))
    if isinstance(verdict, Alive):
        return Waiting(((ahead.key, PRESENT),), verdict.look_in, processes=(subject,))
    add_read_conflict_keys(tr, [ahead.key, *(space.heartbeat(v.session) for v in subject.vitals)])
    tr.clear(ahead.key)
    tr.clear(lock.pointer(ahead.record.owner))
    observer.forget(subject.key)
    return None


def withdraw(tr: Any, space: LeaseSpace, lock: LockKeys, claim: Claim) -> None:
    """Leave nothing of a claim behind: not its place, not a grant that it got unnoticed.

    What it clears, and the last token, become write conflicts, so an attempt that may still be in flight fails.
    """
    pointer = lock.pointer(claim.owner)
    stamp = tr.get(pointer).value
    if stamp is not None:
        tr.clear(lock.waiter(stamp))
    tr.clear(pointer)
    tr.add_read_conflict_key(lock.last)  # a first attempt, which has no place, may land while this reads
    tr.add_write_conflict_key(lock.last)
    for grant in read_name(tr, lock).grants:
        if grant.record.owner == claim.owner:
            why = "its acquirer gave up"
            release(tr, space, lock, grant.token, claim.session, claim.by, why, claim.wall_us)
