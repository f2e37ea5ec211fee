"""Lines: who waits for an item, for room or for a permit, first come first served, and nobody woken in vain.

    (name, 'size')                    → how much there is: items of a queue, free permits of a semaphore
    (name, 'getters', versionstamp)   → session: who waits until there is something
    (name, 'putters', versionstamp)   → session: who waits until there is room

The first of a line watches `size`, everybody else the row of the one before: what comes wakes one, and who leaves wakes the next. A
row whose session is gone is cleared by whoever is behind it. One that takes nothing while something is there, for as long as another
looks twice, has lost its place: it may be stopped, and would hold up all the others.

Who takes without waiting asks nobody: lines order those who wait. Nor does who comes where there is enough for all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from fdb_datamodel.coordination.grants import bring_back, holders
from fdb_datamodel.coordination.stamps import stamped_rows
from fdb_datamodel.errors import UnknownNameError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.space import stamped
from fdb_datamodel.transitions.sessions import SessionSighting, sight_session
from fdb_schema import ClusterSpace, RecordError, Transaction

GETTERS: Final = "getters"
PUTTERS: Final = "putters"
LINES: Final = (GETTERS, PUTTERS)
CLEARED_AT_ONCE: Final = 200
COUNTED_IN_LINE: Final = 64
"""Where more wait, who comes stands behind them, however much there is."""
KINDS: Final = {"queues": "queue", "semaphores": "semaphore"}


class Line(NamedTuple):
    """One line: of a queue (`subspace` "queues") or a semaphore, by its name; `kind`: who stands in it."""

    subspace: str
    name: str
    kind: str = GETTERS

    def __str__(self) -> str:
        return f"{KINDS[self.subspace]} {self.name!r}"


class Sight(NamedTuple):
    """What one in a line sees, at one version.

    standing: its own row is there still. first: nobody is before it. there: what the line waits for is there. head: the row of the
    first. sessions: those that it depends on, with what is to be judged of each, None of one that is gone. watch: fires when any of
    this may have changed.
    """

    standing: bool
    first: bool
    there: bool
    head: bytes
    sessions: Sequence[tuple[bytes, SessionSighting | None]]
    watch: Any


def read_bound(ch: Changes, line: Line) -> int | None:
    """The number that the queue or the semaphore was made with, read serializably. Raises UnknownNameError, RecordError."""
    row = ch.get_many([ch.keys.shared(line.subspace, line.name, "config")])[0]
    if row is None:
        raise UnknownNameError(f"cluster {ch.keys.space.cluster!r} has no {line}: it was deleted, or never made")
    try:
        return codec.unpack_bound(row)
    except RecordError as error:
        raise RecordError(f"what {line} was made with can't be read: {error}; delete it, and make it anew") from error


def read_size(ch: Changes, line: Line, *, snapshot: bool = False) -> int:
    """How much there is."""
    row = ch.get_many([ch.keys.shared(line.subspace, line.name, "size")], snapshot=snapshot)[0]
    return int.from_bytes(row or b"", "little", signed=True)


def change_size(ch: Changes, line: Line, change: int) -> None:
    """There is so much more, or less. Conflicts with nobody who doesn't read it."""
    ch.tr.add(ch.keys.shared(line.subspace, line.name, "size"), change.to_bytes(8, "little", signed=True))


def first_in(ch: Changes, line: Line) -> bytes | None:
    """The row of the first who waits, by snapshot."""
    rows = stamped_rows(ch, line.subspace, ch.keys.shared(*line), 1)
    return rows[0][0] if rows else None


def may_go(ch: Changes, line: Line, place: bytes | None, size: Callable[[], int]) -> bool:
    """Whether it is the turn of who stands at `place`, or of who comes (None), where there is `size`: nobody waits before.

    Nor does who comes where there is more than those who wait can take. A line that was formed by a few who were after the same item at
    once would stand otherwise for as long as they all come again, and be served at the pace at which each wakes the next.
    """
    first = first_in(ch, line)
    if place is not None:
        return first == place_key(ch, line, place)
    if first is None:
        return True
    there = min(size(), COUNTED_IN_LINE)
    return there > 1 and len(stamped_rows(ch, line.subspace, ch.keys.shared(*line), there)) < there


