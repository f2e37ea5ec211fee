"""Queues: items in the order they were put, each got by one transaction.

    queues  (name, 'config')                 → how many items it takes
    queues  (name, 'size')                   → how many there are
    queues  (name, 'item', versionstamp)     → an item
    queues  (name, 'taken', versionstamp)    → an item that comes back unless its taker says that it is done
    queues  (name, 'held', versionstamp)     → who that is
    references (id, 'queue', name, versionstamp)  → the future is inside of that item

Who puts into a queue without a bound writes, and reads nothing that others write. Who gets reads by snapshot and conflicts over the
very items, with others who get; where that happens, they stand in line (`lines`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from fdb_datamodel.coordination.grants import LOOKED_AT, held_rows, restore_item
from fdb_datamodel.coordination.lines import (
    GETTERS,
    PUTTERS,
    Line,
    change_size,
    leave_line,
    may_go,
    read_bound,
    read_size,
)
from fdb_datamodel.coordination.stamps import stamped_rows
from fdb_datamodel.errors import ClaimLostError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_datamodel.rows.space import stamped
from fdb_datamodel.transitions.sessions import hold_futures
from fdb_schema import ClusterSpace, OversizeError, RecordError, Transaction, add_read_conflict_keys

ITEM_BYTES: Final = 60_000
"""In one item."""
PUT_BYTES: Final = 400_000
"""In items of one transaction, which stays under 1 MB."""
MOST_AT_ONCE: Final = 1000
"""Items of one transaction."""


class Item(NamedTuple):
    """What is in a queue: opaque bytes, the futures inside, and, of one that was put, the versionstamp that names it (12 bytes)."""

    data: bytes
    ids: tuple[bytes, ...] = ()
    stamp: bytes = b""


class QueueStatus(NamedTuple):
    """A queue: how many items it takes (None: any number), how many there are, and how many are taken and not done (up to 1,000)."""

    name: str
    maxsize: int | None
    size: int
    taken: int


def queue_line(name: str, kind: str = GETTERS) -> Line:
    return Line("queues", name, kind)


def make_queue(tr: Transaction, space: ClusterSpace, name: str, maxsize: int | None) -> int | None:
    """The queue of a name, made if there is none; how many items it takes. `maxsize`: of one that is made."""
    ch = Changes(tr, space)
    key = ch.keys.shared("queues", name, "config")
    row = ch.get_many([key])[0]
    if row is not None:
        return read_bound(ch, queue_line(name))
    ch.set(key, codec.pack((maxsize, ch.wall_us)))
    ch.set(ch.keys.shared("queues", name, "size"), bytes(8))
    ch.flush()
    return maxsize


def delete_queue(tr: Transaction, space: ClusterSpace, name: str) -> bool:
    """Forget a queue and what is in it; whether it was there. Who waits is told. Futures inside are let go by collecting."""
    ch = Changes(tr, space)
    there = ch.get_many([ch.keys.shared("queues", name, "config")])[0] is not None
    prefix = ch.keys.shared("queues", name)
    tr.clear_range(prefix, prefix + b"\xff")
    return there


def put_items(
    tr: Transaction,
    space: ClusterSpace,
    name: str,
    items: Sequence[Item],
    place: bytes | None = None,
    *,
    pass_by: bool = False,
) -> int:
    """Put the first of `items`, as many as there is room for, one transaction's worth at most; how many. Not to be run again blindly.

    `place`: where the caller stands in the line of those who wait for room; it leaves that where any are put. 0 also where it isn't
    its turn, which `pass_by` doesn't ask. Raises UnknownNameError, OversizeError.
    """
    ch = Changes(tr, space)
    line = queue_line(name, PUTTERS)
    bound = read_bound(ch, line)
    room = MOST_AT_ONCE
    if bound is not None:
        free = bound - read_size(ch, line)
        if not pass_by and not may_go(ch, line, place, lambda: free):
            return 0
        room = min(room, free)
    count = size = 0
    for item in items[: max(0, room)]:
        check_item(name, len(item.data))
        size += len(item.data) + 200
        if count and size > PUT_BYTES:
            break
        tr.set_versionstamped_key(
            stamped(ch.keys.shared("queues", name, "item"), count), codec.pack((item.data, item.ids, ch.wall_us))
        )
        for one in item.ids:
            tr.set_versionstamped_key(stamped(ch.keys.held_by_queue(encode_id(one), name), count), b"")
        count += 1
    if count:
        change_size(ch, line, count)
        if place is not None:
            leave_line(tr, space, line, place)
    return count


def check_item(name: str, size: int) -> None:
    """Raises OversizeError."""
    if size > ITEM_BYTES:
        raise OversizeError(
            f"an item of {size:,} bytes is to be put into queue {name!r}, which takes {ITEM_BYTES:,} bytes each: put the object "
            "with client.put(obj), and its future into the queue"
        )


def get_items(
    tr: Transaction,
    space: ClusterSpace,
    name: str,
    count: int,
    session: bytes,
    place: bytes | None = None,
    *,
    grant: bytes | None = None,
    pass_by: bool = False,
) -> list[Item]:
    """Get the first items, up to `count` and one transaction's worth; the futures inside are held by `session` from now on.

    `grant`: they are only taken, under these 16 bytes, and come back when the session is gone before `end_taken`. `place`,
    `pass_by`: as of `put_items`. Not to be run again blindly. Raises UnknownNameError.
    """
    ch = Changes(tr, space)
    line = queue_line(name)
    read_bound(ch, line)
    if not pass_by and not may_go(ch, line, place, lambda: read_size(ch, line, snapshot=True)):
        return []
    prefix = ch.keys.shared("queues", name, "item")
    found: list[Item] = []
    size = 0
    for key, value in stamped_rows(ch, "queues", prefix, min(count, MOST_AT_ONCE)):
        data, ids, _ = _read(name, value)
        size += len(data) + 200
        if found and size > PUT_BYTES:
            break
        item = Item(data, ids, key[len(prefix) + 1 :])
        found.append(item)
        add_read_conflict_keys(tr, [key])  # nobody else gets it; who puts meanwhile is in nobody's way
        tr.clear(key)
        if grant is None:
            _let_go(ch, name, item, session)
        else:
            tr.set(ch.keys.shared("queues", name, "taken") + b"\x33" + item.stamp, value)
            held = codec.pack((session, grant, ch.wall_us))
            tr.set(ch.keys.shared("queues", name, "held") + b"\x33" + item.stamp, held)
    if found:
        change_size(ch, line, -len(found))
        if place is not None:
            leave_line(tr, space, line, place)
    return found


def put_back(tr: Transaction, space: ClusterSpace, name: str, items: Sequence[Item]) -> None:
    """Items that were got for somebody who is gone are again where they were. Into a queue that was deleted nothing goes."""
    ch = Changes(tr, space)
    if ch.get_many([ch.keys.shared("queues", name, "config")])[0] is None:
        return
    for item in items:
        tr.set(
            ch.keys.shared("queues", name, "item") + b"\x33" + item.stamp, codec.pack((item.data, item.ids, ch.wall_us))
        )
        for one in item.ids:
            tr.set(ch.keys.held_by_queue(encode_id(one), name) + b"\x33" + item.stamp, b"")
    change_size(ch, queue_line(name), len(items))


def end_taken(
    tr: Transaction, space: ClusterSpace, name: str, item: Item, session: bytes, grant: bytes, *, done: bool
) -> None:
    """An item that was taken is `done` with, or back in its place. Raises ClaimLostError where it is no longer the caller's."""
    ch = Changes(tr, space)
    key = ch.keys.shared("queues", name, "held") + b"\x33" + item.stamp
    row = tr.get(key).value
    if row is None or codec.unpack_grant(row) != (session, grant):
        raise ClaimLostError(
            f"the item that was taken of queue {name!r} is no longer this process's: the queue was deleted, or the process gave no "
            "sign of life for so long that the item went back, and another may have it by now"
        )
    ch.clear(key)
    if done:
        ch.clear(ch.keys.shared("queues", name, "taken") + b"\x33" + item.stamp)
        _let_go(ch, name, item, session)
    elif restore_item(ch, name, b"\x33" + item.stamp):
        change_size(ch, queue_line(name), 1)
    ch.flush()


