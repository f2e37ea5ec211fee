"""What a future needs and where it is to run, what a worker has."""

from __future__ import annotations

from typing import Any

from fdb_datamodel.rows.codec.values import (
    BOOL,
    BYTES,
    INT,
    MAYBE_BYTES,
    MAYBE_TUPLE,
    NUMBER,
    STR,
    bounded,
    nth,
    pack,
    reader,
    typed,
    unpack,
)
from fdb_datamodel.rows.records import Locality, WorkerId
from fdb_datamodel.rows.requirements import Named, Requirements, Shape, shape_of

_MOST_AMOUNT = 1 << 60  # of a resource: what `Requirements` takes


def _named(found: Any) -> Named:
    """What of a shape is named, as it was stored."""
    if type(found) is not tuple:
        raise TypeError(f"its resources are {found!r:.60}")
    for one in found:
        typed(one, STR, INT)
        if len(one) != 2 or not 0 <= one[1] < _MOST_AMOUNT:
            raise ValueError(f"it needs {one!r:.60}")
    return found


def total_from(found: tuple[Any, ...]) -> Requirements:
    """What a worker has, or has free."""
    typed(found, INT, INT, INT)
    return Requirements.from_shape(shape_of(found[0], found[1], found[2], _named(nth(found, 3, ()))))


def pack_requirements(shape: Shape, priority: int, locality: Locality | None) -> bytes | None:
    """None where all are the default."""
    if len(shape) == 4:
        w = None if locality is None else locality.worker
        at = locality and w and (w.ip, w.port, w.incarnation, locality.reason, locality.pinned, locality.wait)
        return pack((*shape[:3], priority, at, shape[3]))
    if locality is not None:
        w = locality.worker
        where = (w.ip, w.port, w.incarnation, locality.reason, locality.pinned, locality.wait)
        return pack((*shape, priority, where))
    if priority:
        return pack((*shape, priority))
    return pack(shape) if any(shape) else None


@reader("requirements")
def unpack_requirements(value: bytes | None) -> tuple[Shape, int, Locality | None]:
    if value is None:
        return (0, 0, 0), 0, None
    f = unpack(value)
    typed(f, INT, INT, INT, INT, MAYBE_TUPLE)
    if not all(0 <= one < _MOST_AMOUNT for one in f[:3]):
        raise ValueError(f"it needs {f[:3]!r:.60}")
    where = nth(f, 4, None)
    if where is not None:
        typed(where, STR, INT, BYTES, MAYBE_BYTES, BOOL, NUMBER)
        if not where[4]:  # who is pinned waits for no timer
            bounded("a wait", where[5])
    locality = where and Locality(WorkerId(where[0], where[1], where[2]), where[3], where[4], where[5])
    return shape_of(f[0], f[1], f[2], _named(nth(f, 5, ()))), nth(f, 3, 0), locality


@reader("a shape")
def unpack_shape(value: bytes) -> Shape:
    f = unpack(value)
    typed(f, INT, INT, INT)
    if len(f) < 3:
        raise ValueError("it isn't whole")
    return shape_of(f[0], f[1], f[2], _named(nth(f, 3, ())))


def pack_assignment(locality: Locality, shape: Shape) -> bytes:
    return pack(
        (locality.worker.incarnation, locality.reason, locality.pinned, *shape)
    )  # what is named, if it is, last


@reader("an assignment")
def unpack_assignment(value: bytes) -> tuple[bytes, bytes | None, bool, Shape]:
    """(incarnation, reason, pinned, shape)."""
    f = unpack(value)
    typed(f, BYTES, MAYBE_BYTES, BOOL, INT, INT, INT)
    return f[0], f[1], f[2], shape_of(f[3], f[4], f[5], _named(nth(f, 6, ())))