def place_key(ch: Changes, line: Line, place: bytes) -> bytes:
    """The row of who joined by the transaction with this versionstamp (10 bytes)."""
    return ch.keys.shared(*line) + b"\x33" + place + b"\x00\x00"


def join_line(tr: Transaction, space: ClusterSpace, line: Line, session: bytes) -> None:
    """Stand at the end of a line. The place is this transaction's versionstamp, and not to be had twice in one transaction."""
    ch = Changes(tr, space)
    read_bound(ch, line)
    tr.set_versionstamped_key(stamped(ch.keys.shared(*line)), codec.pack((session, ch.wall_us)))


def leave_line(tr: Transaction, space: ClusterSpace, line: Line, place: bytes) -> None:
    """Stand there no more; harmless where that is so."""
    tr.clear(place_key(Changes(tr, space), line, place))


def look_around(tr: Transaction, space: ClusterSpace, line: Line, place: bytes) -> Sight:
    """What one in a line sees; it only reads. Raises UnknownNameError, RecordError."""
    ch = Changes(tr, space)
    bound = read_bound(ch, line)
    size = read_size(ch, line)
    prefix, own = ch.keys.shared(*line), place_key(ch, line, place)
    row = ch.get_many([own])[0]
    if row is None:
        return Sight(False, False, False, b"", (), None)
    head = stamped_rows(ch, line.subspace, prefix, 1)[0][0]
    there = size > 0 if line.kind == GETTERS else bound is None or size < bound
    if head == own:
        watch = tr.watch(ch.keys.shared(line.subspace, line.name, "size"))
        sessions = holders(ch, line.subspace, line.name) if line.kind == GETTERS and not there else []
    else:
        (before,) = stamped_rows(ch, line.subspace, prefix, 1, end=own, last=True)
        watch = tr.watch(before[0])
        sessions = [_session_in(before[1])]
    return Sight(True, head == own, there, head, [(one, sight_session(tr, space, one)) for one in sessions], watch)


def see_holders(tr: Transaction, space: ClusterSpace, line: Line) -> list[tuple[bytes, SessionSighting | None]]:
    """As `Sight.sessions`, for who finds nothing and doesn't wait; by snapshot."""
    found = holders(Changes(tr, space), line.subspace, line.name)
    return [(one, sight_session(tr, space, one)) for one in found]


def put_in_order(
    tr: Transaction, space: ClusterSpace, line: Line, gone: Sequence[bytes] = (), head: bytes | None = None
) -> None:
    """Clear the places of sessions that are gone, take back what they hold, and clear the place `head`, which takes nothing.

    A session that isn't gone keeps all of it.
    """
    ch = Changes(tr, space)
    if head is not None:
        ch.clear(head)
    absent = {one for one in gone if tr.get(ch.keys.session(one)).value is None}
    if absent:
        for kind in LINES:
            prefix = ch.keys.shared(line.subspace, line.name, kind)
            for key, value in stamped_rows(ch, line.subspace, prefix, CLEARED_AT_ONCE):
                if _session_in(value) in absent:
                    ch.clear(key)
        back = bring_back(ch, line.subspace, line.name, absent)
        if back:
            change_size(ch, line, back)
    ch.flush()


def name_in(ch: Changes, subspace: str, key: bytes) -> str | None:
    """The name that a key of queues or semaphores begins with; None: no release wrote it."""
    try:
        name = ch.keys.space[subspace].unpack(key)[0]
    except (ValueError, IndexError, TypeError, struct.error):
        return None
    return name if type(name) is str and key.startswith(ch.keys.shared(subspace, name)) else None


def sessions_in(ch: Changes, subspace: str, name: str) -> set[bytes]:
    """The sessions that wait for, or hold, something of it: the first of each, by snapshot."""
    found = set(holders(ch, subspace, name))
    for kind in LINES:
        prefix = ch.keys.shared(subspace, name, kind)
        found.update(_session_in(value) for _, value in stamped_rows(ch, subspace, prefix, CLEARED_AT_ONCE))
    return found


def _session_in(value: bytes) -> bytes:
    """The session of a place; of one that can't be read none, which is gone."""
    try:
        return codec.unpack_place(value)
    except RecordError:
        return b""