def give_up(tr: Transaction, space: ClusterSpace, name: str, session: bytes, grant: bytes) -> None:
    """What was taken under a grant, if anything was, is in its place again."""
    ch = Changes(tr, space)
    prefix = ch.keys.shared("queues", name, "held")
    for key, value in stamped_rows(ch, "queues", prefix, LOOKED_AT):
        with contextlib.suppress(RecordError):
            if codec.unpack_grant(value) == (session, grant):
                ch.tr.add_read_conflict_key(key)
                ch.clear(key)
                change_size(ch, queue_line(name), int(restore_item(ch, name, key[len(prefix) :])))
    ch.flush()


def queue_status(tr: Transaction, space: ClusterSpace, name: str) -> QueueStatus:
    """By snapshot. Raises UnknownNameError."""
    ch = Changes(tr, space)
    bound = read_bound(ch, queue_line(name))
    size = read_size(ch, queue_line(name), snapshot=True)
    return QueueStatus(name, bound, size, len(held_rows(ch, "queues", name)))


def _read(name: str, value: bytes) -> tuple[bytes, tuple[bytes, ...], int]:
    try:
        return codec.unpack_item(value)
    except RecordError as error:
        raise RecordError(
            f"the first item of queue {name!r} can't be read, so none can be got: {error}; delete its row, which `validate` names, or "
            "the queue"
        ) from error


def _let_go(ch: Changes, name: str, item: Item, session: bytes) -> None:
    """The futures inside of an item are held by who got it, and no longer by the queue."""
    hold_futures(ch.tr, ch.keys.space, item.ids, session=session)
    for one in item.ids:
        ch.tr.clear(ch.keys.held_by_queue(encode_id(one), name) + b"\x33" + item.stamp)
