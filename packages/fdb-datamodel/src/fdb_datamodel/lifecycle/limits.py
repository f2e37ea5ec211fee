"""Limits: how many futures of a kind may run at once, and begin in a second, on all workers together.

A future with limits takes a permit of each, in the order of their names (so that no two wait for each other), when it becomes
claimable, and gives them back when its attempt ends, however that ends: in those very transactions. Where there is none left it
waits in the limit's queue, from which whoever gives one back takes the first. Where a limit of starts has none just now it waits in
the same queue, whose first has a timer for the next one: so whatever ends, changes or comes first meanwhile, no start is kept for it.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import decode_id, decode_int
from fdb_datamodel.rows.future_rows import FutureRows
from fdb_datamodel.rows.space import LIMITS
from fdb_schema import RecordError, due_after

log = logging.getLogger("fdb_datamodel")


class Limit(NamedTuple):
    """The row of a limit. at_once: None is any number. between: µs from one start to the next, None: no time at all."""

    at_once: int | None
    between: int | None
    held: int = 0
    next_us: int = 0
    wall_us: int = 0

    @property
    def full(self) -> bool:
        return self.at_once is not None and self.held >= self.at_once


ADMITTED_AT_ONCE: Final = 100
"""Futures that a changed limit, or a timer, lets begin by one transaction."""
_UNREADABLE: Final = Limit(0, None)
CAUGHT_UP_US: Final = 1_000_000
"""Of starts that were due and not made, up to which they are made up for: what a cluster slept is not begun all at once."""


def read_limit(ch: Changes, name: str) -> Limit | None:
    """The limit of a name, read serializably. One that can't be read lets nobody begin and holds up no end, until it is set anew."""
    row = ch.get_many([ch.keys.limit(name)])[0]
    try:
        return None if row is None else Limit(*codec.unpack_limit(row))
    except RecordError as error:
        log.error("limit %r can't be read, and lets nobody begin: %s; set it anew", name, error)
        return _UNREADABLE


def count_permits(ch: Changes, name: str) -> int:
    """How many hold a permit of a limit by their rows, where its own row doesn't say so."""
    prefix = ch.keys.limit_held(name, b"")
    return len(ch.read(prefix, prefix + b"\xff"))


def write_limit(ch: Changes, name: str, limit: Limit) -> None:
    ch.set(ch.keys.limit(name), codec.pack(tuple(limit)))


def admit(ch: Changes, f: FutureRows) -> bool:
    """Take a permit of each limit for a future that is about to become claimable; False: it waits for one.

    A limit that isn't there limits nothing, and doesn't either where it is made again before the future has the permits that
    come after: whoever has a permit waits for those of later names only.
    """
    held, _ = f.permits
    names = [name for name in sorted(set(f.option("limits"))) if not held or name > held[-1]]
    for name in names:
        limit = read_limit(ch, name)
        if limit is None:
            continue
        place = ch.keys.limit_queued(name, f.placement[1], f.e)
        now = _now(ch) if limit.between is not None else 0
        if limit.full or (limit.between is not None and (limit.next_us > now or _is_behind(ch, name, place))):
            ch.set(place, b"")
            ch.put(f, LIMITS, codec.pack((held, name)))
            _await_start(ch, name, limit)
            return False
        write_limit(ch, name, _take(ch, f, name, limit, now))
        held = (*held, name)
    return True


def give_back(ch: Changes, f: FutureRows) -> list[FutureRows]:
    """Its attempt ended, or it will have none: it holds no permit, and waits for none. Who is next, to be made claimable."""
    held, waits = f.permits
    ch.put(f, LIMITS, None)
    if waits:
        ch.clear(ch.keys.limit_queued(waits, f.placement[1], f.e))
        limit = read_limit(ch, waits)
        if limit is not None:
            _await_start(ch, waits, limit)  # the timer for that may have been its own
    following: list[FutureRows] = []
    for name in held:
        ch.clear(ch.keys.limit_held(name, f.e))
        limit = read_limit(ch, name)
        if limit is _UNREADABLE:
            continue
        if limit is not None:
            write_limit(ch, name, limit._replace(held=max(0, limit.held - 1)))
            following += next_in_line(ch, name, 1)
    return following


def next_in_line(ch: Changes, name: str, count: int, now_us: int | None = None) -> list[FutureRows]:
    """Take the first of those that wait for a permit out of the queue, with it, as many as there is room for; at most `count`.

    now_us: of the cluster clock, as whoever fires timers knows it.
    """
    limit = read_limit(ch, name)
    prefix = ch.keys.limit_queue(name)
    found: list[FutureRows] = []
    while (room := _room(ch, limit, count - len(found), now_us)) > 0:
        rows = ch.read(prefix, prefix + b"\xff", limit=room)
        for key, _ in rows:
            ch.clear(key)
            _, at = decode_int(key, len(prefix))
            f = ch.load(decode_id(key[at:]))
            held, waits = f.permits
            if not f.exists or waits != name:
                continue
            if limit is None:
                ch.put(f, LIMITS, codec.pack((held, "")))
            else:
                limit = _take(ch, f, name, limit, _earliest(ch, limit, now_us))
            found.append(f)
        if len(rows) < room:
            break
    if limit is not None and limit is not _UNREADABLE:
        write_limit(ch, name, limit)
        _await_start(ch, name, limit)
    return found


def _take(ch: Changes, f: FutureRows, name: str, limit: Limit, now: int) -> Limit:
    """Give a future a permit; the limit then. now: when it starts, where starts are limited."""
    held, _ = f.permits
    ch.put(f, LIMITS, codec.pack(((*held, name), "")))
    ch.set(ch.keys.limit_held(name, f.e), b"")
    next_us = limit.next_us if limit.between is None else max(limit.next_us, now) + limit.between
    return limit._replace(held=limit.held + 1, next_us=next_us)


def _room(ch: Changes, limit: Limit | None, count: int, now_us: int | None) -> int:
    """How many of `count` may have a permit now."""
    if limit is not None and limit.at_once is not None:
        count = min(count, limit.at_once - limit.held)
    if count <= 0 or limit is None or limit.between is None:
        return count
    now = _now(ch) if now_us is None else now_us
    return min(count, (now - _earliest(ch, limit, now)) // limit.between + 1)


def _earliest(ch: Changes, limit: Limit, now_us: int | None) -> int:
    """When the next start of who waits is, or was: the clock moves in steps, in each of which several may be due."""
    if limit.between is None:
        return 0
    now = _now(ch) if now_us is None else now_us
    return max(limit.next_us, now - CAUGHT_UP_US)


def _is_behind(ch: Changes, name: str, place: bytes) -> bool:
    """Whether others go before this place of a queue."""
    return bool(ch.read(ch.keys.limit_queue(name), place, limit=1))


def _await_start(ch: Changes, name: str, limit: Limit) -> None:
    """Whoever is first in the queue of a limit of starts has a timer for the next one. Where it is full, an end brings it on."""
    if limit.between is None or limit.full:
        return
    prefix = ch.keys.limit_queue(name)
    for key, _ in ch.read(prefix, prefix + b"\xff", limit=1):
        ch.set(ch.keys.timer(limit.next_us, key[decode_int(key, len(prefix))[1] :], "limit"), b"")


def _now(ch: Changes) -> int:
    return due_after(ch.tr, ch.keys.space, 0.0)
