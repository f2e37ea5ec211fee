"""Making, changing and showing limits."""

from __future__ import annotations

from typing import NamedTuple

from fdb_datamodel.lifecycle.endings import enqueue_or_fail, finish
from fdb_datamodel.lifecycle.limits import ADMITTED_AT_ONCE, Limit, count_permits, next_in_line, read_limit, write_limit
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.space import layout_of, span
from fdb_schema import ClusterSpace, Transaction, read_range
from fdb_schema.clock import MICROSECONDS

_COUNTED = 1000


class LimitStatus(NamedTuple):
    """A limit, how many permits are held, and how many futures wait for one (counted up to 1,000)."""

    name: str
    concurrent: int | None
    per_second: float | None
    held: int
    queued: int


def set_limit(
    tr: Transaction, space: ClusterSpace, name: str, concurrent: int | None, per_second: float | None
) -> bool:
    """Make a limit, or change it; both None: remove it. True: more that wait may begin now; call it again.

    What has a permit keeps it.
    """
    ch = Changes(tr, space)
    known = read_limit(ch, name)
    between = None if per_second is None else max(1, round(MICROSECONDS / per_second))
    held = known.held if known is not None and known.at_once != 0 else count_permits(ch, name)
    if concurrent is None and between is None:
        ch.clear(ch.keys.limit(name))
    else:
        next_us = 0
        if known is not None and known.between is not None and between is not None:
            next_us = known.next_us - known.between + between  # from the latest start on
        write_limit(ch, name, Limit(concurrent, between, held, next_us, ch.wall_us))
    admitted = next_in_line(ch, name, ADMITTED_AT_ONCE)
    for f in admitted:
        enqueue_or_fail(ch, f)
    finish(ch)
    return len(admitted) == ADMITTED_AT_ONCE


def missing_limits(tr: Transaction, space: ClusterSpace, names: tuple[str, ...]) -> list[str]:
    """Which of these are no limits, by snapshot."""
    keys = layout_of(space)
    rows = Changes(tr, space).get_many([keys.limit(name) for name in names], snapshot=True)
    return [name for name, row in zip(names, rows, strict=True) if row is None]


def list_limits(tr: Transaction, space: ClusterSpace) -> list[LimitStatus]:
    """Every limit by name, by snapshot."""
    ch = Changes(tr, space)
    found: list[LimitStatus] = []
    begin, end = span(ch.keys.limits)
    while rows := read_range(tr, begin, end, limit=1, snapshot=True):
        name = str(space["limits"].unpack(rows[0][0])[0])
        begin = span(ch.keys.limit(name)[: -len(b"\x02config\x00")])[1]
        limit = read_limit(ch, name)
        if limit is None:
            continue
        queue = ch.keys.limit_queue(name)
        queued = len(read_range(tr, queue, queue + b"\xff", limit=_COUNTED, snapshot=True))
        rate = None if limit.between is None else MICROSECONDS / limit.between
        found.append(LimitStatus(name, limit.at_once, rate, limit.held, queued))
    return found
