"""What sessions hold of a queue or a semaphore, and what comes back when they are gone.

queues      (name, 'held', versionstamp)   → session and grant
queues      (name, 'taken', versionstamp)  → the item that is held so, which goes back to its old place
semaphores  (name, 'held', id)             → session: a permit, which is free then
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_schema import RecordError, read_range

SUBSPACES: Final = ("queues", "semaphores")
LOOKED_AT: Final = 1000
"""Things held that are looked at together."""


def held_rows(ch: Changes, subspace: str, name: str) -> list[tuple[bytes, bytes]]:
    """(key, session) of what is held, by snapshot. A row that can't be read is nobody's."""
    prefix = ch.keys.shared(subspace, name, "held")
    found: list[tuple[bytes, bytes]] = []
    for key, value in read_range(ch.tr, prefix, prefix + b"\xff", limit=LOOKED_AT, snapshot=True):
        try:
            found.append((key, codec.unpack_place(value)))
        except RecordError:
            continue
    return found


def holders(ch: Changes, subspace: str, name: str) -> list[bytes]:
    """The sessions that hold something, each once, by snapshot."""
    return list(dict.fromkeys(session for _, session in held_rows(ch, subspace, name)))


def bring_back(ch: Changes, subspace: str, name: str, gone: Set[bytes]) -> int:
    """What sessions that are gone hold is there again; how much. Their rows were read serializably: whoever ends one conflicts."""
    back = 0
    prefix = ch.keys.shared(subspace, name, "held")
    for key, session in held_rows(ch, subspace, name):
        if session not in gone:
            continue
        ch.tr.add_read_conflict_key(key)
        ch.clear(key)
        if subspace == "queues" and not restore_item(ch, name, key[len(prefix) :]):
            continue
        back += 1
    return back


def restore_item(ch: Changes, name: str, stamp: bytes) -> bool:
    """An item that was taken is in its place again. `stamp`: as its key ends."""
    key = ch.keys.shared("queues", name, "taken") + stamp
    item = ch.get_many([key])[0]
    if item is None:
        return False
    ch.clear(key)
    ch.set(ch.keys.shared("queues", name, "item") + stamp, item)
    return True
