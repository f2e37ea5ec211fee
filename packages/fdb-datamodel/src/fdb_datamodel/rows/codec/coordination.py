"""Queues, semaphores, events and limits, and who waits for them."""

from __future__ import annotations

from fdb_datamodel.rows.codec.values import BOOL, BYTES, INT, MAYBE_INT, STR, TUPLE, reader, typed, unpack


@reader("a bound")
def unpack_bound(value: bytes) -> int | None:
    """The number that a queue or a semaphore was made with."""
    fields = unpack(value)
    typed(fields, MAYBE_INT, INT)
    return fields[0]  # type: ignore[no-any-return]


@reader("a place")
def unpack_place(value: bytes) -> bytes:
    """The session that waits, or that holds what the row is of."""
    fields = unpack(value)
    typed(fields, BYTES)
    return fields[0]  # type: ignore[no-any-return]


@reader("an event")
def unpack_event(value: bytes) -> tuple[bool, int]:
    """(is set, times it was)."""
    fields = unpack(value)
    typed(fields, BOOL, INT, INT)
    return fields[0], fields[1]


@reader("an item")
def unpack_item(value: bytes) -> tuple[bytes, tuple[bytes, ...], int]:
    """(bytes, ids of futures inside, wall_us)."""
    fields = unpack(value)
    typed(fields, BYTES, TUPLE, INT)
    if any(type(one) is not bytes or len(one) != 16 for one in fields[1]):
        raise ValueError("it names what is no future")
    return fields[0], fields[1], fields[2]


@reader("a grant")
def unpack_grant(value: bytes) -> tuple[bytes, bytes]:
    """(session, grant) of an item that was taken."""
    fields = unpack(value)
    typed(fields, BYTES, BYTES)
    return fields[0], fields[1]


@reader("permits of limits")
def unpack_permits(value: bytes) -> tuple[tuple[str, ...], str]:
    """(names of limits it has a permit of, the one it waits for or "")."""
    fields = unpack(value)
    typed(fields, TUPLE, STR)
    held, waits = fields[:2]
    if any(type(name) is not str for name in held):
        raise ValueError("a limit has a name")
    return held, waits


@reader("a limit")
def unpack_limit(value: bytes) -> tuple[int | None, int | None, int, int, int]:
    """(at once, µs between two, held, next µs, wall_us)."""
    fields = unpack(value)
    typed(fields, MAYBE_INT, MAYBE_INT, INT, INT, INT)
    at_once, between, held, next_us, wall_us = fields[:5]
    return at_once, between, held, next_us, wall_us
