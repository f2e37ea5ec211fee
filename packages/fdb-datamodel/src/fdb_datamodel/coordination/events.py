"""Events: set or not, and how often they were set, so that who waits sees it also where it was cleared at once.

    events  (name)  → is set, times it was set

A row that isn't there is an event that was never set. All who wait watch the row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.space import layout_of
from fdb_schema import ClusterSpace, RecordError, Transaction


class EventState(NamedTuple):
    """Whether it is set, and how often it was."""

    is_set: bool
    times: int


def read_event(tr: Transaction, space: ClusterSpace, name: str) -> EventState:
    """Raises RecordError."""
    row = tr.get(layout_of(space).event(name)).value
    try:
        return EventState(False, 0) if row is None else EventState(*codec.unpack_event(row))
    except RecordError as error:
        raise RecordError(f"event {name!r} can't be read: {error}; delete it") from error


def watch_event(tr: Transaction, space: ClusterSpace, name: str) -> tuple[EventState, Any]:
    """The event, and a watch that fires when it changes; it only reads."""
    found = read_event(tr, space, name)
    return found, tr.watch(layout_of(space).event(name))


def write_event(tr: Transaction, space: ClusterSpace, name: str, is_set: bool) -> bool:
    """Set an event, or clear it; whether it was otherwise. Who waits is woken."""
    found = read_event(tr, space, name)
    if found.is_set is is_set:
        return False
    ch = Changes(tr, space)
    tr.set(ch.keys.event(name), codec.pack((is_set, found.times + is_set, ch.wall_us)))
    return True


def delete_event(tr: Transaction, space: ClusterSpace, name: str) -> bool:
    """Forget an event: it is one that was never set. Whether it was there."""
    key = layout_of(space).event(name)
    there = tr.get(key).value is not None
    tr.clear(key)
    return there
