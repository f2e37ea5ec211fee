"""Any value, packed and read, and what readers are made of: each takes fields of the types it names, or raises `RecordError`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import msgpack

from fdb_schema import RecordError

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True).pack

_T = TypeVar("_T")
_V = TypeVar("_V", bytes, bytes | None)
_WRONG = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, msgpack.UnpackException)


def unpack(value: bytes) -> Any:
    """Any value, with tuples for arrays. Raises `RecordError`."""
    try:
        return msgpack.unpackb(value, use_list=False, raw=False)
    except _WRONG as error:
        raise _damaged("msgpack", value, error) from error


def unpack_int(value: bytes) -> int:
    """Raises `RecordError`."""
    found = unpack(value)
    if type(found) is not int:
        raise _damaged("a number", value, f"it holds {type(found).__name__}")
    return found


def unpack_bytes(value: bytes) -> bytes:
    """Raises `RecordError`."""
    found = unpack(value)
    if type(found) is not bytes:
        raise _damaged("bytes", value, f"it holds {type(found).__name__}")
    return found


def unpack_ints(value: bytes, count: int) -> tuple[int, ...]:
    """At least `count` numbers. Raises `RecordError`."""
    found = unpack(value)
    if type(found) is not tuple or len(found) < count or any(type(one) is not int for one in found):
        raise _damaged(f"{count} numbers", value, f"it holds {found!r:.60}")
    return found


def _damaged(what: str, value: bytes | None, error: object) -> RecordError:
    return RecordError(f"{len(value or b'')} bytes aren't {what} ({error}): {(value or b'')[:40]!r}")


def reader(what: str) -> Callable[[Callable[[_V], _T]], Callable[[_V], _T]]:
    """Of a function that reads `what` from a row: it raises `RecordError` for anything else."""

    def wrap(function: Callable[[_V], _T]) -> Callable[[_V], _T]:
        @wraps(function)
        def read(value: _V) -> _T:
            try:
                return function(value)
            except RecordError:
                raise
            except _WRONG as error:
                raise _damaged(what, value, error) from error

        return read

    return wrap


def typed(fields: Any, *types: tuple[type, ...]) -> None:
    """Raises TypeError unless the first fields have these types; later ones may be absent."""
    if type(fields) is not tuple:
        raise TypeError(f"it holds {type(fields).__name__}, not fields")
    found = (types, *map(type, fields[: len(types)]))
    if found in _fitting:
        return
    for at, (field, wanted) in enumerate(zip(fields, types, strict=False)):
        if type(field) not in wanted:
            raise TypeError(f"field {at} is {field!r:.60}")
    if len(_fitting) < _MOST_FITTING:
        _fitting.add(found)


_fitting: set[tuple[Any, ...]] = set()  # what was found to fit: nearly all rows of a kind have fields of the same types
_MOST_FITTING = 4096

# what `typed` is told of a field
BYTES, STR, INT, BOOL, TUPLE = (bytes,), (str,), (int,), (bool,), (tuple,)
NONE = type(None)
MAYBE_BYTES, MAYBE_INT, MAYBE_TUPLE = (bytes, NONE), (int, NONE), (tuple, NONE)
NUMBER = (int, float, NONE)

_MOST_SECONDS = 1e12  # in µs of the cluster clock a number of eight bytes


def bounded(name: str, number: int | float) -> None:
    """Raises ValueError for seconds that no timer can count: what is no number, or without end."""
    if not -_MOST_SECONDS < number < _MOST_SECONDS:
        raise ValueError(f"{name} is {number!r:.60}")


def nth(fields: tuple[Any, ...], index: int, default: Any) -> Any:
    return fields[index] if index < len(fields) else default


def same_token(one: bytes, other: bytes) -> bool:
    """Whether two stored records (of fewer than 16 fields, token first) carry the same token."""
    return one[1:13] == other[1:13]
