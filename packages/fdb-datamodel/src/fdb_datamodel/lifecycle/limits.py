"""Limits: how many futures of a kind may run at once, and begin in a second, on all workers together.

A future with limits takes a permit of each, in the order of their names (so that no two wait for each other), when it becomes
claimable, and gives them back when its attempt ends, however that ends: in those very transactions. Where there is none left it
waits in the limit's queue, from which whoever gives one back takes the first. Of a limit of starts, each takes the next moment that
is free, and waits for that by its timer.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes, FutureRows
from fdb_datamodel.rows.elements import decode_id, decode_int
from fdb_datamodel.rows.space import DUE, LIMITS
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


_UNREADABLE: Final = Limit(0, None)


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
    """Take a permit of each limit for a future that is about to become claimable; False: it waits, for a permit or its time.

    A limit that isn't there any more limits nothing.
    """
    held, _ = f.permits
    names = [name for name in sorted(set(f.option("limits"))) if name not in held]
    for name in names:
        limit = read_limit(ch, name)
        if limit is None:
            continue
        if limit.full:
            ch.set(ch.keys.limit_queued(name, f.placement[1], f.e), b"")
            ch.put(f, LIMITS, codec.pack((held, name)))
            return False
        held = (*held, name)
        ch.set(ch.keys.limit_held(name, f.e), b"")
        due = 0
        if limit.between is not None:
            now = due_after(ch.tr, ch.keys.space, 0.0)
            due = max(now, limit.next_us)
            limit = limit._replace(next_us=due + limit.between)
            due = due if due > now else 0
        write_limit(ch, name, limit._replace(held=limit.held + 1))
        ch.put(f, LIMITS, codec.pack((held, "")))
        if due:
            ch.set(ch.keys.timer(due, f.e, "backoff"), b"")
            ch.put(f, DUE, codec.pack(due))
            return False
    return True


def give_back(ch: Changes, f: FutureRows) -> list[FutureRows]:
    """Its attempt ended, or it will have none: it holds no permit, and waits for none. Who is next, to be made claimable."""
    held, waits = f.permits
    ch.put(f, LIMITS, None)
    if waits:
        ch.clear(ch.keys.limit_queued(waits, f.placement[1], f.e))
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


def next_in_line(ch: Changes, name: str, count: int) -> list[FutureRows]:
    """Take the first of those that wait for a permit out of the queue, as many as there is room for; at most `count`."""
    limit = read_limit(ch, name)
    room = count if limit is None or limit.at_once is None else min(count, limit.at_once - limit.held)
    prefix = ch.keys.limit_queue(name)
    found: list[FutureRows] = []
    for key, _ in ch.read(prefix, prefix + b"\xff", limit=room) if room > 0 else ():
        ch.clear(key)
        _, at = decode_int(key, len(prefix))
        f = ch.load(decode_id(key[at:]))
        held, waits = f.permits
        if f.exists and waits == name:
            ch.put(f, LIMITS, codec.pack((held, "")))
            found.append(f)
    return found
