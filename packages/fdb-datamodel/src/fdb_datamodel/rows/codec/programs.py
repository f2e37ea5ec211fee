"""What programs ask for, and what one that is away waits for."""

from __future__ import annotations

from typing import Any

from fdb_datamodel.rows.codec.values import BOOL, INT, MAYBE_BYTES, MAYBE_INT, STR, TUPLE, pack, reader, typed, unpack

_AWAY_KINDS = ("sleep", "futures", "event")


def pack_away(kind: str, name: str) -> bytes:
    return pack((kind, name))


@reader("what a program waits for")
def unpack_away(value: bytes) -> tuple[str, str]:
    fields = unpack(value)
    typed(fields, STR, STR)
    kind, name = fields[:2]
    if kind not in _AWAY_KINDS:
        raise ValueError(f"{kind!r} is nothing that a program waits for")
    return kind, name


_UNTIL = ("all", "first", "failure")


def pack_wake(epoch: int, until: str) -> bytes:
    """Of both ends of what a program that is away waits for; those of other edges hold a number."""
    return pack((epoch, _UNTIL.index(until)))


@reader("an edge")
def unpack_edge(value: bytes) -> tuple[int, str | None]:
    """(epoch asked for, until when is waited: "all", "first", "failure"); None of an edge that isn't of a program which is away."""
    found = unpack(value)
    if type(found) is int:
        return found, None
    typed(found, INT, INT)
    return found[0], _UNTIL[found[1]]


_PLAIN_REQUEST: tuple[Any, ...] = ("", "", 0, None, False, (), None, 0)


@reader("a request of a program")
def unpack_request(value: bytes) -> tuple[str, str, int, bytes | None, bool, tuple[bytes, ...], int | None, int]:
    """(kind, name, wall_us, value, is_error, ids, due µs, parts)."""
    fields = unpack(value)
    typed(fields, STR, STR, INT, MAYBE_BYTES, BOOL, TUPLE, MAYBE_INT, INT)
    kind, name, wall_us, data, error, ids, due_us, parts = fields[:8] + _PLAIN_REQUEST[len(fields) :]
    if not kind or any(type(one) is not bytes for one in ids):
        raise ValueError("it isn't whole")
    return kind, name, wall_us, data, error, ids, due_us, parts
