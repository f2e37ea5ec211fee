"""Semaphores: so many permits, each held by a session that gives it back, or is gone.

    semaphores  (name, 'config')    → how many permits there are
    semaphores  (name, 'size')      → how many are free
    semaphores  (name, 'held', id)  → session: whose a permit is

Who asks stands in line (`lines`) where none is free.
"""

from __future__ import annotations

from typing import NamedTuple

from fdb_datamodel.coordination.lines import Line, change_size, leave_line, may_go, read_bound, read_size
from fdb_datamodel.errors import ClaimLostError
from fdb_datamodel.rows import codec
from fdb_datamodel.rows.changes import Changes
from fdb_datamodel.rows.elements import encode_id
from fdb_schema import ClusterSpace, Transaction


class SemaphoreStatus(NamedTuple):
    """A semaphore: how many permits it has, and how many of them are free."""

    name: str
    value: int
    free: int


def semaphore_line(name: str) -> Line:
    return Line("semaphores", name)


def make_semaphore(tr: Transaction, space: ClusterSpace, name: str, value: int) -> int:
    """The semaphore of a name, made if there is none; how many permits it has. `value`: of one that is made."""
    ch = Changes(tr, space)
    key = ch.keys.shared("semaphores", name, "config")
    if ch.get_many([key])[0] is not None:
        return read_bound(ch, semaphore_line(name)) or 0
    ch.set(key, codec.pack((value, ch.wall_us)))
    ch.set(ch.keys.shared("semaphores", name, "size"), value.to_bytes(8, "little"))
    ch.flush()
    return value


def delete_semaphore(tr: Transaction, space: ClusterSpace, name: str) -> bool:
    """Forget a semaphore, and who has its permits; whether it was there. Who waits is told."""
    ch = Changes(tr, space)
    there = ch.get_many([ch.keys.shared("semaphores", name, "config")])[0] is not None
    prefix = ch.keys.shared("semaphores", name)
    tr.clear_range(prefix, prefix + b"\xff")
    return there


def take_permit(
    tr: Transaction,
    space: ClusterSpace,
    name: str,
    permit: bytes,
    session: bytes,
    place: bytes | None = None,
    *,
    pass_by: bool = False,
) -> bool:
    """Whether `session` has a permit now, known by the 16 bytes `permit`; it leaves its place in line then.

    False also where it isn't the caller's turn, which `pass_by` doesn't ask. Raises UnknownNameError.
    """
    ch = Changes(tr, space)
    line = semaphore_line(name)
    read_bound(ch, line)
    free = read_size(ch, line)
    if free <= 0 or (not pass_by and not may_go(ch, line, place, lambda: free)):
        return False
    change_size(ch, line, -1)
    tr.set(ch.keys.shared("semaphores", name, "held") + encode_id(permit), codec.pack((session, ch.wall_us)))
    if place is not None:
        leave_line(tr, space, line, place)
    return True


def give_permit(tr: Transaction, space: ClusterSpace, name: str, permit: bytes, session: bytes) -> None:
    """Give a permit back. Raises ClaimLostError where it is no longer the session's."""
    ch = Changes(tr, space)
    key = ch.keys.shared("semaphores", name, "held") + encode_id(permit)
    row = tr.get(key).value
    if row is None or codec.unpack_place(row) != session:
        raise ClaimLostError(
            f"the permit of semaphore {name!r} is no longer this process's: the semaphore was deleted, or the process gave no sign of "
            "life for so long that the permit was taken back, and another may have it by now"
        )
    tr.clear(key)
    change_size(ch, semaphore_line(name), 1)


def semaphore_status(tr: Transaction, space: ClusterSpace, name: str) -> SemaphoreStatus:
    """By snapshot. Raises UnknownNameError."""
    ch = Changes(tr, space)
    line = semaphore_line(name)
    return SemaphoreStatus(name, read_bound(ch, line) or 0, read_size(ch, line, snapshot=True))
