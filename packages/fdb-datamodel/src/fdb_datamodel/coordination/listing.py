"""Every queue and semaphore by name, for people."""

from __future__ import annotations

from typing import NamedTuple

from fdb_datamodel.coordination.grants import SUBSPACES, held_rows
from fdb_datamodel.coordination.lines import (
    CLEARED_AT_ONCE,
    GETTERS,
    KINDS,
    PUTTERS,
    Line,
    name_in,
    read_bound,
    read_size,
)
from fdb_datamodel.coordination.stamps import stamped_rows
from fdb_datamodel.errors import UnknownNameError
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.space import span
from fdb_schema import ClusterSpace, Transaction, read_range


class SharedStatus(NamedTuple):
    """A queue or a semaphore. size: items, or free permits. bound: how many it takes or has, None for any number.

    held: items that are taken, or permits that are had. getters, putters: who waits (up to 200).
    """

    name: str
    kind: str
    size: int
    bound: int | None
    held: int
    getters: int
    putters: int


def list_shared(
    tr: Transaction, space: ClusterSpace, kind: str, after: str = "", limit: int = 50
) -> tuple[list[SharedStatus], str | None]:
    """A page of those of a kind ("queue", "semaphore") by name, and where the next one starts (None: that was the last). By snapshot."""
    ch = Changes(tr, space)
    (subspace,) = (one for one in SUBSPACES if KINDS[one] == kind)
    begin, end = span(ch.keys.bases[subspace])
    if after:
        begin = ch.keys.shared(subspace, after) + b"\xff"
    found: list[SharedStatus] = []
    while rows := read_range(tr, begin, end, limit=1, snapshot=True):
        key = rows[0][0]
        name = name_in(ch, subspace, key)
        if name is None:
            begin = key + b"\x00"  # no release wrote it
            continue
        if len(found) == limit:
            return found, found[-1].name
        begin = ch.keys.shared(subspace, name) + b"\xff"
        line = Line(subspace, name)
        try:
            bound = read_bound(ch, line)
        except UnknownNameError:
            continue
        waits = [
            len(stamped_rows(ch, subspace, ch.keys.shared(subspace, name, who), CLEARED_AT_ONCE))
            for who in (GETTERS, PUTTERS)
        ]
        size, held = read_size(ch, line, snapshot=True), len(held_rows(ch, subspace, name))
        found.append(SharedStatus(name, kind, size, bound, held, *waits))
    return found, None
